"""Chooses the GPUs of new leases: large gangs first, because empty nodes are scarce, on as few nodes as possible.

One-GPU jobs then fill partly used nodes, which leaves other nodes empty.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Bools, Ints


def place(pool: GpuPool, free: Bools, domains: Ints, gpus: Ints) -> tuple[Ints, Ints]:
    """GPU rows for each job, as offsets (K + 1,) into a flat array; job k gets flat[offsets[k]:offsets[k + 1]].

    `gpus` (K,) is the size of each job, all in its domain (K,); `free` (G,) marks the GPUs that may be used. The
    caller ensures that they suffice.
    """
    offsets = np.concatenate([[0], np.cumsum(gpus)])
    candidates = (free & (pool.domain_of == domains[0]) if len(domains) == 1 else free).nonzero()[0]
    if not pool.in_order:
        candidates = candidates[np.argsort(pool.node_of[candidates], kind="stable")]
    if len(domains) == 1:  # the usual case within a round
        assert gpus[0] <= len(candidates), TOO_MANY
        return offsets, candidates[_first_taken(pool.node_of[candidates], int(gpus[0]))]
    flat = np.full(int(offsets[-1]), -1, dtype=np.int64)
    jobs = np.argsort(domains, kind="stable")
    if (gpus > 1).any():
        has_gang = np.isin(domains[jobs], domains[gpus > 1])
        mixed, jobs = jobs[has_gang], jobs[~has_gang]
    else:
        mixed = jobs[:0]
    if len(jobs):
        flat[offsets[jobs]] = _tightest_first(pool, candidates, domains[jobs])
    for here, gpus_here in _by_domain(pool, candidates, domains, mixed):
        sizes = gpus[here]
        assert sizes.sum() <= len(gpus_here), TOO_MANY
        gangs, singles = here[sizes > 1], here[sizes == 1]
        nodes = _NodesByRoom(pool.node_of[gpus_here])
        for position in gangs[np.lexsort((gangs, -gpus[gangs]))].tolist():
            begin, end = offsets[position], offsets[position + 1]
            flat[begin:end] = gpus_here[nodes.take(int(end - begin))]
        flat[offsets[singles]] = gpus_here[nodes.tightest_first()[: len(singles)]]
    return offsets, flat


TOO_MANY = "selection gave out more GPUs than are free"


def _tightest_first(pool: GpuPool, gpus: Ints, domains: Ints) -> Ints:
    """A different one of `gpus` for each of `domains`, ascending, (K,): on nodes with the fewest free GPUs first."""
    nodes = pool.node_of[gpus]
    gpus = gpus[np.lexsort((np.bincount(nodes)[nodes], pool.domain_of[gpus]))]
    turn = np.arange(len(domains)) - np.searchsorted(domains, domains)
    at = np.searchsorted(pool.domain_of[gpus], domains) + turn
    assert at[-1] < len(gpus), TOO_MANY
    assert (pool.domain_of[gpus[at]] == domains).all(), TOO_MANY
    return gpus[at]


def _by_domain(pool: GpuPool, gpus: Ints, domains: Ints, jobs: Ints) -> Iterator[tuple[Ints, Ints]]:
    """For each of the `domains` of `jobs`, which are in order of domain: its jobs, and its GPUs among `gpus`."""
    if not len(jobs):
        return
    gpus = gpus[np.argsort(pool.domain_of[gpus], kind="stable")]
    starts = np.flatnonzero(np.diff(domains[jobs], prepend=-1))
    begins, ends = (np.searchsorted(pool.domain_of[gpus], domains[jobs[starts]], side) for side in ("left", "right"))
    for here, begin, end in zip(np.split(jobs, starts[1:]), begins.tolist(), ends.tolist(), strict=True):
        yield here, gpus[begin:end]


def nodes_to_avoid(jobs: JobTable, row: int) -> list[int]:
    """Rows of the nodes that lost a job since its last progress, the most recent one last."""
    last = int(jobs.avoid[row])
    seen = [node for node in jobs.loss_nodes.get(row, ()) if node != last]
    return [*seen, last] if last >= 0 else seen


def steer(
    pool: GpuPool, free: Bools, domains: Ints, offsets: Ints, flat: Ints, avoid: Mapping[int, Sequence[int]]
) -> None:
    """Moves each one-GPU job off the nodes that it should avoid, if another node has a free GPU.

    `avoid` has rows of nodes by position, the most recent one last: if all nodes with a free GPU are among them, only
    the most recent one is avoided. `domains`, `offsets` and `flat` are those of `place`; `flat` is changed.
    """
    left = free.copy()
    left[flat] = False
    single = np.diff(offsets) == 1
    for position in [position for position in avoid if single[position]]:
        gpu, nodes = int(flat[offsets[position]]), avoid[position]
        alike = np.flatnonzero(left & (pool.domain_of == domains[position]))
        better = alike[~np.isin(pool.node_of[alike], nodes)]
        if not len(better) and pool.node_of[gpu] == nodes[-1]:
            better = alike[pool.node_of[alike] != nodes[-1]]
        if len(better) and pool.node_of[gpu] in nodes:
            flat[offsets[position]] = better[0]
            left[gpu], left[better[0]] = True, False


def _first_taken(node_of: Ints, size: int) -> Ints:
    """Positions of the GPUs that `_NodesByRoom.take` gives to its first job, found without heaps."""
    free, taken, missing = np.bincount(node_of), [], size
    while missing > 0:
        enough = np.where(free >= missing, free, len(node_of) + 1)
        node = int(enough.argmin())
        if free[node] < missing:
            node = int(free.argmax())
        count, first = min(int(free[node]), missing), int(node_of.searchsorted(node))
        taken.append(np.arange(first, first + count))
        missing, free[node] = missing - count, 0
    return taken[0] if len(taken) == 1 else np.concatenate(taken)


class _NodesByRoom:
    """Free GPUs of one domain by node. The positions of a node's GPUs are consecutive, and taken in ascending order.

    There is one heap of nodes for each number of free GPUs, so the best fit is found without a search over nodes.
    """

    def __init__(self, node_of: Ints) -> None:
        starts = np.concatenate([[0], np.flatnonzero(np.diff(node_of)) + 1, [len(node_of)]]) if len(node_of) else [0]
        self._starts = np.asarray(starts, dtype=np.int64)
        self._counts = np.diff(self._starts)
        self._free: list[int] = self._counts.tolist()

    @cached_property
    def _heaps(self) -> list[list[int]]:
        heaps: list[list[int]] = [[] for _ in range(max(self._free, default=0) + 1)]
        for node, count in enumerate(self._free):
            heaps[count].append(node)
        return heaps

    def take(self, size: int) -> Ints:
        """Positions of `size` free GPUs on the fewest nodes; the last node is the best fit for the rest."""
        taken: list[Ints] = []
        missing = size
        while missing > 0:
            enough = next((heap for heap in self._heaps[missing:] if heap), None)
            heap = enough if enough is not None else next(heap for heap in reversed(self._heaps) if heap)
            taken.append(self._take_from(heapq.heappop(heap), missing))
            missing -= len(taken[-1])
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def tightest_first(self) -> Ints:
        """Positions of the remaining free GPUs, on nodes with the fewest free GPUs first."""
        free = np.array(self._free, dtype=np.int64)
        used = self._counts - free
        position = np.arange(self._starts[-1])
        node = np.repeat(np.arange(len(free)), self._counts)
        left = position[position - self._starts[node] >= used[node]]
        return left[np.lexsort((left, free[node[left]]))]

    def _take_from(self, node: int, wanted: int) -> Ints:
        free = self._free[node]
        count = min(free, wanted)
        first = int(self._starts[node + 1]) - free
        self._free[node] = free - count
        heapq.heappush(self._heaps[free - count], node)
        return np.arange(first, first + count)

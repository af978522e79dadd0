"""Places selected jobs on GPUs: large gangs first, on as few nodes as possible, best fit.

Jobs with extended leases keep their GPUs (see leases); only new leases are placed. Large gangs come first because empty
nodes are scarce; one-GPU jobs then fill partly used nodes, which leaves other nodes empty.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.model.arrays import Bools, Ints


def place(pool: GpuPool, free: Bools, domains: Ints, gpus: Ints) -> tuple[Ints, Ints]:
    """GPU rows for each job, as offsets (K + 1,) into a flat array; job k gets flat[offsets[k]:offsets[k + 1]].

    `gpus` (K,) is the size of each job, all in its domain (K,); `free` (G,) marks the GPUs that may be used. The
    caller ensures that they suffice.
    """
    offsets = np.concatenate([[0], np.cumsum(gpus)])
    flat = np.full(int(offsets[-1]), -1, dtype=np.int64)
    jobs_of, gpus_of = _grouped(domains, np.arange(len(domains))), _grouped(pool.domain_of[free], np.flatnonzero(free))
    for domain, here in jobs_of.items():
        candidates = gpus_of.get(domain, here[:0])
        if not pool.in_order:
            candidates = candidates[np.argsort(pool.node_of[candidates], kind="stable")]
        assert gpus[here].sum() <= len(candidates), "selection gave out more GPUs than are free"
        gangs = here[gpus[here] > 1]
        nodes = _NodesByRoom(pool.node_of[candidates])
        for position in gangs[np.lexsort((gangs, -gpus[gangs]))].tolist():
            begin, end = offsets[position], offsets[position + 1]
            flat[begin:end] = candidates[nodes.take(int(end - begin))]
        singles = here[gpus[here] == 1]
        flat[offsets[singles]] = candidates[nodes.tightest_first()[: len(singles)]]
    return offsets, flat


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


def _grouped(groups: Ints, values: Ints) -> dict[int, Ints]:
    """The values of each group, in their order; groups ascending."""
    order = np.argsort(groups, kind="stable")
    found, first = np.unique(groups[order], return_index=True)
    return dict(zip(found.tolist(), np.split(values[order], first[1:]), strict=True)) if len(found) else {}


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

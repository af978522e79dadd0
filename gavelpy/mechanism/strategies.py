"""Strategies that choose the nodes of new leases, and nodes of one rack or zone for jobs that need several.

A job gets the GPUs of one node if a node has enough; else those of one rack, of one zone, or of any nodes, on as few
nodes as possible. Among several nodes that have enough, the strategy chooses:

- `best_fit`: the one with the fewest free GPUs, then the first.
- `first_fit`: the first.
- `random`: by a hash of the lease and the node, so that a replay chooses the same.
- `fgd`: where the expected fragmentation rises least. A node with f free GPUs has the fragmentation
  F(f) = f P(m > f), where m is the size of a job of the workload, at most that of the largest node. A job of s GPUs
  goes where F(f - s) - F(f) is least, then to the fewest free GPUs.
  Source: Weng et al., "Beware of Fragmentation" (ATC '23), for whole GPUs; jobs without GPUs do not count.

Jobs are placed one after the other, the largest first. A gang that would be further apart than it may be is placed
after the other gangs, where it does not take what they need.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.topology import PlaceLevel, groups
from gavelpy.model.arrays import Bools, Floats, Ints

_TOO_MANY = "selection gave out more GPUs than are free"
STRATEGIES = ("best_fit", "first_fit", "random", "fgd")
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class PlacementRule:
    """How new leases are placed."""

    strategy: str = STRATEGIES[0]
    sizes: Ints | None = None  # with `fgd`: GPUs of the jobs of the workload
    seed: int = 0  # with `random`: of the first lease


def place_by(
    pool: GpuPool, free: Bools, domains: Ints, gpus: Ints, rule: PlacementRule, worst: Ints | None = None
) -> tuple[Ints, Ints]:
    """As `placement.place`, by a strategy. `worst` (K,): the level that each job should not exceed."""
    offsets = np.concatenate([[0], np.cumsum(gpus)])
    flat = np.full(int(offsets[-1]), -1, dtype=np.int64)
    candidates = free.nonzero()[0]
    candidates = candidates[np.argsort(pool.node_of[candidates], kind="stable")]
    for domain in np.unique(domains).tolist():
        here = np.flatnonzero(domains == domain)
        nodes = _Nodes(pool, candidates[pool.domain_of[candidates] == domain], domain, rule)
        is_each = rule.strategy == "fgd"  # else jobs on one GPU are placed at once
        gangs = here if is_each else here[gpus[here] > 1]
        apart = []
        for k in gangs[np.lexsort((gangs, -gpus[gangs]))].tolist():
            found = nodes.take(
                int(gpus[k]), rule.seed + k, PlaceLevel.ANYWHERE if worst is None else PlaceLevel(worst[k])
            )
            if found is None:
                apart.append(k)
            else:
                flat[offsets[k] : offsets[k + 1]] = found
        for k in apart:
            found = nodes.take(int(gpus[k]), rule.seed + k, PlaceLevel.ANYWHERE)
            assert found is not None, _TOO_MANY
            flat[offsets[k] : offsets[k + 1]] = found
        if not is_each:
            singles = here[gpus[here] == 1]
            flat[offsets[singles]] = nodes.singles(len(singles))
    return offsets, flat


def fragments(sizes: Ints, most: int) -> Floats:
    """F(f) of nodes with f = 0..most free GPUs, where jobs have these sizes, (most + 1,); see the theory above."""
    counts = np.bincount(np.minimum(sizes, most), minlength=most + 1)
    larger = counts.sum() - np.cumsum(counts)
    return np.asarray(np.arange(most + 1) * larger / max(len(sizes), 1))


class _Nodes:
    """Free GPUs of one domain by node, in the order of nodes; a node's GPUs are taken in ascending order."""

    def __init__(self, pool: GpuPool, gpus: Ints, domain: int, rule: PlacementRule) -> None:
        rows, first, counts = np.unique(pool.node_of[gpus], return_index=True, return_counts=True)
        self._gpus, self._next, self._rows, self._rule = gpus, first, rows, rule
        self._free: Ints = counts.copy()
        self._groups = [(level, group[rows]) for level, group in groups(pool).items() if level is not PlaceLevel.NODE]
        most = int(counts.max(initial=0))
        self._nodes_with: list[list[int]] = [[] for _ in range(most + 1)]  # heaps; entries may be out of date
        for node, count in enumerate(counts.tolist()):
            self._nodes_with[count].append(node)
        if rule.strategy == "fgd":
            own = pool.usable & (pool.domain_of == domain)
            largest = max(int(np.bincount(pool.node_of[own]).max(initial=0)), most)
            sizes = rule.sizes if rule.sizes is not None else np.ones(1, dtype=np.int64)
            self._fragments: list[float] = fragments(sizes, largest).tolist()

    def take(self, size: int, seed: int, worst: PlaceLevel) -> Ints | None:
        """GPUs of a job; None if they would be further apart than `worst`."""
        node = self._node_for(size, seed)
        if node >= 0:
            return self._take_from(node, size)
        for level, group in self._groups:
            if level > worst:
                return None
            room = np.bincount(group, weights=self._free).astype(np.int64)
            if (room >= size).any():
                chosen = int(np.where(room >= size, room, room.max() + 1).argmin())
                return np.concatenate([self._take_from(*part) for part in self._fewest(group == chosen, size)])
        return None

    def singles(self, count: int) -> Ints:
        """GPUs for that many jobs on one GPU each, the last that are placed."""
        nodes = np.repeat(np.arange(len(self._rows)), self._free)
        at = np.arange(len(nodes)) - np.repeat(np.cumsum(self._free) - self._free, self._free)
        left = self._gpus[self._next[nodes] + at]
        assert count <= len(left), _TOO_MANY
        if self._rule.strategy == "best_fit":
            order = np.lexsort((left, self._free[nodes]))
        elif self._rule.strategy == "random":
            order = np.argsort(_hashed(self._rule.seed, left), kind="stable")
        else:
            order = np.arange(len(left))
        return np.asarray(left[order[:count]])

    def _node_for(self, size: int, seed: int) -> int:
        """The node for a job that fits on one; -1 = none has enough."""
        if self._rule.strategy == "random":
            enough = np.flatnonzero(self._free >= size)
            return int(enough[_hashed(seed, self._rows[enough]).argmin()]) if len(enough) else -1
        counts = [count for count in range(size, len(self._nodes_with)) if self._top(count) >= 0]
        if not counts:
            return -1
        if self._rule.strategy == "first_fit":
            return min(map(self._top, counts))
        if self._rule.strategy == "fgd":
            rise = self._fragments
            return self._top(min(counts, key=lambda count: (round(rise[count - size] - rise[count], 9), count)))
        return self._top(counts[0])

    def _top(self, count: int) -> int:
        """The first node with that many free GPUs; -1 = none."""
        heap = self._nodes_with[count]
        while heap and self._free[heap[0]] != count:
            heapq.heappop(heap)
        return heap[0] if heap else -1

    def _fewest(self, among: Bools, size: int) -> Iterable[tuple[int, int]]:
        """Nodes of a group that has enough free GPUs, and how many of each: the fewest, the last the best fit."""
        free = np.where(among, self._free, 0)
        while size:
            is_enough = free >= size
            node = int(np.where(is_enough, free, free.max() + 1).argmin()) if is_enough.any() else int(free.argmax())
            count = min(int(free[node]), size)
            yield node, count
            size, free[node] = size - count, 0

    def _take_from(self, node: int, count: int) -> Ints:
        first = int(self._next[node])
        self._next[node] += count
        self._free[node] -= count
        heapq.heappush(self._nodes_with[self._free[node]], node)
        return np.asarray(self._gpus[first : first + count])


def _hashed(seed: int, rows: Ints) -> Ints:
    """A number for each row that depends on the seed, well mixed (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = (rows.astype(np.uint64) + np.uint64(1)) * _MIX + np.uint64(seed) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(1)).astype(np.int64)

"""Counts the usable GPUs without a lease by node and type, as leases come and go, and places a single job on them."""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Bools, Ints

FEW = 16  # GPUs that change at once, for which counts are updated; else they are computed again
NOWHERE = 2**62  # more GPUs than any node has


class FreeGpus:
    """The free GPUs of a pool whose columns have not changed since, except for the jobs with leases."""

    def __init__(
        self, usable: Bools, has_no_lease: Bools, node_of: Ints, type_of: Ints, nodes: int, types: int
    ) -> None:
        """Columns (G,) of the pool, and how many nodes and GPU types it has."""
        self.is_free: Bools = usable & has_no_lease
        self._usable, self._node_of, self._type_of, self._nodes = usable, node_of, type_of, nodes
        self.by_type: list[int] = np.bincount(type_of[self.is_free], minlength=types).tolist()
        self._by_node: Ints | None = None  # on demand, as the next two
        self._nodes_of: list[Ints] = []  # of each type, ascending
        self._first: Ints = node_of[:0]  # GPU of each node, if the GPUs of nodes have consecutive numbers

    def follows(self, gpus: Ints, *, is_free: bool) -> bool:
        """Counts these GPUs as without a lease from now on, or with one; false if they are too many."""
        if len(gpus) > FEW:
            return False
        for gpu in gpus.tolist():
            if self.is_free[gpu] != is_free and self._usable[gpu]:
                more = 1 if is_free else -1
                self.is_free[gpu] = is_free
                self.by_type[self._type_of[gpu]] += more
                if self._by_node is not None:
                    self._by_node[self._node_of[gpu]] += more
        return True

    def best_fit(self, gpu_type: int, size: int) -> Ints:
        """GPUs of a type for one job, as `placement.place` chooses them, where nodes have consecutive GPUs; (size,)."""
        by_node = self._counted()
        nodes, found, missing = self._nodes_of[gpu_type], list[int](), size
        free = by_node[nodes]
        while missing:
            place = int(np.where(free >= missing, free, NOWHERE).argmin())
            if free[place] < missing:
                place = int(free.argmax())
            count = min(free.item(place), missing)
            assert count, "selection gave out more GPUs than are free"
            first, end = self._first[nodes[place]], self._first[nodes[place] + 1]
            found += (self.is_free[first:end].nonzero()[0][:count] + first).tolist()
            missing, free[place] = missing - count, 0
        return np.array(found)

    def _counted(self) -> Ints:
        """Free GPUs of each node."""
        if self._by_node is None:
            self._first = np.searchsorted(self._node_of, np.arange(self._nodes + 1))
            type_of_node = self._type_of[self._first[:-1]]
            self._nodes_of = [np.flatnonzero(type_of_node == kind) for kind in range(len(self.by_type))]
            self._by_node = np.bincount(self._node_of[self.is_free], minlength=self._nodes)
        return self._by_node

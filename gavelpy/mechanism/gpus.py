"""The core's table of GPUs: a row a GPU, grouped by server."""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.ids import NodeId

NOBODY = -1


class GpuPool:
    """Servers that joined, in that order; a GPU's number never changes."""

    def __init__(self) -> None:
        self.node_ids: list[NodeId] = []
        self.node_row: dict[NodeId, int] = {}
        self.node_state: list[NodeState] = []
        self.gpu_types: tuple[str, ...] = ()
        self.price_usd_per_gpu_h: list[float] = []
        self.type_of: Ints = np.zeros(0, dtype=np.int64)  # (G,)
        self.node_of: Ints = np.zeros(0, dtype=np.int64)  # (G,)
        self.usable: Bools = np.zeros(0, dtype=np.bool_)  # (G,) may be leased: its node is up
        self.job: Ints = np.zeros(0, dtype=np.int64)  # (G,) whose lease is promised or running here
        self._counts: Ints | None = None

    def join(self, node_id: NodeId, gpu_type: str, gpu_count: int) -> bool:
        """A server joins, or is up again; returns whether its GPU type is new."""
        known = self.node_row.get(node_id)
        if known is not None:
            self.set_state(node_id, NodeState.UP)
            return False
        new_type = gpu_type not in self.gpu_types
        if new_type:
            self.gpu_types = (*self.gpu_types, gpu_type)
            self.price_usd_per_gpu_h.append(0.0)
        row = self.node_row[node_id] = len(self.node_ids)
        self.node_ids.append(node_id)
        self.node_state.append(NodeState.UP)
        first = len(self.job)
        self._resize(first + gpu_count)
        self._counts = None
        self.type_of[first:] = self.gpu_types.index(gpu_type)
        self.node_of[first:] = row
        self.usable[first:] = True
        self.job[first:] = NOBODY
        return new_type

    def _resize(self, count: int) -> None:
        """Columns of `count` rows; room doubles when short, so that adding a server costs little on average."""
        for name in ("type_of", "node_of", "usable", "job"):
            column = getattr(self, name)
            room = column.base if column.base is not None else column
            if len(room) < count:
                room = np.concatenate([column, np.zeros(max(count, len(column)), dtype=column.dtype)])
            setattr(self, name, room[:count])

    def set_state(self, node_id: NodeId, state: NodeState) -> None:
        """Marks a server up, draining or lost."""
        row = self.node_row[node_id]
        self.node_state[row] = state
        self.usable[self.node_of == row] = state is NodeState.UP
        self._counts = None

    def jobs_on(self, node_id: NodeId) -> Ints:
        """Serials of jobs with a lease promised or running on a server, ascending."""
        here = self.job[self.node_of == self.node_row[node_id]]
        return np.unique(here[here != NOBODY])

    @property
    def counts(self) -> Ints:
        """Usable GPUs of each type, (T,)."""
        if self._counts is None:
            self._counts = np.bincount(self.type_of[self.usable], minlength=len(self.gpu_types))
            self._counts.setflags(write=False)
        return self._counts

    @property
    def free_counts(self) -> Ints:
        """Usable GPUs of each type that no lease claims, (T,)."""
        free = self.usable & (self.job == NOBODY)
        return np.bincount(self.type_of[free], minlength=len(self.gpu_types))

    @property
    def prices(self) -> Floats:
        """USD per GPU-hour of each type, (T,)."""
        return np.array(self.price_usd_per_gpu_h, dtype=np.float64)

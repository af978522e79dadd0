"""The core's table of nodes and GPUs: one row per GPU, in the order in which they joined; row numbers never change.

The rows of a lost node that is forgotten are reused by a node with at most as many GPUs.

A node that returns with more GPUs gets new rows for the new ones; with fewer, the last ones are absent.

Each node writes checkpoints to one *directory*. Row 0 of the directories is the cluster's, as marked by the scheduler.
A node whose directory has no known id has a row of its own until the node reports an id. `domains` describes the
checkpoint domains that follow.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.free_gpus import FreeGpus
from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.job import NodeId

NONE = -1
NO_PLACE = ("", "", "")
RETIRED = NodeId("")  # in the place of the name of a node that has left
CLUSTERS = 0  # row of the directory that the scheduler has marked as the cluster's
_OWN = "of "  # before the node, in the name of a directory that the node has not named; ids have no spaces


class GpuPool:
    """Nodes in the order in which they joined, and their GPUs."""

    def __init__(self) -> None:
        self.node_ids: list[NodeId] = []
        self.node_row: dict[NodeId, int] = {}
        self.node_state: list[NodeState] = []
        self.node_unreachable: list[bool] = []  # no heartbeat
        self.node_peers: list[tuple[int, int]] = []  # unreachable: to how many other agents it is alive, and dead
        self.node_forced: list[bool] = []  # drained by force
        self.node_reserved: list[str] = []  # by which reservation, for people; empty = it is not
        self.node_part = []  # a number for each reservation for users in force; 0 = in none
        self.node_unhealthy: list[str] = []  # why it cannot start leases; empty = it can
        self.node_lacks: list[tuple[str, ...]] = []  # features of jobs that its agent does not have
        self.node_agent: list[str] = []  # name and version of an agent that lacks features
        self.any_lacking = False
        self.node_amounts: list[tuple[int, int]] = []  # CPU cores and memory; see node_resources
        self.any_amounts = False
        self.node_place: list[tuple[str, str, str]] = []  # rack, zone and region
        self.groups: dict[int, Ints] | None = None  # by level, what follows from them: see topology
        self.strained: set[int] = set()  # rows of nodes that have reported less than leases there use
        self.node_directory: list[int] = []  # row of the directory it writes checkpoints to, as last seen
        self.directories: list[str] = [""]  # ids; the cluster's is empty until a node reports it
        self.is_scattered = False  # active jobs have checkpoints or leases in other directories than CLUSTERS
        self.node_type: list[int] = []
        self.gpu_types: tuple[str, ...] = ()
        self.price_usd_per_gpu_h: list[float] = []
        self.type_of: Ints = np.zeros(0, dtype=np.int64)  # (G,)
        self.node_of: Ints = np.zeros(0, dtype=np.int64)  # (G,)
        self.number: Ints = np.zeros(0, dtype=np.int64)  # (G,) on its node, from 0
        self.present: Bools = np.zeros(0, dtype=np.bool_)  # (G,) its node still has it
        self.usable: Bools = np.zeros(0, dtype=np.bool_)  # (G,) its node is up, reachable and can start leases
        self.job: Ints = np.zeros(0, dtype=np.int64)  # (G,) job with a lease here, granted or running
        self.beside: Ints = np.zeros(0, dtype=np.int64)  # (G,) the co-located job
        self.shares_checkpoints = True
        self.any_unreachable = False
        self.any_unhealthy = False
        self.any_forced = self.any_reserved = False
        self.in_order = True  # GPUs of a node have consecutive numbers
        self._counts: Ints | None = None
        self._free: FreeGpus | None = None
        self._domain_counts: Ints | None = None
        self._domains: tuple[Ints, Ints, Ints] | None = None

    def join(self, node_id: NodeId, gpu_type: str, gpu_count: int, directory: int = CLUSTERS) -> bool:
        """Adds a node, or marks a known one as up; returns whether its GPU type is new. See `displaced`."""
        new_type = gpu_type not in self.gpu_types
        if new_type:
            self.gpu_types = (*self.gpu_types, gpu_type)
            self.price_usd_per_gpu_h.append(0.0)
        kind = self.gpu_types.index(gpu_type)
        self._counts = self._free = self._domain_counts = self._domains = self.groups = None
        row = self.node_row.get(node_id)
        if row is None and (row := self._free_row(gpu_count)) is not None:
            self.node_ids[row], self.node_row[node_id] = node_id, row
        if row is None:
            row = self.node_row[node_id] = len(self.node_ids)
            self.node_ids.append(node_id)
            self.node_state.append(NodeState.UP)
            self.node_unreachable.append(False)
            self.node_peers.append((0, 0))
            self.node_forced.append(False)
            self.node_reserved.append("")
            self.node_part.append(0)
            self.node_unhealthy.append("")
            self.node_lacks.append(())
            self.node_agent.append("")
            self.node_amounts.append((0, 0))
            self.node_place.append(NO_PLACE)
            self.node_directory.append(directory)
            self.node_type.append(kind)
            self.shares_checkpoints = self.shares_checkpoints and directory == CLUSTERS
            self._add(row, 0, gpu_count)
            return new_type
        had = np.flatnonzero(self.node_of == row)
        self.node_type[row] = kind
        self.set_directory(row, directory)
        self.type_of[had] = kind
        self.present[had] = self.number[had] < gpu_count
        if len(had) < gpu_count:
            self._add(row, len(had), gpu_count)
            self.in_order = self.in_order and row == len(self.node_ids) - 1
        self.set_state(node_id, NodeState.UP)
        return new_type

    def retire(self, node_id: NodeId) -> int:
        """Forgets a lost node without leases; its row, which is returned, is free for a node with at most its GPUs."""
        row = self.node_row.pop(node_id)
        self.node_ids[row], self.node_reserved[row], self.node_part[row] = RETIRED, "", 0
        self.node_lacks[row], self.node_agent[row], self.node_amounts[row] = (), "", (0, 0)
        self.node_place[row], self.groups = NO_PLACE, None
        self.present[self.node_of == row] = False
        self.any_lacking = any(self.node_lacks)
        self.set_directory(row, CLUSTERS)
        return row

    def _free_row(self, gpu_count: int) -> int | None:
        """The first row of a retired node that has room for this many GPUs."""
        if len(self.node_row) == len(self.node_ids):
            return None
        sizes = np.bincount(self.node_of, minlength=len(self.node_ids))
        rows = (row for row, name in enumerate(self.node_ids) if name == RETIRED and sizes[row] >= gpu_count)
        return next(rows, None)

    def displaced(self, node_id: NodeId, gpu_type: str, gpu_count: int) -> Ints:
        """Jobs with leases on GPUs that a known node no longer has when it joins like this; serials, ascending."""
        row = self.node_row.get(node_id)
        if row is None:
            return np.zeros(0, dtype=np.int64)
        here = self.node_of == row
        if self.gpu_types[self.node_type[row]] == gpu_type:
            here &= self.number >= gpu_count
        return self.jobs_holding(here)

    def _add(self, row: int, first_number: int, gpu_count: int) -> None:
        first = len(self.job)
        self._resize(first + gpu_count - first_number)
        self.type_of[first:] = self.node_type[row]
        self.node_of[first:] = row
        self.number[first:] = np.arange(first_number, gpu_count)
        self.present[first:] = True
        self.usable[first:] = True
        self.job[first:] = NONE
        self.beside[first:] = NONE

    def _resize(self, count: int) -> None:
        """Resizes the columns to `count` rows; capacity doubles, so the amortized cost of a new GPU is constant."""
        for name in ("type_of", "node_of", "number", "present", "usable", "job", "beside"):
            column = getattr(self, name)
            room = column.base if column.base is not None else column
            if len(room) < count:
                room = np.concatenate([column, np.zeros(max(count, len(column)), dtype=column.dtype)])
            setattr(self, name, room[:count])

    def set_lacks(self, node_id: NodeId, lacks: tuple[str, ...], agent: str) -> None:
        """Sets the features that a node's agent does not have."""
        row = self.node_row[node_id]
        self.node_lacks[row], self.node_agent[row] = lacks, agent
        self.any_lacking = any(self.node_lacks)

    def set_directory(self, row: int, directory: int) -> None:
        """Sets the directory that a node writes checkpoints to."""
        self.node_directory[row] = directory
        self.relate_directories()

    def relate_directories(self) -> None:
        """Recomputes what derives from the directories of nodes."""
        self.shares_checkpoints = not self.is_scattered and not any(self.node_directory)
        self._domain_counts = self._domains = None

    def own_directory(self, node_id: NodeId) -> int:
        """Row of the directory of a node that has not reported an id; added if missing."""
        return self.add_directory(f"{_OWN}{node_id}")

    def add_directory(self, name: str) -> int:
        """Row of a directory; added if missing."""
        if name not in self.directories:
            self.directories.append(name)
        return self.directories.index(name)

    def is_own(self, directory: int) -> bool:
        """Whether the id of a directory is unknown, so that its node stands in for it."""
        return self.directories[directory].startswith(_OWN)

    def set_state(self, node_id: NodeId, state: NodeState) -> None:
        """Marks a node as up, draining or lost, and as reachable. A lost node has no health problem any more."""
        row = self.node_row[node_id]
        self.node_state[row] = state
        self._set_forced(row, False)
        if state is NodeState.LOST:
            self.set_unhealthy(node_id, "")
        self.set_unreachable(node_id, False)

    def set_draining(self, node_id: NodeId, force: bool = False) -> None:
        """Marks a node as draining, by force or not. A lost node stays lost, an unreachable one unreachable."""
        row = self.node_row[node_id]
        if self.node_state[row] is NodeState.UP:
            self.node_state[row] = NodeState.DRAINING
            self.set_unreachable(node_id, self.node_unreachable[row], self.node_peers[row])
        if self.node_state[row] is NodeState.DRAINING:
            self._set_forced(row, force)

    def _set_forced(self, row: int, force: bool) -> None:
        self.node_forced[row] = force
        self.any_forced = any(self.node_forced)

    def set_unreachable(self, node_id: NodeId, unreachable: bool, peers: tuple[int, int] = (0, 0)) -> None:
        """Marks a node as unreachable or reachable; it stays up or draining. A lost node is never unreachable."""
        row = self.node_row[node_id]
        self.node_unreachable[row] = unreachable and self.node_state[row] is not NodeState.LOST
        self.node_peers[row] = peers if self.node_unreachable[row] else (0, 0)
        self.any_unreachable = any(self.node_unreachable)
        self._open(row)

    def set_unhealthy(self, node_id: NodeId, why: str) -> None:
        """Sets why a node cannot start leases; empty: it can. Ignored for a lost node."""
        row = self.node_row[node_id]
        self.node_unhealthy[row] = "" if self.node_state[row] is NodeState.LOST else why
        self.any_unhealthy = any(self.node_unhealthy)
        self._open(row)

    def _open(self, row: int) -> None:
        """Recomputes whether the GPUs of a node may be leased."""
        here = self.node_of == row
        is_open = self._is_reachable_and_up(row) and not self.node_unhealthy[row]
        self.usable[here] = self.present[here] & is_open
        self._counts = self._free = self._domain_counts = None

    def _is_reachable_and_up(self, row: int) -> bool:
        is_up = self.node_state[row] is NodeState.UP and not self.node_reserved[row]
        return is_up and not self.node_unreachable[row]

    def set_reserved(self, row: int, why: str) -> None:
        """Sets by which reservation for maintenance a node runs no jobs; empty: by none."""
        if self.node_reserved[row] != why:
            self.node_reserved[row] = why
            self.any_reserved = any(self.node_reserved)
            self._open(row)

    @property
    def node_part(self) -> list[int]:
        """The part of the cluster that each node is in. Set the whole list to divide it in another way."""
        return self._node_part

    @node_part.setter
    def node_part(self, parts: list[int]) -> None:
        self._node_part, self.is_divided = parts, any(parts)  # is_divided: a reservation for users is in force

    @property
    def limits_jobs(self) -> bool:
        """Whether jobs without a choice of nodes may not use all: see `node_sets`."""
        return self.is_divided or self.any_lacking

    @property
    def part_of(self) -> Ints:
        """The part of the cluster that each GPU belongs to, (G,)."""
        return np.array(self.node_part, dtype=np.int64)[self.node_of]

    @property
    def reserved(self) -> Bools:
        """Whether each GPU is on a node that is reserved for maintenance, (G,)."""
        return np.array([bool(why) for why in self.node_reserved], dtype=np.bool_)[self.node_of]

    @property
    def present_nodes(self) -> list[NodeId]:
        """Nodes that are not lost."""
        states = zip(self.node_ids, self.node_state, strict=True)
        return [node for node, state in states if state is not NodeState.LOST]

    def jobs_on(self, node_id: NodeId) -> Ints:
        """Serials of jobs with a lease granted or running on a node, ascending."""
        return self.jobs_holding(self.on(node_id))

    def on(self, node_id: NodeId) -> Bools:
        """Whether each GPU belongs to a node, (G,)."""
        here: Bools = self.node_of == self.node_row[node_id]
        return here

    @property
    def unreachable(self) -> Bools:
        """Whether each GPU is on an unreachable node, (G,)."""
        return np.array(self.node_unreachable, dtype=np.bool_)[self.node_of]

    @property
    def forced(self) -> Bools:
        """Whether each GPU is on a node that is drained by force, (G,)."""
        return np.array(self.node_forced, dtype=np.bool_)[self.node_of]

    @property
    def unhealthy(self) -> Bools:
        """Whether each GPU could be leased if only its node could start leases, (G,)."""
        rows = [bool(why) and self._is_reachable_and_up(row) for row, why in enumerate(self.node_unhealthy)]
        return np.array(rows, dtype=np.bool_)[self.node_of] & self.present

    def jobs_holding(self, gpus: Bools) -> Ints:
        """Serials of jobs with a lease granted or running on any of these GPUs (G,), ascending."""
        return np.unique(self.holdings(gpus)[1])

    def holdings(self, gpus: Bools) -> tuple[Ints, Ints]:
        """The leased GPUs among these (G,) and the serials of their jobs; a shared GPU is listed twice."""
        held, shared = np.flatnonzero(gpus & (self.job != NONE)), np.flatnonzero(gpus & (self.beside != NONE))
        return np.concatenate([held, shared]), np.concatenate([self.job[held], self.beside[shared]])

    def relate(self) -> None:
        """Recomputes everything that derives from the columns, after all of them were set."""
        self.any_unreachable = any(self.node_unreachable)
        self.any_unhealthy, self.any_forced = any(self.node_unhealthy), any(self.node_forced)
        self.any_reserved = any(self.node_reserved)
        self.in_order = bool((np.diff(self.node_of) >= 0).all())
        rows = [self._is_reachable_and_up(row) and not why for row, why in enumerate(self.node_unhealthy)]
        self.usable = np.array(rows, dtype=np.bool_)[self.node_of] & self.present
        self._counts = self._free = None
        self.relate_directories()

    @property
    def counts(self) -> Ints:
        """Usable GPUs of each type, (T,)."""
        if self._counts is None:
            self._counts = self.type_counts(self.usable)
            self._counts.setflags(write=False)
        return self._counts

    def type_counts(self, among: Bools) -> Ints:
        """Counts these GPUs (G,) by type, (T,)."""
        return np.bincount(self.type_of[among], minlength=len(self.gpu_types))

    def hold(self, gpus: Ints, jobs: Ints | int) -> None:
        """Books the jobs with leases on these GPUs, or NONE."""
        self.job[gpus] = jobs
        if self._free is not None and not self._free.follows(gpus, is_free=isinstance(jobs, int) and jobs == NONE):
            self._free = None

    @property
    def free(self) -> FreeGpus:
        """The usable GPUs without a lease."""
        if self._free is None:
            counts = len(self.node_ids), len(self.gpu_types)
            self._free = FreeGpus(self.usable, self.job == NONE, self.node_of, self.type_of, *counts)
        return self._free

    @property
    def free_counts(self) -> Ints:
        """Usable GPUs of each type without a lease, (T,)."""
        return np.array(self.free.by_type, dtype=np.int64)

    @property
    def domain_of(self) -> Ints:
        """Checkpoint domain of each GPU, (G,)."""
        return self.type_of if self.shares_checkpoints else self._related()[0]

    @property
    def domain_type(self) -> Ints:
        """GPU type of each domain, (L,)."""
        return self._related()[1]

    @property
    def domain_directory(self) -> Ints:
        """Directory of each domain, (L,)."""
        return self._related()[2]

    @property
    def usable_counts(self) -> Ints:
        """Usable GPUs of each domain, (L,)."""
        if self.shares_checkpoints:
            return self.counts
        if self._domain_counts is None:
            self._domain_counts = self.domain_counts(self.usable)
            self._domain_counts.setflags(write=False)
        return self._domain_counts

    def domain_counts(self, among: Bools) -> Ints:
        """Counts these GPUs (G,) by domain, (L,)."""
        return np.bincount(self.domain_of[among], minlength=len(self.domain_type))

    def _related(self) -> tuple[Ints, Ints, Ints]:
        if self._domains is None:
            T = len(self.gpu_types)
            directory = np.array(self.node_directory, dtype=np.int64)[self.node_of]
            key = directory * T + self.type_of
            others = np.unique(key[directory != CLUSTERS])
            domains = np.where(directory == CLUSTERS, self.type_of, T + np.searchsorted(others, key))
            kinds = np.concatenate([np.arange(T), others % T])
            self._domains = domains, kinds, np.concatenate([np.full(T, CLUSTERS), others // T])
        return self._domains

    @property
    def prices(self) -> Floats:
        """USD per GPU-hour of each type, (T,)."""
        return np.array(self.price_usd_per_gpu_h, dtype=np.float64)

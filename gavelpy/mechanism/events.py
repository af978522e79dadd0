"""Events: facts in the past tense, the only input of the core.

Events of many jobs hold arrays. Jobs are named by their serial (the order of submission, never reused), leases by
theirs; a report that names a lease which is no longer the job's is outdated and is ignored.

Exogenous events come from the world and replay under any policy; endogenous ones follow from the decisions of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

import numpy as np

from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import JobSpec, NodeId

NO_INTS: Ints = np.zeros(0, dtype=np.int64)
NO_FLOATS: Floats = np.zeros(0, dtype=np.float64)
NO_PAIRS: Ints = np.zeros((0, 2), dtype=np.int64)


class Outcome(IntEnum):
    """How a lease ended."""

    FINISHED = 0  # the job did its last step
    STOPPED = 1  # revoked or expired; its steps are checkpointed
    FAILED = 2  # the job's process broke
    LOST = 3  # its node is gone; steps since the last checkpoint are lost
    UNRUNNABLE = 4  # the job's command was not found or cannot be executed; it fails at once if it never saved


class FailureClass(IntEnum):
    """Class of a failed lease, by evidence of its node; see `failures`."""

    UNKNOWN = 0
    USER = 1
    OUT_OF_MEMORY = 2
    SYSTEM = 3
    COMMUNICATION = 4  # a peer of a gang is gone
    REFUSED = 5  # the node runs no job of this owner, or no such image
    TIME_LIMIT = 6  # the running time that its owner allowed is over
    STALLED = 7  # no progress for as long as its owner allowed


class _Exogenous:
    exogenous: ClassVar[bool] = True


class _Endogenous:
    exogenous: ClassVar[bool] = False


@dataclass(frozen=True, eq=False)
class _OfLeases(_Endogenous):
    """A report on leases of jobs."""

    jobs: Ints  # (K,)
    leases: Ints  # (K,)


@dataclass(frozen=True, eq=False)
class NodeJoined(_Exogenous):
    """A node offers its GPUs, or offers them again, perhaps others; this ends a drain."""

    node_id: NodeId
    gpu_type: str
    gpu_count: int
    sees_checkpoints: bool = True  # the cluster's directory; else one of its own, until a DirectorySeen names it
    state_id: str = ""  # of its agent's state directory; distinguishes agents with the same name. Empty = unknown
    lacks: tuple[str, ...] = ()  # features of jobs (model.job.FEATURES) that its agent does not have
    agent: str = ""  # name and version of an agent that lacks features, for people
    cpus: float = 0.0  # CPU cores that jobs may use; 0 = not known, and they limit no job; the same of the memory
    memory_gib: float = 0.0
    rack: str = ""  # where it is; empty = not known. A rack is one of its zone, a zone one of its region
    zone: str = ""
    region: str = ""


@dataclass(frozen=True, eq=False)
class NodeLost(_Exogenous):
    """Nothing runs on a node any more, for certain. `is_forgotten`: an operator freed its name for any agent."""

    node_id: NodeId
    is_forgotten: bool = False


@dataclass(frozen=True, eq=False)
class NodeUnreachable(_Exogenous):
    """A node sends no heartbeats: it is dead or cut off, until AgentRejoined or NodeJoined. New evidence repeats it."""

    node_id: NodeId
    alive_to: int = 0  # other agents that it answers
    dead_to: int = 0  # other agents to which it is dead, where these are the majority and it answers none


@dataclass(frozen=True, eq=False)
class NodeDraining(_Exogenous):
    """A node gets no new leases; its leases end with the round. See `non_preemptible` for `force`."""

    node_id: NodeId
    force: bool = False


@dataclass(frozen=True, eq=False)
class NodeUnhealthy(_Exogenous):
    """A node can start no leases (its disk is full, for example), or can again. Its running leases continue."""

    node_id: NodeId
    why: str  # for people; empty = it can again


@dataclass(frozen=True, eq=False)
class DirectorySeen(_Exogenous):
    """A node writes its checkpoints here, until it reports another directory. (Not seen for a while: NodeUnhealthy.)"""

    node_id: NodeId
    directory: str  # id of the directory, the same on all nodes that see it
    is_clusters: bool  # whether the scheduler has marked it as the cluster's


@dataclass(frozen=True, eq=False)
class JobSubmitted(_Exogenous):
    """A job arrived. Its serial is the number of jobs submitted before it."""

    spec: JobSpec


@dataclass(frozen=True, eq=False)
class JobCancelled(_Exogenous):
    """A job was cancelled."""

    job: int


@dataclass(frozen=True, eq=False)
class JobsHeld(_Exogenous):
    """Jobs get no new lease until they are released. A hold of an admin is released by admins only."""

    jobs: Ints  # (K,)
    by_admin: bool = False


@dataclass(frozen=True, eq=False)
class JobsReleased(_Exogenous):
    """Held jobs may get leases again. `by_admin`: also those that an admin holds."""

    jobs: Ints  # (K,)
    by_admin: bool = False


@dataclass(frozen=True, eq=False)
class JobsRequeued(_Exogenous):
    """The leases of jobs are stopped in order; the jobs compete for GPUs again."""

    jobs: Ints  # (K,)


@dataclass(frozen=True, eq=False)
class PriorityChanged(_Exogenous):
    """Jobs get another priority class. Jobs that are over keep theirs."""

    jobs: Ints  # (K,)
    priority: str  # name of a class; empty = the default


@dataclass(frozen=True, eq=False)
class PriceChanged(_Exogenous):
    """The price of a GPU-hour of a type changed."""

    gpu_type: str
    price_usd_per_gpu_h: float


@dataclass(frozen=True, eq=False)
class ConfigChanged(_Exogenous):
    """The settings of the core changed."""

    settings: MechanismSettings


@dataclass(frozen=True, eq=False)
class PolicyChanged(_Exogenous):
    """Another policy is in force. The core does not know policies; it requests a new allocation."""

    policy: str
    parameters: str  # JSON
    blind: str = ""  # the blind view of the policy; empty = it sees all rates


@dataclass(frozen=True, eq=False)
class ReservationAdded(_Exogenous):
    """Nodes are reserved for users or, without users, for maintenance; a reservation of this name is replaced."""

    name: str
    node_ids: tuple[str, ...]
    begin_s: float  # of the core's time
    end_s: float
    reason: str = ""
    users: tuple[str, ...] = ()  # owners of the jobs that may use it


@dataclass(frozen=True, eq=False)
class ReservationRemoved(_Exogenous):
    """A reservation was deleted, before or during its time."""

    name: str


@dataclass(frozen=True, eq=False)
class IdsReserved(_Exogenous):
    """Lost events may have used ids below these: they are not used again; such jobs count as failed."""

    jobs: int  # serial of the next job
    leases: int  # serial of the next lease
    text: str  # what happened to the jobs in between, for people


@dataclass(frozen=True, eq=False)
class JobsArchived(_Endogenous):
    """Jobs that are over left for the archive, and so did the accounts of GPU time before a time. See `archiving`."""

    jobs: Ints  # (K,)
    usage_before_s: float = 0.0  # of the core's time; the core does not use it
    nodes: tuple[str, ...] = ()  # lost nodes that are forgotten


@dataclass(frozen=True, eq=False)
class JobAnnotated(_Endogenous):
    """A message of a node about a job and lease, for people. The core does not use it."""

    job: int
    lease: int
    text: str


@dataclass(frozen=True, eq=False)
class LeaseStarted(_OfLeases):
    """Jobs began to run under their leases."""

    gpu_offsets: Ints  # (K + 1,) job k runs on gpus[gpu_offsets[k]:gpu_offsets[k + 1]]
    gpus: Ints


@dataclass(frozen=True, eq=False)
class LeaseEnded(_OfLeases):
    """Leases ended and their GPUs are free. A lease of a gang ends when all its nodes ended it or are lost."""

    steps_done: Floats  # (K,) of the job since its submission
    outcome: Outcome
    is_by_time: bool = False  # steps estimated from run time: no checkpoint has them
    failure: FailureClass = FailureClass.UNKNOWN


@dataclass(frozen=True, eq=False)
class ProgressReported(_OfLeases):
    """Steps of running jobs."""

    steps_done: Floats  # (K,) of the job since its submission


@dataclass(frozen=True, eq=False)
class CheckpointSaved(_OfLeases):
    """Checkpoints are complete: these steps are durable."""

    steps_done: Floats  # (K,)


@dataclass(frozen=True, eq=False)
class SavingDeclared(_OfLeases):
    """The programs of running jobs registered that they save a checkpoint when their lease ends."""


@dataclass(frozen=True, eq=False)
class LastStepReported(_OfLeases):
    """Running jobs reported their last step; they still save, clean up and exit."""


@dataclass(frozen=True, eq=False)
class TotalAnnounced(_OfLeases):
    """The programs of running jobs reported how many steps their jobs have in all."""

    steps_total: Floats  # (K,) > 0


@dataclass(frozen=True, eq=False)
class GpuMemoryMeasured(_OfLeases):
    """The most memory that running jobs have used of any of their GPUs: more than was known."""

    peak_gib: Floats  # (K,) > 0


@dataclass(frozen=True, eq=False)
class MetricsReported(_OfLeases):
    """Running jobs reported values of their metrics; one job may report several."""

    metric: Ints  # (K,) place in `names`
    metric_steps: Floats  # (K,) of the job since its submission, >= 0
    values: Floats  # (K,) finite
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TurnMeasured(_OfLeases):
    """The time that jobs have lost by a start, up to its first step, and by a stop; 0 = not measured."""

    restart_s: Floats  # (K,) of these leases
    save_s: Floats  # (K,)


@dataclass(frozen=True, eq=False)
class AllocationSolved(_Endogenous):
    """The allocation for request `epoch`: nonzero shares of single jobs and of co-located pairs."""

    epoch: int
    jobs: Ints  # (K,)
    gpu_type: Ints  # (K,) column of the core's gpu_types
    share: Floats  # (K,) in (0, 1]
    objective: float = 0.0
    gap: float = 0.0
    path: str = ""
    pair_jobs: Ints = field(default_factory=lambda: NO_PAIRS)  # (P, 2), of equally many GPUs; each pair once a type
    pair_gpu_type: Ints = field(default_factory=lambda: NO_INTS)  # (P,)
    pair_share: Floats = field(default_factory=lambda: NO_FLOATS)  # (P,) in (0, 1], of the time of both
    warning: str = ""  # why the certificate is weaker than promised
    marginal_value: Floats = field(default_factory=lambda: NO_FLOATS)  # (T,) of one more GPU; empty = none
    again_s: float = math.inf  # after the request, when the policy must be called again
    memory: bytes = b""  # of the policy, for its next call
    refused_jobs: Ints = field(default_factory=lambda: NO_INTS)  # (R,) that the policy refuses
    refused_why: tuple[str, ...] = ()  # (R,)
    sizes: Ints = field(default_factory=lambda: NO_INTS)  # (K,) GPUs of each share; empty = no job has several sizes
    next_round: Ints = field(default_factory=lambda: NO_INTS)  # (N, 4) see `named_round`; of one axis = by shares
    resources: tuple[str, ...] = ()  # (R,) other than GPUs, and rows of teams, that are worth something
    resource_value: Floats = field(default_factory=lambda: NO_FLOATS)  # (R, T) of one more of each; empty = none


@dataclass(frozen=True, eq=False)
class AllocationFailed(_Endogenous):
    """There is no allocation for request `epoch`; the one in force stays."""

    epoch: int
    detail: str


@dataclass(frozen=True, eq=False)
class ThroughputEstimated(_Endogenous):
    """First or better rates of jobs. NaN: unknown."""

    jobs: Ints  # (K,)
    rates_steps_per_s: Floats  # (K, T)
    sizes: Ints = field(default_factory=lambda: NO_INTS)  # (K,) on so many GPUs; empty = no job has several sizes


@dataclass(frozen=True, eq=False)
class WakeupDue(_Endogenous):
    """The wake-up time of the core has come. `type_order`: a random permutation of GPU types, or empty."""

    type_order: Ints = field(default_factory=lambda: NO_INTS)


@dataclass(frozen=True, eq=False)
class SchedulerRestarted(_Endogenous):
    """A new incarnation of the scheduler has replayed the journal; it does not know yet which leases still run."""

    incarnation: int


@dataclass(frozen=True, eq=False)
class AgentRejoined(_Endogenous):
    """A node reports the leases that it runs or holds GPUs for. It is reachable again."""

    node_id: NodeId
    jobs: Ints  # (K,)
    leases: Ints  # (K,)
    steps_done: Floats  # (K,)


Event = (
    NodeJoined | NodeLost | NodeUnreachable | NodeDraining | NodeUnhealthy | DirectorySeen | JobSubmitted
    | JobCancelled | JobsHeld | JobsReleased | JobsRequeued | PriorityChanged | PriceChanged | ConfigChanged
    | PolicyChanged | ReservationAdded | ReservationRemoved | IdsReserved | JobsArchived | JobAnnotated
    | LeaseStarted | LeaseEnded | ProgressReported | CheckpointSaved | SavingDeclared | LastStepReported
    | TotalAnnounced | GpuMemoryMeasured | TurnMeasured | MetricsReported | AllocationSolved | AllocationFailed
    | ThroughputEstimated | WakeupDue | SchedulerRestarted | AgentRejoined
)  # fmt: skip

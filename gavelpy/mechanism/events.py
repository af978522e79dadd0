"""What has happened. Facts in the past tense; the core's only input.

Many of a thing travel as arrays: one event carries the progress of all leases of a report. Jobs are named by their
serial (the order of submission, never reused), leases by theirs; a report that names a lease which is no longer the
job's is late and is ignored.

Exogenous events come from the world and replay under any policy; endogenous ones follow from the decisions of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

import numpy as np

from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.ids import NodeId
from gavelpy.model.job import JobSpec

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


class _Exogenous:
    exogenous: ClassVar[bool] = True


class _Endogenous:
    exogenous: ClassVar[bool] = False


@dataclass(frozen=True, eq=False)
class NodeJoined(_Exogenous):
    """A server offers its GPUs (or offers them again, perhaps others; a drain is over then)."""

    node_id: NodeId
    gpu_type: str
    gpu_count: int
    sees_checkpoints: bool = True  # the cluster's directory; else one of its own, until DirectorySeen says which
    state_id: str = ""  # of its agent's memory; shells tell agents of one name apart by it. Empty = not told


@dataclass(frozen=True, eq=False)
class NodeLost(_Exogenous):
    """A server is surely dead: nothing runs there any more. `is_forgotten`: an operator gives its name to any agent."""

    node_id: NodeId
    is_forgotten: bool = False


@dataclass(frozen=True, eq=False)
class NodeSilent(_Exogenous):
    """Nobody hears from a server: dead or cut off, who knows. AgentRejoined or NodeJoined ends the silence."""

    node_id: NodeId


@dataclass(frozen=True, eq=False)
class NodeDraining(_Exogenous):
    """A server takes no new leases; those it has end with the round.

    Under `keep_unsaved` a job that cannot resume runs there until it ends, unless the server is drained by force.
    """

    node_id: NodeId
    force: bool = False


@dataclass(frozen=True, eq=False)
class NodeHindered(_Exogenous):
    """A server can begin no lease for now (its disk is full), or can again. Those that run there go on."""

    node_id: NodeId
    why: str  # for people; empty = it can again


@dataclass(frozen=True, eq=False)
class DirectorySeen(_Exogenous):
    """A node sees this checkpoint directory where it writes checkpoints. It stays so until the node sees another one.

    That a node does not see its directory for now is no such event: see NodeHindered.
    """

    node_id: NodeId
    directory: str  # id of the directory, the same on all nodes that see it
    is_clusters: bool  # whether the scheduler has marked it as the cluster's


@dataclass(frozen=True, eq=False)
class JobSubmitted(_Exogenous):
    """A job arrived. Its serial is the number of jobs submitted before it."""

    spec: JobSpec


@dataclass(frozen=True, eq=False)
class JobCancelled(_Exogenous):
    """Its owner no longer wants a job."""

    job: int


@dataclass(frozen=True, eq=False)
class PriceChanged(_Exogenous):
    """An hour of one GPU of a type costs something else now."""

    gpu_type: str
    price_usd_per_gpu_h: float


@dataclass(frozen=True, eq=False)
class ConfigChanged(_Exogenous):
    """The operator changed how the mechanism works."""

    settings: MechanismSettings


@dataclass(frozen=True, eq=False)
class PolicyChanged(_Exogenous):
    """Another policy answers from now on. The core does not know which, but asks again."""

    policy: str
    parameters: str  # JSON
    blind: str = ""  # what it believes of GPU types if it must not tell them apart; empty = it may


@dataclass(frozen=True, eq=False)
class NumbersSkipped(_Exogenous):
    """Numbers below these may have been given out by events that are lost: nobody gets them again.

    A job of such a serial has failed, and all that is known of it is why it is unknown.
    """

    jobs: int  # serial of the next job
    leases: int  # serial of the next lease
    text: str  # what became of the jobs in between, for people


@dataclass(frozen=True, eq=False)
class JobNoted(_Endogenous):
    """What a node said of a job under a lease, for people. The core keeps nothing of it."""

    job: int
    lease: int
    text: str


@dataclass(frozen=True, eq=False)
class LeaseStarted(_Endogenous):
    """Jobs began to run under their leases."""

    jobs: Ints  # (K,)
    leases: Ints  # (K,)
    gpu_offsets: Ints  # (K + 1,) job k runs on gpus[gpu_offsets[k]:gpu_offsets[k + 1]]
    gpus: Ints


@dataclass(frozen=True, eq=False)
class LeaseEnded(_Endogenous):
    """Leases are over and their GPUs free. That of a gang is over when all its servers have ended it, or are lost."""

    jobs: Ints  # (K,)
    leases: Ints  # (K,)
    steps_done: Floats  # (K,) of the job since its submission
    outcome: Outcome
    is_by_time: bool = False  # steps that nobody reported, counted by time: no checkpoint of ours has them


@dataclass(frozen=True, eq=False)
class ProgressReported(_Endogenous):
    """How far running jobs have come."""

    jobs: Ints  # (K,)
    leases: Ints  # (K,)
    steps_done: Floats  # (K,) of the job since its submission


@dataclass(frozen=True, eq=False)
class CheckpointSaved(_Endogenous):
    """Steps that survive whatever happens."""

    jobs: Ints  # (K,)
    leases: Ints  # (K,)
    steps_done: Floats  # (K,)


@dataclass(frozen=True, eq=False)
class SavingDeclared(_Endogenous):
    """The programs of running jobs registered that they save a checkpoint when their lease ends."""

    jobs: Ints  # (K,)
    leases: Ints  # (K,)


@dataclass(frozen=True, eq=False)
class LastStepReported(_Endogenous):
    """Running jobs reported their last step: what is left is to save, to clean up and to exit."""

    jobs: Ints  # (K,)
    leases: Ints  # (K,)


@dataclass(frozen=True, eq=False)
class AllocationSolved(_Endogenous):
    """The policy's answer to question `epoch`: the nonzero shares, of jobs alone and of pairs that share GPUs."""

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
    warning: str = ""  # why the answer is not proved as well as promised


@dataclass(frozen=True, eq=False)
class AllocationFailed(_Endogenous):
    """The policy gave no answer to question `epoch`; the allocation in force stays."""

    epoch: int
    detail: str


@dataclass(frozen=True, eq=False)
class ThroughputEstimated(_Endogenous):
    """Rates for jobs that had none, or better ones. NaN: nobody knows."""

    jobs: Ints  # (K,)
    rates_steps_per_s: Floats  # (K, T)


@dataclass(frozen=True, eq=False)
class WakeupDue(_Endogenous):
    """The time the core asked for has come. `type_order`: a permutation of GPU types drawn by the shell, or none."""

    type_order: Ints = field(default_factory=lambda: NO_INTS)


@dataclass(frozen=True, eq=False)
class SchedulerRestarted(_Endogenous):
    """A new incarnation of the scheduler has replayed the journal and must find out what still runs."""

    incarnation: int


@dataclass(frozen=True, eq=False)
class AgentRejoined(_Endogenous):
    """A node tells which leases it still runs, or holds GPUs for. It is no longer silent."""

    node_id: NodeId
    jobs: Ints  # (K,)
    leases: Ints  # (K,)
    steps_done: Floats  # (K,)


Event = (
    NodeJoined
    | NodeLost
    | NodeSilent
    | NodeDraining
    | NodeHindered
    | DirectorySeen
    | JobSubmitted
    | JobCancelled
    | PriceChanged
    | ConfigChanged
    | PolicyChanged
    | NumbersSkipped
    | JobNoted
    | LeaseStarted
    | LeaseEnded
    | ProgressReported
    | CheckpointSaved
    | SavingDeclared
    | LastStepReported
    | AllocationSolved
    | AllocationFailed
    | ThroughputEstimated
    | WakeupDue
    | SchedulerRestarted
    | AgentRejoined
)

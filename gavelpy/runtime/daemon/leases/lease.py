"""Values of leases: the scheduler's orders to nodes, the nodes' reports, and the lease with its parts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gavelpy.mechanism.events import Outcome
from gavelpy.model.arrays import Ints
from gavelpy.model.ids import NodeId


class Phase(IntEnum):
    """State of a node's part of a lease, as the node reports it."""

    UNHEARD = 0
    PREPARED = 1  # has GPUs and a port, waits for the other nodes of its gang
    STARTING = 2
    RUNNING = 3
    STOPPING = 4
    ENDED = 5


class Wish(IntEnum):
    """What a node must do with its part of a lease."""

    PREPARE = 1
    RUN = 2
    STOP = 3  # checkpoint, then stop
    KILL = 4  # at once; later reports do not count


@dataclass(frozen=True, slots=True)
class PartReport:
    """A node's report on its part of a lease."""

    lease: int
    job: int
    phase: Phase
    steps_done: float = 0.0  # of the job since its submission
    steps_saved: float = 0.0  # of these, in a complete checkpoint
    rate_steps_per_s: float = 0.0  # 0 = not measured
    rendezvous_port: int = 0
    outcome: Outcome = Outcome.LOST  # if ended
    exit_code: int = 0
    detail: str = ""
    shim: tuple[int, int] = (0, 0)  # process id and its start time in clock ticks; 0 = unknown
    is_by_time: bool = False  # the job reports no steps: they are estimated from time, and in no checkpoint
    saves_at_end: bool = False  # the job has declared that it saves a checkpoint when its lease ends
    is_done: bool = False  # all ranks have reported their last step


@dataclass(frozen=True, slots=True)
class Start:
    """How a node starts its part of a lease; the rest is in the job's specification."""

    gpus: tuple[int, ...]  # numbers on this node
    gpu_type: str
    node_rank: int
    node_count: int
    first_rank: int
    world_size: int
    rendezvous_node: NodeId  # of rank 0
    rendezvous_port: int  # 0 = not known yet
    round: int
    restart_count: int
    resume_lease: int  # -1 = from scratch
    resume_steps: float
    rate_steps_per_s: float  # expected; 0 = unknown
    directory: str = ""  # id of the checkpoint directory that the lease writes to; empty = not known


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a node about its part of a lease."""

    lease: int
    job: int
    until_s: float  # the scheduler's time
    wish: Wish
    steps_saved: float  # in the newest recorded checkpoint
    start: Start | None  # until the node reports that it starts


@dataclass(frozen=True)
class Patience:
    """How long leases outlast their round, and when an expired lease has ended."""

    overlap_s: float = 20.0  # so that a lease is extended before it ends
    unsaved_overlap_s: float = 20.0  # the same for jobs that would lose all their work
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
    margin_s: float = 5.0

    def surely_over_s(self, promised_s: float) -> float:
        """When no process can run under a lease that was promised until `promised_s`."""
        return promised_s + self.grace_s + self.margin_s


class Part:
    """A node's part of a lease, as last reported."""

    __slots__ = ("end", "first_rank", "gpus", "heard", "is_inferred", "is_seen", "is_sent", "node", "rank")

    def __init__(self, node: NodeId, rank: int, first_rank: int, gpus: tuple[int, ...]) -> None:
        self.node = node
        self.rank = rank  # of the node in its gang
        self.first_rank = first_rank
        self.gpus = gpus
        self.is_sent = False  # an order to run it may have reached the node
        self.is_seen = False  # the node has reported it
        self.heard: PartReport | None = None
        self.end: PartReport | None = None
        self.is_inferred = (
            False  # the end was not reported: the node is dead, unreachable for too long or without the lease
        )

    @property
    def phase(self) -> Phase:
        """As last reported."""
        return Phase.UNHEARD if self.heard is None else self.heard.phase


class Lease:
    """One lease from its grant until its end is in the journal."""

    def __init__(self, lease: int, job: int, gpus: Ints, parts: list[Part], until_s: float, round: int) -> None:
        self.lease = lease
        self.job = job
        self.gpus = gpus  # rows in the core
        self.parts = {part.node: part for part in parts}
        self.until_s = until_s  # as ordered now
        self.promised_s = until_s  # the latest end that was ever ordered
        self.round = round
        self.wish = Wish.PREPARE if len(parts) > 1 else Wish.RUN
        self.waits: set[tuple[int, str]] = set()  # for the end of older leases: (lease, node), or "" for all of it
        self.gpu_type = ""
        self.rate_steps_per_s = 0.0  # expected
        self.world_size = 1
        self.steps_total = 0.0
        self.restart_count = 0
        self.resume_lease = -1
        self.resume_steps = 0.0
        self.is_started = False
        self.is_declared = False  # its program saves when the lease ends
        self.is_end_told = False
        self.is_done_told = False
        self.steps_saved = 0.0  # as reported to the core
        self.steps_done = 0.0
        self.linger_s = float("inf")  # a part has finished: the others have until then

    @property
    def is_held(self) -> bool:
        """Whether it waits for older leases."""
        return bool(self.waits)

    @property
    def is_sent(self) -> bool:
        """Whether a node may have received it."""
        return any(part.is_sent for part in self.parts.values())

    @property
    def is_prepared(self) -> bool:
        """Whether all its nodes are prepared."""
        return all(part.phase >= Phase.PREPARED for part in self.parts.values())

    @property
    def rate_measured_steps_per_s(self) -> float:
        """Rate of the job, by its slowest node; 0 = not measured."""
        return min((p.heard.rate_steps_per_s if p.heard else 0.0 for p in self.parts.values()), default=0.0)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """In order of rank."""
        return tuple(self.parts)

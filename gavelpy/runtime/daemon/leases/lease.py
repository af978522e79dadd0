"""A lease with its parts by node, the scheduler's orders to nodes, and the nodes' reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gavelpy.mechanism import gpu_memory, sizes
from gavelpy.mechanism.app_table import steps_max
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import FailureClass, LeaseStarted, Outcome
from gavelpy.mechanism.failures import WORDS, time_left_s
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.leases.turns import LeaseTimes
from gavelpy.runtime.metric_files import MetricPoint


class Phase(IntEnum):
    """State of a node's part of a lease, as the node reports it."""

    UNREPORTED = 0
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
    failure: FailureClass = FailureClass.UNKNOWN  # if it failed
    steps_total: float = 0.0  # that the job has announced; 0 = none
    gpu_memory_gib: float = 0.0  # the most that it has used of a GPU; 0 = not measured
    metrics: tuple[MetricPoint, ...] = ()  # the last value of each name


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
    gpus_held: int = 0  # by the lease, on all its nodes
    time_left_s: float = 0.0  # running time until the job's time limit; 0 = no limit
    directory: str = ""  # id of the checkpoint directory that the lease writes to; empty = not known
    beside_job: int = -1  # the co-located job; -1 = none
    gpu_memory_gib: float = 0.0  # that the job needs of each GPU; 0 = not known
    gpu_memory_share: float = 0.0  # of a GPU's memory; 0 = not known
    steps_max: float = 0.0  # the lease ends at this step of the job; 0 = no limit


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a node about its part of a lease."""

    lease: int
    job: int
    until_s: float  # the scheduler's time
    wish: Wish
    steps_saved: float  # in the newest recorded checkpoint
    start: Start | None  # until the node reports that it starts
    withdraw: bool = False  # it ends if the node has not started it


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

    __slots__ = ("end", "first_rank", "gpus", "is_inferred", "is_seen", "is_sent", "node", "rank", "report")

    def __init__(self, node: NodeId, rank: int, first_rank: int, gpus: tuple[int, ...]) -> None:
        self.node = node
        self.rank = rank  # of the node in its gang
        self.first_rank = first_rank
        self.gpus = gpus
        self.is_sent = False  # an order to run it may have reached the node
        self.is_seen = False  # the node has reported it
        self.report: PartReport | None = None
        self.end: PartReport | None = None
        self.is_inferred = (
            False  # the end was not reported: the node is dead, unreachable for too long or without the lease
        )

    @property
    def phase(self) -> Phase:
        """As last reported."""
        return Phase.UNREPORTED if self.report is None else self.report.phase


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
        self.steps_total = 0.0  # 0 = it has as many steps as it does
        self.announced_steps = 0.0  # by its program; 0 = none
        self.gpu_memory_gib = 0.0  # used of a GPU, as reported to the core
        self.metrics: dict[str, MetricPoint] = {}  # as reported last
        self.trouble = ""  # the first that a node reported while it ran, for users
        self.was_by_time = False  # its steps were estimated from time when they were last reported
        self.restart_count = 0
        self.resume_lease = -1
        self.resume_steps = 0.0
        self.is_started = False
        self.turn = LeaseTimes()
        self.is_declared = False  # its program saves when the lease ends
        self.is_end_reported = False
        self.is_done_reported = False
        self.steps_saved = 0.0  # as reported to the core
        self.steps_done = 0.0
        self.linger_s = float("inf")  # a part has finished: the others have until then

    def has_started(self, now_s: float) -> None:
        """Its processes run on all nodes."""
        self.is_started = True
        self.turn.started(now_s)

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
        return min((p.report.rate_steps_per_s if p.report else 0.0 for p in self.parts.values()), default=0.0)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """In order of rank."""
        return tuple(self.parts)


NOTE_CHARACTERS_MAX = 500
UNRUNNABLE_CODES = (126, 127)  # of a shell and of the shim: the command is not executable, or not found
_STRONGEST_FIRST = (
    FailureClass.REFUSED,
    FailureClass.USER,
    FailureClass.OUT_OF_MEMORY,
    FailureClass.SYSTEM,
    FailureClass.STALLED,
    FailureClass.TIME_LIMIT,
    FailureClass.UNKNOWN,
    FailureClass.COMMUNICATION,
)
_WORST_FIRST = (Outcome.UNRUNNABLE, Outcome.FAILED, Outcome.LOST, Outcome.STOPPED, Outcome.FINISHED)


def lease_of(core: SchedulerCore, number: int, job: int, gpus: Ints, until_s: float, round: int) -> Lease:
    """A lease of a job on these GPUs, with an unreported part on each of their nodes."""
    pool, spec = core.pool, core.jobs.by_serial.specs[job]
    parts: list[Part] = []
    numbers: dict[int, list[int]] = {}  # by row of a node
    for row, number_there in zip(pool.node_of[gpus].tolist(), pool.number[gpus].tolist(), strict=True):
        numbers.setdefault(row, []).append(number_there)
    for row, local in numbers.items():
        first_rank = len(parts) if spec.one_process_a_node else sum(len(part.gpus) for part in parts)
        parts.append(Part(pool.node_ids[row], len(parts), first_rank, tuple(local)))
    lease = Lease(number, job, gpus.copy(), parts, until_s, round)
    lease.world_size = len(parts) if spec.one_process_a_node else len(gpus)
    lease.steps_total = 0.0 if core.jobs.by_serial.total_by[job] != -1 else spec.steps_total
    lease.steps_saved = lease.steps_done = float(core.jobs.by_serial.steps_saved[job])
    if len(gpus):
        gpu_type = int(pool.type_of[gpus[0]])
        lease.gpu_type = pool.gpu_types[gpu_type]
        lease.rate_steps_per_s = sizes.rate_at(core.jobs, core.jobs.ids.row(job), len(gpus), gpu_type)
    return lease


def start_of(core: SchedulerCore, lease: Lease, part: Part) -> Start:
    """How a node starts its part of a lease."""
    first = next(iter(lease.parts.values()))
    memory_gib, memory_share = gpu_memory.need_on(core.jobs, lease.job, lease.gpu_type, core.settings)
    return Start(
        gpus=part.gpus,
        gpu_type=lease.gpu_type,
        node_rank=part.rank,
        node_count=len(lease.parts),
        first_rank=part.first_rank,
        world_size=lease.world_size,
        rendezvous_node=first.node,
        rendezvous_port=first.report.rendezvous_port if first.report else 0,
        round=lease.round,
        restart_count=lease.restart_count,
        resume_lease=lease.resume_lease,
        resume_steps=lease.resume_steps,
        rate_steps_per_s=lease.rate_steps_per_s,
        gpus_held=len(lease.gpus),
        time_left_s=time_left_s(core.jobs.by_serial, lease.job),
        directory=directory_of(core, lease),
        beside_job=partner_of(core, lease.job, lease.lease)[0],
        gpu_memory_gib=memory_gib,
        gpu_memory_share=memory_share,
        steps_max=steps_max(core.jobs, core.jobs.ids.row(lease.job)),
    )


def partner_of(core: SchedulerCore, job: int, lease: int) -> tuple[int, int]:
    """The job that shares the GPUs of this lease, and its lease; -1 where none does, or if the lease is an old one."""
    jobs, ids = core.jobs, core.jobs.ids
    row = ids.row(job)
    partner = int(jobs.partner[row]) if row >= 0 and jobs.lease[row] == lease else -1
    return (ids.serial(partner), int(jobs.lease[partner])) if partner >= 0 else (-1, -1)


def measured_rates(core: SchedulerCore, leases: Iterable[Lease]) -> dict[int, float]:
    """Measured steps/s of jobs under the leases that they have now, by job; 0 = not measured."""
    jobs, ids = core.jobs, core.jobs.ids
    rows = ((lease, ids.row(lease.job)) for lease in leases if lease.is_started)
    current = (lease for lease, row in rows if row >= 0 and jobs.lease[row] == lease.lease)
    return {lease.job: lease.rate_measured_steps_per_s for lease in current}


def columns_of(leases: Sequence[Lease], steps: Iterable[float]) -> tuple[Ints, Ints, Floats]:
    """Columns of an event: jobs, leases, steps."""
    return (
        np.array([lease.job for lease in leases], dtype=np.int64),
        np.array([lease.lease for lease in leases], dtype=np.int64),
        np.array(list(steps), dtype=np.float64),
    )


def is_adopted(lease: Lease, part: Part) -> bool:
    """Whether the core keeps a lease when its node reconnects."""
    if lease.is_held or lease.is_end_reported or not part.is_sent:
        return False
    return lease.is_started or (len(lease.parts) == 1 and part.phase >= Phase.STARTING)


def has_run(lease: Lease) -> bool:
    """Whether it ran on any node; a lease that was cancelled before its start did not."""
    ends = [part.end for part in lease.parts.values()]
    return any(end is None or end.outcome in (Outcome.FINISHED, Outcome.FAILED) for end in ends)


def is_by_time(lease: Lease) -> bool:
    """Whether all nodes estimate its steps from time: then it has no known checkpoint."""
    reports = [part.report for part in lease.parts.values() if part.report]
    return bool(reports) and all(report.is_by_time for report in reports)


def is_done(lease: Lease) -> bool:
    """Whether its job has completed the last step, by the report of every node, or has finished there."""
    reports = [part.end or part.report for part in lease.parts.values()]
    return all(
        r is not None and (r.is_done or (r.phase is Phase.ENDED and r.outcome is Outcome.FINISHED)) for r in reports
    )


def saved_of(lease: Lease) -> float:
    """Steps in the newest checkpoint that a node reports; 0 for a job that does not report its steps."""
    reports = [part.report for part in lease.parts.values() if part.report]
    return max((report.steps_saved for report in reports if not report.is_by_time), default=0.0)


def announced_by(lease: Lease) -> float:
    """Steps that its job has in all, as all its nodes announced; 0 = not all have."""
    totals = [part.report.steps_total if part.report else 0.0 for part in lease.parts.values()]
    return min(totals, default=0.0)


def gpu_memory_of(lease: Lease) -> float:
    """The most GPU memory that it has used of a GPU on any node; 0 = not measured."""
    return max((part.report.gpu_memory_gib for part in lease.parts.values() if part.report), default=0.0)


def counted_of(lease: Lease) -> float:
    """Steps of a job that has finished under this lease: the submitted number, else those that its slowest node did."""
    ends = [part.end.steps_done for part in lease.parts.values() if part.end is not None]
    return lease.steps_total or min(ends, default=lease.steps_done)


def outcome_of(lease: Lease) -> Outcome:
    """Outcome of the lease: the worst of its parts."""
    outcomes = {_outcome_of(part.end) for part in lease.parts.values() if part.end is not None} or {Outcome.LOST}
    return next(outcome for outcome in _WORST_FIRST if outcome in outcomes)


def _outcome_of(end: PartReport) -> Outcome:
    is_unrunnable = end.outcome is Outcome.FAILED and end.exit_code in UNRUNNABLE_CODES
    return Outcome.UNRUNNABLE if is_unrunnable else end.outcome


def failure_of(lease: Lease) -> FailureClass:
    """Class of its failure: that of the part with the strongest evidence. A lost peer may be a consequence."""
    return min((_failure_of(end) for end in _failed(lease)), key=_STRONGEST_FIRST.index, default=FailureClass.UNKNOWN)


def _failure_of(end: PartReport) -> FailureClass:
    return FailureClass.USER if _outcome_of(end) is Outcome.UNRUNNABLE else end.failure


def _failed(lease: Lease) -> list[PartReport]:
    ends = (part.end for part in lease.parts.values())
    return [end for end in ends if end is not None and end.outcome is Outcome.FAILED]


def note_of(lease: Lease) -> str:
    """A note on how it ended, for users; empty = none."""
    kind, outcome = failure_of(lease), outcome_of(lease)
    for part in lease.parts.values():
        end = part.end
        if end is None or _outcome_of(end) is not outcome or not (end.detail or end.exit_code):
            continue
        if end.outcome is Outcome.FAILED and _failure_of(end) is not kind:
            continue
        where = f" on {part.node}" if end.outcome is Outcome.FAILED and len(lease.parts) > 1 else ""
        code = f" (exit code {end.exit_code}{where})" if end.exit_code else ""
        name = f"; {WORDS[kind]}" if end.outcome is Outcome.FAILED and kind is not FailureClass.UNKNOWN else ""
        return f"{end.detail or 'ended'}"[: NOTE_CHARACTERS_MAX - len(code) - len(name)] + code + name
    return ""


def directory_of(core: SchedulerCore, lease: Lease) -> str:
    """Id of the checkpoint directory that a lease writes to; empty if its nodes have not reported it."""
    directory = (
        int(core.jobs.by_serial.lease_in[lease.job]) if core.jobs.by_serial.lease[lease.job] == lease.lease else -1
    )
    return "" if directory < 0 or core.pool.is_own(directory) else core.pool.directories[directory]


def lease_started(leases: Sequence[Lease]) -> LeaseStarted:
    """The event that these leases have started on their granted GPUs."""
    jobs, numbers, _ = columns_of(leases, [0.0] * len(leases))
    offsets = np.concatenate([[0], np.cumsum([len(lease.gpus) for lease in leases])])
    return LeaseStarted(jobs, numbers, offsets, np.concatenate([lease.gpus for lease in leases]))

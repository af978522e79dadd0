"""Read-only views for shells, queries and reports: of a core, and of one job's owed time, received time and lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.job import NodeId

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

Column = TypeVar("Column", Ints, Floats)


@dataclass(frozen=True, eq=False)
class CoreView:
    """Jobs by serial, GPUs by number. Arrays are read-only, and change with the core."""

    now_s: float
    round: int
    round_end_s: float  # infinite = no round in force
    gpu_types: tuple[str, ...]
    gpu_type_of: Ints  # (G,)
    gpu_job: Ints  # (G,) job with a lease granted or running here, -1 = none
    gpu_beside: Ints  # (G,) the co-located job, -1 = none
    job_state: Ints  # (J,) JobState
    job_lease: Ints  # (J,) -1 = none
    steps_done: Floats  # (J,) as last reported
    share: Floats  # (J, T) of the allocation in force, alone and co-located
    received_s: Floats  # (J, T) as the priority rule counts it

    @property
    def is_over(self) -> Bools:
        """Whether each job has finished, was cancelled or given up, (J,)."""
        over: Bools = self.job_state > LAST_ALIVE
        return over


def read_only(column: Column) -> Column:
    """A read-only view of an array."""
    view = column.view()
    view.setflags(write=False)
    return view


def view_of(core: SchedulerCore) -> CoreView:
    """The view of a core now."""
    jobs, pool, n = core.jobs, core.pool, core.jobs.count
    return CoreView(
        now_s=core.now_s,
        round=core.round,
        round_end_s=core.round_end_s,
        gpu_types=pool.gpu_types,
        gpu_type_of=read_only(pool.type_of),
        gpu_job=read_only(pool.job),
        gpu_beside=read_only(pool.beside),
        job_state=read_only(jobs.state[:n]),
        job_lease=read_only(jobs.lease[:n]),
        steps_done=read_only(jobs.steps_done[:n]),
        share=read_only(jobs.share[:n]),
        received_s=read_only(jobs.total("received_s")[:n]),
    )


@dataclass(frozen=True, eq=False)
class JobAccount:
    """One job at one moment. Columns follow gpu_types."""

    state: JobState
    gpu_types: tuple[str, ...]
    rate_steps_per_s: Floats  # (T,) estimated; NaN = unknown
    share: Floats  # (T,) of the allocation in force, alone and co-located
    owed_s: Floats  # (T,) as the priority rule counts it
    received_s: Floats  # (T,)
    lease: int  # granted or running, -1 = none
    until_s: float  # its latest end in any plan
    gpus: Ints  # of the lease, as the core numbers them
    node_ids: tuple[NodeId, ...]  # of these GPUs, each once
    partner: int  # the co-located job, -1 = none
    stopping_lease: int  # -1 = none
    saved_lease: int  # that wrote the last checkpoint, -1 = none
    steps_saved: float
    steps_done: float


def account(core: SchedulerCore, job: int, now_s: float) -> JobAccount:
    """The account of a job as if the core booked time at `now_s`, which must not be before the last event."""
    jobs, pool = core.jobs, core.pool
    owed_s, received_s, share = (jobs.total(name)[job].copy() for name in ("owed_s", "received_s", "target"))
    elapsed_s, is_alive = now_s - core.settled_s, jobs.state[job] <= LAST_ALIVE
    if is_alive:
        fade = core.settings.rules.fade(core.settings, elapsed_s)
        owed_s, received_s = owed_s * fade + share * elapsed_s, received_s * fade
    lease, since_s = int(jobs.lease[job]), float(jobs.since_s[job])
    if lease >= 0 and since_s >= 0:
        received_s[jobs.lease_type[job]] += now_s - since_s
    gpus = jobs.gpus_held(job).copy() if lease >= 0 else np.zeros(0, dtype=np.int64)
    return JobAccount(
        state=JobState(int(jobs.state[job])),
        gpu_types=pool.gpu_types,
        rate_steps_per_s=jobs.rate[job].copy(),
        share=share if is_alive else np.zeros_like(share),
        owed_s=owed_s,
        received_s=received_s,
        lease=lease,
        until_s=float(jobs.until_s[job]),
        gpus=gpus,
        node_ids=tuple(pool.node_ids[row] for row in dict.fromkeys(pool.node_of[gpus].tolist())),
        partner=int(jobs.partner[job]),
        stopping_lease=int(jobs.stopping[job]),
        saved_lease=int(jobs.saved_lease[job]),
        steps_saved=float(jobs.steps_saved[job]),
        steps_done=float(jobs.steps_done[job]),
    )


@dataclass(frozen=True, eq=False)
class SizeAccounts:
    """What a job with several sizes is owed and has received on each. Rows follow gpus, columns GPU types."""

    gpus: Ints  # (S,) ascending
    rate_steps_per_s: Floats  # (S, T); NaN = unknown
    share: Floats  # (S, T) of the allocation in force
    owed_s: Floats  # (S, T)
    received_s: Floats  # (S, T)


def size_accounts(core: SchedulerCore, job: int, now_s: float) -> SizeAccounts | None:
    """The account of a job by its sizes, as if the core booked time at `now_s`; None if it has one size."""
    jobs, claims = core.jobs, core.jobs.claims
    if job not in jobs.sizes:
        return None
    own, elapsed_s, is_alive = jobs.sizes[job], now_s - core.settled_s, jobs.state[job] <= LAST_ALIVE
    rows = np.flatnonzero((claims.first == job) & (claims.second < 0))
    at = np.searchsorted(own.gpus, claims.gpus[rows]), claims.gpu_type[rows]
    share, owed_s, received_s = (np.zeros(own.rate.shape) for _ in range(3))
    for column, values in ((share, claims.target), (owed_s, claims.owed_s), (received_s, claims.received_s)):
        column[at] = values[rows]
    if is_alive:
        fade = core.settings.rules.fade(core.settings, elapsed_s)
        owed_s, received_s = owed_s * fade + share * elapsed_s, received_s * fade
    if jobs.lease[job] >= 0 and jobs.since_s[job] >= 0:
        held = int(np.searchsorted(own.gpus, jobs.gpus[job])), int(jobs.lease_type[job])
        received_s[held] += now_s - float(jobs.since_s[job])
    return SizeAccounts(own.gpus, own.rate, share if is_alive else np.zeros_like(share), owed_s, received_s)


def lag_s(core: SchedulerCore, rows: Ints, now_s: float) -> Floats:
    """Lag of these active jobs, over all types: time owed less time received, in seconds, negative if ahead, (K,).

    As if the core booked time at `now_s`, which must not be before the last event.
    """
    owed_s, received_s = booked_s(core, rows, now_s)
    lag: Floats = (owed_s - received_s).sum(axis=1)
    return lag


def booked_s(core: SchedulerCore, rows: Ints, now_s: float) -> tuple[Floats, Floats]:
    """Time owed to, and received by these active jobs on each type, as if booked at `now_s`, (K, T) each."""
    jobs, elapsed_s = core.jobs, now_s - core.settled_s
    fade = core.settings.rules.fade(core.settings, elapsed_s)
    owed_s = jobs.total("owed_s")[rows] * fade + jobs.total("target")[rows] * elapsed_s
    received_s = jobs.total("received_s")[rows] * fade
    running = np.flatnonzero((jobs.lease[rows] >= 0) & (jobs.since_s[rows] >= 0))
    received_s[running, jobs.lease_type[rows[running]]] += now_s - jobs.since_s[rows[running]]
    return owed_s, received_s


def standing(core: SchedulerCore, rows: Ints, now_s: float) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """What the order of these jobs is based on, (K,) each, as if booked at `now_s`; zero for jobs that are over.

    GPU-seconds under lease (also of jobs that are over); share, time owed and time received over all types; and
    urgency: the largest over the types on which the job has a share.
    """
    jobs = core.jobs
    is_alive = jobs.state[rows] <= LAST_ALIVE
    gpu_s = jobs.attained_gpu_s[rows].copy()
    running = is_alive & (jobs.lease[rows] >= 0) & (jobs.since_s[rows] >= 0)
    gpu_s[running] += (now_s - jobs.since_s[rows[running]]) * jobs.gpus[rows[running]]
    owed_s, received_s = booked_s(core, rows, now_s)
    share = jobs.total("target")[rows]
    by_type = core.settings.rules.urgency(share, owed_s, received_s, core.settings)
    urgency = np.where(share > 0, by_type, -np.inf).max(axis=1, initial=-np.inf)
    urgency = np.where(np.isneginf(urgency), 0.0, urgency)
    sums = (share.sum(axis=1), owed_s.sum(axis=1), received_s.sum(axis=1), urgency)
    share_sum, owed, received, most = (np.where(is_alive, column, 0.0) for column in sums)
    return gpu_s, share_sum, owed, received, most

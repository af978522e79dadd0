"""The status of jobs for people: columns of many jobs at once, then one value for each job."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism import eligibility, failures, non_preemptible, priority_classes, sizes
from gavelpy.mechanism.events import FailureClass
from gavelpy.mechanism.identities import GONE, JobGone
from gavelpy.mechanism.jobs import OPEN
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import Reason, ReasonKind, reasons
from gavelpy.mechanism.view import standing
from gavelpy.model.arrays import Ints
from gavelpy.model.job import JobSpec
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.leases.lease import Lease, Wish, is_by_time
from gavelpy.runtime.daemon.leases.metrics import last_metrics
from gavelpy.runtime.metric_files import MetricPoint

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState


class PublicState(IntEnum):
    """State of a job for people: as in the core, and STOPPING while a lease ends."""

    WAITING = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3
    FINISHED = 4
    CANCELLED = 5
    FAILED = 6


_PUBLIC: Ints = np.array(
    [PublicState["STARTING" if state is JobState.GRANTED else state.name] for state in JobState], dtype=np.int64
)


_STATES = tuple(PublicState)  # members of an enumeration are slow to look up by name
_GIVEN_UP, _OVER = PublicState.FAILED, PublicState.FINISHED
_BACKING_OFF, _BEGINS_LATER, _KILL = ReasonKind.BACKING_OFF, ReasonKind.BEGINS_LATER, Wish.KILL


@dataclass(frozen=True)
class JobStatus:
    """A job as people see it. Times are Unix times, 0 = not yet."""

    job: int
    name: str
    owner: str
    state: PublicState
    reason_kind: str  # empty = not waiting
    reason: str
    gpus: int  # of its lease, else those that it requests
    sizes: Sequence[int]  # all numbers of GPUs on which it can run; empty = one
    gpu_type: str  # empty = no lease
    node_ids: Sequence[str]
    co_located_with: Sequence[int]  # the job that shares its GPUs, if one does
    steps_done: float
    steps_saved: float
    steps_total: float
    rate_steps_per_s: float  # measured, else expected
    submitted_at_s: float
    started_at_s: float
    ended_at_s: float
    lease: int  # -1 = none
    restarts: int
    failures: int
    detail: str  # the last note
    weight: float
    priority: str  # name of its class
    priority_rank: int  # position of its class; 0 = the highest
    job_type: str
    entity: str
    steps_estimated: bool  # from time: the job has not reported any
    preemptible: bool
    preemptible_why: str
    gpu_s: float  # GPU time under lease
    share: float  # of its time that the policy gives it, over all GPU types
    owed_s: float  # by the policy, over all GPU types; older time counts less
    received_s: float
    urgency: float  # the largest over GPU types: who has more comes first; 0 = no share, or over
    held_by: str  # owner or admin; empty = not held
    begin_at_s: float
    array_size: int  # 0 = in no array
    array_first: int  # serial of the first job of its array
    array_limit: int
    after: Sequence[str]  # the jobs that it comes after
    failure_class: str  # of its last failure; empty = none
    failure: str  # the same for people, and whether it is retried
    nodes: Sequence[str]  # it runs on no other nodes; empty = on all
    exclude: Sequence[str]  # nodes on which it does not run
    reservation: str  # it runs within this reservation only; empty = outside of all
    ran_s: float  # under all leases
    total_open: bool  # steps_total is assumed: neither submitted nor announced
    app: str  # its role in an app; empty = in none
    metrics: Sequence[MetricPoint]  # last values of what it reports
    forecast_at_s: float = 0.0  # when the times below were forecast; 0 = they were not
    expected_start_at_s: float = 0.0  # 0 = not known, or it has started
    start_low_at_s: float = 0.0  # of the interval of 80 %; both 0 = not known
    start_high_at_s: float = 0.0  # 0 = without an upper end
    expected_finish_at_s: float = 0.0
    finish_low_at_s: float = 0.0
    finish_high_at_s: float = 0.0


class _Row(NamedTuple):
    """The values of one job in the columns that a status is made of."""

    row: int
    state: int
    gpu_s: float
    share: float
    owed_s: float
    received_s: float
    urgency: float
    ran_s: float
    started_s: float
    ended_s: float
    starts: int
    lease: int
    steps_done: float
    steps_saved: float
    saved_lease: int
    steps_total: float
    total_by: int
    submitted_s: float
    failures: int
    failure: int
    rank: int
    array: int
    hold: int


_OF_TABLE = _Row._fields[_Row._fields.index("lease") :]


class JobStatuses:
    """Reads the status of jobs from a scheduler."""

    def __init__(self, scheduler: SchedulerState) -> None:
        self._scheduler = scheduler

    def of(self, serials: Sequence[int] | Ints) -> list[JobStatus]:
        """The status of these jobs. Many take long: call it in pieces."""
        jobs = np.asarray(serials, dtype=np.int64)
        core, now_s = self._scheduler.core, self._scheduler.now_s()
        rows = core.jobs.ids.rows(jobs)
        if (rows == GONE).any():
            raise JobGone(f"job {jobs[rows == GONE][0]} has left the scheduler's tables")
        why = reasons(core, rows)
        columns = [rows, self.states(jobs), *standing(core, rows, now_s), core.jobs.ran_s(rows, now_s)]
        columns += [*self._scheduler.history.times(jobs), *(getattr(core.jobs, name)[rows] for name in _OF_TABLE)]
        words = _Words(self._scheduler, now_s)
        values = map(_Row._make, zip(*(column.tolist() for column in columns), strict=True))
        return [self._status(job, row, why.get(row.row), words) for job, row in zip(jobs.tolist(), values, strict=True)]

    def states(self, serials: Ints) -> Ints:
        """State of each job as a PublicState, (K,)."""
        jobs = self._scheduler.core.jobs
        rows = jobs.ids.rows(serials)
        state = jobs.state[rows]
        leaving = (state <= JobState.GRANTED) & (jobs.stopping[rows] >= 0)
        found: Ints = np.where(leaving, PublicState.STOPPING, _PUBLIC[state])
        return found

    def steps_done(self, job: int) -> float:
        """Steps done, as its nodes reported last; the core receives progress less often."""
        jobs = self._scheduler.core.jobs
        row = jobs.ids.row(job)
        lease = self._scheduler.leases.leases.get(int(jobs.lease[row]))
        return _steps_done(lease, float(jobs.steps_done[row]), float(jobs.steps_total[row]))

    def _status(self, job: int, row: _Row, why: Reason | None, words: _Words) -> JobStatus:
        scheduler, jobs, settings = self._scheduler, self._scheduler.core.jobs, self._scheduler.core.settings
        spec, state = jobs.specs[row.row], _STATES[row.state]
        lease = scheduler.leases.leases.get(row.lease) if row.lease >= 0 else None
        gpu_type, nodes, rate = self._place(row.row, lease) if row.lease >= 0 else ("", [], 0.0)
        is_preemptible, evidence = non_preemptible.in_words(jobs, settings, row.row)
        return JobStatus(
            job=job,
            name=name_of(spec.id),
            owner=spec.owner,
            state=state,
            reason_kind=why.kind.value if why is not None else "",
            reason=words.of(job, row.row, why) + self._trouble_on(nodes) if why is not None else "",
            gpus=int(jobs.gpus[row.row]) if row.lease >= 0 else spec.gpus,
            sizes=spec.sizes,
            gpu_type=gpu_type,
            node_ids=nodes,
            co_located_with=self._co_located_with(row),
            steps_done=_steps_done(lease, row.steps_done, row.steps_total),
            steps_saved=row.steps_saved if row.saved_lease >= 0 else 0.0,
            steps_total=row.steps_total,
            total_open=row.total_by == OPEN,
            rate_steps_per_s=rate,
            submitted_at_s=scheduler.wall_s(row.submitted_s),
            started_at_s=self._wall_s(row.started_s),
            ended_at_s=self._wall_s(row.ended_s),
            lease=row.lease,
            restarts=max(row.starts - 1, 0),
            failures=row.failures,
            detail=jobs.apps.ended.get(row.row) or scheduler.history.detail(job),
            weight=spec.weight,
            priority_rank=row.rank,
            priority=words.class_names[row.rank],
            job_type=spec.job_type,
            entity=spec.entity,
            steps_estimated=lease is not None and lease.is_started and is_by_time(lease),
            preemptible=is_preemptible,
            preemptible_why=evidence,
            gpu_s=row.gpu_s,
            share=row.share,
            owed_s=row.owed_s,
            received_s=row.received_s,
            urgency=row.urgency,
            held_by=eligibility.held_by(jobs, row.row) if row.hold != eligibility.NOT_HELD else "",
            begin_at_s=spec.begin_at_s,
            ran_s=row.ran_s,
            array_size=spec.array_size,
            array_first=max(row.array, 0),
            array_limit=spec.array_limit,
            after=after_in_words(spec),
            failure_class=failure_name(row.failure),
            failure=failures.in_words(jobs, row.row, settings, is_given_up=state is _GIVEN_UP),
            nodes=spec.nodes,
            exclude=spec.exclude,
            reservation=jobs.booked.get(row.row, spec.reservation if state >= _OVER else ""),
            app=spec.app,
            metrics=last_metrics(jobs.apps, row.row, lease),
            **(self._expected(job, row) if state < _OVER else {}),
        )

    def _place(self, row: int, lease: Lease | None) -> tuple[str, list[str], float]:
        """GPU type, nodes and steps/s (measured, else expected) of a job's lease."""
        jobs, pool = self._scheduler.core.jobs, self._scheduler.core.pool
        kind = int(jobs.lease_type[row])
        nodes = [str(pool.node_ids[node]) for node in dict.fromkeys(pool.node_of[jobs.gpus_held(row)].tolist())]
        measured = lease.rate_measured_steps_per_s if lease is not None else 0.0
        return pool.gpu_types[kind], nodes, measured or sizes.rate_at(jobs, row, int(jobs.gpus[row]), kind)

    def _co_located_with(self, row: _Row) -> tuple[int, ...]:
        """The job that shares the GPUs of a job's lease; empty if none does."""
        jobs = self._scheduler.core.jobs
        partner = int(jobs.partner[row.row])
        return (jobs.ids.serial(partner),) if partner >= 0 else ()

    def _trouble_on(self, node_ids: Sequence[str]) -> str:
        """Problems that the nodes of a lease have reported; empty = none."""
        known = ((node_id, self._scheduler.nodes.get(node_id)) for node_id in node_ids)
        return "".join(f"; node {node_id}: {node.trouble}" for node_id, node in known if node and node.trouble)

    def _expected(self, job: int, row: _Row) -> dict[str, float]:
        """Unix times of the last forecast of a job; empty = it is in none."""
        forecasts = self._scheduler.forecasts
        if (times := forecasts.of(job)) is None:
            return {}
        at_s, waits = self._scheduler.wall_s(forecasts.at_s), math.isnan(row.started_s)

        def moment_s(in_s: float, *, applies: bool = True) -> float:
            return at_s + in_s if applies and in_s >= 0 else 0.0

        return {
            "forecast_at_s": at_s,
            "expected_start_at_s": moment_s(times.start_in_s, applies=waits),
            "start_low_at_s": moment_s(times.start_low_s, applies=waits),
            "start_high_at_s": moment_s(times.start_high_s, applies=waits),
            "expected_finish_at_s": moment_s(times.finish_in_s),
            "finish_low_at_s": moment_s(times.finish_low_s),
            "finish_high_at_s": moment_s(times.finish_high_s),
        }

    def _wall_s(self, now_s: float) -> float:
        return 0.0 if math.isnan(now_s) else self._scheduler.wall_s(now_s)


class _Words:
    """Reasons with times relative to now and the last message of a node, which the core does not have."""

    def __init__(self, scheduler: SchedulerState, now_s: float) -> None:
        self._scheduler, self._core, self._now_s = scheduler, scheduler.core, now_s
        self.class_names = priority_classes.ranking(scheduler.core.settings.priorities).names
        windows = scheduler.core.windows.values()
        self._moments = {moment for one in windows for moment in (one.begin_s, one.end_s)}
        self._moments |= set(scheduler.core.jobs.apps.due_s.values())
        self._known: dict[str, str] = {}  # by text of the core

    def of(self, job: int, row: int, why: Reason) -> str:
        """The reason of a job."""
        if why.kind is _BACKING_OFF:
            jobs = self._core.jobs
            when = f"in {max(jobs.retry_at_s[row] - self._now_s, 0.0):.0f} s"
            return eligibility.pause_in_words(int(jobs.misses[row]), when, self._scheduler.history.detail(job))
        if why.kind is _BEGINS_LATER:
            begin_s = float(self._core.jobs.begin_at_s[row])
            return eligibility.begin_in_words(f"at {self._date(begin_s)}, in {max(begin_s - self._now_s, 0.0):.0f} s")
        if why.text not in self._known:
            self._known[why.text] = self._relative(why.text)
        return self._known[why.text]

    def _relative(self, text: str) -> str:
        end_s, now_s = self._core.round_end_s, self._now_s
        for moment_s in self._moments:
            date = self._date(moment_s)
            text = text.replace(f"begins at {moment_s:g} s", f"begins at {date}, in {max(moment_s - now_s, 0.0):.0f} s")
            text = text.replace(f"until {moment_s:g} s", f"until {date}")
        return text.replace(f"at {end_s:g} s", f"in {max(end_s - now_s, 0.0):.0f} s")

    def _date(self, moment_s: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._scheduler.wall_s(moment_s)))


def _steps_done(lease: Lease | None, core_steps: float, steps_total: float) -> float:
    """Steps done, as nodes reported last; the core receives progress less often."""
    reported = lease.steps_done if lease is not None and lease.wish is not _KILL else 0.0
    return max(core_steps, min(reported, steps_total))


def after_in_words(spec: JobSpec) -> list[str]:
    """The jobs that a job comes after, as in a description: `12:ok`."""
    return [f"{other}:ok" for other in spec.after_ok] + [f"{other}:any" for other in spec.after_any]


def hold_note(job: JobStatus) -> str:
    """What its owner should know about the effect of a hold or release on a job; empty = nothing."""
    if job.state > PublicState.STOPPING:
        return f"it is over ({job.state.name.lower()}): nothing changes"
    if job.held_by and job.lease >= 0:
        return f"it keeps lease {job.lease}, and is held as soon as it is preempted, requeued or fails"
    return ""


def failure_name(number: int) -> str:
    """The name of a failure class for programs; empty = none."""
    return FailureClass(number).name.lower().replace("_", "-") if number != failures.NO_FAILURE else ""

"""Jobs: which ones a caller may see, lookup by number or name, and the status of each."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput, NotFound
from gavelpy.mechanism import eligibility, failures, non_preemptible, priority_classes
from gavelpy.mechanism.accept import NAMES_SHOWN
from gavelpy.mechanism.events import FailureClass
from gavelpy.mechanism.feasibility import cannot_run
from gavelpy.mechanism.jobs import OPEN
from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.mechanism.reasons import Reason, ReasonKind, reasons
from gavelpy.mechanism.view import standing
from gavelpy.model.arrays import Ints
from gavelpy.model.job import JobId, JobSpec
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.leases.lease import Wish, co_located_with, is_by_time
from gavelpy.runtime.daemon.queries.fields import number, require, shown
from gavelpy.runtime.security.identity import Caller

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

HIDDEN = "***"
_SHOWN = re.compile(
    r"PATH|HOME|LANG|LC_[A-Z]+|TZ|TMPDIR|TERM|SHELL|PYTHON(PATH|UNBUFFERED|HASHSEED|FAULTHANDLER)|VIRTUAL_ENV|LD_LIBRARY_PATH"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS|CUDA_(HOME|LAUNCH_BLOCKING|DEVICE_ORDER)|NCCL_(DEBUG|IB_DISABLE|SOCKET_IFNAME)"
)
_SERIAL, _OWNER_SEPARATOR = re.compile(r"[0-9]{1,15}"), "/"
PAGE_DEFAULT, PAGE_MAX, JOBS_NAMED_MAX = 1_000, 10_000, 10_000


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


@dataclass(frozen=True)
class JobStatus:
    """A job as people see it. Times are Unix times, 0 = not yet."""

    job: int
    name: str
    owner: str
    state: PublicState
    reason_kind: str  # empty = not waiting
    reason: str
    gpus: int
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


_TIMES = ("gpu_s", "share", "owed_s", "received_s", "urgency")


@dataclass(frozen=True)
class JobPage:
    """Serials of jobs, ascending. `next_after`: where the next page begins; -1 = this is the last."""

    jobs: Sequence[int]
    next_after: int


class JobQueries:
    """Reads jobs from a scheduler; has an index by owner."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._of_owner: dict[str, list[int]] = {}
        self._seen = self._gone = 0

    # Visibility ---------------------------------------------------------------------------------------------------

    def serials(self, caller: Caller, owner: str = "") -> Ints:
        """Serials of the jobs that a caller may see, ascending, optionally of one owner."""
        if caller.is_admin and not owner:
            return self._scheduler.core.jobs.ids.serials
        selected = owner or caller.name
        if selected != caller.name and not caller.is_admin:
            return np.zeros(0, dtype=np.int64)  # as if that owner had none: names do not leak
        self._follow()
        return np.array(self._of_owner.get(selected, ()), dtype=np.int64)

    def may_see(self, caller: Caller, job: int) -> bool:
        """Whether the caller is an admin or owns the job, which has not left (see `past`). All see lost ones."""
        row = self._scheduler.core.jobs.ids.row(job)
        return caller.is_admin or (row >= 0 and self._scheduler.core.jobs.specs[row].owner in (caller.name, ""))

    def find(self, caller: Caller, text: str) -> int:
        """The serial of a job by number or name (admins: OWNER/NAME); raises NotFound if the caller may see none."""
        job = -1
        if _SERIAL.fullmatch(text):
            job = int(text)
        elif text:
            owner, separator, name = text.rpartition(_OWNER_SEPARATOR)
            if not separator:
                job = self._scheduler.job_named(caller.name, name)
            elif caller.is_admin or owner == caller.name:
                job = self._scheduler.job_named(owner, name)
        if self._scheduler.core.jobs.ids.row(job) < 0 or not self.may_see(caller, job):
            hint = " (admins name others' jobs OWNER/NAME)" if caller.is_admin and not _SERIAL.fullmatch(text) else ""
            raise NotFound(f"job must be the number or name of one of yours, got {shown(text)}{hint}")
        return job

    def named(self, caller: Caller, names: Sequence[str]) -> Ints:
        """Serials of jobs without duplicates, in order; raises NotFound if the caller may not see one."""
        require(1 <= len(names) <= JOBS_NAMED_MAX, "jobs", f"1 to {JOBS_NAMED_MAX} jobs", len(names))
        return np.array(list(dict.fromkeys(self.find(caller, name) for name in names)), dtype=np.int64)

    def page(
        self, caller: Caller, *, owner: str = "", states: AbstractSet[PublicState] | None = None, after: int = -1,
        size: int = PAGE_DEFAULT, ended_since_s: float = 0.0,
    ) -> JobPage:  # fmt: skip
        """The first jobs after a serial, optionally of one owner or in some states; by default those not over.

        With `ended_since_s`, a Unix time, none of the jobs that ended before.
        """
        require(0 < size <= PAGE_MAX, "page_size", f"at most {PAGE_MAX}", size)
        rows = self.serials(caller, owner)
        rows = rows[rows > after]
        if states is None:
            rows = rows[self._scheduler.core.jobs.by_serial.state[rows] <= ALIVE[-1]]
        elif len(states) < len(PublicState):
            rows = rows[np.isin(self._states(rows), list(states))]
        if number("ended_since_s", ended_since_s):
            is_over = self._scheduler.core.jobs.by_serial.state[rows] > ALIVE[-1]
            since_s = ended_since_s - self._scheduler.wall_s(0.0)
            rows = rows[~is_over | self._scheduler.history.ended_since(rows, since_s)]
        page = rows[:size].tolist()
        return JobPage(page, page[-1] if len(rows) > size else -1)

    def name(self, job: int) -> str:
        """The name of a job."""
        return name_of(self._scheduler.core.jobs.by_serial.specs[job].id)

    def _follow(self) -> None:
        jobs = self._scheduler.core.jobs
        if (gone := jobs.ids.next_serial - jobs.count) != self._gone:  # jobs have left
            self._of_owner, self._seen, self._gone = {}, 0, gone
        for job, spec in zip(jobs.ids.serials[self._seen :].tolist(), jobs.specs[self._seen :], strict=True):
            self._of_owner.setdefault(spec.owner, []).append(job)
        self._seen = jobs.count

    # Status -------------------------------------------------------------------------------------------------------

    def _states(self, rows: Ints) -> Ints:
        """State of each job as a PublicState, (K,)."""
        jobs = self._scheduler.core.jobs.by_serial
        state = jobs.state[rows]
        leaving = (state <= JobState.GRANTED) & (jobs.stopping[rows] >= 0)
        found: Ints = np.where(leaving, PublicState.STOPPING, _PUBLIC[state])
        return found

    def statuses(self, rows: Sequence[int] | Ints) -> list[JobStatus]:
        """The status of these jobs. Many take long: call it in pieces."""
        serials = np.asarray(rows, dtype=np.int64)
        core, now_s = self._scheduler.core, self._scheduler.now_s()
        rows = core.jobs.ids.rows(serials)
        why = {core.jobs.ids.serial(row): reason for row, reason in reasons(core, rows).items()}
        times = [column.tolist() for column in standing(core, rows, now_s)]
        states = self._states(serials).tolist()
        return [
            self._status(job, PublicState(state), why.get(job), row)
            for job, state, *row in zip(serials.tolist(), states, *times, strict=True)
        ]

    def check_requeue(self, rows: Sequence[int], *, force: bool) -> None:
        """Raises InvalidInput for jobs that have no lease to stop, or would start from scratch without `force`."""
        jobs = self._scheduler.core.jobs.by_serial
        for job in rows:
            where = f"job {job} ({self.name(job)})"
            if jobs.state[job] > ALIVE[-1]:
                raise InvalidInput(f"{where} is over, and cannot be requeued: submit it again")
            if jobs.lease[job] < 0:
                raise InvalidInput(f"{where} has no lease to stop: it waits already")
            if non_preemptible.is_finishing(jobs, np.array([job]))[0]:
                raise InvalidInput(f"{where} has done its last step and is about to end: a requeue would repeat work")
            if non_preemptible.loses_all(jobs, job) and not force and jobs.state[job] == JobState.RUNNING:
                lost = f"about {self._steps_done(job):.0f} steps" if self._steps_done(job) else "its work so far"
                why = f"never saved a checkpoint, and a requeue loses {lost}"
                raise InvalidInput(f"{where} {why}: add --force to start it from scratch")

    def warnings(self, rows: Ints) -> dict[int, str]:
        """Warnings by serial: the job cannot run, or has a rate for a GPU type that the cluster lacks."""
        core = self._scheduler.core
        never, ids = cannot_run(core, core.jobs.ids.rows(rows)), core.jobs.ids
        found = {ids.serial(row): f"cannot run on this cluster as it is: {why}" for row, why in never.items()}
        known, here = set(core.pool.gpu_types), ", ".join(core.pool.gpu_types)
        for job in rows.tolist():
            spec = core.jobs.by_serial.specs[job]
            unknown = [name for name in (*spec.nodes, *spec.exclude) if name not in core.pool.node_row]
            if unknown and job not in found:
                nodes = ", ".join(sorted(core.pool.node_ids)[:NAMES_SHOWN])
                found[job] = f"no node has the name {', '.join(unknown[:NAMES_SHOWN])} now; the cluster has {nodes}"
            strange = sorted(core.jobs.by_serial.specs[job].rates_steps_per_s.keys() - known)
            if strange and job not in found:
                found[job] = f"no node has GPUs of type {', '.join(strange)}; the cluster has {here}"
        return found

    def _status(self, job: int, state: PublicState, why: Reason | None, times: Sequence[float]) -> JobStatus:
        scheduler = self._scheduler
        jobs, history, spec = scheduler.core.jobs.by_serial, scheduler.history, scheduler.core.jobs.by_serial.specs[job]
        gpu_type, nodes, rate = self.place(job)
        is_preemptible, evidence = non_preemptible.in_words(jobs, scheduler.core.settings, job)
        return JobStatus(
            job=job,
            name=name_of(spec.id),
            owner=spec.owner,
            state=state,
            reason_kind=why.kind.value if why is not None else "",
            reason=self._in_words(job, why) + self._trouble_on(nodes, why),
            gpus=spec.gpus,
            gpu_type=gpu_type,
            node_ids=nodes,
            co_located_with=co_located_with(scheduler.core, job),
            steps_done=self._steps_done(job),
            steps_saved=float(jobs.steps_saved[job]) if jobs.saved_lease[job] >= 0 else 0.0,
            steps_total=float(jobs.steps_total[job]),
            total_open=bool(jobs.total_by[job] == OPEN),
            rate_steps_per_s=rate,
            submitted_at_s=scheduler.wall_s(float(jobs.submitted_s[job])),
            started_at_s=self._wall_s(history.started_s(job)),
            ended_at_s=self._wall_s(history.ended_s(job)),
            lease=int(jobs.lease[job]),
            restarts=max(history.starts(job) - 1, 0),
            failures=int(jobs.failures[job]),
            detail=history.detail(job),
            weight=spec.weight,
            priority_rank=int(jobs.rank[job]),
            priority=priority_classes.class_of(jobs, scheduler.core.settings, job),
            job_type=spec.job_type,
            entity=spec.entity,
            steps_estimated=self._is_estimate(job),
            preemptible=is_preemptible,
            preemptible_why=evidence,
            **dict(zip(_TIMES, times, strict=True)),
            held_by=eligibility.held_by(jobs, job),
            begin_at_s=spec.begin_at_s,
            ran_s=float(jobs.ran_s(np.array([job]), scheduler.now_s())[0]),
            array_size=spec.array_size,
            array_first=max(int(jobs.array[job]), 0),
            array_limit=spec.array_limit,
            after=after_in_words(spec),
            failure_class=failure_name(int(jobs.failure[job])),
            failure=failures.in_words(jobs, job, scheduler.core.settings, is_given_up=state is PublicState.FAILED),
            nodes=spec.nodes,
            exclude=spec.exclude,
            reservation=jobs.booked.get(job, spec.reservation if jobs.state[job] > ALIVE[-1] else ""),
        )

    def _is_estimate(self, job: int) -> bool:
        """Whether its steps are estimated from time: it runs and has not reported any."""
        lease = self._scheduler.leases.leases.get(int(self._scheduler.core.jobs.by_serial.lease[job]))
        return lease is not None and lease.is_started and is_by_time(lease)

    def _steps_done(self, job: int) -> float:
        """Steps done, as its nodes reported last; the core receives progress less often."""
        jobs = self._scheduler.core.jobs.by_serial
        lease = self._scheduler.leases.leases.get(int(jobs.lease[job]))
        reported = lease.steps_done if lease is not None and lease.wish is not Wish.KILL else 0.0
        return max(float(jobs.steps_done[job]), min(reported, float(jobs.steps_total[job])))

    def place(self, job: int) -> tuple[str, list[str], float]:
        """GPU type, nodes and steps/s (measured, else expected) of a job's lease; empty if it has none."""
        core = self._scheduler.core
        jobs, pool, number = core.jobs.by_serial, core.pool, int(core.jobs.by_serial.lease[job])
        if number < 0:
            return "", [], 0.0
        kind = int(jobs.lease_type[job])
        nodes = [str(pool.node_ids[row]) for row in dict.fromkeys(pool.node_of[jobs.gpus_held(job)].tolist())]
        lease = self._scheduler.leases.leases.get(number)
        measured = lease.rate_measured_steps_per_s if lease is not None else 0.0
        expected = float(jobs.rate[job, kind])
        return pool.gpu_types[kind], nodes, measured or (0.0 if math.isnan(expected) else expected)

    def _in_words(self, job: int, why: Reason | None) -> str:
        """The reason with times relative to now and the last message of a node, which the core does not have."""
        if why is None:
            return ""
        core, now_s = self._scheduler.core, self._scheduler.now_s()
        if why.kind is ReasonKind.BACKING_OFF:
            when = f"in {max(core.jobs.by_serial.retry_at_s[job] - now_s, 0.0):.0f} s"
            misses, last = int(core.jobs.by_serial.misses[job]), self._scheduler.history.detail(job)
            return eligibility.pause_in_words(misses, when, last)
        if why.kind is ReasonKind.BEGINS_LATER:
            begin_s = float(core.jobs.by_serial.begin_at_s[job])
            date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._scheduler.wall_s(begin_s)))
            return eligibility.begin_in_words(f"at {date}, in {max(begin_s - now_s, 0.0):.0f} s")
        end_s = core.round_end_s
        text = why.text
        for moment_s in {moment for one in core.windows.values() for moment in (one.begin_s, one.end_s)}:
            date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._scheduler.wall_s(moment_s)))
            text = text.replace(f"begins at {moment_s:g} s", f"begins at {date}, in {max(moment_s - now_s, 0.0):.0f} s")
            text = text.replace(f"until {moment_s:g} s", f"until {date}")
        return text.replace(f"at {end_s:g} s", f"in {max(end_s - now_s, 0.0):.0f} s")

    def _trouble_on(self, node_ids: Sequence[str], why: Reason | None) -> str:
        """Problems that the nodes of a lease have reported; empty = none."""
        if why is None:
            return ""
        known = ((node_id, self._scheduler.nodes.get(node_id)) for node_id in node_ids)
        return "".join(f"; node {node_id}: {node.trouble}" for node_id, node in known if node and node.trouble)

    def _wall_s(self, now_s: float) -> float:
        return 0.0 if math.isnan(now_s) else self._scheduler.wall_s(now_s)


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


def as_described(spec: JobSpec) -> JobSpec:
    """A job as its owner described it: with its own name, and without values that may be secrets."""
    return JobSpec(
        **(
            vars(spec)
            | {"id": JobId(name_of(spec.id)), "environment": redacted(spec.environment), "notify": spec.notify.redacted}
        )
    )


def redacted(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with *** in place of all values except those of variables that are known not to be secrets."""
    return {name: value if _SHOWN.fullmatch(name) else HIDDEN for name, value in environment.items()}

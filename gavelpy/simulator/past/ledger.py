"""Jobs and their leases as the events of a core show them: a journal's, or those of its replay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gavelpy.mechanism.commands import Command, KillLease, RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationSolved,
    CheckpointSaved,
    Event,
    IdsReserved,
    JobCancelled,
    JobSubmitted,
    LastStepReported,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLost,
    Outcome,
    ProgressReported,
    SavingDeclared,
    ThroughputEstimated,
    TotalAnnounced,
)
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import JobSpec
from gavelpy.simulator.past.timers import Timers

_ENDS = {JobState.FINISHED: "finished", JobState.CANCELLED: "cancelled", JobState.FAILED: "failed"}


@dataclass(slots=True)
class ObservedLease:
    """One lease. NaN: not seen."""

    job: int
    gpu_type: str
    gpus: int
    granted_s: float
    steps_before: float
    ready_s: float = math.nan  # when it was granted, and its GPUs and its job were free
    started_s: float = math.nan
    moved: bool = False  # its job last ran on other GPUs
    is_shared: bool = False  # another job ran on the same GPUs
    heard_s: float = math.nan  # of the first report
    readings: list[tuple[float, float]] = field(default_factory=list)  # time and steps, where they grew
    pauses: list[tuple[float, float]] = field(default_factory=list)  # the last report of the same steps, if repeated
    missed_s: list[float] = field(default_factory=list)  # when others reported, and it did not
    revoked_s: float = math.nan
    saved_s: float = math.nan  # of the last checkpoint that was reported after that
    last_step_s: float = math.nan
    ended_s: float = math.nan
    steps_end: float = math.nan
    outcome: Outcome | None = None

    def steps_at(self, now_s: float, start_s: float) -> float:
        """Steps of the job while the lease runs, between the reports around this time; a start takes `start_s`."""
        points = [(self.ready_s + start_s, self.steps_before), *self.readings]
        until_s = self.last_step_s if not math.isnan(self.last_step_s) else self.revoked_s
        if self.outcome in (Outcome.FINISHED, Outcome.STOPPED) and not math.isnan(until_s):
            points.append((until_s, self.steps_end))
        return float(np.interp(now_s, [at_s for at_s, _ in points], [steps for _, steps in points]))


@dataclass(slots=True)
class ObservedJob:
    """One job. NaN: not seen."""

    spec: JobSpec
    arrival_s: float
    first_start_s: float = math.nan
    end_s: float = math.nan
    end: str = ""  # finished, cancelled or failed; empty = it had not ended
    steps: float = 0.0  # most that were reported
    run_s: float = 0.0  # under leases
    gpu_s: float = 0.0
    preemptions: int = 0
    declared_in_s: float = math.nan  # from the start of a lease to the declaration of its program that it saves
    total_announced: float = math.nan
    estimates: list[tuple[float, int, Floats]] = field(default_factory=list)  # time, size (0 = requested), rates (T,)

    @property
    def jct_s(self) -> float:
        """From submission to the end."""
        return self.end_s - self.arrival_s


class Used(NamedTuple):
    """What a job has used."""

    run_s: float
    gpu_s: float
    preemptions: int


NOTHING = Used(0.0, 0.0, 0)


class Ledger:
    """Jobs and their leases, folded from the events of a core that uses serials, or rows that are kept."""

    def __init__(self) -> None:
        self.jobs: dict[int, ObservedJob] = {}
        self.leases: dict[int, ObservedLease] = {}  # by serial of the lease
        self.solve_s: list[float] = []  # seconds of each allocation, from the request to the answer
        self.timers = Timers()
        self.reports_apart_s = math.inf  # least time between two reports of progress
        self._reported_s = -math.inf
        self._asked_s: dict[int, float] = {}  # by epoch
        self._running: dict[int, int] = {}  # lease, by job
        self._gpu_free_s: dict[int, float] = {}
        self._gpu_lease: dict[int, int] = {}
        self._gpus: dict[int, tuple[int, ...]] = {}  # of leases that run
        self._job_free_s: dict[int, float] = {}
        self._job_gpus: dict[int, frozenset[int]] = {}  # that it last ran on

    def adopt(self, core: SchedulerCore, now_s: float) -> None:
        """The jobs and leases that a core has when the ledger begins."""
        jobs = core.jobs
        for row, serial in enumerate(_names(core).tolist()):
            job = ObservedJob(jobs.specs[row], float(jobs.submitted_s[row]), steps=float(jobs.steps_done[row]))
            self.jobs[serial] = job
            self._see_end(core, serial, row, now_s)
            if job.end:
                job.end_s = math.nan  # before the ledger began
            elif jobs.attained_gpu_s[row] > 0 or jobs.lease[row] >= 0:
                job.first_start_s = min(float(jobs.began_s[row]), now_s)
            if jobs.state[row] == JobState.RUNNING:
                lease, gpus = int(jobs.lease[row]), jobs.gpus_held(row)
                self._start(core, serial, lease, tuple(gpus.tolist()), now_s)
                self.leases[lease].steps_before = float(jobs.steps_done[row])

    def apply(self, core: SchedulerCore, event: Event, now_s: float, commands: Iterable[Command]) -> None:
        """Adds an event that the core has applied, and the commands that followed."""
        match event:
            case JobSubmitted():
                self.jobs[_names(core)[-1].item()] = ObservedJob(event.spec, now_s)
            case LeaseStarted():
                for k, (job, lease) in enumerate(zip(event.jobs.tolist(), event.leases.tolist(), strict=True)):
                    gpus = event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]]
                    self._start(core, job, lease, tuple(gpus.tolist()), now_s)
            case ProgressReported():
                self.reports_apart_s = min(self.reports_apart_s, now_s - self._reported_s)
                self._reported_s = now_s
                for lease, steps in zip(event.leases.tolist(), event.steps_done.tolist(), strict=True):
                    self._read(lease, steps, now_s)
                for lease in set(self._running.values()).difference(event.leases.tolist()):
                    if self.leases[lease].heard_s < now_s and math.isnan(self.leases[lease].revoked_s):
                        self.leases[lease].missed_s.append(now_s)
            case CheckpointSaved():
                for lease in event.leases.tolist():
                    if lease in self.leases and not math.isnan(self.leases[lease].revoked_s):
                        self.leases[lease].saved_s = now_s
            case LastStepReported():
                for lease in event.leases.tolist():
                    if lease in self.leases:
                        self.leases[lease].last_step_s = now_s
            case LeaseEnded():
                for lease, steps in zip(event.leases.tolist(), event.steps_done.tolist(), strict=True):
                    self._end(lease, steps, event.outcome, now_s)
            case AllocationSolved():
                if event.epoch in self._asked_s:
                    self.solve_s.append(now_s - self._asked_s.pop(event.epoch))
            case SavingDeclared():
                for job, lease in zip(event.jobs.tolist(), event.leases.tolist(), strict=True):
                    if lease in self.leases and math.isnan(self.jobs[job].declared_in_s):
                        self.jobs[job].declared_in_s = max(now_s - self.leases[lease].started_s, 0.0)
            case TotalAnnounced():
                for job, total in zip(event.jobs.tolist(), event.steps_total.tolist(), strict=True):
                    self.jobs[job].total_announced = total
            case ThroughputEstimated():
                sizes = event.sizes.tolist() or [0] * len(event.jobs)
                for job, size, rates in zip(event.jobs.tolist(), sizes, event.rates_steps_per_s, strict=True):
                    self.jobs[job].estimates.append((now_s, size, rates))
        for command in commands:
            self._command(core, command, now_s)
        self.timers.see(core, event, now_s)
        self._see_ends(core, event, now_s)

    def close(self, core: SchedulerCore, now_s: float) -> None:
        """Books the leases that still run, up to now; call it once, at the end."""
        self._see_all_ends(core, now_s)
        for job, lease in self._running.items():
            self._book(job, lease, now_s)
        self._running = {}

    def used(self, now_s: float) -> dict[int, Used]:
        """Time and GPU time under leases, and preemptions, of each job up to now."""
        found = {job: Used(one.run_s, one.gpu_s, one.preemptions) for job, one in self.jobs.items() if not one.end}
        for job, lease in self._running.items():
            held_s = now_s - self.leases[lease].ready_s
            before = found.get(job, NOTHING)
            gpu_s = before.gpu_s + held_s * self.leases[lease].gpus
            found[job] = Used(before.run_s + held_s, gpu_s, before.preemptions)
        return found

    # Events -------------------------------------------------------------------------------------------------------

    def _command(self, core: SchedulerCore, command: Command, now_s: float) -> None:
        match command:
            case RoundPlan():
                for lease in command.revoke_leases.tolist():
                    self._revoke(lease, now_s)
                ends = command.grant_gpu_offsets
                for k, (job, lease) in enumerate(
                    zip(command.grant_jobs.tolist(), command.grant_leases.tolist(), strict=True)
                ):
                    gpus = command.grant_gpus[ends[k] : ends[k + 1]]
                    gpu_type = core.pool.gpu_types[int(core.pool.type_of[gpus[0]])]
                    self.leases[lease] = ObservedLease(job, gpu_type, len(gpus), now_s, self.jobs[job].steps)
            case KillLease():
                self._revoke(command.lease, now_s)
            case SolveAllocation():
                self._asked_s[command.epoch] = now_s

    def _revoke(self, lease: int, now_s: float) -> None:
        if lease in self.leases and math.isnan(self.leases[lease].revoked_s):
            self.leases[lease].revoked_s = now_s

    def _start(self, core: SchedulerCore, job: int, lease: int, gpus: tuple[int, ...], now_s: float) -> None:
        if lease <= self._running.get(job, -1) or job not in self.jobs:
            return
        if job in self._running:  # the end of its last lease was not reported
            self._leave(job, now_s)
        if lease not in self.leases:
            gpu_type = core.pool.gpu_types[int(core.pool.type_of[gpus[0]])]
            self.leases[lease] = ObservedLease(job, gpu_type, len(gpus), now_s, self.jobs[job].steps)
        seen, owner = self.leases[lease], self.jobs[job]
        seen.started_s, seen.steps_before = now_s, owner.steps
        free_s = [self._gpu_free_s.get(gpu, -math.inf) for gpu in gpus]
        seen.ready_s = max(seen.granted_s, self._job_free_s.get(job, -math.inf), *free_s)
        before = self._job_gpus.get(job)
        seen.moved = before is not None and before != frozenset(gpus)
        self._job_gpus[job] = frozenset(gpus)
        for gpu in gpus:
            other = self._gpu_lease.get(gpu)
            if other is not None and other in self._gpus:
                seen.is_shared = self.leases[other].is_shared = True
            self._gpu_lease[gpu] = lease
        self._running[job], self._gpus[lease] = lease, gpus
        if math.isnan(owner.first_start_s):
            owner.first_start_s = now_s

    def _read(self, lease: int, steps: float, now_s: float) -> None:
        seen = self.leases.get(lease)
        if seen is None or self._running.get(seen.job) != lease:
            return
        seen.heard_s = now_s if math.isnan(seen.heard_s) else seen.heard_s
        last = seen.readings[-1][1] if seen.readings else seen.steps_before
        if steps > last:
            seen.readings.append((now_s, steps))
            self.jobs[seen.job].steps = max(self.jobs[seen.job].steps, steps)
        elif steps == last:
            if seen.pauses and seen.pauses[-1][1] == steps:
                seen.pauses.pop()
            seen.pauses.append((now_s, steps))

    def _end(self, lease: int, steps: float, outcome: Outcome, now_s: float) -> None:
        seen = self.leases.get(lease)
        if seen is None or not math.isnan(seen.ended_s):
            return
        seen.ended_s, seen.steps_end, seen.outcome = now_s, steps, outcome
        job = self.jobs[seen.job]
        if self._running.get(seen.job) == lease:  # and not one that was withdrawn before its start
            job.steps = steps if outcome in (Outcome.STOPPED, Outcome.FINISHED) else job.steps
            job.preemptions += outcome is not Outcome.FINISHED
            self._leave(seen.job, now_s)

    def _leave(self, job: int, now_s: float) -> None:
        lease = self._running.pop(job)
        self._book(job, lease, now_s)
        for gpu in self._gpus.pop(lease):
            self._gpu_free_s[gpu] = now_s
        self._job_free_s[job] = now_s

    def _book(self, job: int, lease: int, now_s: float) -> None:
        held_s = now_s - self.leases[lease].ready_s  # its GPUs are idle for others from then on
        self.jobs[job].run_s += held_s
        self.jobs[job].gpu_s += held_s * self.leases[lease].gpus

    def _see_ends(self, core: SchedulerCore, event: Event, now_s: float) -> None:
        """Notes which jobs are over, of those that this event can have ended."""
        ids = core.jobs.ids
        if isinstance(event, NodeLost | NodeJoined | AgentRejoined | IdsReserved):
            self._see_all_ends(core, now_s)
            return
        ended = [job for job, _ in core.unmet_jobs]
        if isinstance(event, JobCancelled):
            ended.append(event.job)
        elif isinstance(event, LeaseEnded | JobSubmitted):
            ended += event.jobs.tolist() if isinstance(event, LeaseEnded) else [_names(core)[-1].item()]
        for job in ended:
            self._see_end(core, job, ids.row(job) if ids.are_translated else job, now_s)

    def _see_all_ends(self, core: SchedulerCore, now_s: float) -> None:
        names = _names(core)
        for row in np.flatnonzero(core.jobs.state[: core.jobs.count] > LAST_ALIVE).tolist():
            self._see_end(core, int(names[row]), row, now_s)

    def _see_end(self, core: SchedulerCore, job: int, row: int, now_s: float) -> None:
        seen = self.jobs.get(job)
        if seen is not None and not seen.end and row >= 0 and core.jobs.state[row] > LAST_ALIVE:
            seen.end, seen.end_s = _ENDS[JobState(int(core.jobs.state[row]))], now_s


def _names(core: SchedulerCore) -> Ints:
    """The number by which events and commands name the job in each row."""
    return np.arange(core.jobs.count) if core.jobs.ids.in_rows else core.jobs.ids.serials

"""The future of a copy of the core: nodes that do as they are told, jobs that run at the rates believed of them.

Nobody submits, cancels or fails; nodes stay as they are. A job that has not run yet is taken to save checkpoints if
another of its job type does. That is what a forecast means, and all it can mean. The core
and the policy are the real ones; only time is not.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.engine import Engine
from gavelpy.mechanism import unsaved
from gavelpy.mechanism.commands import Command, EstimateThroughput, KillLease, RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    Event,
    LeaseEnded,
    LeaseStarted,
    Outcome,
    ProgressReported,
    SavingDeclared,
    WakeupDue,
)
from gavelpy.mechanism.lifecycle import JobState, Resumes
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.forecast_values import NOT_SEEN_S, Expected


@dataclass(frozen=True)
class Costs:
    """What a start and a stop are taken to cost."""

    stop_s: float = 2.0
    start_s: float = 5.0


class _Lease:
    """One that runs, or waits until older ones have ended."""

    __slots__ = ("began_s", "gpus", "job", "lease", "rate", "steps")

    def __init__(self, job: int, lease: int, gpus: Ints, steps: float, rate: float) -> None:
        self.job, self.lease, self.gpus, self.steps, self.rate = job, lease, gpus, steps, rate
        self.began_s = NOT_SEEN_S  # of its first step


class World:
    """Takes a core and owns it from then on. `rates`: measured steps/s of jobs where they run now."""

    def __init__(
        self, core: SchedulerCore, engine: Engine, rates: Mapping[int, float], costs: Costs, now_s: float
    ) -> None:
        self.core, self.engine, self.costs = core, engine, costs
        self.now_s = self.began_s = max(now_s, core.now_s)
        self.expected: defaultdict[int, Expected] = defaultdict(Expected)
        self._measured = {job: (int(core.jobs.lease_type[job]), rate) for job, rate in rates.items() if rate > 0}
        self._leases: dict[int, _Lease] = {}
        self._waits: dict[int, set[int]] = {}  # of leases not begun: older leases that must have ended
        self._gpu_lease: dict[int, int] = {}  # the last lease on a GPU
        self._job_lease: dict[int, int] = {}
        self._due: list[tuple[float, int, int, str]] = []  # when, tie, lease, what
        self._count = 0
        jobs = core.jobs
        saves = unsaved.is_preemptible(jobs, np.arange(jobs.count)) & (jobs.resumes[: jobs.count] != Resumes.BY_OWNER)
        self._saving = {jobs.specs[row].job_type for row in np.flatnonzero(saves).tolist()} - {""}
        self._adopt()

    def run(self, wanted: Sequence[int], horizon_s: float, wall_s: float) -> str:
        """Lets time pass until the wanted jobs are over; why it stopped before, or empty."""
        ends_s = time.monotonic() + wall_s
        while not all(self._is_over(job) for job in wanted):
            if time.monotonic() > ends_s:
                return f"not within {wall_s:g} s of computing"
            moment_s = max(min(self._next_s, self.core.wakeup_s), self.now_s)
            if math.isinf(moment_s):
                return "nothing will happen until something changes"
            if moment_s > self.began_s + horizon_s:
                return f"not within {horizon_s / 86_400:g} days"
            self.now_s = moment_s
            while self._next_s <= self.now_s:
                self._happen()
            if self.core.wakeup_s <= self.now_s:
                self._wake()
        return ""

    def tell(self, event: Event) -> None:
        """One event and all that follows at once."""
        if isinstance(event, LeaseStarted):
            self._note_start(event)
        for command in self.core.handle(event, self.now_s):
            self._obey(command)

    # What the core orders -----------------------------------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        match command:
            case SolveAllocation():
                self.tell(self.engine.solve(command))
            case EstimateThroughput():
                self.tell(self.engine.estimate(command))
            case RoundPlan():
                self._plan(command)
            case KillLease():
                self._stop(command.lease)
            case _:  # reports and questions to nodes
                pass

    def _plan(self, plan: RoundPlan) -> None:
        for lease in plan.revoke_leases.tolist():
            self._stop(lease)
        offsets = plan.grant_gpu_offsets.tolist()
        for k, (job, lease) in enumerate(zip(plan.grant_jobs.tolist(), plan.grant_leases.tolist(), strict=True)):
            self._grant(job, lease, plan.grant_gpus[offsets[k] : offsets[k + 1]])

    def _grant(self, job: int, lease: int, gpus: Ints) -> None:
        older = {self._job_lease.get(job, -1), *(self._gpu_lease.get(gpu, -1) for gpu in gpus.tolist())}
        self._leases[lease] = _Lease(job, lease, gpus, float(self.core.jobs.steps_saved[job]), self._rate(job, gpus))
        self._job_lease[job] = lease
        self._gpu_lease |= dict.fromkeys(gpus.tolist(), lease)
        self._waits[lease] = {number for number in older if number in self._leases}
        if not self._waits[lease]:
            self._push(self.now_s, lease, "start")

    def _stop(self, lease: int) -> None:
        found = self._leases.get(lease)
        if found is None:
            return
        jobs, job = self.core.jobs, np.array([found.job])
        resumes = not self.core.settings.keep_unsaved or bool(unsaved.is_preemptible(jobs, job)[0])
        found.steps, found.rate = self._steps(found) if resumes else float(jobs.steps_saved[found.job]), 0.0
        cost_s = self.costs.stop_s if found.began_s < self.now_s else 0.0
        self._push(self.now_s + cost_s, lease, "stopped")

    # What happens -------------------------------------------------------------------------------------------------

    @property
    def _next_s(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def _happen(self) -> None:
        _, _, number, what = heapq.heappop(self._due)
        lease = self._leases.get(number)
        if lease is None:
            return
        match what:
            case "start":
                self._start(lease)
            case "stopped":
                self._end(lease, lease.steps, Outcome.STOPPED)
            case _ if lease.rate > 0:  # finished, unless it was stopped meanwhile
                self._end(lease, float(self.core.jobs.steps_total[lease.job]), Outcome.FINISHED)

    def _start(self, lease: _Lease) -> None:
        job, jobs = np.array([lease.job]), self.core.jobs
        if jobs.lease[lease.job] != lease.lease or jobs.state[lease.job] != JobState.GRANTED:
            return
        lease.steps = float(jobs.steps_saved[lease.job])
        offsets = np.array([0, len(lease.gpus)])
        self._begin(lease, self.now_s + self.costs.start_s)
        self.tell(LeaseStarted(job, np.array([lease.lease]), offsets, lease.gpus))
        if jobs.specs[lease.job].job_type in self._saving and self.core.settings.keep_unsaved:
            self.tell(SavingDeclared(job, np.array([lease.lease])))

    def _begin(self, lease: _Lease, moment_s: float) -> None:
        lease.began_s = moment_s
        left = float(self.core.jobs.steps_total[lease.job]) - lease.steps
        if lease.rate > 0:
            self._push(moment_s + max(left, 0.0) / lease.rate, lease.lease, "finished")

    def _end(self, lease: _Lease, steps: float, outcome: Outcome) -> None:
        del self._leases[lease.lease]
        self._waits.pop(lease.lease, None)
        if outcome is Outcome.FINISHED:
            self._note_finish(lease.job)
        event = LeaseEnded(np.array([lease.job]), np.array([lease.lease]), np.array([steps]), outcome)
        for number, waits in list(self._waits.items()):
            if lease.lease in waits:
                waits.discard(lease.lease)
                if not waits:
                    self._push(self.now_s, number, "start")
        self.tell(event)

    def _wake(self) -> None:
        if self.core.needs_progress(self.now_s):
            running = [lease for lease in self._leases.values() if lease.began_s < self.now_s and lease.rate > 0]
            if running:
                jobs = np.array([lease.job for lease in running])
                leases = np.array([lease.lease for lease in running])
                steps = np.array([self._steps(lease) for lease in running])
                self.tell(ProgressReported(jobs, leases, steps))
        self.tell(WakeupDue())

    # Helpers ------------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """The leases that are there: those in force, and those being stopped, which end soon."""
        jobs = self.core.jobs
        for job in np.flatnonzero(jobs.stopping[: jobs.count] >= 0).tolist():
            number, gpus = int(jobs.stopping[job]), jobs.gpus_stopping(job)
            self._leases[number] = _Lease(job, number, gpus, float(jobs.steps_done[job]), 0.0)
            self._gpu_lease |= dict.fromkeys(gpus.tolist(), number)
            self._job_lease[job] = number
            self._push(self.now_s + self.costs.stop_s, number, "stopped")
        for job in jobs.leased.tolist():
            number, gpus = int(jobs.lease[job]), jobs.gpus_held(job)
            self._grant(job, number, gpus)
            if jobs.state[job] == JobState.RUNNING:
                lease = self._leases[number]
                self._waits.pop(number, None)
                lease.steps = float(jobs.steps_done[job])
                self._begin(lease, self.now_s)
                self._see_start(job, gpus)

    def _rate(self, job: int, gpus: Ints) -> float:
        gpu_type = int(self.core.pool.type_of[gpus[0]])
        if self._measured.get(job, (-1, 0.0))[0] == gpu_type:
            return self._measured[job][1]
        rate = float(self.core.jobs.rate[job, gpu_type])
        return 0.0 if math.isnan(rate) else rate

    def _steps(self, lease: _Lease) -> float:
        done = lease.rate * max(self.now_s - lease.began_s, 0.0) if math.isfinite(lease.began_s) else 0.0
        return min(lease.steps + done, float(self.core.jobs.steps_total[lease.job]))

    def _push(self, moment_s: float, lease: int, what: str) -> None:
        self._count += 1
        heapq.heappush(self._due, (moment_s, self._count, lease, what))

    def _is_over(self, job: int) -> bool:
        return bool(self.core.jobs.state[job] >= JobState.FINISHED)

    def _note_start(self, event: LeaseStarted) -> None:
        for job in event.jobs.tolist():
            self._see_start(job, event.gpus)

    def _see_start(self, job: int, gpus: Ints) -> None:
        if job in self.expected:
            return
        pool = self.core.pool
        nodes = tuple(dict.fromkeys(pool.node_ids[row] for row in pool.node_of[gpus].tolist()))
        gpu_type = pool.gpu_types[int(pool.type_of[gpus[0]])]
        self.expected[job] = Expected(self.now_s - self.began_s, NOT_SEEN_S, gpu_type, nodes)

    def _note_finish(self, job: int) -> None:
        seen = self.expected[job]
        in_s = self.now_s - self.began_s
        self.expected[job] = Expected(min(seen.start_in_s, in_s), in_s, seen.gpu_type, seen.node_ids)

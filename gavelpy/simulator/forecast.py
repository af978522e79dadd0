"""Runs a copy of a core ahead of time: when jobs will start and end if nothing else happens."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gavelpy.engine import Engine
from gavelpy.mechanism import non_preemptible
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    Event,
    LeaseEnded,
    LeaseStarted,
    Outcome,
    SavingDeclared,
    ThroughputEstimated,
)
from gavelpy.mechanism.lifecycle import JobState, Resumes
from gavelpy.mechanism.sizes import sizes_of
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import JobSpec
from gavelpy.simulator.cluster import VirtualCluster
from gavelpy.simulator.expected import NOT_SEEN_S, Expected
from gavelpy.simulator.settings import Costs
from gavelpy.simulator.virtual_scheduler import VirtualScheduler

LEFT_S_MIN = 0.01  # a job that has reached its time limit ends at once
COSTS = Costs(checkpoint_s=2.0, restart_s=5.0, migration_s=0.0)  # that a forecast assumes


class Forecast(VirtualScheduler):
    """Runs a copy of a core ahead of time, with the daemon's policy.

    Assumptions: no job is submitted, cancelled or fails, nodes stay as they are, and no jobs are co-located. Jobs run
    at the rates that the core knows, or at their measured rate where they run now, on as many GPUs. A job that has not
    run yet saves checkpoints if another job of its job type does. A job ends when its time limit is reached: exactly,
    if it stays on the GPU type where it runs, or runs on its fastest one.
    """

    def __init__(
        self,
        core: SchedulerCore,
        engine: Engine,
        rates: Mapping[int, float],  # measured steps/s of jobs where they run now
        submitted: Sequence[JobSpec],  # jobs that are submitted first
        now_s: float,
    ) -> None:
        super().__init__(core, engine, max(now_s, core.now_s))
        self.began_s = self.now_s
        self.expected: defaultdict[int, Expected] = defaultdict(Expected)
        jobs, pool, n = core.jobs, core.pool, core.jobs.count
        new = [[job.rates_steps_per_s.get(name, 0.0) for name in pool.gpu_types] for job in submitted]
        known = np.nan_to_num(jobs.rate[:n], nan=0.0)
        self._cluster = VirtualCluster(
            pool.type_of.copy(),
            np.concatenate([known, np.array(new, dtype=np.float64).reshape(len(submitted), len(pool.gpu_types))]),
            np.concatenate([jobs.steps_total[:n], [job.steps_total for job in submitted]]),
            COSTS,
            rate_by_size=_rates_by_size(core, submitted),
        )
        for row, rate in rates.items():
            if rate > 0 and jobs.lease_type[row] >= 0:
                self._rates(row)[jobs.lease_type[row]] = rate
        for row in core.jobs.active.tolist():
            self._limit(row, core.jobs.specs[row], float(core.jobs.ran_s(np.array([row]), self.now_s)[0]))
        for k, job in enumerate(submitted):
            self._limit(n + k, job, 0.0)
        rows = np.arange(n)
        saves = non_preemptible.is_preemptible(jobs, rows)
        by_program = saves & (jobs.resumes[:n] != Resumes.BY_OWNER)
        self._saving = {jobs.specs[row].job_type for row in np.flatnonzero(by_program).tolist()} - {""}
        if core.settings.keep_unsaved:
            self._cluster.saves[:n] = saves
            self._cluster.saves[n:] = [job.preemptible for job in submitted]
        self.agents = self._cluster
        self._cluster.adopt(jobs, self.now_s)
        for row in jobs.leased[jobs.state[jobs.leased] == JobState.RUNNING].tolist():
            self._note_start(row, jobs.gpus_held(row))

    def _limit(self, row: int, job: JobSpec, ran_s: float) -> None:
        """Ends a job when its time limit is reached: at the rate where it runs, else at its fastest rate."""
        if not job.time_s:
            return
        jobs, cluster = self.core.jobs, self._cluster
        is_running = row < jobs.count and jobs.state[row] == JobState.RUNNING
        rates = self._rates(row)[jobs.lease_type[row]] if is_running else cluster.true_rate[row].max(initial=0.0)
        left_s = job.time_s - ran_s - (0.0 if is_running else COSTS.restart_s)
        began = float((jobs.steps_done if is_running else jobs.steps_saved)[row]) if row < jobs.count else 0.0
        most = began + max(left_s, LEFT_S_MIN) * float(rates)
        if rates > 0:
            cluster.steps_total[row] = min(cluster.steps_total[row], most)

    def _rates(self, row: int) -> Floats:
        """The rates at which a job runs on each type, on as many GPUs as it has now, (T,)."""
        by_size, jobs = self._cluster.rate_by_size.get(row), self.core.jobs
        return self._cluster.true_rate[row] if by_size is None else by_size[int(jobs.gpus[row])]

    def run(self, wanted: Sequence[int], horizon_s: float, cpu_s: float, until_s: float = math.inf) -> str:
        """Advances until the wanted jobs are over; returns why it stopped earlier, or an empty string.

        CPU time counts, so a busy machine does not shorten a forecast, up to `until_s` of time.monotonic(): then it
        stops with what it has. The first answer of the policy is free: it includes loading and compiling.
        """
        ends_s = math.inf if cpu_s > 0 else 0.0
        while (self.core.jobs.state[list(wanted)] < JobState.FINISHED).any():
            if time.process_time() > ends_s:
                return f"not within {cpu_s:g} s of computing"
            if ends_s < math.inf and time.monotonic() > until_s:
                used_s = cpu_s - ends_s + time.process_time()
                return f"not within the time limit, as the machine is busy ({used_s:.1f} of {cpu_s:g} s of computing)"
            next_s = max(self.next_s, self.now_s)
            if math.isinf(next_s):
                return "no job will start or end until something changes"
            if next_s > self.began_s + horizon_s:
                return f"not within {horizon_s / 86_400:g} days"
            self.now_s = next_s
            self.advance()
            if math.isinf(ends_s):
                ends_s = time.process_time() + cpu_s
        return ""

    def handle(self, event: Event) -> None:
        """As VirtualScheduler; jobs that save declare it once they have started."""
        super().handle(event)
        if isinstance(event, LeaseStarted) and self.core.settings.keep_unsaved:
            specs = self.core.jobs.specs
            saves = np.array([specs[row].job_type in self._saving for row in event.jobs.tolist()])
            if saves.any():
                self._cluster.saves[event.jobs[saves]] = True
                super().handle(SavingDeclared(event.jobs[saves], event.leases[saves]))

    def observe(self, event: Event) -> None:
        """Notes starts and ends, and passes estimated rates to the cluster."""
        match event:
            case LeaseStarted():
                for k, job in enumerate(event.jobs.tolist()):
                    self._note_start(job, event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]])
            case LeaseEnded(outcome=Outcome.FINISHED):
                for job in event.jobs.tolist():
                    self._note_finish(job)
            case ThroughputEstimated():
                known, by_size = np.nan_to_num(event.rates_steps_per_s, nan=0.0), self._cluster.rate_by_size
                self._cluster.true_rate[event.jobs] = known
                for k in [k for k, row in enumerate(event.jobs.tolist()) if row in by_size]:
                    by_size[int(event.jobs[k])][int(event.sizes[k])][:] = known[k]
            case _:
                pass

    def _note_start(self, job: int, gpus: Ints) -> None:
        if job in self.expected:
            return
        pool = self.core.pool
        nodes = tuple(dict.fromkeys(pool.node_ids[row] for row in pool.node_of[gpus].tolist()))
        gpu_type = pool.gpu_types[int(pool.type_of[gpus[0]])]
        self.expected[job] = Expected(self.now_s - self.began_s, NOT_SEEN_S, gpu_type, nodes, len(gpus))

    def _note_finish(self, job: int) -> None:
        seen, in_s = self.expected[job], self.now_s - self.began_s
        self.expected[job] = replace(seen, start_in_s=min(seen.start_in_s, in_s), finish_in_s=in_s)


def _rates_by_size(core: SchedulerCore, submitted: Sequence[JobSpec]) -> dict[int, dict[int, Floats]]:
    """Rates of jobs with several sizes on each type, by row and number of GPUs; 0 = unknown."""
    jobs, gpu_types = core.jobs, core.pool.gpu_types
    new = {jobs.count + k: sizes_of(job, gpu_types) for k, job in enumerate(submitted) if job.sizes}
    return {
        row: dict(zip(own.gpus.tolist(), np.nan_to_num(own.rate, nan=0.0), strict=True))
        for row, own in (jobs.sizes | new).items()
    }

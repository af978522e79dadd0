"""What leases of virtual jobs cost, how fast they run and when they fail.

`LeaseConditions` has the constants of `Costs`, and nothing else. `DrawnConditions` draws from streams by cause and job,
each number by how many the job has drawn for that cause before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism.events import FailureClass
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.simulator.conditions.draws import DrawnDurations, duration, exponential, uniform
from gavelpy.simulator.conditions.job_costs import COSTS, Costs
from gavelpy.simulator.conditions.rate_factors import RateFactors

if TYPE_CHECKING:
    from gavelpy.mechanism.gpus import GpuPool
    from gavelpy.model.job import JobSpec
    from gavelpy.simulator.conditions.spec import Conditions

DAY_S = 86_400.0
HOUR_S = 3600.0


class Startup(NamedTuple):
    """Seconds from the start of leases to their first steps, (K,) each, or one for all."""

    total_s: Floats
    restoring_s: Floats | float  # of these
    migrating_s: Floats | float  # of these


class LeaseConditions:
    """Constant costs. Rows of jobs are serials."""

    def __init__(self, costs: Costs) -> None:
        self.constant: Costs | None = costs  # None: leases differ
        self.fails = self.interferes = False  # whether jobs fail; whether jobs on one node slow each other down

    def startup(self, rows: Ints, moved: Bools, resumes: Bools) -> Startup:
        """Of leases that begin; `moved` = to other GPUs, `resumes` = from a checkpoint."""
        assert self.constant is not None, "these costs are constant"
        migrating_s = np.asarray(self.constant.migration_s * moved, dtype=np.float64)
        return Startup(migrating_s + self.constant.restart_s, 0.0, migrating_s)

    def stop_s(self, rows: Ints) -> Floats:
        """Seconds for the last checkpoints of leases that are stopped, (K,)."""
        assert self.constant is not None, "these costs are constant"
        return np.full(len(rows), self.constant.checkpoint_s)

    def withdrawal_s(self, rows: Ints) -> Floats | float:
        """Seconds until leases have ended that are stopped before their first steps, (K,), or one for all."""
        return 0.0

    def rate_factor(self, rows: Ints, gpu_types: Ints, offsets: Ints, gpus: Ints, start_s: Floats) -> Floats:
        """Rates of leases that begin, relative to those of the trace, (K,)."""
        return np.ones(len(rows))

    def neighbors_factor(self, gpu_job: Ints, gpu_second: Ints, rows: Ints) -> Floats:
        """Rates of running jobs relative to those without other jobs on their nodes, (K,)."""
        return np.ones(len(rows))

    def steps_end(self, rows: Ints, steps: Floats, rate: Floats, steps_total: Floats) -> Floats:
        """Steps at which leases that begin end by themselves: at a failure, else at the job's end, (K,)."""
        return steps_total

    def failed(self, row: int, steps: float) -> FailureClass:
        """Class of the failure of a job at these steps, which then draws its next one."""
        return FailureClass.SYSTEM

    def known_at_s(self, rows: Ints, now_s: float) -> float | Floats:
        """Time of the newest progress of these jobs that the scheduler has received."""
        return now_s


class DrawnConditions(LeaseConditions):
    """Conditions of the jobs of a trace."""

    def __init__(
        self, conditions: Conditions, base: Costs, jobs: tuple[JobSpec, ...], seed: int, pool: GpuPool,
        factors: RateFactors,
    ) -> None:  # fmt: skip
        super().__init__(base)
        self.constant, self._seed, self._pool = None, seed, pool
        self._conditions, self._factors = conditions, factors
        J = len(jobs)
        kinds = {name: k for k, name in enumerate(dict.fromkeys(job.job_type for job in jobs))}
        kind_of = np.array([kinds[job.job_type] for job in jobs], dtype=np.int64)
        of_type = [conditions.costs.of(name, base) for name in kinds]
        self._drawn = {
            name: DrawnDurations(seed, name, tuple(getattr(one, name) for one in of_type), kind_of) for name in COSTS
        }
        self._starts = np.zeros(J, dtype=np.int64)  # (J,) leases that began
        self._stops = np.zeros(J, dtype=np.int64)  # (J,) and were stopped
        self._failures = np.zeros(J, dtype=np.int64)  # (J,) late failures that were passed or repeated
        self._gpus = np.array([job.gpus for job in jobs], dtype=np.float64)
        self._first_start_s = np.full(J, np.nan)
        self.interferes = conditions.interference.node_factor < 1.0
        failing = conditions.job_failures
        self.fails = bool(failing.early_share or failing.late_share or failing.system_mtbf_gpu_h)
        every = np.arange(J)
        total = np.array([job.steps_total for job in jobs], dtype=np.float64)
        share = uniform(seed, "class of failure", every)
        self._is_early = share < failing.early_share
        is_late = ~self._is_early & (share < failing.early_share + failing.late_share)
        self._early_s = duration(failing.early).quantile_s(uniform(seed, "early failure", every))
        self._late_step = np.where(is_late, uniform(seed, "late failure", every) * total, np.inf)  # (J,)
        self._early_step = np.full(J, np.inf)  # (J,) once the rate is known
        heartbeat_s = conditions.latency.heartbeat_s
        self._phase_s = uniform(seed, "heartbeat", every) * heartbeat_s if heartbeat_s else None

    def startup(self, rows: Ints, moved: Bools, resumes: Bools) -> Startup:
        """As LeaseConditions; only a job that resumes restores a checkpoint."""
        count = self._starts[rows]
        self._starts[rows] += 1
        restoring_s = self._drawn["restore"].draw(rows, count) * resumes
        migrating_s = self._drawn["migration"].draw(rows, count) * moved
        return Startup(self._drawn["start"].draw(rows, count) + restoring_s + migrating_s, restoring_s, migrating_s)

    def stop_s(self, rows: Ints) -> Floats:
        """As LeaseConditions."""
        count = self._stops[rows]
        self._stops[rows] += 1
        return self._drawn["checkpoint"].draw(rows, count)

    def save_s(self) -> Floats:
        """Seconds of a checkpoint of each job while it runs, (J,)."""
        return self._drawn["checkpoint"].draw(np.arange(len(self._gpus)), 0)

    def rate_factor(self, rows: Ints, gpu_types: Ints, offsets: Ints, gpus: Ints, start_s: Floats) -> Floats:
        """As LeaseConditions."""
        known_s = self._first_start_s[rows]
        self._first_start_s[rows] = known_s = np.where(np.isnan(known_s), start_s, known_s)
        found = self._factors.of_nodes(rows, gpu_types, offsets, self._pool.node_of[gpus])
        return found * self._factors.of_leases(rows, self._starts[rows], (start_s - known_s) / DAY_S)

    def neighbors_factor(self, gpu_job: Ints, gpu_second: Ints, rows: Ints) -> Floats:
        """As LeaseConditions."""
        return self._factors.of_neighbors(gpu_job, gpu_second, self._pool.node_of, rows)

    def steps_end(self, rows: Ints, steps: Floats, rate: Floats, steps_total: Floats) -> Floats:
        """As LeaseConditions."""
        is_new = np.isinf(self._early_step[rows]) & self._is_early[rows]
        self._early_step[rows] = np.where(is_new, self._early_s[rows] * rate, self._early_step[rows])
        end = np.minimum(steps_total, np.maximum(np.minimum(self._early_step[rows], self._late_step[rows]), steps))
        mtbf_gpu_h = self._conditions.job_failures.system_mtbf_gpu_h
        if mtbf_gpu_h:
            work_gpu_h = mtbf_gpu_h * exponential(self._seed, "system failure", rows, self._starts[rows])
            end = np.minimum(end, steps + rate * work_gpu_h * HOUR_S / self._gpus[rows])
        return np.asarray(end)

    def failed(self, row: int, steps: float) -> FailureClass:
        """As LeaseConditions."""
        if steps >= self._early_step[row]:
            return FailureClass.USER
        if steps < self._late_step[row]:
            return FailureClass.SYSTEM
        self._failures[row] += 1
        again = uniform(self._seed, "repeated failure", np.array([row]), self._failures[row : row + 1]).item()
        if again >= self._conditions.job_failures.late_repeats:
            self._late_step[row] = np.inf
        return FailureClass.UNKNOWN

    def known_at_s(self, rows: Ints, now_s: float) -> float | Floats:
        """As LeaseConditions."""
        if self._phase_s is None:
            return now_s
        age_s: Floats = (now_s - self._phase_s[rows]) % self._conditions.latency.heartbeat_s
        return now_s - age_s

"""The columns of a virtual cluster: GPUs, jobs and their leases, and how these begin, make steps and end."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gavelpy.journal.history import NO_GPUS
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.simulator.accounts import LeaseAccounts
from gavelpy.simulator.co_location import NONE, CoLocation, SharedGpus
from gavelpy.simulator.conditions.leases import LeaseConditions
from gavelpy.simulator.metric_reports import MetricReports
from gavelpy.simulator.phases import RatePhases
from gavelpy.simulator.settings import Costs, StepCount
from gavelpy.simulator.timeline import Finish, PhaseBegun, Timeline
from gavelpy.simulator.useful_time import UsefulTime


class VirtualLeases(SharedGpus):
    """Rows of jobs are serials."""

    def __init__(
        self,
        gpu_type_of: Ints,
        true_rate: Floats,
        steps_total: Floats,
        costs: Costs,
        *,
        steps: StepCount | None = None,
        co_location: CoLocation | None = None,
        rate_by_size: Mapping[int, Mapping[int, Floats]] | None = None,
        conditions: LeaseConditions | None = None,
        phases: RatePhases | None = None,
        metrics: MetricReports | None = None,
    ) -> None:
        J = len(steps_total)
        self.metrics = metrics  # None: no job reports any
        self.phases = phases  # None: no job has phases
        self.costs = conditions or LeaseConditions(costs)
        self.accounts = LeaseAccounts(J, true_rate.shape[1])
        self.steps, self.co_location = steps or StepCount(), co_location
        self.gpu_type_of = gpu_type_of  # (G,)
        self.true_rate = true_rate  # (J, T) steps/s, now
        self.rate_by_size = rate_by_size or {}  # (T,) of jobs with several sizes, by job and number of GPUs
        self.steps_total = self.steps_end = steps_total  # (J,) of the job; the lease ends by itself, at a failure or so
        self.factor = np.ones(J)  # (J,) that conditions put on `rate`
        self.own_factor = np.ones(J)  # (J,) the part that does not depend on neighbors
        self.gpu_free_s = np.full(len(gpu_type_of), -math.inf)  # (G,) end of the last lease there
        self.job_free_s = np.full(J, -math.inf)  # (J,) end of the job's last lease
        self.lease = np.full(J, NONE)  # (J,) running or waiting to start
        self.lease_type = np.full(J, NONE)  # (J,) GPU type of that lease
        self.start_s = np.full(J, math.inf)  # (J,) of that lease
        self.began_s = np.full(J, math.inf)  # (J,) of its first step
        self.counted_s = np.full(J, math.inf)  # (J,) since when `rate` applies, after steps_at_start
        self.finish_s = np.full(J, math.inf)  # (J,) of the last step at this rate: of the job, or of its phase
        self.is_watched = np.zeros(J, dtype=np.bool_)  # (J,) whether finish_s is on the timeline
        self.steps_at_start = np.zeros(J)  # (J,) done at counted_s
        self.steps_saved = np.zeros(J)  # (J,) in the last checkpoint
        self.saves = np.ones(J, dtype=np.bool_)  # (J,) whether the job writes a checkpoint when it is stopped
        self.rate = np.zeros(J)  # (J,)
        self.useful = UsefulTime(J)
        self.gpu_job = np.full(len(gpu_type_of), NONE)  # (G,) job with a lease there
        self.gpu_second = np.full(len(gpu_type_of), NONE)  # (G,) a second, co-located job
        self._gpu_saver = np.full(len(gpu_type_of), NONE)  # (G,) the last job whose lease ended there
        self.partner = np.full(J, NONE)  # (J,) job with a lease on the same GPUs
        self.co_located = np.full(J, NONE)  # (J,) the partner, while both make steps
        self.gpus_before = np.full(J, NO_GPUS, dtype=np.uint64)  # (J,) hash of the GPUs that the job last ran on
        self._is_leased = np.zeros(J, dtype=np.bool_)
        self._turn_s = np.zeros(J)  # (J,) what a stop and a start cost, as last reported to the core; 0 = never
        self._rows = J, 0  # jobs with leases are in this range
        self._any_moved = False  # whether jobs have got GPUs, or lost them, since rates were last compared
        self._any_second = False  # whether two jobs ever had leases on the same GPUs
        self._vacating = np.full(J + 1, -math.inf)  # (J + 1,) when the GPUs of jobs that leave now are free
        self._reported_saved = np.zeros(J)  # (J,) the newest checkpoint that the scheduler has received
        self._lost_saves: set[int] = set()  # leases whose nodes died while they wrote their last checkpoints
        self._timeline = Timeline()
        self._until_s = -math.inf  # of the last plan

    def steps_of(self, rows: Ints, now_s: float | Floats) -> Floats:
        """Steps of these jobs that are done by now."""
        done = self.steps.done(self.rate[rows] * self.steps.worked_s(self, rows, now_s, self.counted_s[rows]))
        return np.minimum(self.steps_at_start[rows] + done, self.steps_total[rows])

    def nominal_rate(self, rows: Ints) -> Floats:
        """Steps/s of these jobs now, without the slowdowns of conditions."""
        rate: Floats = self.rate[rows] / self.factor[rows]
        return rate

    def useful_rate(self, rows: Ints) -> Floats:
        """Steps/s of these jobs now, or without the slowdowns of conditions if that is more: see `UsefulTime`."""
        rate: Floats = self.rate[rows] / np.minimum(self.factor[rows], 1.0)
        return rate

    def count_again(self, rows: Ints, now_s: float) -> None:
        """Counts the steps of these running jobs from now on, on top of those that are done."""
        self._book(rows, now_s)
        self.began_s[rows] = self.counted_s[rows] = now_s
        self._expect_finish(rows)

    def _book(self, rows: Ints, now_s: float) -> None:
        """Counts the steps of these jobs up to now as done, and their useful time."""
        self.steps.book_saves(self, rows, now_s)
        steps = self.steps_of(rows, now_s)
        self.useful.add(rows, steps - self.steps_at_start[rows], self.useful_rate(rows))
        self.steps_at_start[rows] = steps

    def _expect_finish(self, rows: Ints) -> None:
        steps_end = self._steps_until(rows)
        steps_left, rate = steps_end - self.steps_at_start[rows], self.rate[rows]
        time_s = np.divide(steps_left, rate, out=np.full(len(rows), math.inf), where=rate > 0)
        self.finish_s[rows] = self.steps.worked_at_s(self, rows, time_s)

    def _steps_until(self, rows: Ints) -> Floats:
        """Steps at which these leases end by themselves, or their jobs' phases, or rungs of their apps begin, (K,)."""
        found: Floats = self.steps_end[rows]
        if self.metrics is not None:
            found = np.minimum(found, self.metrics.ends[rows])
        return found if self.phases is None else np.minimum(found, self.phases.ends[rows])

    def _resume_phases(self, rows: Ints, now_s: float) -> None:
        """Jobs that lost steps are back in earlier phases, and before earlier rungs."""
        if self.metrics is not None:
            self.metrics.enter(rows, self.steps_at_start[rows])
        if self.phases is None:
            return
        rows = rows[self.phases.went_back(rows, self.steps_at_start[rows])]
        for row in rows.tolist():
            self._enter_phase(row)
        if len(rows) and self.phases.announces:
            self._timeline.push(now_s, PhaseBegun(rows))

    def _enter_phase(self, row: int) -> None:
        """The job is in the phase of its steps from now on; the rate of its lease changes by as much."""
        assert self.phases is not None, "the job has phases"
        rates, gpu_type = self.phases.enter(row, self.steps_at_start.item(row)), self.lease_type.item(row)
        if gpu_type != NONE and self.true_rate[row, gpu_type] > 0:
            self.rate[row] *= rates[gpu_type] / self.true_rate[row, gpu_type]
        self.true_rate[row] = rates

    def _close(self, rows: Ints, now_s: float, is_kept: Bools) -> None:
        """Accounts for leases that stop now, after `_book`; steps not saved are lost unless `is_kept`, (K,)."""
        worked_s = self.steps.worked_s(self, rows, now_s, self.accounts.first_step_s[rows])
        made_gpu_s = self.useful.gpu_s[rows]
        kept_gpu_s = np.where(is_kept, made_gpu_s, self.useful.saved_gpu_s[rows])
        self.accounts.ended(rows, now_s, worked_s, made_gpu_s, kept_gpu_s)

    def used_gpu_s(self, now_s: float) -> Floats:
        """GPU time of leases up to now by use and GPU type, (U, T)."""
        rows = np.arange(len(self.lease))
        worked_s = self.steps.worked_s(self, rows, now_s, self.accounts.first_step_s)
        return self.accounts.until(now_s, worked_s, self.useful.until(self, now_s))

    def _account(
        self, rows: Ints, counts: Ints, restoring_s: Floats | float = 0.0, migrating_s: Floats | float = 0.0
    ) -> None:
        """Begins the accounts of leases, whose costs are known."""
        times_s, useful_gpu_s = (self.start_s[rows], self.began_s[rows]), self.useful.gpu_s[rows]
        self.accounts.started(rows, counts, self.lease_type[rows], *times_s, useful_gpu_s, restoring_s, migrating_s)

    def _lease(self, rows: Ints, leases: Ints, gpu_types: Ints, counts: Ints, start_s: Floats, now_s: float) -> None:
        self._resume_phases(rows, now_s)
        self.lease[rows], self.lease_type[rows] = leases, gpu_types
        self.start_s[rows] = self.began_s[rows] = self.counted_s[rows] = start_s
        self.rate[rows] = self.true_rate[rows, gpu_types]
        for k in [k for k, row in enumerate(rows.tolist()) if row in self.rate_by_size] if self.rate_by_size else ():
            self.rate[rows[k]] = self._rate(int(rows[k]), int(gpu_types[k]), int(counts[k]))
        self._is_leased[rows] = True
        self.useful.begin(rows, counts)
        self._rows = min(self._rows[0], int(rows.min())), max(self._rows[1], int(rows.max()) + 1)

    def _rate(self, row: int, gpu_type: int, gpus: int) -> float:
        """Steps/s of a job alone on this many GPUs."""
        own = self.rate_by_size.get(row)
        return self.true_rate.item(row, gpu_type) if own is None else own[gpus].item(gpu_type)

    def _leased(self) -> Ints:
        """Jobs that run or wait to start, ascending."""
        first, end = self._rows
        rows: Ints = self._is_leased[first:end].nonzero()[0] + first
        self._rows = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (len(self._is_leased), 0)
        return rows

    def _change_rate(self, rows: Ints, rate: Floats, now_s: float, factor: Floats | None = None) -> None:
        """Jobs run at another rate from now on, or from their first step; `factor`: what conditions put on it."""
        self._book(rows, now_s)
        if factor is not None:
            self.factor[rows] = factor
        self.counted_s[rows] = np.maximum(now_s, self.began_s[rows])
        self.rate[rows] = rate
        self.useful.share(rows, self.co_located[rows] != NONE)
        self.is_watched[rows] = False
        self._expect_finish(rows)
        self._watch_finishes(self._leased())

    def _vacate(self, rows: Ints, free_s: Floats, now_s: float) -> None:
        """Frees the GPUs of these jobs; for leases that wait to start, once earlier leases have ended."""
        if len(rows) == 1:
            self._vacate_one(rows.item(), free_s.item(), now_s)
            return
        self._any_moved, start_s, partners = True, self.start_s[rows], self.partner[rows]
        ends_s = np.where(np.isfinite(start_s), np.maximum(free_s, start_s), free_s)
        for holder in (self.gpu_job, self.gpu_second) if self._any_second else (self.gpu_job,):
            self._vacating[rows] = ends_s
            moment_s = self._vacating[holder]  # NONE is the last row
            freed = (moment_s > -math.inf).nonzero()[0]
            self._vacating[rows] = -math.inf
            self.gpu_free_s[freed] = np.maximum(self.gpu_free_s[freed], moment_s[freed])
            self._gpu_saver[freed] = holder[freed]
            holder[freed] = NONE
        self.job_free_s[rows] = np.maximum(self.job_free_s[rows], free_s)
        self.lease[rows] = NONE
        self.start_s[rows] = self.began_s[rows] = self.counted_s[rows] = self.finish_s[rows] = math.inf
        self.is_watched[rows] = False
        self._is_leased[rows] = False
        if np.count_nonzero(partners != NONE):
            self._separate(rows[partners != NONE], partners[partners != NONE], now_s)

    def _vacate_one(self, row: int, free_s: float, now_s: float) -> None:
        """As `_vacate`, for one job."""
        self._any_moved = True
        start_s = self.start_s.item(row)
        ends_s = max(free_s, start_s) if math.isfinite(start_s) else free_s
        for holder in (self.gpu_job, self.gpu_second) if self._any_second else (self.gpu_job,):
            freed = (holder == row).nonzero()[0]
            self.gpu_free_s[freed] = np.maximum(self.gpu_free_s[freed], ends_s)
            self._gpu_saver[freed] = row
            holder[freed] = NONE
        self.job_free_s[row] = max(self.job_free_s.item(row), free_s)
        self.lease[row] = NONE
        self.start_s[row] = self.began_s[row] = self.counted_s[row] = self.finish_s[row] = math.inf
        self.is_watched[row] = self._is_leased[row] = False
        if self.partner[row] != NONE:
            self._separate(np.array([row]), self.partner[row : row + 1].copy(), now_s)

    def _watch_finishes(self, leased: Ints) -> None:
        """Puts those of these leased jobs on the timeline that finish before the end of the plan."""
        rows = leased[(self.finish_s[leased] <= self._until_s) & ~self.is_watched[leased]]
        self.is_watched[rows] = True
        for row in rows.tolist():
            self._timeline.push(float(self.finish_s[row]), Finish(row, int(self.lease[row])))

"""Virtual nodes: they start, run, checkpoint and stop jobs as round plans order, and report what happened.

A job has at most one lease that runs or waits to start, and at most one that is stopping. A granted lease starts when
the job's previous lease and all earlier leases on its GPUs have ended; `Costs` has the cost of that. Jobs run at their
true rates, which can differ from the rates that the core knows.

Two co-located jobs have leases on the same GPUs. Each runs at its co-located rate from the time when both make steps
until one of them stops, and at its own rate before and after (`CoLocation`: both relative to each other).

A cluster starts empty, or takes over the leases of any core (`adopt`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gavelpy.journal.history import NO_GPUS, gpu_set
from gavelpy.mechanism.commands import KillLease, RoundPlan
from gavelpy.mechanism.events import Event, LeaseEnded, LeaseStarted, Outcome, ProgressReported
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.simulator.co_location import NONE, CoLocation, SharedGpus
from gavelpy.simulator.settings import Costs, StepCount
from gavelpy.simulator.timeline import CoLocated, Ends, Finish, Starts, Timeline, by_moment
from gavelpy.simulator.useful_time import UsefulTime


class VirtualCluster(SharedGpus):
    """GPUs and jobs in virtual time. Rows of jobs are serials."""

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
    ) -> None:
        J = len(steps_total)
        self.costs = costs
        self.steps, self.co_location = steps or StepCount(), co_location
        self.gpu_type_of = gpu_type_of  # (G,)
        self.true_rate = true_rate  # (J, T) steps/s
        self.rate_by_size = rate_by_size or {}  # (T,) of jobs with several sizes, by job and number of GPUs
        self.steps_total = steps_total  # (J,)
        self.gpu_free_s = np.full(len(gpu_type_of), -math.inf)  # (G,) end of the last lease there
        self.job_free_s = np.full(J, -math.inf)  # (J,) end of the job's last lease
        self.lease = np.full(J, NONE)  # (J,) running or waiting to start
        self.lease_type = np.full(J, NONE)  # (J,) GPU type of that lease
        self.start_s = np.full(J, math.inf)  # (J,) of that lease
        self.began_s = np.full(J, math.inf)  # (J,) of its first step
        self.counted_s = np.full(J, math.inf)  # (J,) since when `rate` applies, after steps_at_start
        self.finish_s = np.full(J, math.inf)  # (J,) of the job's last step at this rate
        self.is_watched = np.zeros(J, dtype=np.bool_)  # (J,) whether finish_s is on the timeline
        self.steps_at_start = np.zeros(J)  # (J,) done at counted_s
        self.steps_saved = np.zeros(J)  # (J,) in the last checkpoint
        self.saves = np.ones(J, dtype=np.bool_)  # (J,) whether the job writes a checkpoint when it is stopped
        self.rate = np.zeros(J)  # (J,)
        self.useful = UsefulTime(J)
        self.gpu_job = np.full(len(gpu_type_of), NONE)  # (G,) job with a lease there
        self.gpu_second = np.full(len(gpu_type_of), NONE)  # (G,) a second, co-located job
        self.partner = np.full(J, NONE)  # (J,) job with a lease on the same GPUs
        self.co_located = np.full(J, NONE)  # (J,) the partner, while both make steps
        self.gpus_before = np.full(J, NO_GPUS, dtype=np.uint64)  # (J,) hash of the GPUs that the job last ran on
        self._is_leased = np.zeros(J, dtype=np.bool_)
        self._rows = J, 0  # jobs with leases are in this range
        self._any_second = False  # whether two jobs ever had leases on the same GPUs
        self._vacating = np.full(J + 1, -math.inf)  # (J + 1,) when the GPUs of jobs that leave now are free
        self._timeline = Timeline()
        self._until_s = -math.inf  # of the last plan

    def apply(self, plan: RoundPlan, now_s: float) -> None:
        """Schedules the stops and starts of a plan, and the jobs that finish before its end."""
        if len(plan.revoke_jobs):
            self._stop(plan.revoke_jobs, plan.revoke_leases, now_s)
        if is_longer := plan.until_s > self._until_s or len(plan.extend_jobs) > 0:
            self.steps.extended(self, plan.extend_jobs, now_s)
        if len(plan.grant_jobs) == 1 and self.co_location is None:
            self._start_one(plan.grant_jobs, plan.grant_leases, plan.grant_gpus, now_s)
        elif len(plan.grant_jobs):
            self._start(plan.grant_jobs, plan.grant_leases, plan.grant_gpu_offsets, plan.grant_gpus, now_s)
        self._until_s = plan.until_s
        self._watch_finishes(self._leased() if is_longer else plan.grant_jobs)  # others are watched already

    def kill(self, command: KillLease, now_s: float) -> None:
        """Stops a lease, if it is still in force."""
        if self.lease[command.job] == command.lease:
            self._stop(np.array([command.job]), np.array([command.lease]), now_s)

    def adopt(self, jobs: JobTable, now_s: float) -> None:
        """Takes over the leases that a core has: running ones continue, others start or end from now on."""
        n = jobs.count
        self.steps_at_start[:n] = self.steps_saved[:n] = jobs.steps_saved[:n]
        for job in np.flatnonzero(jobs.stopping[:n] >= 0).tolist():
            gpus, ends_s = jobs.gpus_stopping(job), now_s + self.costs.checkpoint_s
            self.gpu_free_s[gpus] = np.maximum(self.gpu_free_s[gpus], ends_s)
            self.job_free_s[job] = ends_s
            steps = jobs.steps_done[job : job + 1].copy()
            self._timeline.push(ends_s, Ends(np.array([job]), jobs.stopping[job : job + 1].copy(), steps))
        running = [row for row in jobs.leased.tolist() if jobs.state[row] == JobState.RUNNING]
        waiting = [row for row in jobs.leased.tolist() if jobs.state[row] == JobState.GRANTED]
        if running:
            self._continue(jobs, np.array(running), now_s)
        if waiting:
            rows = np.array(waiting)
            self._start(rows, jobs.lease[rows].copy(), *_gpus_of(jobs, waiting), now_s)
        self._until_s = math.inf
        self._watch_finishes(self._leased())

    def _continue(self, jobs: JobTable, rows: Ints, now_s: float) -> None:
        offsets, gpus = _gpus_of(jobs, rows.tolist())
        second = self._place(rows, gpus, offsets)
        self.gpus_before[rows] = gpu_set(gpus, offsets)
        self._lease(rows, jobs.lease[rows].copy(), jobs.lease_type[rows], np.diff(offsets), np.full(len(rows), now_s))
        self.steps_at_start[rows] = jobs.steps_done[rows]
        self._expect_finish(rows)
        self._expect_co_location(rows[second], now_s)

    def lose(self, gpus: Bools, now_s: float) -> None:
        """A node with these GPUs (G,) died: its jobs are back at their last checkpoint.

        Leases on these GPUs only end without an event. Gangs that also hold GPUs elsewhere make no more steps and
        wait for the core to stop them.
        """
        rows = np.setdiff1d(np.concatenate([self.gpu_job[gpus], self.gpu_second[gpus]]), [NONE])
        if len(rows):
            self._change_rate(rows, np.zeros(len(rows)), now_s)
            self.steps_at_start[rows] = self.steps_saved[rows]
            self.useful.lose(rows)
            rows = rows[~np.isin(rows, np.concatenate([self.gpu_job[~gpus], self.gpu_second[~gpus]]))]
            self._vacate(rows, np.full(len(rows), now_s), now_s)
        self.gpu_free_s[gpus] = now_s

    def add_gpus(self, gpu_types: Ints) -> None:
        """GPUs of a node that joined; `gpu_types` (K,) follow the GPUs that are there."""
        self.gpu_type_of = np.concatenate([self.gpu_type_of, gpu_types])
        self.gpu_free_s = np.concatenate([self.gpu_free_s, np.full(len(gpu_types), -math.inf)])
        none = np.full(len(gpu_types), NONE)
        self.gpu_job, self.gpu_second = np.concatenate([self.gpu_job, none]), np.concatenate([self.gpu_second, none])

    def progress(self, now_s: float) -> ProgressReported | None:
        """Steps of all running jobs; None if none has made any."""
        leased = self._leased()
        rows = leased[self.began_s[leased] < now_s]
        return ProgressReported(rows, self.lease[rows], self.steps_of(rows, now_s)) if len(rows) else None

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite if there is none."""
        return self._timeline.next_s

    def pop(self) -> Event | None:
        """The event at next_s, in order; None if it was cancelled meanwhile."""
        now_s, due = self._timeline.pop()
        match due:
            case Ends():
                return LeaseEnded(due.jobs, due.leases, due.steps_done, Outcome.STOPPED)
            case Starts():
                return self._started(due)
            case Finish():
                return self._finished(due, now_s)
            case CoLocated():
                self._run_co_located(due, now_s)
                return None

    def steps_of(self, rows: Ints, now_s: float) -> Floats:
        """Steps of these jobs that are done by now."""
        done = self.steps.done(self.rate[rows] * np.maximum(now_s - self.counted_s[rows], 0.0))
        return np.minimum(self.steps_at_start[rows] + done, self.steps_total[rows])

    def count_again(self, rows: Ints, now_s: float) -> None:
        """Counts the steps of these running jobs from now on, on top of those that are done."""
        self._book(rows, now_s)
        self.began_s[rows] = self.counted_s[rows] = now_s
        self._expect_finish(rows)

    def _book(self, rows: Ints, now_s: float) -> None:
        """Counts the steps of these jobs up to now as done, and their useful time."""
        steps = self.steps_of(rows, now_s)
        self.useful.add(rows, steps - self.steps_at_start[rows], self.rate[rows])
        self.steps_at_start[rows] = steps

    def _expect_finish(self, rows: Ints) -> None:
        steps_left, rate = self.steps_total[rows] - self.steps_at_start[rows], self.rate[rows]
        time_s = np.divide(steps_left, rate, out=np.full(len(rows), math.inf), where=rate > 0)
        self.finish_s[rows] = self.counted_s[rows] + time_s

    def _stop(self, rows: Ints, leases: Ints, now_s: float) -> None:
        assert (self.lease[rows] == leases).all(), "a plan revokes a lease that is not in force"
        self._book(rows, now_s)
        self.useful.lose(rows[~self.saves[rows]])
        steps_done = np.where(self.saves[rows], self.steps_at_start[rows], self.steps_saved[rows])
        has_progress = self.began_s[rows] < now_s
        end_s = now_s + np.where(has_progress, self.costs.checkpoint_s, 0.0)
        self.steps_at_start[rows] = self.steps_saved[rows] = steps_done
        self._vacate(rows, end_s, now_s)
        for moment, group in by_moment(end_s):
            self._timeline.push(moment, Ends(rows[group], leases[group], steps_done[group]))

    def _start(self, rows: Ints, leases: Ints, offsets: Ints, gpus: Ints, now_s: float) -> None:
        gpus_ready_s = np.maximum.reduceat(self.gpu_free_s[gpus], offsets[:-1])
        start_s = np.maximum(np.maximum(gpus_ready_s, self.job_free_s[rows]), now_s)
        counts = offsets[1:] - offsets[:-1]
        second = self._place(rows, gpus, offsets)
        where, before = gpu_set(gpus, offsets), self.gpus_before[rows]
        moved = (before != NO_GPUS) & (before != where)
        self._lease(rows, leases, self.gpu_type_of[gpus[offsets[:-1]]], counts, start_s)
        self.began_s[rows] += self.costs.restart_s + self.costs.migration_s * moved
        self.counted_s[rows] = self.began_s[rows]
        self._expect_finish(rows)
        for moment, group in by_moment(start_s):
            started = gpus[group.repeat(counts)]
            self._timeline.push(moment, Starts(rows[group], leases[group], counts[group], started, where[group]))
        self._expect_co_location(rows[second], now_s)

    def _start_one(self, rows: Ints, leases: Ints, gpus: Ints, now_s: float) -> None:
        """As `_start`, for one job where no jobs are co-located."""
        row, gpu_type = rows.item(), self.gpu_type_of.item(gpus[0])
        start_s = max(*self.gpu_free_s[gpus].tolist(), self.job_free_s.item(row), now_s)
        where, before = gpu_set(gpus, np.array([0, len(gpus)])), self.gpus_before[row]
        moved = NO_GPUS != before != where[0]
        began_s = start_s + (self.costs.restart_s + self.costs.migration_s * moved)
        rate = self._rate(row, gpu_type, len(gpus))
        steps_left = self.steps_total.item(row) - self.steps_at_start.item(row)
        self.gpu_job[gpus] = row
        self.lease[row], self.lease_type[row], self.rate[row] = leases[0], gpu_type, rate
        self.start_s[row] = start_s
        self.began_s[row] = self.counted_s[row] = began_s
        self.finish_s[row] = began_s + (steps_left / rate if rate > 0 else math.inf)
        self._is_leased[row] = True
        self.useful.begin(row, len(gpus))
        self._rows = min(self._rows[0], row), max(self._rows[1], row + 1)
        self._timeline.push(start_s, Starts(rows, leases, np.array([len(gpus)]), gpus, where))

    def _lease(self, rows: Ints, leases: Ints, gpu_types: Ints, counts: Ints, start_s: Floats) -> None:
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

    def _started(self, due: Starts) -> LeaseStarted | None:
        valid = self.lease[due.jobs] == due.leases
        if not np.count_nonzero(valid):
            return None
        if len(due.jobs) == 1:
            self.gpus_before[due.jobs] = due.gpu_sets
            return LeaseStarted(due.jobs, due.leases, np.array([0, len(due.gpus)]), due.gpus)
        rows, gpus = due.jobs[valid], due.gpus[valid.repeat(due.gpu_counts)]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        due.gpu_counts[valid].cumsum(out=offsets[1:])
        self.gpus_before[rows] = due.gpu_sets[valid]
        return LeaseStarted(rows, due.leases[valid], offsets, gpus)

    def _finished(self, due: Finish, now_s: float) -> LeaseEnded | None:
        row = due.job
        if self.lease[row] != due.lease or self.finish_s[row] != now_s:
            return None
        self.useful.add_one(row, self.steps_total.item(row) - self.steps_at_start.item(row), self.rate.item(row))
        self.steps_at_start[row] = self.steps_total[row]
        self._vacate_one(row, now_s, now_s)
        rows = np.array([row])
        return LeaseEnded(rows, np.array([due.lease]), self.steps_total[rows], Outcome.FINISHED)

    def _change_rate(self, rows: Ints, rate: Floats, now_s: float) -> None:
        """Jobs run at another rate from now on, or from their first step."""
        self._book(rows, now_s)
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
        start_s, partners = self.start_s[rows], self.partner[rows]
        ends_s = np.where(np.isfinite(start_s), np.maximum(free_s, start_s), free_s)
        for holder in (self.gpu_job, self.gpu_second) if self._any_second else (self.gpu_job,):
            self._vacating[rows] = ends_s
            moment_s = self._vacating[holder]  # NONE is the last row
            freed = (moment_s > -math.inf).nonzero()[0]
            self._vacating[rows] = -math.inf
            self.gpu_free_s[freed] = np.maximum(self.gpu_free_s[freed], moment_s[freed])
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
        start_s = self.start_s.item(row)
        ends_s = max(free_s, start_s) if math.isfinite(start_s) else free_s
        for holder in (self.gpu_job, self.gpu_second) if self._any_second else (self.gpu_job,):
            freed = (holder == row).nonzero()[0]
            self.gpu_free_s[freed] = np.maximum(self.gpu_free_s[freed], ends_s)
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


def _gpus_of(jobs: JobTable, rows: Sequence[int]) -> tuple[Ints, Ints]:
    """Offsets (K + 1,) and GPUs of the leases of these jobs."""
    held = [jobs.gpus_held(row) for row in rows]
    return np.concatenate([[0], np.cumsum([len(gpus) for gpus in held])]), np.concatenate(held)

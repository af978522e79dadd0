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
from collections.abc import Sequence

import numpy as np

from gavelpy.journal.history import NO_GPUS, gpu_set
from gavelpy.mechanism.commands import KillLease, RoundPlan
from gavelpy.mechanism.events import (
    CheckpointSaved,
    Event,
    FailureClass,
    LeaseEnded,
    LeaseStarted,
    MetricsReported,
    Outcome,
    ProgressReported,
    ThroughputEstimated,
    TurnMeasured,
)
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.turn_costs import REFERENCE_S
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.simulator.co_location import NONE
from gavelpy.simulator.metric_reports import MetricReports
from gavelpy.simulator.phases import RatePhases
from gavelpy.simulator.timeline import CoLocated, Ends, Finish, PhaseBegun, Saved, Starts, TurnTimes, by_moment
from gavelpy.simulator.virtual_leases import VirtualLeases

NOTABLE = 1.2  # factor by which a cost differs from the one that was reported last, if it is reported again


class VirtualCluster(VirtualLeases):
    """GPUs and jobs in virtual time. Rows of jobs are serials."""

    def apply(self, plan: RoundPlan, now_s: float) -> None:
        """Schedules the stops and starts of a plan, and the jobs that finish before its end."""
        if len(plan.revoke_jobs):
            self._stop(plan.revoke_jobs, plan.revoke_leases, now_s)
        if is_longer := plan.until_s > self._until_s or len(plan.extend_jobs) > 0:
            self.steps.extended(self, plan.extend_jobs, now_s)
        if len(plan.grant_jobs) == 1 and self.co_location is None and self.costs.constant is not None:
            self._start_one(plan.grant_jobs, plan.grant_leases, plan.grant_gpus, now_s)
        elif len(plan.grant_jobs):
            self._start(plan.grant_jobs, plan.grant_leases, plan.grant_gpu_offsets, plan.grant_gpus, now_s)
        self._until_s = plan.until_s
        if self.costs.interferes:
            self._interfere(now_s)
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
            gpus, ends_s = jobs.gpus_stopping(job), now_s + self.costs.stop_s(np.array([job])).item()
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
        start_s = np.full(len(rows), now_s)
        self._lease(rows, jobs.lease[rows].copy(), jobs.lease_type[rows], np.diff(offsets), start_s, now_s)
        self.steps_at_start[rows] = jobs.steps_done[rows]
        self._account(rows, np.diff(offsets))
        self._expect_finish(rows)
        self._expect_co_location(rows[second], now_s)

    def lose(self, gpus: Bools, now_s: float) -> None:
        """A node with these GPUs (G,) died: its jobs are back at their last checkpoint.

        Leases on these GPUs only end without an event. Gangs that also hold GPUs elsewhere make no more steps and
        wait for the core to stop them.
        """
        saving = np.setdiff1d(self._gpu_saver[gpus & (self.gpu_free_s > now_s)], [NONE])
        self._lose_saves(saving[self.accounts.stopping[saving] != NONE], now_s)
        rows = np.setdiff1d(np.concatenate([self.gpu_job[gpus], self.gpu_second[gpus]]), [NONE])
        if len(rows):
            self._change_rate(rows, np.zeros(len(rows)), now_s)
            self._close(rows, now_s, np.zeros(len(rows), dtype=np.bool_))
            self.useful.lose(rows)
            self.began_s[rows] = self.counted_s[rows] = math.inf  # gangs that wait to be stopped have nothing to save
            self.steps_at_start[rows] = self.steps_saved[rows]
            rows = rows[~np.isin(rows, np.concatenate([self.gpu_job[~gpus], self.gpu_second[~gpus]]))]
            self._vacate(rows, np.full(len(rows), now_s), now_s)
        self.gpu_free_s[gpus] = now_s

    def _lose_saves(self, rows: Ints, now_s: float) -> None:
        """The last checkpoints that these jobs are writing are lost, and the work since the ones before."""
        self._lost_saves.update(self.accounts.stopping[rows].tolist())
        self.accounts.save_failed(rows, now_s)
        self.useful.gpu_s[rows] -= self.accounts.unsaved_gpu_s[rows]
        self.useful.saved_gpu_s[rows] = self.useful.gpu_s[rows]
        before = self.accounts.steps_before[rows]
        self.steps_saved[rows] = self.steps_at_start[rows] = self._reported_saved[rows] = before
        waiting = rows[self._is_leased[rows]]  # they have other leases, which begin later
        self.is_watched[waiting] = False
        self._resume_phases(waiting, now_s)
        self._expect_finish(waiting)
        self._watch_finishes(waiting)

    def add_gpus(self, gpu_types: Ints) -> None:
        """GPUs of a node that joined; `gpu_types` (K,) follow the GPUs that are there."""
        self._any_moved = True
        self.gpu_type_of = np.concatenate([self.gpu_type_of, gpu_types])
        self.gpu_free_s = np.concatenate([self.gpu_free_s, np.full(len(gpu_types), -math.inf)])
        none = np.full(len(gpu_types), NONE)
        self.gpu_job, self.gpu_second = np.concatenate([self.gpu_job, none]), np.concatenate([self.gpu_second, none])
        self._gpu_saver = np.concatenate([self._gpu_saver, none])

    def progress(self, now_s: float) -> ProgressReported | None:
        """Steps of all running jobs; None if none has made any."""
        leased = self._leased()
        known_s = self.costs.known_at_s(leased, now_s)
        has_begun = self.began_s[leased] < known_s
        rows, known_s = leased[has_begun], known_s if isinstance(known_s, float) else known_s[has_begun]
        return ProgressReported(rows, self.lease[rows], self.steps_of(rows, known_s)) if len(rows) else None

    def reported_metrics(self, now_s: float) -> MetricsReported | None:
        """Metrics of all running jobs; None if none has any."""
        if self.metrics is None:
            return None
        leased = self._leased()
        rows = leased[self.began_s[leased] < now_s]
        return self.metrics.report(rows, self.lease[rows], self.steps_of(rows, now_s))

    def checkpoints(self, now_s: float) -> CheckpointSaved | None:
        """Checkpoints of running jobs that are new; None if there are none."""
        if not self.steps.saves_meanwhile:
            return None
        leased = self._leased()
        rows = leased[self.began_s[leased] < now_s]
        self.steps.book_saves(self, rows, now_s)
        rows = rows[self.steps_saved[rows] > self._reported_saved[rows]]
        self._reported_saved[rows] = self.steps_saved[rows]
        return CheckpointSaved(rows, self.lease[rows], self.steps_saved[rows]) if len(rows) else None

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite if there is none."""
        return self._timeline.next_s

    def pop(self) -> list[Event]:
        """The events of the next moment of the timeline, in order; empty if they were cancelled meanwhile."""
        now_s, due = self._timeline.pop()
        match due:
            case Ends():
                return [self._ended(due, now_s)]
            case Starts():
                started = self._started(due)
                return [started] if started is not None else []
            case Finish():
                return self._reached(due, now_s)
            case TurnTimes():
                return [TurnMeasured(due.jobs, due.leases, due.restart_s, due.save_s)]
            case CoLocated():
                self._run_co_located(due, now_s)
                return []
            case Saved():
                return [CheckpointSaved(due.jobs, due.leases, due.steps)]
            case PhaseBegun():
                return [ThroughputEstimated(due.jobs, self.true_rate[due.jobs])]

    def _stop(self, rows: Ints, leases: Ints, now_s: float) -> None:
        assert (self.lease[rows] == leases).all(), "a plan revokes a lease that is not in force"
        self._book(rows, now_s)
        steps_before, unsaved_gpu_s = self.steps_saved[rows], self.useful.gpu_s[rows] - self.useful.saved_gpu_s[rows]
        steps_done = np.where(self.saves[rows], self.steps_at_start[rows], steps_before)
        has_progress = self.began_s[rows] < now_s
        restart_s, save_s = self.began_s[rows] - self.start_s[rows], self.costs.stop_s(rows)
        end_s = now_s + np.where(has_progress, save_s, self.costs.withdrawal_s(rows))
        self._report_costs(
            rows[has_progress], leases[has_progress], restart_s[has_progress], save_s[has_progress], now_s
        )
        gpus = self.accounts.gpus[rows]
        self._close(rows, now_s, self.saves[rows])
        self.useful.lose(rows[~self.saves[rows]])
        saving, columns = rows[has_progress], (steps_before[has_progress], unsaved_gpu_s[has_progress])
        self.accounts.saving(saving, leases[has_progress], gpus[has_progress], now_s, *columns)
        self.steps_at_start[rows] = self.steps_saved[rows] = self._reported_saved[rows] = steps_done
        self._vacate(rows, end_s, now_s)
        for moment, group in by_moment(end_s):
            self._timeline.push(moment, Ends(rows[group], leases[group], steps_done[group]))

    def _report_costs(self, rows: Ints, leases: Ints, restart_s: Floats, save_s: Floats, now_s: float) -> None:
        """Reports the costs of these starts and stops that are news: without any, the core plans for `REFERENCE_S`."""
        turn_s, reported_s = restart_s + save_s, self._turn_s[rows]
        is_more = turn_s > NOTABLE * np.maximum(reported_s, REFERENCE_S)
        is_new = is_more | (NOTABLE * turn_s < reported_s)
        if np.count_nonzero(is_new):
            self._turn_s[rows[is_new]] = turn_s[is_new]
            self._timeline.push(now_s, TurnTimes(rows[is_new], leases[is_new], restart_s[is_new], save_s[is_new]))

    def _ended(self, due: Ends, now_s: float) -> LeaseEnded:
        is_lost = np.isin(due.leases, list(self._lost_saves)) if self._lost_saves else np.zeros(1, dtype=np.bool_)
        if is_lost.any():
            kept = ~is_lost
            if kept.any():  # separately, at the same time
                self._timeline.push(now_s, Ends(due.jobs[is_lost], due.leases[is_lost], due.steps_done[is_lost]))
                due = Ends(due.jobs[kept], due.leases[kept], due.steps_done[kept])
            else:
                return LeaseEnded(due.jobs, due.leases, self.steps_saved[due.jobs], Outcome.LOST)
        self.accounts.saved(due.jobs, due.leases, now_s)
        return LeaseEnded(due.jobs, due.leases, due.steps_done, Outcome.STOPPED)

    def _start(self, rows: Ints, leases: Ints, offsets: Ints, gpus: Ints, now_s: float) -> None:
        gpus_ready_s = np.maximum.reduceat(self.gpu_free_s[gpus], offsets[:-1])
        start_s = np.maximum(np.maximum(gpus_ready_s, self.job_free_s[rows]), now_s)
        counts = offsets[1:] - offsets[:-1]
        second = self._place(rows, gpus, offsets)
        where, before = gpu_set(gpus, offsets), self.gpus_before[rows]
        moved = (before != NO_GPUS) & (before != where)
        gpu_types = self.gpu_type_of[gpus[offsets[:-1]]]
        self._lease(rows, leases, gpu_types, counts, start_s, now_s)
        startup = self.costs.startup(rows, moved, self.steps_at_start[rows] > 0)
        self.began_s[rows] += startup.total_s
        self.counted_s[rows] = self.began_s[rows]
        self._account(rows, counts, startup.restoring_s, startup.migrating_s)
        if self.costs.constant is None:
            self._impair(rows, gpu_types, offsets, gpus)
        self._expect_finish(rows)
        for moment, group in by_moment(start_s):
            started = gpus[group.repeat(counts)]
            self._timeline.push(moment, Starts(rows[group], leases[group], counts[group], started, where[group]))
        self._expect_co_location(rows[second], now_s)

    def _impair(self, rows: Ints, gpu_types: Ints, offsets: Ints, gpus: Ints) -> None:
        """Rates of leases that begin, and the steps at which they fail."""
        self.own_factor[rows] = self.costs.rate_factor(rows, gpu_types, offsets, gpus, self.start_s[rows])
        self.factor[rows] = self.own_factor[rows]
        self.rate[rows] *= self.factor[rows]
        if self.costs.fails:
            if self.steps_end is self.steps_total:
                self.steps_end = self.steps_total.copy()
            done, rate = self.steps_at_start[rows], self.rate[rows]
            self.steps_end[rows] = self.costs.steps_end(rows, done, rate, self.steps_total[rows])

    def _interfere(self, now_s: float) -> None:
        """Changes the rates of jobs that got neighbors or lost them."""
        if not self._any_moved:
            return
        self._any_moved, rows = False, self._leased()
        factor = self.own_factor[rows] * self.costs.neighbors_factor(self.gpu_job, self.gpu_second, rows)
        changed = factor != self.factor[rows]
        if changed.any():
            rows, factor = rows[changed], factor[changed]
            self._change_rate(rows, self.nominal_rate(rows) * factor, now_s, factor)

    def _start_one(self, rows: Ints, leases: Ints, gpus: Ints, now_s: float) -> None:
        """As `_start`, for one job where no jobs are co-located."""
        row, gpu_type = rows.item(), self.gpu_type_of.item(gpus[0])
        start_s = max(*self.gpu_free_s[gpus].tolist(), self.job_free_s.item(row), now_s)
        where, before = gpu_set(gpus, np.array([0, len(gpus)])), self.gpus_before[row]
        moved = NO_GPUS != before != where[0]
        assert self.costs.constant is not None, "costs of single jobs are constant"
        migrating_s = self.costs.constant.migration_s * moved
        began_s = start_s + (self.costs.constant.restart_s + migrating_s)
        has_stops = self.phases is not None or self.metrics is not None
        if has_stops:
            self._resume_phases(rows, now_s)
        rate = self._rate(row, gpu_type, len(gpus))
        steps_end = self._steps_until(rows).item() if has_stops else self.steps_total.item(row)
        steps_left = steps_end - self.steps_at_start.item(row)
        self.gpu_job[gpus] = row
        self.lease[row], self.lease_type[row], self.rate[row] = leases[0], gpu_type, rate
        self.start_s[row] = start_s
        self.began_s[row] = self.counted_s[row] = began_s
        self.finish_s[row] = began_s + (steps_left / rate if rate > 0 else math.inf)
        self._is_leased[row] = True
        self.useful.begin(row, len(gpus))
        useful_gpu_s = self.useful.gpu_s.item(row)
        self.accounts.started_one(row, len(gpus), gpu_type, start_s, began_s, useful_gpu_s, migrating_s)
        self._rows = min(self._rows[0], row), max(self._rows[1], row + 1)
        self._timeline.push(start_s, Starts(rows, leases, np.array([len(gpus)]), gpus, where))

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

    def _reached(self, due: Finish, now_s: float) -> list[Event]:
        """A job makes its last step, or the last one of a phase, or fails."""
        row = due.job
        if self.lease[row] != due.lease or self.finish_s[row] != now_s:
            return []
        phase_end = self.steps_end[row] if self.phases is None else min(self.phases.ends[row], self.steps_end[row])
        if self.metrics is not None and self.metrics.ends[row] <= phase_end:
            return self._at_rung(row, self.metrics, now_s)
        if self.phases is not None and self.phases.ends[row] < self.steps_end[row]:
            return self._next_phase(row, self.phases, now_s)
        if self.steps_end[row] < self.steps_total[row]:
            return self._failed(np.array([row]), self.costs.failed(row, self.steps_end.item(row)), now_s)
        found: list[Event] = [self._finished(row, now_s)]
        if self.costs.interferes:
            self._interfere(now_s)
        return found

    def _at_rung(self, row: int, metrics: MetricReports, now_s: float) -> list[Event]:
        """A job reports its metric at a rung of its app, and continues until the core decides."""
        rows = np.array([row])
        self._count_exactly(rows, metrics.ends[rows], now_s)
        metrics.enter(rows, self.steps_at_start[rows])
        self._change_rate(rows, self.rate[rows], now_s)
        steps = self.steps_at_start[rows]
        found = metrics.report(rows, self.lease[rows], steps)
        return [found if found is not None else ProgressReported(rows, self.lease[rows], steps)]

    def _count_exactly(self, rows: Ints, steps: Floats, now_s: float) -> None:
        """These jobs have done so many steps now, without errors of rounding."""
        self.steps.book_saves(self, rows, now_s)
        self.useful.add(rows, steps - self.steps_at_start[rows], self.nominal_rate(rows))
        self.steps_at_start[rows] = steps
        self.counted_s[rows] = np.maximum(now_s, self.began_s[rows])

    def _next_phase(self, row: int, phases: RatePhases, now_s: float) -> list[Event]:
        rows = np.array([row])
        self._count_exactly(rows, phases.ends[rows], now_s)
        self._enter_phase(row)
        self._change_rate(rows, self.rate[rows], now_s)
        return [ThroughputEstimated(rows, self.true_rate[rows])] if phases.announces else []

    def fail(self, gpus: Ints, now_s: float) -> list[Event]:
        """The running jobs on these GPUs fail, as their GPUs do."""
        rows = np.setdiff1d(np.concatenate([self.gpu_job[gpus], self.gpu_second[gpus]]), [NONE])
        rows = rows[self.start_s[rows] < now_s]
        return self._failed(rows, FailureClass.SYSTEM, now_s) if len(rows) else []

    def _failed(self, rows: Ints, failure: FailureClass, now_s: float) -> list[Event]:
        """Leases of jobs fail now, at steps that nodes report."""
        self._book(rows, now_s)
        leases, steps, saved = self.lease[rows], self.steps_at_start[rows], self.steps_saved[rows]
        self._close(rows, now_s, np.zeros(len(rows), dtype=np.bool_))
        self.useful.lose(rows)
        self.steps_at_start[rows] = saved
        self._vacate(rows, np.full(len(rows), now_s), now_s)
        if self.costs.interferes:
            self._interfere(now_s)
        new = saved > self._reported_saved[rows]
        self._reported_saved[rows] = saved
        found: list[Event] = [ProgressReported(rows, leases, steps)]
        if new.any():
            found.append(CheckpointSaved(rows[new], leases[new], saved[new]))
        return [*found, LeaseEnded(rows, leases, saved, Outcome.FAILED, failure=failure)]

    def _finished(self, row: int, now_s: float) -> LeaseEnded:
        worked_s = self.steps.worked_s(self, np.array([row]), now_s, self.accounts.first_step_s[row : row + 1]).item()
        steps = self.steps_total.item(row) - self.steps_at_start.item(row)
        self.useful.add_one(row, steps, self.rate.item(row) / min(self.factor.item(row), 1.0))
        self.steps_at_start[row] = self.steps_total[row]
        self.accounts.ended_one(row, now_s, worked_s, self.useful.gpu_s.item(row))
        rows, leases = np.array([row]), self.lease[row : row + 1].copy()
        self._vacate_one(row, now_s, now_s)
        return LeaseEnded(rows, leases, self.steps_total[rows], Outcome.FINISHED)


def _gpus_of(jobs: JobTable, rows: Sequence[int]) -> tuple[Ints, Ints]:
    """Offsets (K + 1,) and GPUs of the leases of these jobs."""
    held = [jobs.gpus_held(row) for row in rows]
    return np.concatenate([[0], np.cumsum([len(gpus) for gpus in held])]), np.concatenate(held)

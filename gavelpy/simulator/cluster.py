"""Virtual nodes: they start, run, checkpoint and stop jobs as round plans order, and report what happened.

A job has at most one lease that runs or waits to start, and at most one that is stopping. A granted lease starts when
the job's previous lease and all earlier leases on its GPUs have ended; `Costs` has the cost of that. Jobs run at their
true rates, which can differ from the rates that the core knows.

Two co-located jobs have leases on the same GPUs. Each runs at its co-located rate from the time when both make steps
until one of them stops, and at its own rate before and after (`CoLocation`: both relative to each other).

A cluster starts empty, or takes over the leases of any core (`adopt`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gavelpy.journal.history import NO_GPUS, gpu_set
from gavelpy.mechanism.commands import KillLease, RoundPlan
from gavelpy.mechanism.events import Event, LeaseEnded, LeaseStarted, Outcome, ProgressReported
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.simulator.co_location import CoLocation
from gavelpy.simulator.settings import Costs, StepCount

NONE = -1


@dataclass(frozen=True, eq=False)
class _Starts:
    """Leases that start: the GPUs and jobs they wait for are free."""

    jobs: Ints
    leases: Ints
    gpu_counts: Ints
    gpus: Ints
    gpu_sets: npt.NDArray[np.uint64]  # a hash of each job's GPUs


@dataclass(frozen=True, eq=False)
class _Ends:
    """Revoked leases with complete checkpoints."""

    jobs: Ints
    leases: Ints
    steps_done: Floats


@dataclass(frozen=True)
class _Finish:
    """A job's last step, unless it is stopped earlier."""

    job: int
    lease: int


@dataclass(frozen=True)
class _CoLocated:
    """Two jobs on the same GPUs both make steps from now on, unless one was stopped earlier."""

    jobs: tuple[int, int]
    leases: tuple[int, int]


class VirtualCluster:
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
    ) -> None:
        J = len(steps_total)
        self.costs = costs
        self.steps, self.co_location = steps or StepCount(), co_location
        self.gpu_type_of = gpu_type_of  # (G,)
        self.true_rate = true_rate  # (J, T) steps/s
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
        self.gpu_job = np.full(len(gpu_type_of), NONE)  # (G,) job with a lease there
        self.gpu_second = np.full(len(gpu_type_of), NONE)  # (G,) a second, co-located job
        self.partner = np.full(J, NONE)  # (J,) job with a lease on the same GPUs
        self.co_located = np.full(J, NONE)  # (J,) the partner, while both make steps
        self.gpus_before = np.full(J, NO_GPUS, dtype=np.uint64)  # (J,) hash of the GPUs that the job last ran on
        self._is_leased = np.zeros(J, dtype=np.bool_)
        self._rows = J, 0  # jobs with leases are in this range
        self._any_second = False  # whether two jobs ever had leases on the same GPUs
        self._vacating = np.full(J + 1, -math.inf)  # (J + 1,) when the GPUs of jobs that leave now are free
        self._timeline: list[tuple[float, int, _Due]] = []
        self._serial = 0
        self._until_s = -math.inf  # of the last plan

    # Commands ----------------------------------------------------------------------------------------------------

    def apply(self, plan: RoundPlan, now_s: float) -> None:
        """Schedules the stops and starts of a plan, and the jobs that finish before its end."""
        if len(plan.revoke_jobs):
            self._stop(plan.revoke_jobs, plan.revoke_leases, now_s)
        self.steps.extended(self, plan.extend_jobs, now_s)
        if len(plan.grant_jobs):
            self._start(plan.grant_jobs, plan.grant_leases, plan.grant_gpu_offsets, plan.grant_gpus, now_s)
        self._until_s = plan.until_s
        self._watch_finishes()

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
            self._push(ends_s, _Ends(np.array([job]), jobs.stopping[job : job + 1].copy(), steps))
        running = [row for row in jobs.leased.tolist() if jobs.state[row] == JobState.RUNNING]
        waiting = [row for row in jobs.leased.tolist() if jobs.state[row] == JobState.GRANTED]
        if running:
            self._continue(jobs, np.array(running), now_s)
        if waiting:
            rows = np.array(waiting)
            self._start(rows, jobs.lease[rows].copy(), *_gpus_of(jobs, waiting), now_s)
        self._until_s = math.inf
        self._watch_finishes()

    def _continue(self, jobs: JobTable, rows: Ints, now_s: float) -> None:
        offsets, gpus = _gpus_of(jobs, rows.tolist())
        second = self._place(rows, gpus, offsets)
        self.gpus_before[rows] = gpu_set(gpus, offsets)
        self._lease(rows, jobs.lease[rows].copy(), jobs.lease_type[rows], np.full(len(rows), now_s))
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
        return ProgressReported(rows, self.lease[rows], self._steps(rows, now_s)) if len(rows) else None

    def rate_factors(self, first: int, second: int, gpu_type: int) -> Floats:
        """Co-located rate / rate alone of each of two jobs on a type, (2,)."""
        assert self.co_location is not None, "a plan co-locates jobs, and the cluster has no co-located rates"
        return self.co_location.rate_factors(first, second, gpu_type)

    # Time --------------------------------------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite if there is none."""
        return self._timeline[0][0] if self._timeline else math.inf

    def pop(self) -> Event | None:
        """The event at next_s, in order; None if it was cancelled meanwhile."""
        now_s, _, due = heapq.heappop(self._timeline)
        match due:
            case _Ends():
                return LeaseEnded(due.jobs, due.leases, due.steps_done, Outcome.STOPPED)
            case _Starts():
                return self._started(due)
            case _Finish():
                return self._finished(due, now_s)
            case _CoLocated():
                self._run_co_located(due, now_s)
                return None

    # Helpers -----------------------------------------------------------------------------------------------------

    def _steps(self, rows: Ints, now_s: float) -> Floats:
        done = self.steps.done(self.rate[rows] * np.maximum(now_s - self.counted_s[rows], 0.0))
        return np.minimum(self.steps_at_start[rows] + done, self.steps_total[rows])

    def count_again(self, rows: Ints, now_s: float) -> None:
        """Counts the steps of these running jobs from now on, on top of those that are done."""
        self.steps_at_start[rows] = self._steps(rows, now_s)
        self.began_s[rows] = self.counted_s[rows] = now_s
        self._expect_finish(rows)

    def _expect_finish(self, rows: Ints) -> None:
        steps_left, rate = self.steps_total[rows] - self.steps_at_start[rows], self.rate[rows]
        time_s = np.divide(steps_left, rate, out=np.full(len(rows), math.inf), where=rate > 0)
        self.finish_s[rows] = self.counted_s[rows] + time_s

    def _stop(self, rows: Ints, leases: Ints, now_s: float) -> None:
        assert (self.lease[rows] == leases).all(), "a plan revokes a lease that is not in force"
        steps_done = np.where(self.saves[rows], self._steps(rows, now_s), self.steps_saved[rows])
        has_progress = self.began_s[rows] < now_s
        end_s = now_s + np.where(has_progress, self.costs.checkpoint_s, 0.0)
        self.steps_at_start[rows] = self.steps_saved[rows] = steps_done
        self._vacate(rows, end_s, now_s)
        for moment, group in _groups(end_s):
            self._push(moment, _Ends(rows[group], leases[group], steps_done[group]))

    def _start(self, rows: Ints, leases: Ints, offsets: Ints, gpus: Ints, now_s: float) -> None:
        gpus_ready_s = np.maximum.reduceat(self.gpu_free_s[gpus], offsets[:-1])
        start_s = np.maximum(np.maximum(gpus_ready_s, self.job_free_s[rows]), now_s)
        counts = offsets[1:] - offsets[:-1]
        second = self._place(rows, gpus, offsets)
        where, before = gpu_set(gpus, offsets), self.gpus_before[rows]
        moved = (before != NO_GPUS) & (before != where)
        self._lease(rows, leases, self.gpu_type_of[gpus[offsets[:-1]]], start_s)
        self.began_s[rows] += self.costs.restart_s + self.costs.migration_s * moved
        self.counted_s[rows] = self.began_s[rows]
        self._expect_finish(rows)
        for moment, group in _groups(start_s):
            started = gpus[group.repeat(counts)]
            self._push(moment, _Starts(rows[group], leases[group], counts[group], started, where[group]))
        self._expect_co_location(rows[second], now_s)

    def _lease(self, rows: Ints, leases: Ints, gpu_types: Ints, start_s: Floats) -> None:
        self.lease[rows], self.lease_type[rows] = leases, gpu_types
        self.start_s[rows] = self.began_s[rows] = self.counted_s[rows] = start_s
        self.rate[rows] = self.true_rate[rows, gpu_types]
        self._is_leased[rows] = True
        self._rows = min(self._rows[0], int(rows.min())), max(self._rows[1], int(rows.max()) + 1)

    def _leased(self) -> Ints:
        """Jobs that run or wait to start, ascending."""
        first, end = self._rows
        rows: Ints = self._is_leased[first:end].nonzero()[0] + first
        self._rows = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (len(self._is_leased), 0)
        return rows

    def _expect_co_location(self, seconds: Ints, now_s: float) -> None:
        """Puts the time when these jobs and their partners both make steps on the timeline."""
        for row in seconds.tolist():
            both = int(self.partner[row]), row
            both_s = max(now_s, float(self.began_s[both[0]]), float(self.began_s[row]))
            self._push(both_s, _CoLocated(both, (int(self.lease[both[0]]), int(self.lease[row]))))

    def _place(self, rows: Ints, gpus: Ints, offsets: Ints) -> Bools:
        """Records which jobs hold which GPUs; returns which of the jobs (K,) join a partner."""
        if self.co_location is None:
            self.gpu_job[gpus] = rows.repeat(offsets[1:] - offsets[:-1])
            return np.zeros(len(rows), dtype=np.bool_)
        first_gpu = gpus[offsets[:-1]]
        _, comes_first = np.unique(first_gpu, return_index=True)
        second = np.ones(len(rows), dtype=np.bool_)
        second[comes_first] = False
        second |= self.gpu_job[first_gpu] != NONE
        holders, shared = np.repeat(rows, np.diff(offsets)), np.repeat(second, np.diff(offsets))
        self.gpu_job[gpus[~shared]] = holders[~shared]
        if second.any():
            self._any_second = True
            assert (self.gpu_second[gpus[shared]] == NONE).all(), "a plan grants GPUs that are under two leases"
            self.gpu_second[gpus[shared]] = holders[shared]
            self.partner[rows[second]] = self.gpu_job[first_gpu[second]]
            self.partner[self.partner[rows[second]]] = rows[second]
        return second

    def _started(self, due: _Starts) -> LeaseStarted | None:
        valid = self.lease[due.jobs] == due.leases
        if not np.count_nonzero(valid):
            return None
        rows, gpus = due.jobs[valid], due.gpus[valid.repeat(due.gpu_counts)]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        due.gpu_counts[valid].cumsum(out=offsets[1:])
        self.gpus_before[rows] = due.gpu_sets[valid]
        return LeaseStarted(rows, due.leases[valid], offsets, gpus)

    def _finished(self, due: _Finish, now_s: float) -> LeaseEnded | None:
        if self.lease[due.job] != due.lease or self.finish_s[due.job] != now_s:
            return None
        row = np.array([due.job])
        self.steps_at_start[row] = self.steps_total[row]
        self._vacate(row, np.array([now_s]), now_s)
        return LeaseEnded(row, np.array([due.lease]), self.steps_total[row], Outcome.FINISHED)

    def _run_co_located(self, due: _CoLocated, now_s: float) -> None:
        pair = np.array(due.jobs)
        if (self.lease[pair] == due.leases).all() and (self.partner[pair] == pair[::-1]).all():
            self.co_located[pair] = pair[::-1]
            gpu_type = int(self.lease_type[due.jobs[0]])
            factors = self.rate_factors(*due.jobs, gpu_type)
            self._change_rate(pair, self.true_rate[pair, gpu_type] * factors, now_s)

    def _change_rate(self, rows: Ints, rate: Floats, now_s: float) -> None:
        """Jobs run at another rate from now on, or from their first step."""
        self.steps_at_start[rows] = self._steps(rows, now_s)
        self.counted_s[rows] = np.maximum(now_s, self.began_s[rows])
        self.rate[rows] = rate
        self.is_watched[rows] = False
        self._expect_finish(rows)
        self._watch_finishes()

    def _vacate(self, rows: Ints, free_s: Floats, now_s: float) -> None:
        """Frees the GPUs of these jobs; for leases that wait to start, once earlier leases have ended."""
        start_s, partners = self.start_s[rows], self.partner[rows]
        ends_s = np.where(np.isfinite(start_s), np.maximum(free_s, start_s), free_s)
        for holder in (self.gpu_job, self.gpu_second) if self._any_second else (self.gpu_job,):
            if len(rows) == 1:
                freed, until_s = (holder == rows[0]).nonzero()[0], ends_s
            else:
                self._vacating[rows] = ends_s
                moment_s = self._vacating[holder]  # NONE is the last row
                freed = (moment_s > -math.inf).nonzero()[0]
                until_s = moment_s[freed]
                self._vacating[rows] = -math.inf
            self.gpu_free_s[freed] = np.maximum(self.gpu_free_s[freed], until_s)
            holder[freed] = NONE
        self.job_free_s[rows] = np.maximum(self.job_free_s[rows], free_s)
        self.lease[rows] = NONE
        self.start_s[rows] = self.began_s[rows] = self.counted_s[rows] = self.finish_s[rows] = math.inf
        self.is_watched[rows] = False
        self._is_leased[rows] = False
        if np.count_nonzero(partners != NONE):
            self._separate(rows[partners != NONE], partners[partners != NONE], now_s)

    def _separate(self, rows: Ints, partners: Ints, now_s: float) -> None:
        """These jobs left the GPUs they shared; partners that stay run alone."""
        were_co_located = self.co_located[partners] != NONE
        self.partner[rows] = self.partner[partners] = self.co_located[rows] = self.co_located[partners] = NONE
        stays = self._is_leased[partners]
        moved = (self.gpu_job == NONE) & (self.gpu_second != NONE)
        self.gpu_job[moved] = self.gpu_second[moved]
        self.gpu_second[moved] = NONE
        alone = partners[stays & were_co_located]
        if len(alone):
            self._change_rate(alone, self.true_rate[alone, self.lease_type[alone]], now_s)

    def _watch_finishes(self) -> None:
        leased = self._leased()
        rows = leased[(self.finish_s[leased] <= self._until_s) & ~self.is_watched[leased]]
        self.is_watched[rows] = True
        for row in rows.tolist():
            self._push(float(self.finish_s[row]), _Finish(row, int(self.lease[row])))

    def _push(self, moment_s: float, due: _Due) -> None:
        heapq.heappush(self._timeline, (moment_s, self._serial, due))
        self._serial += 1


def _gpus_of(jobs: JobTable, rows: Sequence[int]) -> tuple[Ints, Ints]:
    """Offsets (K + 1,) and GPUs of the leases of these jobs."""
    held = [jobs.gpus_held(row) for row in rows]
    return np.concatenate([[0], np.cumsum([len(gpus) for gpus in held])]), np.concatenate(held)


_Due = _Starts | _Ends | _Finish | _CoLocated


def _groups(moment_s: Floats) -> list[tuple[float, Bools]]:
    """Rows by moment, earliest first."""
    if len(moment_s) == 1 or (moment_s == moment_s[0]).all():
        return [(float(moment_s[0]), np.ones(len(moment_s), dtype=np.bool_))]
    return [(float(moment), moment_s == moment) for moment in np.unique(moment_s)]

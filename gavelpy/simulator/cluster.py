"""Virtual node agents: they start, run, checkpoint and stop jobs as a round plan says, and tell what came of it.

Each job has at most one lease that runs or waits to start, and at most one that is being stopped. A granted lease
starts when its job's old lease and all leases on its GPUs have ended. What that costs: see `Costs`. Rates are the
true ones, which need not be what the core believes.

Two jobs of a pair have leases on the same GPUs. Each runs at its rate beside the other from when both have begun until
one of them stops; before and after, at its own.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from gavelpy.journal.history import NO_GPUS, gpu_set
from gavelpy.mechanism.commands import KillLease, RoundPlan
from gavelpy.mechanism.events import Event, LeaseEnded, LeaseStarted, Outcome, ProgressReported
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.simulator.company import Company
from gavelpy.simulator.settings import Costs

NOBODY = -1
STEP_ROUNDING = 1e-6  # a step this close to its end is done


@dataclass(frozen=True, eq=False)
class _Starts:
    """Leases that will have what they wait for."""

    jobs: Ints
    leases: Ints
    gpu_counts: Ints
    gpus: Ints


@dataclass(frozen=True, eq=False)
class _Ends:
    """Revoked leases whose checkpoints will be written."""

    jobs: Ints
    leases: Ints
    steps_done: Floats


@dataclass(frozen=True)
class _Finish:
    """A job's last step, if nobody stops it before."""

    job: int
    lease: int


@dataclass(frozen=True)
class _Meeting:
    """Two jobs on the same GPUs will both have begun, if neither is stopped before."""

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
        whole_steps: bool = False,
        company: Company | None = None,
    ) -> None:
        J = len(steps_total)
        self.costs = costs
        self.whole_steps = whole_steps
        self.company = company
        self.gpu_type_of = gpu_type_of  # (G,)
        self.true_rate = true_rate  # (J, T) steps/s
        self.steps_total = steps_total  # (J,)
        self.gpu_free_s = np.full(len(gpu_type_of), -math.inf)  # (G,) end of the leases there that are over
        self.job_free_s = np.full(J, -math.inf)  # (J,) end of the job's stopping lease
        self.lease = np.full(J, NOBODY)  # (J,) running or waiting to start
        self.lease_type = np.full(J, NOBODY)  # (J,) GPU type of that lease
        self.start_s = np.full(J, math.inf)  # (J,) of that lease
        self.began_s = np.full(J, math.inf)  # (J,) of its first step
        self.counted_s = np.full(J, math.inf)  # (J,) since when the rate is what it is, after steps_at_start
        self.finish_s = np.full(J, math.inf)  # (J,) of the job's last step, if nobody stops it
        self.is_watched = np.zeros(J, dtype=np.bool_)  # (J,) whether finish_s is on the timeline
        self.steps_at_start = np.zeros(J)  # (J,) done at counted_s
        self.rate = np.zeros(J)  # (J,)
        self.gpu_job = np.full(len(gpu_type_of), NOBODY)  # (G,) whose lease runs or waits to start there
        self.gpu_beside = np.full(len(gpu_type_of), NOBODY)  # (G,) the same of a partner
        self.partner = np.full(J, NOBODY)  # (J,) who has a lease on the same GPUs
        self.beside = np.full(J, NOBODY)  # (J,) the partner, while both run
        self.gpus_before = np.full(J, NO_GPUS, dtype=np.uint64)  # (J,) the set of GPUs the job last ran on
        self._is_leased = np.zeros(J, dtype=np.bool_)
        self._timeline: list[tuple[float, int, _Due]] = []
        self._serial = 0
        self._until_s = -math.inf  # of the last plan

    # Commands ----------------------------------------------------------------------------------------------------

    def apply(self, plan: RoundPlan, now_s: float) -> None:
        """Carries out a plan: schedules its stops, its starts, and the jobs that will finish before the round ends."""
        if len(plan.revoke_jobs):
            self._stop(plan.revoke_jobs, plan.revoke_leases, now_s)
        if self.whole_steps:
            self._break_steps(plan.extend_jobs, now_s)
        if len(plan.grant_jobs):
            self._start(plan, now_s)
        self._until_s = plan.until_s
        self._watch_finishes()

    def kill(self, command: KillLease, now_s: float) -> None:
        """Ends a lease at once, if it still is in force."""
        if self.lease[command.job] == command.lease:
            self._stop(np.array([command.job]), np.array([command.lease]), now_s)

    def progress(self, now_s: float) -> ProgressReported | None:
        """Steps of all running jobs now, if any has made some."""
        leased = np.flatnonzero(self._is_leased)
        rows = leased[self.began_s[leased] < now_s]
        return ProgressReported(rows, self.lease[rows], self._steps(rows, now_s)) if len(rows) else None

    # Time --------------------------------------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        """When something happens here next; infinite if nothing will."""
        return self._timeline[0][0] if self._timeline else math.inf

    def pop(self) -> Event | None:
        """What happens at next_s, in order; nothing if it was called off meanwhile."""
        now_s, _, due = heapq.heappop(self._timeline)
        match due:
            case _Ends():
                return LeaseEnded(due.jobs, due.leases, due.steps_done, Outcome.STOPPED)
            case _Starts():
                return self._started(due)
            case _Finish():
                return self._finished(due, now_s)
            case _Meeting():
                self._met(due, now_s)
                return None

    # Helpers -----------------------------------------------------------------------------------------------------

    def _steps(self, rows: Ints, now_s: float) -> Floats:
        done = self.rate[rows] * np.maximum(now_s - self.counted_s[rows], 0.0)
        if self.whole_steps:
            done = np.floor(done + STEP_ROUNDING)
        return np.minimum(self.steps_at_start[rows] + done, self.steps_total[rows])

    def _break_steps(self, rows: Ints, now_s: float) -> None:
        """Jobs that go on begin a new step now; those about to finish are on the timeline already and do finish."""
        rows = rows[(self.began_s[rows] < now_s) & ~self.is_watched[rows]]
        self.steps_at_start[rows] = self._steps(rows, now_s)
        self.began_s[rows] = self.counted_s[rows] = now_s
        self._expect_finish(rows)

    def _expect_finish(self, rows: Ints) -> None:
        steps_left, rate = self.steps_total[rows] - self.steps_at_start[rows], self.rate[rows]
        time_s = np.divide(steps_left, rate, out=np.full(len(rows), math.inf), where=rate > 0)
        self.finish_s[rows] = self.counted_s[rows] + time_s

    def _stop(self, rows: Ints, leases: Ints, now_s: float) -> None:
        assert (self.lease[rows] == leases).all(), "a plan revokes a lease that is not in force"
        steps_done = self._steps(rows, now_s)
        has_progress = self.began_s[rows] < now_s
        end_s = now_s + np.where(has_progress, self.costs.checkpoint_s, 0.0)
        self.steps_at_start[rows] = steps_done
        self._vacate(rows, end_s, now_s)
        for moment, group in _groups(end_s):
            self._push(moment, _Ends(rows[group], leases[group], steps_done[group]))

    def _start(self, plan: RoundPlan, now_s: float) -> None:
        rows, offsets, gpus = plan.grant_jobs, plan.grant_gpu_offsets, plan.grant_gpus
        gpus_ready_s = np.maximum.reduceat(self.gpu_free_s[gpus], offsets[:-1])
        start_s = np.maximum(np.maximum(gpus_ready_s, self.job_free_s[rows]), now_s)
        counts = np.diff(offsets)
        second = self._seat(rows, gpus, offsets)
        where, before = gpu_set(gpus, offsets), self.gpus_before[rows]
        moved = (before != NO_GPUS) & (before != where)
        self.lease[rows] = plan.grant_leases
        self.start_s[rows] = start_s
        self.began_s[rows] = start_s + self.costs.restart_s + self.costs.migration_s * moved
        self.counted_s[rows] = self.began_s[rows]
        self.lease_type[rows] = self.gpu_type_of[gpus[offsets[:-1]]]
        self.rate[rows] = self.true_rate[rows, self.lease_type[rows]]
        self._expect_finish(rows)
        self._is_leased[rows] = True
        for moment, group in _groups(start_s):
            started = gpus[np.repeat(group, counts)]
            self._push(moment, _Starts(rows[group], plan.grant_leases[group], counts[group], started))
        for row in rows[second].tolist():
            both = int(self.partner[row]), row
            met_s = max(now_s, float(self.began_s[both[0]]), float(self.began_s[row]))
            self._push(met_s, _Meeting(both, (int(self.lease[both[0]]), int(self.lease[row]))))

    def _seat(self, rows: Ints, gpus: Ints, offsets: Ints) -> Bools:
        """Notes who holds which GPUs; returns which of the jobs (K,) came to a partner."""
        first_gpu = gpus[offsets[:-1]]
        _, comes_first = np.unique(first_gpu, return_index=True)
        second = np.ones(len(rows), dtype=np.bool_)
        second[comes_first] = False
        second |= self.gpu_job[first_gpu] != NOBODY
        holders, shared = np.repeat(rows, np.diff(offsets)), np.repeat(second, np.diff(offsets))
        self.gpu_job[gpus[~shared]] = holders[~shared]
        if second.any():
            assert (self.gpu_beside[gpus[shared]] == NOBODY).all(), "a plan grants GPUs that are under two leases"
            self.gpu_beside[gpus[shared]] = holders[shared]
            self.partner[rows[second]] = self.gpu_job[first_gpu[second]]
            self.partner[self.partner[rows[second]]] = rows[second]
        return second

    def _started(self, due: _Starts) -> LeaseStarted | None:
        valid = self.lease[due.jobs] == due.leases
        if not valid.any():
            return None
        rows, gpus = due.jobs[valid], due.gpus[np.repeat(valid, due.gpu_counts)]
        offsets = np.concatenate([[0], np.cumsum(due.gpu_counts[valid])])
        self.gpus_before[rows] = gpu_set(gpus, offsets)
        return LeaseStarted(rows, due.leases[valid], offsets, gpus)

    def _finished(self, due: _Finish, now_s: float) -> LeaseEnded | None:
        if self.lease[due.job] != due.lease or self.finish_s[due.job] != now_s:
            return None
        row = np.array([due.job])
        self.steps_at_start[row] = self.steps_total[row]
        self._vacate(row, np.array([now_s]), now_s)
        return LeaseEnded(row, np.array([due.lease]), self.steps_total[row], Outcome.FINISHED)

    def _met(self, due: _Meeting, now_s: float) -> None:
        """From now on both run beside each other."""
        pair = np.array(due.jobs)
        if (self.lease[pair] == due.leases).all() and (self.partner[pair] == pair[::-1]).all():
            assert self.company is not None, "a plan makes jobs share GPUs, and nobody knows how fast they are then"
            self.beside[pair] = pair[::-1]
            gpu_type = int(self.lease_type[due.jobs[0]])
            self._go_on_at(pair, self.true_rate[pair, gpu_type] * self.company.kept(*due.jobs, gpu_type), now_s)

    def _go_on_at(self, rows: Ints, rate: Floats, now_s: float) -> None:
        """Jobs run at another rate from now on, or from when they will have begun."""
        self.steps_at_start[rows] = self._steps(rows, now_s)
        self.counted_s[rows] = np.maximum(now_s, self.began_s[rows])
        self.rate[rows] = rate
        self.is_watched[rows] = False
        self._expect_finish(rows)
        self._watch_finishes()

    def _vacate(self, rows: Ints, free_s: Floats, now_s: float) -> None:
        """The GPUs of these jobs fall free; those of a lease that waits to start, when what it waits for has ended."""
        gpus_free_s = np.full(len(self.lease) + 1, math.nan)
        gpus_free_s[rows] = np.where(np.isfinite(self.start_s[rows]), np.maximum(free_s, self.start_s[rows]), free_s)
        left = self.partner[rows]
        for holder in (self.gpu_job, self.gpu_beside):
            freed = ~np.isnan(gpus_free_s[holder])  # nobody is row -1, the last
            self.gpu_free_s[freed] = np.maximum(self.gpu_free_s[freed], gpus_free_s[holder[freed]])
            holder[freed] = NOBODY
        self.job_free_s[rows] = np.maximum(self.job_free_s[rows], free_s)
        self.lease[rows] = NOBODY
        self.start_s[rows] = self.began_s[rows] = self.counted_s[rows] = self.finish_s[rows] = math.inf
        self.is_watched[rows] = False
        self._is_leased[rows] = False
        if (left != NOBODY).any():
            self._part(rows[left != NOBODY], left[left != NOBODY], now_s)

    def _part(self, rows: Ints, partners: Ints, now_s: float) -> None:
        """These jobs have left the GPUs they shared; partners that stay go on alone."""
        were_beside = self.beside[partners] != NOBODY
        self.partner[rows] = self.partner[partners] = self.beside[rows] = self.beside[partners] = NOBODY
        stays = self._is_leased[partners]
        moved = (self.gpu_job == NOBODY) & (self.gpu_beside != NOBODY)
        self.gpu_job[moved] = self.gpu_beside[moved]
        self.gpu_beside[moved] = NOBODY
        going_on = partners[stays & were_beside]
        if len(going_on):
            self._go_on_at(going_on, self.true_rate[going_on, self.lease_type[going_on]], now_s)

    def _watch_finishes(self) -> None:
        leased = np.flatnonzero(self._is_leased & ~self.is_watched)
        rows = leased[self.finish_s[leased] <= self._until_s]
        self.is_watched[rows] = True
        for row in rows.tolist():
            self._push(float(self.finish_s[row]), _Finish(row, int(self.lease[row])))

    def _push(self, moment_s: float, due: _Due) -> None:
        heapq.heappush(self._timeline, (moment_s, self._serial, due))
        self._serial += 1


_Due = _Starts | _Ends | _Finish | _Meeting


def _groups(moment_s: Floats) -> list[tuple[float, Bools]]:
    """Rows by moment, earliest first."""
    return [(float(moment), moment_s == moment) for moment in np.unique(moment_s)]

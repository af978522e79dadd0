"""Applies nodes' reports on leases to jobs, also late reports on the end of lost leases.

Reports may come twice, late or never. A report counts only if its lease is still a lease of the job (granted, running
or stopping), or a lost lease that is open. Steps are absolute, so duplicates have no effect.

A lease is lost when its node is declared lost, stays unreachable until the lease must be over, or returns without it.
The node may still have a record of how the lease ended, which takes precedence over the scheduler's inference. So a
lost lease stays open: a later report of its end counts as follows.

- *Finished*: finishes the job if it is not over yet. A newer lease of the job is revoked if it has not started and
  killed if it has: the work is done, and a second run must not count as well.
- *Stopped* and *failed*: count only while no newer lease runs. The checkpoint of a stopped lease counts only while the
  job has no newer lease, which would resume from another checkpoint, and if no newer lease has saved one.

A lease is closed by its late end and when its job is over. Only the newest `OPEN_MAX` lost leases of a job are open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism import app_table, booking, eligibility, failures, gpu_memory, non_preemptible, turn_costs
from gavelpy.mechanism.events import (
    CheckpointSaved,
    FailureClass,
    GpuMemoryMeasured,
    LastStepReported,
    LeaseEnded,
    LeaseStarted,
    MetricsReported,
    Outcome,
    ProgressReported,
    SavingDeclared,
    TotalAnnounced,
    TurnMeasured,
)
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import OPEN, JobTable
from gavelpy.mechanism.leases import LeaseBook
from gavelpy.mechanism.lifecycle import IS_GRANTED, IS_RUNNING, LAST_ALIVE, JobFact, JobState
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Floats, Ints

OPEN_MAX = 8


@dataclass(frozen=True)
class Ended:
    """The consequences of ended leases."""

    any_free: bool  # GPUs became free
    any_stopped: bool  # a stopping lease of an active job is over
    any_gone: bool  # a job has finished or was given up
    any_paused: bool  # a job is in a pause before its retry
    orphaned: list[tuple[int, int]]  # newer leases of jobs that have finished under an older one


def running(
    jobs: JobTable,
    pool: GpuPool,
    event: LeaseStarted | ProgressReported | CheckpointSaved | SavingDeclared | LastStepReported,
    now_s: float,
) -> None:
    """Applies the start of leases, or reports of their jobs."""
    if isinstance(event, LeaseStarted) and len(event.jobs) == 1:
        row = event.jobs.item()
        if jobs.lease[row] == event.leases.item() and jobs.state[row] == IS_GRANTED:
            _started(jobs, row, now_s)
        return
    if isinstance(event, ProgressReported) and jobs.kernels is not None:
        jobs.kernels.progressed(jobs, event.jobs, event.leases, event.steps_done, now_s)
        return
    current = jobs.lease[event.jobs] == event.leases
    match event:
        case LeaseStarted():
            rows = event.jobs[current]
            rows = rows[jobs.state[rows] == IS_GRANTED]
            started(jobs, rows, now_s)
        case ProgressReported():
            rows, steps = (event.jobs, event.steps_done) if current.all() else _among(event, current)
            grow(jobs, rows, steps)
            jobs.steps_done[rows] = np.minimum(np.maximum(steps, jobs.steps_saved[rows]), jobs.steps_total[rows])
            _works(jobs, rows, now_s)
        case SavingDeclared():
            non_preemptible.declared(jobs, event.jobs[current])
        case LastStepReported():
            non_preemptible.reported(jobs, event.jobs[current], now_s)
        case CheckpointSaved():
            _works(jobs, event.jobs[current], now_s)
            current |= jobs.stopping[event.jobs] == event.leases
            _save(jobs, pool, event.jobs[current], event.leases[current], event.steps_done[current])


def _among(event: ProgressReported, counts: Bools) -> tuple[Ints, Floats]:
    return event.jobs[counts], event.steps_done[counts]


def changes_needs(
    jobs: JobTable,
    event: TotalAnnounced | GpuMemoryMeasured | TurnMeasured | MetricsReported,
    settings: MechanismSettings,
) -> bool:
    """Books what programs announced or nodes measured of jobs; returns whether what any of them needs has changed."""
    if isinstance(event, MetricsReported):
        app_table.book(jobs, event)
        return False
    if isinstance(event, TurnMeasured):
        turn_costs.measured(jobs, event)
        return False
    return gpu_memory.measured(jobs, event, settings) if isinstance(event, GpuMemoryMeasured) else _total(jobs, event)


def _total(jobs: JobTable, event: TotalAnnounced) -> bool:
    """Books the steps that programs announced for their jobs; returns whether any number has changed.

    A number below the steps of the job's newest checkpoint cannot be right: it is ignored, and the former one stays.
    """
    counts = (jobs.lease[event.jobs] == event.leases) & (event.steps_total >= jobs.steps_saved[event.jobs])
    rows, totals = event.jobs[counts], event.steps_total[counts]
    is_new = bool((jobs.steps_total[rows] != totals).any())
    jobs.steps_total[rows], jobs.total_by[rows] = totals, event.leases[counts]
    jobs.steps_done[rows] = np.minimum(jobs.steps_done[rows], totals)
    return is_new


def grow(jobs: JobTable, rows: Ints, steps: Floats) -> None:
    """Assumes that jobs of unknown length, which have done more than half of what was assumed, are half done."""
    is_open = jobs.total_by[rows] == OPEN
    if np.count_nonzero(is_open):
        np.maximum.at(jobs.steps_total, rows[is_open], 2 * steps[is_open])


def _settle_totals(jobs: JobTable, rows: Ints, leases: Ints, steps: Floats) -> None:
    """A finished job of unknown or announced length has as many steps as it did."""
    counts = (jobs.total_by[rows] != -1) & (steps > 0)
    rows, leases, steps = rows[counts], leases[counts], steps[counts]
    jobs.steps_total[rows], jobs.total_by[rows] = np.maximum(steps, jobs.steps_saved[rows]), leases


def _works(jobs: JobTable, rows: Ints, now_s: float) -> None:
    """Books the first progress of these jobs under their leases."""
    jobs.worked_s[rows[jobs.worked_s[rows] < 0]] = now_s


def started(jobs: JobTable, rows: Ints, now_s: float) -> None:
    """Starts the granted leases of these jobs. Their older leases are over, as shells start leases only after that."""
    jobs.change(rows, JobFact.STARTED)
    jobs.since_s[rows] = jobs.began_s[rows] = now_s
    jobs.avoid[rows] = -1
    jobs.stopped(rows[jobs.stopping[rows] >= 0])


def _started(jobs: JobTable, row: int, now_s: float) -> None:
    """As `started`, for one job."""
    jobs.state[row] = IS_RUNNING
    jobs.since_s[row] = jobs.began_s[row] = now_s
    jobs.avoid[row] = -1
    if jobs.stopping[row] >= 0:
        jobs.stopped(np.array([row]))


def ended(jobs: JobTable, leases: LeaseBook, event: LeaseEnded, now_s: float, settings: MechanismSettings) -> Ended:
    """Applies the end of leases that finished, failed, were lost or were revoked."""
    if len(event.jobs) == 1 and _has_finished(jobs, event):  # the usual case
        return _finished(jobs, leases, event, now_s)
    alive = jobs.state[event.jobs] <= LAST_ALIVE
    was_stopping = jobs.stopping[event.jobs] == event.leases
    is_current = alive & ~was_stopping & (jobs.lease[event.jobs] == event.leases)
    is_late = counting_late(jobs, event)
    counts = alive & was_stopping | is_current | is_late
    rows, current, late = event.jobs[counts], event.jobs[is_current], event.jobs[is_late]
    if len(current) > 1:
        current = np.unique(current)  # each node of a gang may report
    is_finish = event.outcome is Outcome.FINISHED
    if event.outcome in (Outcome.FINISHED, Outcome.STOPPED):
        saves = counts
        if len(late) and not is_finish:
            is_newer = (jobs.lease[event.jobs] < 0) & (event.leases > jobs.saved_lease[event.jobs])
            saves = counts & (~is_late | is_newer)
        at = event.jobs[saves], event.leases[saves], event.steps_done[saves]
        if is_finish:
            _settle_totals(jobs, *at)
        is_checkpoint = event.outcome is Outcome.STOPPED and not event.is_by_time  # a job may finish without saving
        _save(jobs, leases.pool, *at, is_ours=is_checkpoint)
    if event.outcome is Outcome.STOPPED:
        non_preemptible.stopped(jobs, np.setdiff1d(rows, late) if len(late) else rows)
    if event.outcome is not Outcome.LOST:
        close_lost(jobs, rows, event.leases[counts])
    elif settings.late_ends:
        open_lost(jobs, rows, event.leases[counts])
    is_failure = event.outcome in (Outcome.FAILED, Outcome.UNRUNNABLE)
    on_time = rows if is_failure or not len(late) else np.setdiff1d(rows, late)
    any_paused = bool(settings.retry_s) and _missed(jobs, leases.pool, on_time, current, event, settings, now_s)
    if np.count_nonzero(was_stopping):
        jobs.stopped(event.jobs[was_stopping])
    over = rows if is_finish else rows[_is_over(jobs, rows, event, settings, now_s)]
    jobs.steps_done[rows] = jobs.steps_saved[rows]
    orphaned = over[:0]
    if len(current) < len(rows):
        orphaned = over[(jobs.lease[over] >= 0) & ~jobs.marks(current)[over]]
    killed = list(zip(orphaned.tolist(), jobs.lease[orphaned].tolist(), strict=True))
    ending = np.concatenate([current, orphaned]) if len(orphaned) else current
    if len(ending):
        booking.credit(jobs, ending, now_s)
        leases.vacate(ending)
        if not is_finish:
            jobs.change(current[~jobs.marks(over)[current]], JobFact.STOPPED)
    jobs.change(over, JobFact.FINISHED if is_finish else JobFact.GIVEN_UP)
    return Ended(
        any_free=bool(len(current) or killed),
        any_stopped=bool(np.count_nonzero(alive & was_stopping) or len(late)),
        any_gone=bool(len(over)),
        any_paused=any_paused,
        orphaned=killed,
    )


def _has_finished(jobs: JobTable, event: LeaseEnded) -> bool:
    """Whether the only lease of an event has finished a job to which no special case applies."""
    is_special = jobs.any_failed or jobs.any_gated or jobs.lost_leases or jobs.claims.count
    if event.outcome is not Outcome.FINISHED or is_special:
        return False
    row, lease = event.jobs.item(), event.leases.item()
    is_current = jobs.lease[row] == lease != jobs.stopping[row] and jobs.state[row] <= LAST_ALIVE
    return bool(is_current and jobs.total_by[row] == -1)


def _finished(jobs: JobTable, leases: LeaseBook, event: LeaseEnded, now_s: float) -> Ended:
    """As `ended`, where `_has_finished`: without arrays of one job."""
    row = event.jobs.item()
    steps_done = min(event.steps_done.item(), jobs.steps_total.item(row))
    if steps_done > jobs.steps_saved[row]:
        jobs.steps_saved[row], jobs.saved_lease[row], jobs.saved_in[row] = steps_done, -1, jobs.lease_in[row]
    jobs.steps_done[row] = jobs.steps_saved[row]
    leases.end_one(row, now_s)
    jobs.change(event.jobs, JobFact.FINISHED)
    return Ended(any_free=True, any_stopped=False, any_gone=True, any_paused=False, orphaned=[])


def _is_over(jobs: JobTable, rows: Ints, event: LeaseEnded, settings: MechanismSettings, now_s: float) -> Bools:
    """Whether these jobs, which have not finished, are given up, (K,)."""
    if event.outcome in (Outcome.FAILED, Outcome.UNRUNNABLE):
        return failures.book(jobs, rows, event, settings)
    is_over: Bools = jobs.failures[rows] > settings.failures_max
    return is_over | failures.time_is_over(jobs, rows, now_s) if jobs.any_timed else is_over


def _missed(
    jobs: JobTable,
    pool: GpuPool,
    rows: Ints,
    current: Ints,
    event: LeaseEnded,
    settings: MechanismSettings,
    now_s: float,
) -> bool:
    """Starts the pauses of jobs with leases that had no progress; returns whether there are any.

    `current` are the jobs with a lease in force; the run time of a stopping lease is unknown if its job has another.
    """
    is_promised = jobs.state[rows] == IS_GRANTED
    match event.outcome:
        case Outcome.FAILED | Outcome.UNRUNNABLE:
            kind = failures.class_of(event)
            if kind in (FailureClass.USER, FailureClass.REFUSED, *failures.SYSTEM):
                nodes = pool.node_of[jobs.gpu_first[current]]
                can_be_the_job = kind is not FailureClass.REFUSED
                eligibility.blame(jobs, current, nodes, settings, can_be_the_job=can_be_the_job)
            ran_s = np.where(is_promised, 0.0, now_s - jobs.began_s[rows])
            eligibility.count_miss(jobs, rows, ran_s, settings, now_s)
            return bool(len(rows))
        case Outcome.LOST:
            return eligibility.count_loss(jobs, current, pool.node_of[jobs.gpu_first[current]], settings, now_s)
        case Outcome.STOPPED | Outcome.FINISHED:
            if jobs.any_gated:
                eligibility.forgive(jobs, rows)
            return False


def _save(jobs: JobTable, pool: GpuPool, rows: Ints, leases: Ints, steps_done: Floats, *, is_ours: bool = True) -> None:
    """Books a complete checkpoint of each job, written under its lease; ignored if it has no further steps.

    Not `is_ours`: the job manages its own checkpoints, so no lease is recorded for them.
    """
    grow(jobs, rows, steps_done)
    steps_done = np.minimum(steps_done, jobs.steps_total[rows])
    further = steps_done > jobs.steps_saved[rows]
    if not np.count_nonzero(further):
        return
    rows, leases, steps_done = rows[further], leases[further], steps_done[further]
    jobs.steps_saved[rows] = steps_done
    if jobs.any_failed:
        failures.forgive(jobs, rows, steps_done)
    jobs.saved_lease[rows] = leases if is_ours else -1
    jobs.saved_in[rows] = _directories(jobs, pool, rows, leases)
    jobs.steps_done[rows] = np.maximum(jobs.steps_done[rows], steps_done)


def _directories(jobs: JobTable, pool: GpuPool, rows: Ints, leases: Ints) -> Ints:
    """Directory that each lease wrote to, (K,); for a lost lease, the directory of its first GPU's node."""
    found = np.where(jobs.lease[rows] == leases, jobs.lease_in[rows], np.int64(-1))
    found = np.where(jobs.stopping[rows] == leases, jobs.stopping_in[rows], found)
    if not jobs.lost_leases:
        return found
    gpu = first_gpus(jobs, rows, leases, found)
    late = np.flatnonzero(gpu != found)
    if len(late):
        found[late] = np.array(pool.node_directory, dtype=np.int64)[pool.node_of[gpu[late]]]
    return found


def open_lost(jobs: JobTable, rows: Ints, leases: Ints) -> None:
    """Opens lost leases: the leases of these jobs, in force or stopping, and all their GPUs."""
    for row, lease in zip(rows.tolist(), leases.tolist(), strict=True):
        held = jobs.gpus_held(row) if jobs.lease[row] == lease else jobs.gpus_stopping(row)
        known = {lease: held.copy()} | jobs.lost_leases.get(row, {})  # a gang's first loss still has all GPUs
        jobs.lost_leases[row] = {each: known[each] for each in sorted(known)[-OPEN_MAX:]}


def close_lost(jobs: JobTable, rows: Ints, leases: Ints) -> None:
    """Closes these lost leases, as their end is known."""
    if not jobs.lost_leases:
        return
    for row, lease in zip(rows.tolist(), leases.tolist(), strict=True):
        left = {each: gpus for each, gpus in jobs.lost_leases.pop(row, {}).items() if each != lease}
        if left:
            jobs.lost_leases[row] = left


def is_lost_open(jobs: JobTable, row: int, lease: int) -> bool:
    """Whether a lease of this job is lost and its end would still count."""
    return lease in jobs.lost_leases.get(row, ())


def counting_late(jobs: JobTable, event: LeaseEnded) -> Bools:
    """Whether each of these ends is late and counts, (K,)."""
    counts: Bools = np.zeros(len(event.jobs), dtype=np.bool_)
    if not jobs.lost_leases or event.outcome is Outcome.LOST:
        return counts
    for k, (row, lease) in enumerate(zip(event.jobs.tolist(), event.leases.tolist(), strict=True)):
        state = jobs.state[row]
        is_timely = state != JobState.RUNNING or event.outcome is Outcome.FINISHED
        is_over = lease not in (jobs.lease[row], jobs.stopping[row])
        counts[k] = state <= LAST_ALIVE and is_over and is_timely and is_lost_open(jobs, row, lease)
    return counts


def first_gpus(jobs: JobTable, rows: Ints, leases: Ints, otherwise: Ints) -> Ints:
    """First GPU of each open lost lease, (K,); `otherwise` (K,) for other leases."""
    if not jobs.lost_leases:
        return otherwise
    found = otherwise.copy()
    for k, (row, lease) in enumerate(zip(rows.tolist(), leases.tolist(), strict=True)):
        if found[k] < 0 and is_lost_open(jobs, row, lease):
            found[k] = jobs.lost_leases[row][lease][0]
    return found

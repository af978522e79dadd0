"""Applies nodes' reports on leases to jobs.

Reports may come twice, late or never. A report counts only if its lease is still a lease of the job (granted, running
or stopping). Steps are absolute, so duplicates have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism import back_off, late_ends, non_preemptible
from gavelpy.mechanism.events import (
    CheckpointSaved,
    LastStepReported,
    LeaseEnded,
    LeaseStarted,
    Outcome,
    ProgressReported,
    SavingDeclared,
)
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook
from gavelpy.mechanism.lifecycle import ALIVE, JobFact, JobState
from gavelpy.mechanism.priorities import credit
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Floats, Ints


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
    current = jobs.lease[event.jobs] == event.leases
    match event:
        case LeaseStarted():
            rows = event.jobs[current]
            rows = rows[jobs.state[rows] == JobState.GRANTED]
            started(jobs, rows, now_s)
        case ProgressReported():
            rows = event.jobs[current]
            jobs.steps_done[rows] = np.clip(event.steps_done[current], jobs.steps_saved[rows], jobs.steps_total[rows])
            _works(jobs, rows, now_s)
        case SavingDeclared():
            non_preemptible.declared(jobs, event.jobs[current])
        case LastStepReported():
            non_preemptible.reported(jobs, event.jobs[current], now_s)
        case CheckpointSaved():
            _works(jobs, event.jobs[current], now_s)
            current |= jobs.stopping[event.jobs] == event.leases
            _save(jobs, pool, event.jobs[current], event.leases[current], event.steps_done[current])


def _works(jobs: JobTable, rows: Ints, now_s: float) -> None:
    """Books the first progress of these jobs under their leases."""
    jobs.worked_s[rows] = np.where(jobs.worked_s[rows] < 0, now_s, jobs.worked_s[rows])


def started(jobs: JobTable, rows: Ints, now_s: float) -> None:
    """Starts the granted leases of these jobs. Their older leases are over, as shells start leases only after that."""
    jobs.change(rows, JobFact.STARTED)
    jobs.since_s[rows] = jobs.began_s[rows] = now_s
    jobs.avoid[rows] = -1
    jobs.stopped(rows[jobs.stopping[rows] >= 0])


def ended(jobs: JobTable, leases: LeaseBook, event: LeaseEnded, now_s: float, settings: MechanismSettings) -> Ended:
    """Applies the end of leases that finished, failed, were lost or were revoked; see also `late_ends`."""
    alive = jobs.state[event.jobs] <= ALIVE[-1]
    was_stopping = jobs.stopping[event.jobs] == event.leases
    is_current = alive & ~was_stopping & (jobs.lease[event.jobs] == event.leases)
    is_late = late_ends.counting(jobs, event)
    counts = alive & was_stopping | is_current | is_late
    rows, current = event.jobs[counts], np.unique(event.jobs[is_current])  # each node of a gang may report
    late = event.jobs[is_late]
    if event.outcome in (Outcome.FINISHED, Outcome.STOPPED):
        is_newer = (jobs.lease[event.jobs] < 0) & (event.leases > jobs.saved_lease[event.jobs])
        saves = counts & (~is_late | is_newer) if event.outcome is Outcome.STOPPED else counts
        at = event.jobs[saves], event.leases[saves], event.steps_done[saves]
        _save(jobs, leases.pool, *at, is_ours=not event.is_by_time)
    if event.outcome is Outcome.STOPPED:
        non_preemptible.stopped(jobs, np.setdiff1d(rows, late))
    if event.outcome is not Outcome.LOST:
        late_ends.close(jobs, rows, event.leases[counts])
    elif settings.late_ends:
        late_ends.keep_open(jobs, rows, event.leases[counts])
    is_failure = event.outcome in (Outcome.FAILED, Outcome.UNRUNNABLE)
    on_time = rows if is_failure or not len(late) else np.setdiff1d(rows, late)
    any_paused = bool(settings.retry_s) and _missed(jobs, leases.pool, on_time, current, event.outcome, settings, now_s)
    jobs.stopped(event.jobs[was_stopping])
    jobs.steps_done[rows] = jobs.steps_saved[rows]
    jobs.failures[rows] += is_failure
    is_over = event.outcome is Outcome.FINISHED or jobs.failures[rows] > settings.failures_max
    if event.outcome is Outcome.UNRUNNABLE:
        is_over = is_over | (jobs.steps_saved[rows] == 0)  # one that has saved did run: the node's fault, so try again
    over = rows[np.broadcast_to(is_over, rows.shape)]
    orphaned = over[(jobs.lease[over] >= 0) & ~jobs.marks(current)[over]]
    killed = list(zip(orphaned.tolist(), jobs.lease[orphaned].tolist(), strict=True))
    over_now = np.concatenate([current, orphaned])
    credit(jobs, over_now, now_s)
    leases.vacate(over_now)
    jobs.change(current[~jobs.marks(over)[current]], JobFact.STOPPED)
    jobs.change(over, JobFact.FINISHED if event.outcome is Outcome.FINISHED else JobFact.GIVEN_UP)
    return Ended(
        any_free=bool(len(current) or killed),
        any_stopped=bool((alive & was_stopping).any() or len(late)),
        any_gone=bool(len(over)),
        any_paused=any_paused,
        orphaned=killed,
    )


def _missed(
    jobs: JobTable,
    pool: GpuPool,
    rows: Ints,
    current: Ints,
    outcome: Outcome,
    settings: MechanismSettings,
    now_s: float,
) -> bool:
    """Starts the pauses of jobs with leases that had no progress; returns whether there are any.

    `current` are the jobs with a lease in force; the run time of a stopping lease is unknown if its job has another.
    """
    is_promised = jobs.state[rows] == JobState.GRANTED
    match outcome:
        case Outcome.FAILED | Outcome.UNRUNNABLE:
            ran_s = np.where(is_promised, 0.0, now_s - jobs.began_s[rows])
            back_off.missed(jobs, rows, ran_s, settings, now_s)
            return bool(len(rows))
        case Outcome.LOST:
            return back_off.lost(jobs, current, pool.node_of[jobs.gpu_first[current]], settings, now_s)
        case Outcome.STOPPED | Outcome.FINISHED:
            back_off.forgive(jobs, rows)
            return False


def _save(jobs: JobTable, pool: GpuPool, rows: Ints, leases: Ints, steps_done: Floats, *, is_ours: bool = True) -> None:
    """Books a complete checkpoint of each job, written under its lease; ignored if it has no further steps.

    Not `is_ours`: the job manages its own checkpoints, so no lease is recorded for them.
    """
    steps_done = np.minimum(steps_done, jobs.steps_total[rows])
    further = steps_done > jobs.steps_saved[rows]
    rows, leases, steps_done = rows[further], leases[further], steps_done[further]
    jobs.steps_saved[rows] = steps_done
    jobs.saved_lease[rows] = leases if is_ours else -1
    jobs.saved_in[rows] = _directories(jobs, pool, rows, leases)
    jobs.steps_done[rows] = np.maximum(jobs.steps_done[rows], steps_done)


def _directories(jobs: JobTable, pool: GpuPool, rows: Ints, leases: Ints) -> Ints:
    """Directory that each lease wrote to, (K,); for a lost lease, the directory of its first GPU's node."""
    found = np.where(jobs.lease[rows] == leases, jobs.lease_in[rows], np.int64(-1))
    found = np.where(jobs.stopping[rows] == leases, jobs.stopping_in[rows], found)
    gpu = late_ends.first_gpus(jobs, rows, leases, found)
    late = np.flatnonzero(gpu != found)
    found[late] = np.array(pool.node_directory, dtype=np.int64)[pool.node_of[gpu[late]]]
    return found

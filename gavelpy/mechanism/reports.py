"""What nodes report about leases, and what follows for jobs.

Reports may come twice, late, or never. A report counts only if the lease it names is still the job's (promised,
running or stopping); steps are absolute, so hearing them twice does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism.events import AgentRejoined, CheckpointSaved, LeaseEnded, LeaseStarted, Outcome, ProgressReported
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook
from gavelpy.mechanism.lifecycle import ALIVE, JobFact, JobState
from gavelpy.mechanism.priorities import credit
from gavelpy.model.arrays import Floats, Ints


@dataclass(frozen=True)
class Ended:
    """What the end of leases has changed."""

    any_free: bool  # GPUs fell free
    any_gone: bool  # a job is finished or given up
    orphaned: list[tuple[int, int]]  # promised leases of jobs that have finished under an older one


def running(jobs: JobTable, event: LeaseStarted | ProgressReported | CheckpointSaved, now_s: float) -> None:
    """A lease began, or tells how far its job has come."""
    current = jobs.lease[event.jobs] == event.leases
    match event:
        case LeaseStarted():
            rows = event.jobs[current]
            rows = rows[jobs.state[rows] == JobState.GRANTED]
            jobs.change(rows, JobFact.STARTED)
            jobs.since_s[rows] = now_s
            jobs.stopping[rows] = -1  # shells start a lease only when the job's older one has ended
        case ProgressReported():
            rows = event.jobs[current]
            jobs.steps_done[rows] = np.clip(event.steps_done[current], jobs.steps_saved[rows], jobs.steps_total[rows])
        case CheckpointSaved():
            current |= jobs.stopping[event.jobs] == event.leases
            _save(jobs, event.jobs[current], event.steps_done[current])


def ended(jobs: JobTable, leases: LeaseBook, event: LeaseEnded, now_s: float, failures_max: int) -> Ended:
    """Leases are over: by themselves (finished, failed, lost) or because they were revoked."""
    alive = jobs.state[event.jobs] <= ALIVE[-1]
    was_stopping = jobs.stopping[event.jobs] == event.leases
    is_current = alive & ~was_stopping & (jobs.lease[event.jobs] == event.leases)
    jobs.stopping[event.jobs[was_stopping]] = -1
    counts = alive & was_stopping | is_current
    rows, current = event.jobs[counts], np.unique(event.jobs[is_current])  # each node of a gang may tell
    if event.outcome in (Outcome.FINISHED, Outcome.STOPPED):
        _save(jobs, rows, event.steps_done[counts])
    jobs.steps_done[rows] = jobs.steps_saved[rows]
    if event.outcome is Outcome.FAILED:
        jobs.failures[rows] += 1
    is_over = event.outcome is Outcome.FINISHED or jobs.failures[rows] > failures_max
    over = rows[np.broadcast_to(is_over, rows.shape)]
    orphaned = over[(jobs.lease[over] >= 0) & ~jobs.marks(current)[over]]
    killed = list(zip(orphaned.tolist(), jobs.lease[orphaned].tolist(), strict=True))
    credit(jobs, current, now_s)
    leases.vacate(np.concatenate([current, orphaned]))
    jobs.change(current[~jobs.marks(over)[current]], JobFact.STOPPED)
    jobs.change(over, JobFact.FINISHED if event.outcome is Outcome.FINISHED else JobFact.GIVEN_UP)
    return Ended(any_free=bool(len(current) or killed), any_gone=bool(len(over)), orphaned=killed)


def lost(jobs: JobTable, leases: LeaseBook, rows: Ints, now_s: float) -> list[tuple[int, int]]:
    """The leases of these jobs ended with their node; work goes back to the last checkpoint. Returns them, to be
    killed.

    A gang that also ran on other nodes must stop there.
    """
    dead = list(zip(rows.tolist(), jobs.lease[rows].tolist(), strict=True))
    credit(jobs, rows, now_s)
    leases.vacate(rows)
    jobs.steps_done[rows] = jobs.steps_saved[rows]
    jobs.change(rows, JobFact.STOPPED)
    return dead


def rejoined(
    jobs: JobTable, leases: LeaseBook, pool: GpuPool, event: AgentRejoined, now_s: float
) -> list[tuple[int, int]]:
    """Compares what a node runs with what it should run; returns the leases to kill.

    Known and running: adopted. Running but not ours any more: killed. Ours but not running: it ended unheard, or was
    granted by a scheduler that crashed before the node heard of it; its job waits again.
    """
    known = np.isin(event.jobs, np.arange(jobs.count))
    rows, names = event.jobs[known], event.leases[known]
    ours = (jobs.lease[rows] == names) | (jobs.stopping[rows] == names)
    kills = list(zip(rows[~ours].tolist(), names[~ours].tolist(), strict=True))
    kills += list(zip(event.jobs[~known].tolist(), event.leases[~known].tolist(), strict=True))
    current = rows[ours & (jobs.lease[rows] == names)]
    fresh = current[jobs.state[current] == JobState.GRANTED]
    jobs.change(fresh, JobFact.STARTED)
    jobs.since_s[fresh] = now_s
    jobs.stopping[fresh] = -1
    jobs.steps_done[rows[ours]] = np.clip(
        event.steps_done[known][ours], jobs.steps_saved[rows[ours]], jobs.steps_total[rows[ours]]
    )
    return kills + lost(jobs, leases, np.setdiff1d(pool.jobs_on(event.node_id), current), now_s)


def _save(jobs: JobTable, rows: Ints, steps_done: Floats) -> None:
    steps_done = np.minimum(steps_done, jobs.steps_total[rows])
    jobs.steps_saved[rows] = np.maximum(jobs.steps_saved[rows], steps_done)
    jobs.steps_done[rows] = np.maximum(jobs.steps_done[rows], steps_done)

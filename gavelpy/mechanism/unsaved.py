"""Jobs that would lose all their work if they were stopped: their leases are extended until they end by themselves.

Theory of operation. A program that never saves a checkpoint starts from scratch under each lease, so stopping it for
the sake of a better share destroys work, and again in the next round. With `keep_unsaved` a job is preempted only if it
is known to resume: its owner said so when it was submitted, its program registered a LeaseIterator (a declaration that
it saves when its lease ends), or a checkpoint of it is on record. A declaration that did not come true is void: the
lease was stopped and no checkpoint came from it; from then on only a checkpoint counts.

All other jobs keep the GPUs they have. These GPUs are subtracted before a plan is made, and from the capacity that the
policy divides; the jobs themselves are not in its question. The share that the core books for them is all of their
time where they run, so that a job is owed what it received when it becomes preemptible. Gangs that wait behind such
jobs have reservations: see `reservations`.

Only other jobs' shares are turned away. Cancelling a job, draining its node by force and losing the node end the lease
as ever. A lease on a silent node is not extended, as the order could not reach the node, but it is not called off
either: if the node returns before the lease ends, the job continues.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gavelpy.mechanism import finishing
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.lifecycle import JobState, Resumes
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Ints

NEVER_SAVED = "never saved: not preemptible until its first checkpoint"


class Kept(NamedTuple):
    """The jobs whose leases no plan may end, and what that leaves to the others."""

    jobs: Ints  # (K,) ascending
    open_gpus: Bools | None  # (G,) usable GPUs that none of them holds; None = there are no such jobs


NONE_KEPT = Kept(np.zeros(0, dtype=np.int64), None)


def is_preemptible(jobs: JobTable, rows: Ints) -> Bools:
    """Whether these jobs may be stopped for others' sake under `keep_unsaved`, (K,)."""
    return np.asarray((jobs.resumes[rows] >= Resumes.DECLARED) | (jobs.saved_lease[rows] >= 0))


def declared(jobs: JobTable, rows: Ints) -> None:
    """The programs of these jobs registered that they save a checkpoint when their lease ends."""
    jobs.resumes[rows[jobs.resumes[rows] == Resumes.UNKNOWN]] = Resumes.DECLARED


def stopped(jobs: JobTable, rows: Ints) -> None:
    """Leases of these jobs were stopped, and what they saved is on record: declarations that did not hold are void."""
    jobs.resumes[rows[(jobs.resumes[rows] == Resumes.DECLARED) & (jobs.saved_lease[rows] < 0)]] = Resumes.VOID


def in_words(jobs: JobTable, settings: MechanismSettings, row: int) -> tuple[bool, str]:
    """Whether a job may be preempted, and on what evidence."""
    if not settings.keep_unsaved:
        return True, "preemptible: keep_unsaved is off"
    if jobs.saved_lease[row] >= 0:
        return True, f"preemptible: has saved {jobs.steps_saved[row]:.0f} steps"
    match Resumes(int(jobs.resumes[row])):
        case Resumes.BY_OWNER:
            return True, "preemptible: submitted so by its owner"
        case Resumes.DECLARED:
            return True, "preemptible: its LeaseIterator saves when a lease ends"
        case Resumes.VOID:
            return False, "not preemptible until its first checkpoint: its LeaseIterator left none when a lease ended"
        case Resumes.UNKNOWN:
            return False, NEVER_SAVED


def kept(leases: LeaseBook, settings: MechanismSettings, now_s: float) -> Kept:
    """The jobs whose leases no plan may end, those that are finishing included; both of a pair if it is so of one.

    A promised lease counts as soon as it may have started: not while older leases of its job, or on its GPUs, are
    being stopped, and not on a node that can begin none.
    """
    if not settings.keep_unsaved and not settings.finish_grace_s:
        return NONE_KEPT
    jobs, pool = leases.jobs, leases.pool
    rows = jobs.leased
    is_done = finishing.is_kept(jobs, rows, settings, now_s)
    if settings.keep_unsaved:
        rows = rows[is_done | ~(is_preemptible(jobs, rows) | finishing.is_finishing(jobs, rows))]
    else:
        rows = rows[is_done]
    promised = jobs.state[rows] == JobState.GRANTED
    if promised.any():
        cannot_start = _waits_for_older(jobs, rows, len(pool.job))
        if pool.any_hindered:
            cannot_start |= jobs.marks(pool.jobs_holding(pool.hindered))[rows]
        rows = rows[~promised | ~cannot_start]
    rows = jobs.with_partners(rows)
    if pool.any_forced:
        rows = rows[~jobs.marks(pool.jobs_holding(pool.forced))[rows]]
    return Kept(rows, leases.open_gpus(rows)) if len(rows) else NONE_KEPT


def reachable(leases: LeaseBook, rows: Ints) -> Ints:
    """Of these jobs with leases, those that run on no silent node."""
    jobs, pool = leases.jobs, leases.pool
    return rows[~jobs.marks(leases_on(jobs, pool, pool.silent))[rows]] if pool.any_silent else rows


def behind(leases: LeaseBook, rows: Ints, round_end_s: float) -> Ints:
    """Of these jobs, those whose leases end before the round though they can be reached: they were silent before."""
    rows = reachable(leases, rows)
    return rows[(leases.jobs.lease[rows] >= 0) & (leases.jobs.until_s[rows] < round_end_s)]


def claim(jobs: JobTable, rows: Ints) -> None:
    """Gives these jobs, which hold leases, all of their time where they run."""
    _disclaim(jobs, rows)
    single, paired = rows[jobs.partner[rows] < 0], rows[jobs.partner[rows] >= 0]
    jobs.target[single, jobs.lease_type[single]] = 1.0
    if len(paired):
        pairs = jobs.pairs
        pairs.target[pairs.find(paired, jobs.partner[paired], jobs.lease_type[paired])] = 1.0


def release(jobs: JobTable, rows: Ints) -> None:
    """Those of these jobs that hold no lease any more have no share until the policy gives them one."""
    _disclaim(jobs, rows[jobs.lease[rows] < 0])


def _disclaim(jobs: JobTable, rows: Ints) -> None:
    jobs.target[rows] = 0.0
    pairs = jobs.pairs
    if pairs.count:
        pairs.target[np.isin(pairs.first, rows) | np.isin(pairs.second, rows)] = 0.0


def _waits_for_older(jobs: JobTable, rows: Ints, gpu_count: int) -> Bools:
    """Whether a lease that is still being stopped keeps the leases of these jobs from starting, (K,)."""
    ending: Bools = np.zeros(gpu_count, dtype=np.bool_)
    first = jobs.stopping_first[: jobs.count]
    ending[first[first >= 0]] = True
    for gpus in jobs.stopping_gangs.values():
        ending[gpus] = True
    waits = (jobs.stopping[rows] >= 0) | ending[jobs.gpu_first[rows]]
    for k in np.flatnonzero(~waits & (jobs.gpus[rows] > 1)).tolist():
        waits[k] = ending[jobs.gpus_held(int(rows[k]))].any()
    return np.asarray(waits)

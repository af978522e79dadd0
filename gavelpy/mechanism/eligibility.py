"""Eligibility: whether a waiting job competes for GPUs.

It does not while it is held, before it begins, before the jobs that it comes after are over, before its reservation
begins, in a pause after a failure, while it waits at a rung of its app (see `apps`), and while as many jobs of its
array compete as the limit of the array allows: those with leases first, then those that ran before, then in order of
submission. Such a job is in no plan and not in the policy's problem, so it is owed nothing meanwhile. A job that has a
lease remains eligible. A held job may keep its lease, but gets no other GPUs: where a plan would move it, it is
preempted if another job gets its GPUs, and stays if not. A job is held by its owner or by an admin until it is
released.

*Dependencies.* A job comes after others in one of two ways. After `any`: when the other job is over. After `ok`: when
it has finished. If that job fails or is cancelled instead, the job can never start. It is then cancelled, and so are
those that come after its own success. (Slurm leaves such jobs in the queue, as a requeue can repair them; here a job
that is over stays so.) A job can only come after jobs that were submitted before, so there are no cycles.

*Exponential back-off.* A job pauses after a lease without progress; the pause is doubled each time up to `retry_max_s`.
A lease has no progress if it failed, or if it was lost before it saved a checkpoint and before it had run for
`retry_max_s`. (With `loss_nodes_max` = 0 a loss counts only before the lease has started.) Failures count towards
`failures_max`. A loss is attributed to the node: the first `losses_free` consecutive losses cause no pause, as another
node may work; further ones do, so that neither a broken node nor a job that kills its shim causes a busy loop. After
consecutive losses on `loss_nodes_max` different nodes the job is considered the cause: that loss and each later one
count as failures. A lease that was stopped in order, lost after progress, or ran for `retry_max_s` resets the counts.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from gavelpy.mechanism.identities import GONE
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Floats, Ints

NOT_HELD = -1


class Hold(IntEnum):
    """Who holds a job. A stronger hold (a larger value) replaces a weaker one, and only its equals release it."""

    OWNER = 0
    ADMIN = 1


def is_eligible(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs may compete for GPUs, (K,)."""
    if not jobs.any_gated:
        return np.ones(len(rows), dtype=np.bool_)
    is_leased = jobs.lease[rows] >= 0
    if is_leased.all():
        return np.asarray(is_leased)
    is_open = _is_open(jobs, rows, now_s)
    if (jobs.array_limit[rows] > 0).any():
        is_open &= ~jobs.marks(beyond_limits(jobs, now_s))[rows]
    return np.asarray(is_open | is_leased)


def any_gated(jobs: JobTable) -> bool:
    """Whether any job, active or over, can be kept from GPUs or lost a start: see `JobTable.any_gated`."""
    n = jobs.count
    ordered = (jobs.hold[:n] != NOT_HELD) | (jobs.unmet[:n] > 0) | (jobs.array_limit[:n] > 0) | (jobs.part[:n] < 0)
    delayed = (jobs.begin_at_s[:n] > jobs.submitted_s[:n]) | (jobs.retry_at_s[:n] > 0)
    failed = (jobs.misses[:n] > 0) | (jobs.losses[:n] > 0)
    return bool(jobs.apps.at_rung) or bool((ordered | delayed | failed | (jobs.done_lease[:n] >= 0)).any())


def _is_open(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs may compete for GPUs but for the limits of their arrays, (K,)."""
    may = (jobs.hold[rows] == NOT_HELD) & (jobs.begin_at_s[rows] <= now_s) & (jobs.unmet[rows] == 0)
    may &= jobs.part[rows] >= 0
    if jobs.apps.at_rung:
        may &= ~jobs.marks(np.array(list(jobs.apps.at_rung)))[rows]
    return np.asarray(may | (jobs.lease[rows] >= 0))


def beyond_limits(jobs: JobTable, now_s: float) -> Ints:
    """Active jobs that the limits of their arrays keep from competing for GPUs; serials, in no order."""
    rows = jobs.active[jobs.array_limit[jobs.active] > 0]
    rows = rows[_is_open(jobs, rows, now_s)]
    has_run, is_leased = jobs.attained_gpu_s[rows] > 0, jobs.lease[rows] >= 0
    rows = rows[np.lexsort((rows, ~has_run, ~is_leased, jobs.array[rows]))]
    _, first, sizes = np.unique(jobs.array[rows], return_index=True, return_counts=True)
    rank = np.arange(len(rows)) - np.repeat(first, sizes)
    return np.asarray(rows[rank >= jobs.array_limit[rows]])


def hold(jobs: JobTable, rows: Ints, by: Hold) -> Ints:
    """Holds those of these jobs that are not over; returns those that were not held."""
    rows = np.intersect1d(rows, jobs.active)
    fresh: Ints = rows[jobs.hold[rows] == NOT_HELD]
    jobs.any_gated = jobs.any_gated or bool(len(rows))
    jobs.hold[rows] = np.maximum(jobs.hold[rows], int(by))
    return fresh


def release(jobs: JobTable, rows: Ints, by: Hold) -> Ints:
    """Releases those of these jobs that are held no more strongly than `by`; returns them."""
    rows = np.intersect1d(rows, jobs.active)
    released: Ints = rows[(jobs.hold[rows] != NOT_HELD) & (jobs.hold[rows] <= int(by))]
    jobs.hold[released] = NOT_HELD
    return released


def add_dependencies(jobs: JobTable, row: int) -> list[tuple[int, int]]:
    """Registers the jobs that a job comes after; returns (it, the other) if one of them makes it impossible.

    A job that has left counts as finished: the shell, which has the archive, refuses submissions after others.
    """
    for other in unmet(jobs, row):
        jobs.dependents.setdefault(other, []).append(row)
        jobs.unmet[row] += 1
        jobs.any_gated = True
    known = [other for serial in jobs.specs[row].after_ok if (other := jobs.ids.row(serial)) != GONE]
    failed = [other for other in known if LAST_ALIVE < jobs.state[other] != JobState.FINISHED]
    return [(row, other) for other in failed[:1]]


def blockers_ended(jobs: JobTable) -> tuple[bool, list[tuple[int, int]]]:
    """Applies the ends of jobs that others come after.

    Returns whether any of those may start now, and those that never can, each with the job that ended.
    """
    any_ready, never = False, []
    for ended in jobs.ended_blockers:
        for row in jobs.dependents.pop(ended, ()):
            jobs.unmet[row] -= 1
            any_ready |= bool(jobs.unmet[row] == 0)
            if jobs.state[ended] != JobState.FINISHED and jobs.ids.serial(ended) in jobs.specs[row].after_ok:
                never.append((row, ended))
    jobs.ended_blockers = []
    return any_ready, never


def unmet(jobs: JobTable, row: int) -> list[int]:
    """Rows of the jobs that a job comes after and that are not over, ascending."""
    spec = jobs.specs[row]
    known = [jobs.ids.row(serial) for serial in {*spec.after_ok, *spec.after_any}]
    return sorted(other for other in known if other != GONE and jobs.state[other] <= LAST_ALIVE)


def with_unused_share(jobs: JobTable, now_s: float) -> Ints:
    """Jobs that have a share of the allocation in force but are no longer eligible; serials, ascending."""
    if not jobs.any_gated:
        return jobs.active[:0]
    rows = jobs.active if jobs.claims.count else jobs.lists.shared
    waiting = rows[jobs.lease[rows] < 0]
    rows = waiting[~is_eligible(jobs, waiting, now_s)]
    return np.asarray(rows[jobs.share[rows].any(axis=1)]) if len(rows) else rows


def due_s(jobs: JobTable, now_s: float) -> float:
    """When the next active job leaves a pause or reaches its begin; infinite if there is none."""
    times_s = np.concatenate([jobs.retry_at_s[jobs.active], jobs.begin_at_s[jobs.active]])
    return float(np.min(times_s[times_s > now_s], initial=math.inf))


def held_by(jobs: JobTable, row: int) -> str:
    """`owner` or `admin`; empty if the job is not held."""
    hold = int(jobs.hold[row])
    return "" if hold == NOT_HELD else Hold(hold).name.lower()


def hold_in_words(hold: int) -> str:
    """A message on a held job."""
    return "held by an admin, who can release it" if hold == Hold.ADMIN else "held by its owner until it is released"


def begin_in_words(when: str) -> str:
    """A message on a job that waits for its begin."""
    return f"begins {when}"


_DOUBLINGS_MAX = 64


def count_miss(jobs: JobTable, rows: Ints, ran_s: Floats, settings: MechanismSettings, now_s: float) -> None:
    """Books leases of these jobs that ended without progress after running for `ran_s` (K,)."""
    is_fresh = ran_s >= settings.retry_max_s
    jobs.misses[rows] = np.where(is_fresh, 0, jobs.misses[rows]) + 1
    jobs.losses[rows] = np.where(is_fresh, 0, jobs.losses[rows])
    doublings = np.minimum(jobs.misses[rows] - 1, _DOUBLINGS_MAX)
    jobs.any_gated = jobs.any_gated or bool(len(rows))
    jobs.retry_at_s[rows] = now_s + np.minimum(settings.retry_s * 2.0**doublings, settings.retry_max_s)


def count_loss(jobs: JobTable, rows: Ints, nodes: Ints, settings: MechanismSettings, now_s: float) -> bool:
    """Books that the leases of these jobs (K,) were lost on these nodes (K,); returns whether any job must pause."""
    has_begun = jobs.state[rows] == JobState.RUNNING
    ran_s = np.where(has_begun, now_s - jobs.began_s[rows], 0.0)
    progressed = (jobs.saved_lease[rows] == jobs.lease[rows]) | (ran_s >= settings.retry_max_s)
    if settings.loss_nodes_max:
        forgive(jobs, rows[has_begun & progressed])
    counts = ~has_begun | (~progressed & bool(settings.loss_nodes_max))
    rows, nodes = rows[counts], nodes[counts]
    jobs.any_gated = jobs.any_gated or bool(len(rows))
    jobs.losses[rows] += 1
    blame(jobs, rows, nodes, settings)
    paying = rows[jobs.losses[rows] > settings.losses_free]
    count_miss(jobs, paying, np.zeros(len(paying)), settings, now_s)
    return bool(len(paying))


def blame(jobs: JobTable, rows: Ints, nodes: Ints, settings: MechanismSettings, *, can_be_the_job: bool = True) -> None:
    """Makes these jobs (K,) avoid the nodes (K,) that lost their leases, or on which something broke.

    From `loss_nodes_max` different nodes in a row on, each such end counts as a failure of the job, if it can be one.
    """
    jobs.avoid[rows], jobs.any_failed = nodes, True
    if not settings.loss_nodes_max:
        return
    for row, node in zip(rows.tolist(), nodes.tolist(), strict=True):
        seen = jobs.loss_nodes.setdefault(row, [])
        if node not in seen:
            seen.append(node)
        jobs.failures[row] += can_be_the_job and len(seen) >= settings.loss_nodes_max


def forgive(jobs: JobTable, rows: Ints) -> None:
    """Resets the counts of these jobs, as their leases made progress or were stopped in order."""
    jobs.misses[rows] = jobs.losses[rows] = 0
    for row in rows.tolist() if jobs.loss_nodes else ():
        jobs.loss_nodes.pop(row, None)


def shorten(jobs: JobTable, settings: MechanismSettings, now_s: float) -> None:
    """Shortens pauses to what the settings allow."""
    active = jobs.active
    pause_s_max = settings.retry_max_s if settings.retry_s else 0.0
    jobs.retry_at_s[active] = np.minimum(jobs.retry_at_s[active], now_s + pause_s_max)


def is_pause_over(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs are not in a pause, (K,). A job with a lease never is, even if an older lease failed."""
    return np.asarray((jobs.retry_at_s[rows] <= now_s) | (jobs.lease[rows] >= 0))


def pause_in_words(misses: int, when: str, last: str = "") -> str:
    """A message on a job in a pause; `last` describes the end of its last lease."""
    times = "once" if misses == 1 else f"{misses} times"
    return f"failed {times}{f' (last: {last})' if last else ''}, tried again {when}"

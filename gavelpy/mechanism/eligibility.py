"""Eligibility: whether a job competes for GPUs at all, as people decide: not while it is held or before it begins.

It waits, too, for the jobs that it comes after, and while as many jobs of its array compete as the limit of the array
allows: those with leases first, then those that ran before, then in order of submission.

A job comes after others in one of two ways. After `any`: when the other job is over. After `ok`: when it has finished.
If that job fails or is cancelled instead, the job can never start. It is then cancelled, and so are those that come
after its own success. (Slurm leaves such jobs in the queue, as a requeue can repair them; here a job that is over stays
so.) A job can only come after jobs that were submitted before, so there are no cycles.

A job is held by its owner or by an admin until it is released, and not started before the time that its owner chose. A
waiting job that is not eligible is in no plan and not in the policy's problem, so it is owed nothing meanwhile. A job
that has a lease remains eligible: holding it has no effect until it loses its lease, by preemption, failure or requeue.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from gavelpy.mechanism import back_off
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.model.arrays import Bools, Ints

NOT_HELD = -1


class Hold(IntEnum):
    """Who holds a job. A stronger hold (a larger value) replaces a weaker one, and only its equals release it."""

    OWNER = 0
    ADMIN = 1


def is_eligible(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs may compete for GPUs, (K,)."""
    is_open = _is_open(jobs, rows, now_s)
    if (jobs.array_limit[rows] > 0).any():
        is_open &= ~jobs.marks(beyond_limits(jobs, now_s))[rows]
    return np.asarray(is_open | (jobs.lease[rows] >= 0))


def _is_open(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs may compete for GPUs but for the limits of their arrays, (K,)."""
    may = (jobs.hold[rows] == NOT_HELD) & (jobs.begin_at_s[rows] <= now_s) & (jobs.unmet[rows] == 0)
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
    jobs.hold[rows] = np.maximum(jobs.hold[rows], int(by))
    return fresh


def release(jobs: JobTable, rows: Ints, by: Hold) -> Ints:
    """Releases those of these jobs that are held no more strongly than `by`; returns them."""
    rows = np.intersect1d(rows, jobs.active)
    released: Ints = rows[(jobs.hold[rows] != NOT_HELD) & (jobs.hold[rows] <= int(by))]
    jobs.hold[released] = NOT_HELD
    return released


def add_dependencies(jobs: JobTable, row: int) -> list[tuple[int, int]]:
    """Registers the jobs that a job comes after; returns (it, the other) if one of them makes it impossible."""
    spec = jobs.specs[row]
    for other in {*spec.after_ok, *spec.after_any}:
        if jobs.state[other] <= ALIVE[-1]:
            jobs.dependents.setdefault(other, []).append(row)
            jobs.unmet[row] += 1
    failed = [other for other in spec.after_ok if ALIVE[-1] < jobs.state[other] != JobState.FINISHED]
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
            if jobs.state[ended] != JobState.FINISHED and ended in jobs.specs[row].after_ok:
                never.append((row, ended))
    jobs.ended_blockers = []
    return any_ready, never


def unmet(jobs: JobTable, row: int) -> list[int]:
    """Serials of the jobs that a job comes after and that are not over, ascending."""
    spec = jobs.specs[row]
    return sorted(other for other in {*spec.after_ok, *spec.after_any} if jobs.state[other] <= ALIVE[-1])


def with_unused_share(jobs: JobTable, now_s: float) -> Ints:
    """Jobs that have a share of the allocation in force but are no longer eligible; serials, ascending."""
    active = jobs.active
    rows = active[~is_eligible(jobs, active, now_s)]
    return np.asarray(rows[jobs.share[rows].any(axis=1)]) if len(rows) else rows


def due_s(jobs: JobTable, now_s: float) -> float:
    """When the next active job leaves a pause or reaches its begin; infinite if there is none."""
    begin_s = jobs.begin_at_s[jobs.active]
    return min(back_off.due_s(jobs, now_s), float(np.min(begin_s[begin_s > now_s], initial=math.inf)))


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

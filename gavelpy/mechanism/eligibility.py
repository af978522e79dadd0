"""Eligibility: whether a job competes for GPUs at all, as people decide: not while it is held or before it begins.

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
from gavelpy.model.arrays import Bools, Ints

NOT_HELD = -1


class Hold(IntEnum):
    """Who holds a job. A stronger hold (a larger value) replaces a weaker one, and only its equals release it."""

    OWNER = 0
    ADMIN = 1


def is_eligible(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs may compete for GPUs, (K,)."""
    is_open = (jobs.hold[rows] == NOT_HELD) & (jobs.begin_at_s[rows] <= now_s)
    return np.asarray(is_open | (jobs.lease[rows] >= 0))


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

"""When a job whose lease came to nothing may be tried again: later each time, and never for ever.

What counts is a lease that failed, or was lost before it had begun. The latter is its server's fault: the first
`losses_free` of them cost no pause, as another server may do better; more do, so that a server that can start nothing
does not make the core spin. A lease that was stopped in good order, or that ran for as long as the longest pause,
clears both counts.
"""

from __future__ import annotations

import math

import numpy as np

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Floats, Ints

_DOUBLINGS_MAX = 64


def missed(jobs: JobTable, rows: Ints, ran_s: Floats, settings: MechanismSettings, now_s: float) -> None:
    """The leases of these jobs came to nothing after they had run for `ran_s` (K,)."""
    is_fresh = ran_s >= settings.retry_max_s
    jobs.misses[rows] = np.where(is_fresh, 0, jobs.misses[rows]) + 1
    jobs.losses[rows] = np.where(is_fresh, 0, jobs.losses[rows])
    doublings = np.minimum(jobs.misses[rows] - 1, _DOUBLINGS_MAX)
    jobs.retry_at_s[rows] = now_s + np.minimum(settings.retry_s * 2.0**doublings, settings.retry_max_s)


def lost(jobs: JobTable, rows: Ints, settings: MechanismSettings, now_s: float) -> bool:
    """Servers have lost the leases of these jobs before they had begun; returns whether any job must pause for it."""
    jobs.losses[rows] += 1
    paying = rows[jobs.losses[rows] > settings.losses_free]
    missed(jobs, paying, np.zeros(len(paying)), settings, now_s)
    return bool(len(paying))


def forgive(jobs: JobTable, rows: Ints) -> None:
    """The leases of these jobs were stopped in good order."""
    jobs.misses[rows] = jobs.losses[rows] = 0


def shorten(jobs: JobTable, settings: MechanismSettings, now_s: float) -> None:
    """No pause is longer from now on than these settings allow."""
    active = jobs.active
    pause_s_max = settings.retry_max_s if settings.retry_s else 0.0
    jobs.retry_at_s[active] = np.minimum(jobs.retry_at_s[active], now_s + pause_s_max)


def is_over(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs may have leases, (K,). One that has a lease keeps it, whatever became of its older one."""
    return np.asarray((jobs.retry_at_s[rows] <= now_s) | (jobs.lease[rows] >= 0))


def due_s(jobs: JobTable, now_s: float) -> float:
    """When the next pause of a living job is over; infinite when there is none."""
    ends_s = jobs.retry_at_s[jobs.active]
    return float(np.min(ends_s[ends_s > now_s], initial=math.inf))


def in_words(misses: int, when: str, last: str = "") -> str:
    """What people are told of a job that waits like this; `last` is what was said of its last lease."""
    times = "once" if misses == 1 else f"{misses} times"
    return f"failed {times}{f' (last: {last})' if last else ''}, tried again {when}"

"""Books the time that jobs are owed (by shares) and receive (under leases), on which the order of jobs in plans rests.

A lease alone of a job with one size counts in the dense columns of the table of jobs, any other in its claim.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.claims import ClaimKeys
from gavelpy.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.jobs import JobTable


def settle(jobs: JobTable, elapsed_s: float, fade: float, now_s: float, lag_max_s: float = math.inf) -> None:
    """Books owed and received time of active jobs up to now.

    Older time is multiplied by `fade`. The rules in force compute priorities from both: see `settings`.
    """
    timed = jobs.lists.timed
    if jobs.claims.count:
        jobs.claims.settle(elapsed_s, fade)
    elif jobs.kernels is not None:
        jobs.kernels.settle(jobs, elapsed_s, fade, now_s, lag_max_s)
        return
    owed_s = jobs.owed_s.take(timed, axis=0)
    if fade != 1.0:
        owed_s *= fade
        jobs.received_s[timed] *= fade
    owed_s += jobs.target.take(timed, axis=0) * elapsed_s
    credit(jobs, jobs.leased, now_s)
    _book(jobs, timed, owed_s, lag_max_s)


def limit_lag(jobs: JobTable, lag_max_s: float) -> None:
    """Limits the difference of owed and received time of active jobs and of claims, either way.

    A job that used idle GPUs pays back a bounded time, and a job that could not run claims a bounded time. Only the
    smaller of the two changes.
    """
    _book(jobs, jobs.active, jobs.owed_s.take(jobs.active, axis=0), lag_max_s)


def _book(jobs: JobTable, rows: Ints, owed_s: Floats, lag_max_s: float) -> None:
    if lag_max_s == math.inf:
        jobs.owed_s[rows] = owed_s
        return
    received_s = jobs.received_s.take(rows, axis=0)
    jobs.owed_s[rows] = np.maximum(owed_s, received_s - lag_max_s)
    jobs.received_s[rows] = np.maximum(received_s, owed_s - lag_max_s)
    if jobs.claims.count:
        jobs.claims.limit_lag(lag_max_s)


def credit(jobs: JobTable, rows: Ints, now_s: float) -> None:
    """Books the time that these leased jobs and their co-located partners have run since it was last booked."""
    rows = jobs.with_partners(rows) if jobs.claims.count else rows
    since_s = jobs.since_s[rows]
    if (is_running := since_s >= 0).all():
        running = rows
    else:
        running, since_s = rows[is_running], since_s[is_running]
    time_s, gpu_type = now_s - since_s, jobs.lease_type[running]
    jobs.attained_gpu_s[running] += time_s * jobs.gpus[running]
    jobs.since_s[running] = now_s
    if jobs.sizes:
        jobs.sized_s[running] += time_s * (jobs.smallest[running] > 0)
    if jobs.claims.count and (is_claimed := jobs.hold_claims(running)).any():
        jobs.claims.credit(lease_keys(jobs, running[is_claimed]), time_s[is_claimed])
        running, gpu_type, time_s = running[~is_claimed], gpu_type[~is_claimed], time_s[~is_claimed]
    jobs.received_s[running, gpu_type] += time_s


def lease_keys(jobs: JobTable, rows: Ints) -> ClaimKeys:
    """The claims under which these jobs have their leases."""
    return ClaimKeys(rows, jobs.partner[rows], jobs.gpus[rows], jobs.lease_type[rows])

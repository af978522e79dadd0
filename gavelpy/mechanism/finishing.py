"""Exempts jobs from preemption that have reported their last step, so that their processes can exit.

Such a job only has to write its last checkpoint, clean up and exit. Preempting it would turn a finished job into an
unfinished one. So its lease is extended, regardless of shares, until `finish_grace_s` after the report; the job is no
longer part of the policy's problem. If it has not exited by the end of the round in which that time ends, its lease is
revoked like any other. Nodes report an exit after that as finished.

Only a report of the job counts, never an estimate by time. If the lease fails or is lost, the job resumes from its last
checkpoint.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism import back_off
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Ints


def reported(jobs: JobTable, rows: Ints, now_s: float) -> None:
    """Books that these jobs reported their last step under their current leases; the first report counts."""
    rows = rows[jobs.done_lease[rows] != jobs.lease[rows]]
    jobs.done_lease[rows] = jobs.lease[rows]
    jobs.done_at_s[rows] = now_s


def is_finishing(jobs: JobTable, rows: Ints) -> Bools:
    """Whether these jobs did their last step under a lease that has not ended, (K,)."""
    lease = jobs.done_lease[rows]
    return np.asarray((lease >= 0) & ((lease == jobs.lease[rows]) | (lease == jobs.stopping[rows])))


def may_begin(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs may get leases: neither finishing nor in a pause, (K,)."""
    return np.asarray(back_off.is_over(jobs, rows, now_s) & ~is_finishing(jobs, rows))


def is_kept(jobs: JobTable, rows: Ints, settings: MechanismSettings, now_s: float) -> Bools:
    """Whether these leased jobs are finishing and still within `finish_grace_s`, (K,)."""
    is_done = jobs.done_lease[rows] == jobs.lease[rows]
    return np.asarray(is_done & (now_s < jobs.done_at_s[rows] + settings.finish_grace_s))

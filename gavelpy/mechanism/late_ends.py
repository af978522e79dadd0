"""Late reports on the end of lost leases: a node's record takes precedence over the scheduler's inference.

A lease is lost when its node is declared lost, stays unreachable until the lease must be over, or returns without it.
The node may still have a record of how the lease ended. So a lost lease stays open: a later report of its end counts as
follows.

- *Finished*: finishes the job if it is not over yet. A newer lease of the job is revoked if it has not started and
  killed if it has: the work is done, and a second run must not count as well.
- *Stopped* and *failed*: count only while no newer lease runs. The checkpoint of a stopped lease counts only while the
  job has no newer lease, which would resume from another checkpoint, and if no newer lease has saved one.

A lease is closed by its late end and when its job is over. Only the newest `OPEN_MAX` lost leases of a job are open.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.events import LeaseEnded, Outcome
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.model.arrays import Bools, Ints

OPEN_MAX = 8


def keep_open(jobs: JobTable, rows: Ints, leases: Ints) -> None:
    """Opens lost leases: the leases of these jobs, in force or stopping, and all their GPUs."""
    for row, lease in zip(rows.tolist(), leases.tolist(), strict=True):
        held = jobs.gpus_held(row) if jobs.lease[row] == lease else jobs.gpus_stopping(row)
        known = {lease: held.copy()} | jobs.lost_leases.get(row, {})  # a gang's first loss still has all GPUs
        jobs.lost_leases[row] = {each: known[each] for each in sorted(known)[-OPEN_MAX:]}


def close(jobs: JobTable, rows: Ints, leases: Ints) -> None:
    """Closes these lost leases, as their end is known."""
    if not jobs.lost_leases:
        return
    for row, lease in zip(rows.tolist(), leases.tolist(), strict=True):
        left = {each: gpus for each, gpus in jobs.lost_leases.pop(row, {}).items() if each != lease}
        if left:
            jobs.lost_leases[row] = left


def is_open(jobs: JobTable, row: int, lease: int) -> bool:
    """Whether a lease of this job is lost and its end would still count."""
    return lease in jobs.lost_leases.get(row, ())


def counting(jobs: JobTable, event: LeaseEnded) -> Bools:
    """Whether each of these ends is late and counts, (K,)."""
    counts: Bools = np.zeros(len(event.jobs), dtype=np.bool_)
    if not jobs.lost_leases or event.outcome is Outcome.LOST:
        return counts
    for k, (row, lease) in enumerate(zip(event.jobs.tolist(), event.leases.tolist(), strict=True)):
        state = jobs.state[row]
        is_timely = state != JobState.RUNNING or event.outcome is Outcome.FINISHED
        is_over = lease not in (jobs.lease[row], jobs.stopping[row])
        counts[k] = state <= ALIVE[-1] and is_over and is_timely and is_open(jobs, row, lease)
    return counts


def first_gpus(jobs: JobTable, rows: Ints, leases: Ints, otherwise: Ints) -> Ints:
    """First GPU of each open lost lease, (K,); `otherwise` (K,) for other leases."""
    if not jobs.lost_leases:
        return otherwise
    found = otherwise.copy()
    for k, (row, lease) in enumerate(zip(rows.tolist(), leases.tolist(), strict=True)):
        if found[k] < 0 and is_open(jobs, row, lease):
            found[k] = jobs.lost_leases[row][lease][0]
    return found

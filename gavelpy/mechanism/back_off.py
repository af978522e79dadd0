"""Exponential back-off: the pause of a job after a lease without progress, doubled each time up to `retry_max_s`.

A lease has no progress if it failed, or if it was lost before it saved a checkpoint and before it had run for
`retry_max_s`. (With `loss_nodes_max` = 0 a loss counts only before the lease has started.) Failures count towards
`failures_max`. A loss is attributed to the node: the first `losses_free` consecutive losses cause no pause, as another
node may work; further ones do, so that neither a broken node nor a job that kills its shim causes a busy loop. After
consecutive losses on `loss_nodes_max` different nodes the job is considered the cause: that loss and each later one
count as failures.

A lease that was stopped in order, lost after progress, or ran for `retry_max_s` resets the counts.
"""

from __future__ import annotations

import math

import numpy as np

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Floats, Ints

_DOUBLINGS_MAX = 64


def missed(jobs: JobTable, rows: Ints, ran_s: Floats, settings: MechanismSettings, now_s: float) -> None:
    """Books leases of these jobs that ended without progress after running for `ran_s` (K,)."""
    is_fresh = ran_s >= settings.retry_max_s
    jobs.misses[rows] = np.where(is_fresh, 0, jobs.misses[rows]) + 1
    jobs.losses[rows] = np.where(is_fresh, 0, jobs.losses[rows])
    doublings = np.minimum(jobs.misses[rows] - 1, _DOUBLINGS_MAX)
    jobs.retry_at_s[rows] = now_s + np.minimum(settings.retry_s * 2.0**doublings, settings.retry_max_s)


def lost(jobs: JobTable, rows: Ints, nodes: Ints, settings: MechanismSettings, now_s: float) -> bool:
    """Books that the leases of these jobs (K,) were lost on these nodes (K,); returns whether any job must pause."""
    has_begun = jobs.state[rows] == JobState.RUNNING
    ran_s = np.where(has_begun, now_s - jobs.began_s[rows], 0.0)
    progressed = (jobs.saved_lease[rows] == jobs.lease[rows]) | (ran_s >= settings.retry_max_s)
    if settings.loss_nodes_max:
        forgive(jobs, rows[has_begun & progressed])
    counts = ~has_begun | (~progressed & bool(settings.loss_nodes_max))
    rows, nodes = rows[counts], nodes[counts]
    jobs.losses[rows] += 1
    blame(jobs, rows, nodes, settings)
    paying = rows[jobs.losses[rows] > settings.losses_free]
    missed(jobs, paying, np.zeros(len(paying)), settings, now_s)
    return bool(len(paying))


def blame(jobs: JobTable, rows: Ints, nodes: Ints, settings: MechanismSettings, *, can_be_the_job: bool = True) -> None:
    """Makes these jobs (K,) avoid the nodes (K,) that lost their leases, or on which something broke.

    From `loss_nodes_max` different nodes in a row on, each such end counts as a failure of the job, if it can be one.
    """
    jobs.avoid[rows] = nodes
    if not settings.loss_nodes_max:
        return
    for row, node in zip(rows.tolist(), nodes.tolist(), strict=True):
        seen = jobs.loss_nodes.setdefault(row, [])
        if node not in seen:
            seen.append(node)
        jobs.failures[row] += can_be_the_job and len(seen) >= settings.loss_nodes_max


def nodes_to_avoid(jobs: JobTable, row: int) -> list[int]:
    """Rows of the nodes that lost a job since its last progress, the most recent one last."""
    last = int(jobs.avoid[row])
    seen = [node for node in jobs.loss_nodes.get(row, ()) if node != last]
    return [*seen, last] if last >= 0 else seen


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


def is_over(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs are not in a pause, (K,). A job with a lease never is, even if an older lease failed."""
    return np.asarray((jobs.retry_at_s[rows] <= now_s) | (jobs.lease[rows] >= 0))


def due_s(jobs: JobTable, now_s: float) -> float:
    """When the next pause of an active job ends; infinite if there is none."""
    ends_s = jobs.retry_at_s[jobs.active]
    return float(np.min(ends_s[ends_s > now_s], initial=math.inf))


def in_words(misses: int, when: str, last: str = "") -> str:
    """A message on a job in a pause; `last` describes the end of its last lease."""
    times = "once" if misses == 1 else f"{misses} times"
    return f"failed {times}{f' (last: {last})' if last else ''}, tried again {when}"

"""When a job whose lease came to nothing may be tried again: later each time, up to a longest pause.

A lease comes to nothing if it ends without progress: it failed, or it was lost before it saved a checkpoint and before
it had run for as long as the longest pause. (With `loss_nodes_max` = 0 a loss counts only before the lease has begun.)
The reason decides what counts towards `failures_max`: a failure does. A loss is taken for the node's fault: the first
`losses_free` in a row cost no pause, as another node may do better; more do, so that neither a node that can start
nothing nor a job that kills its shim makes the core spin. A job that was lost in a row on `loss_nodes_max` different
nodes is taken for the cause: that loss, and each after it, is a failure.

A lease that was stopped in good order, or lost after progress, or that ran for as long as the longest pause, clears the
counts.
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
    """The leases of these jobs came to nothing after they had run for `ran_s` (K,)."""
    is_fresh = ran_s >= settings.retry_max_s
    jobs.misses[rows] = np.where(is_fresh, 0, jobs.misses[rows]) + 1
    jobs.losses[rows] = np.where(is_fresh, 0, jobs.losses[rows])
    doublings = np.minimum(jobs.misses[rows] - 1, _DOUBLINGS_MAX)
    jobs.retry_at_s[rows] = now_s + np.minimum(settings.retry_s * 2.0**doublings, settings.retry_max_s)


def lost(jobs: JobTable, rows: Ints, nodes: Ints, settings: MechanismSettings, now_s: float) -> bool:
    """The leases in force of these jobs (K,) are lost on these nodes (K,); returns whether any job must pause."""
    has_begun = jobs.state[rows] == JobState.RUNNING
    ran_s = np.where(has_begun, now_s - jobs.began_s[rows], 0.0)
    progressed = (jobs.saved_lease[rows] == jobs.lease[rows]) | (ran_s >= settings.retry_max_s)
    if settings.loss_nodes_max:
        forgive(jobs, rows[has_begun & progressed])
    counts = ~has_begun | (~progressed & bool(settings.loss_nodes_max))
    rows, nodes = rows[counts], nodes[counts]
    jobs.avoid[rows] = nodes
    jobs.losses[rows] += 1
    _blame(jobs, rows, nodes, settings)
    paying = rows[jobs.losses[rows] > settings.losses_free]
    missed(jobs, paying, np.zeros(len(paying)), settings, now_s)
    return bool(len(paying))


def _blame(jobs: JobTable, rows: Ints, nodes: Ints, settings: MechanismSettings) -> None:
    """Counts the different nodes that lost each job in a row; from `loss_nodes_max` on the job is the cause."""
    if not settings.loss_nodes_max:
        return
    for row, node in zip(rows.tolist(), nodes.tolist(), strict=True):
        seen = jobs.loss_nodes.setdefault(row, [])
        if node not in seen:
            seen.append(node)
        jobs.failures[row] += len(seen) >= settings.loss_nodes_max


def nodes_to_avoid(jobs: JobTable, row: int) -> list[int]:
    """Rows of the nodes that lost a job without progress since it last made any, the most recent one last."""
    last = int(jobs.avoid[row])
    seen = [node for node in jobs.loss_nodes.get(row, ()) if node != last]
    return [*seen, last] if last >= 0 else seen


def forgive(jobs: JobTable, rows: Ints) -> None:
    """The leases of these jobs made progress, or were stopped in good order."""
    jobs.misses[rows] = jobs.losses[rows] = 0
    for row in rows.tolist() if jobs.loss_nodes else ():
        jobs.loss_nodes.pop(row, None)


def shorten(jobs: JobTable, settings: MechanismSettings, now_s: float) -> float:
    """No pause is longer from now on than these settings allow; returns when the next one is over, as `due_s` does."""
    active = jobs.active
    pause_s_max = settings.retry_max_s if settings.retry_s else 0.0
    jobs.retry_at_s[active] = np.minimum(jobs.retry_at_s[active], now_s + pause_s_max)
    return due_s(jobs, now_s)


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

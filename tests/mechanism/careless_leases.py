"""What the careless world expects of leases: which ones no plan may end, and how much the jobs of a user have."""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.arrays import Ints


def check_users(core: SchedulerCore, granted: Ints) -> None:
    """Owners of these jobs have at most as many jobs and GPUs under lease as one user may have."""
    jobs, settings = core.jobs, core.settings
    for owner in {jobs.specs[row].owner for row in granted.tolist()}:
        rows = [row for row in jobs.leased.tolist() if jobs.specs[row].owner == owner]
        assert len(rows) <= (settings.jobs_running_a_user_max or len(rows)), "a user has too many jobs"
        gpus = sum(int(jobs.gpus[row]) for row in rows)
        assert gpus <= (settings.gpus_a_user_max or gpus), "a user has too many GPUs"


def pinned_leases(core: SchedulerCore) -> set[int]:
    """Leases that run only on unhealthy nodes: those are up and reachable but can start no lease."""
    jobs, pool = core.jobs, core.pool
    rows = jobs.leased[jobs.state[jobs.leased] == JobState.RUNNING]
    stuck = [row for row in rows.tolist() if pool.unhealthy[jobs.gpus_held(row)].all()]
    return set(jobs.lease[np.array(stuck, dtype=np.int64)].tolist())


def unsaved_leases(core: SchedulerCore, *, is_unreachable: bool = True) -> set[int]:
    """Leases that may be running, of jobs not known to resume; `is_unreachable` includes those on silent nodes."""
    jobs, pool, found = core.jobs, core.pool, set[int]()
    if not core.settings.keep_unsaved:
        return found
    for row in jobs.leased[jobs.state[jobs.leased] == JobState.RUNNING].tolist():
        rows = [node for node, name in enumerate(pool.node_ids) if node in pool.node_of[jobs.gpus_held(row)]]
        is_forced = any(pool.node_forced[node] for node in rows)
        is_left = is_unreachable or not any(pool.node_unreachable[node] for node in rows)
        is_known = jobs.specs[row].preemptible or jobs.saved_lease[row] >= 0 or jobs.resumes[row] > 0
        is_done = jobs.done_lease[row] == jobs.lease[row]  # it may be stopped after `finish_grace_s`
        if is_left and not (is_forced or is_known or is_done):
            found.add(int(jobs.lease[row]))
    return found


def leases_to(core: SchedulerCore, end_s: float) -> set[int]:
    """Leases that last to this time."""
    jobs = core.jobs
    rows = jobs.leased[jobs.until_s[jobs.leased] >= end_s]
    return set(jobs.lease[rows].tolist())

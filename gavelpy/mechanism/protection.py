"""Lease protection (minimum run time): which leases are protected from preemption.

A lease is protected until it is `lease_min_s` old. A job can need longer than that to its first step. If no progress
was reported when its lease is that old, the lease stays protected until it is `start_max_s` old, and for `lease_min_s`
after the first report of progress. The lease of a faster job counts from its start, because progress is reported at
intervals only.

Protection is against preemption only. Cancellation, failure, draining and lost nodes end leases at once. A job that has
GPUs which are guaranteed to another team loses them when that team's jobs can use them: see `team_plan`.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.lifecycle import IS_RUNNING
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.taking import NONE_CHOSEN, Chosen
from gavelpy.model.arrays import Bools, Ints


def protected_leases(leases: LeaseBook, settings: MechanismSettings, now_s: float, fixed: Ints) -> Chosen:
    """The protected leases; of a co-located pair both, or neither.

    A granted lease counts from the grant, a started one from its start, so a lease that never starts is not protected
    forever. No plan ends the leases of `fixed` jobs.
    """
    jobs, pool = leases.jobs, leases.pool
    rows = _preemptible(jobs, fixed)
    rows = rows[_are_protected(jobs, rows, settings, now_s)]
    if not len(rows):
        return NONE_CHOSEN
    rows = jobs.with_partners(rows) if jobs.claims.count else rows
    rows = rows[jobs.rate[rows, jobs.lease_type[rows]] > 0]
    if pool.any_unreachable:
        rows = rows[~jobs.marks(leases_on(jobs, pool, pool.unreachable))[rows]]
    partner = jobs.partner[rows]
    rows = rows[(partner < 0) | jobs.marks(rows)[partner]]
    protected = Chosen(rows, pool.domain_of[jobs.gpu_first[rows]], jobs.partner[rows], jobs.gpus[rows])
    return protected.among(jobs.marks(leases.staying(protected))[protected.jobs])


def note_slow(leases: LeaseBook, settings: MechanismSettings, now_s: float, fixed: Ints) -> None:
    """Marks in `slow_lease` the leases whose jobs start slowly. Only plans do so: queries must not change plans."""
    jobs = leases.jobs
    rows = _preemptible(jobs, fixed)
    slow = rows[_are_slow(jobs, rows, settings, now_s)]
    jobs.slow_lease[slow] = jobs.lease[slow]


def _preemptible(jobs: JobTable, fixed: Ints) -> Ints:
    return jobs.leased[~jobs.marks(fixed)[jobs.leased]] if len(fixed) else jobs.leased


def _are_slow(jobs: JobTable, rows: Ints, settings: MechanismSettings, now_s: float) -> Bools:
    """Whether these jobs have leases that are `lease_min_s` old, and no progress yet, (K,)."""
    age_s, works = now_s - jobs.began_s[rows], jobs.worked_s[rows] >= 0
    is_late = (age_s >= settings.lease_min_s) & (age_s < settings.start_max_s)
    return np.asarray(is_late & ~works & (jobs.state[rows] == IS_RUNNING))


def _are_protected(jobs: JobTable, rows: Ints, settings: MechanismSettings, now_s: float) -> Bools:
    """Whether the leases of these jobs are protected, (K,)."""
    is_new = now_s - jobs.began_s[rows] < settings.lease_min_s
    works_s = now_s - jobs.worked_s[rows]
    was_slow = (jobs.worked_s[rows] >= 0) & (jobs.slow_lease[rows] == jobs.lease[rows])
    return np.asarray(is_new | _are_slow(jobs, rows, settings, now_s) | (was_slow & (works_s < settings.lease_min_s)))

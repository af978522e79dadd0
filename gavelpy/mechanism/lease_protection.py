"""Lease protection: leases that started recently are not preempted, and GPUs are reserved for gangs that lost to them.

Theory of operation. The round is planned without protection first. If that preempts a lease that is younger than
`lease_min_s`, it is planned again around the protected leases: the jobs of the first plan take what is left, in the
same order; then running jobs, where they run; then all others. GPUs that a waiting gang with a share lost to protection
are reserved for it (`held_type`): no new job starts on free GPUs of that type, and in the next round the gang comes
first. Smaller jobs therefore cannot starve a gang. It waits until the protected leases are old enough, and then at most
for the rest of the round.

A job can need longer than `lease_min_s` to its first step. If no progress was reported when its lease is that old, the
lease stays protected until it is `start_max_s` old, and for `lease_min_s` after the first report of progress. The lease
of a faster job counts from its start, because progress is reported at intervals only.

Protection is against preemption only. Cancellation, failure, draining and lost nodes end leases at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.selection import Chosen
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Ints

Select = Callable[[Ints, Ints], Chosen]  # of these jobs (K,), with this many free GPUs in each domain (L,)
NOT_HELD = -1


def protected_leases(leases: LeaseBook, settings: MechanismSettings, now_s: float, fixed: Ints) -> Chosen:
    """The protected leases; of a co-located pair both, or neither.

    A granted lease counts from the grant, a started one from its start, so a lease that never starts is not protected
    forever. Leases whose jobs start slowly are marked in `slow_lease`. No plan ends the leases of `fixed` jobs.
    """
    jobs, pool = leases.jobs, leases.pool
    rows = jobs.leased[~jobs.marks(fixed)[jobs.leased]]
    rows = jobs.with_partners(rows[_are_protected(jobs, rows, settings, now_s)])
    rows = rows[jobs.rate[rows, jobs.lease_type[rows]] > 0]
    if pool.any_unreachable:
        rows = rows[~jobs.marks(leases_on(jobs, pool, pool.unreachable))[rows]]
    partner = jobs.partner[rows]
    rows = rows[(partner < 0) | jobs.marks(rows)[partner]]
    protected = Chosen(rows, pool.domain_of[jobs.gpu_first[rows]], jobs.partner[rows])
    return _of(protected, leases, leases.staying(protected))


def _are_protected(jobs: JobTable, rows: Ints, settings: MechanismSettings, now_s: float) -> Bools:
    """Whether the leases of these jobs are protected, (K,)."""
    age_s, works = now_s - jobs.began_s[rows], jobs.worked_s[rows] >= 0
    is_new = age_s < settings.lease_min_s
    is_slow = ~is_new & ~works & (age_s < settings.start_max_s) & (jobs.state[rows] == JobState.RUNNING)
    jobs.slow_lease[rows[is_slow]] = jobs.lease[rows[is_slow]]
    was_slow = works & (jobs.slow_lease[rows] == jobs.lease[rows])
    return np.asarray(is_new | is_slow | (was_slow & (now_s - jobs.worked_s[rows] < settings.lease_min_s)))


def unguarded(leases: LeaseBook, rows: Ints, free: Ints, select: Select) -> Chosen:
    """Jobs among `rows` that run in the coming round if no lease is protected; those with reservations come first.

    `free` (L,): GPUs of each domain that the plan may use.
    """
    jobs = leases.jobs
    passed = rows[(jobs.held_type[rows] != NOT_HELD) & (jobs.lease[rows] < 0)]
    passed = passed[jobs.total("target")[passed].any(axis=1)]
    if not len(passed):
        return select(rows, free)
    first = select(passed, free)
    return _joined(first, select(rows[~jobs.marks(first.jobs)[rows]], free - _taken(leases, first)))


def planned(leases: LeaseBook, rows: Ints, capacity: Ints, wanted: Chosen, protected: Chosen, select: Select) -> Chosen:
    """Jobs that run in the coming round: `wanted` itself if that ends no protected lease.

    `rows` are all jobs that may be chosen, `capacity` (L,) the GPUs that may be used. Gangs that lose to protection get
    a reservation in `held_type`.
    """
    jobs = leases.jobs
    is_first = jobs.held_type[: jobs.count] != NOT_HELD
    jobs.held_type[: jobs.count] = NOT_HELD
    if jobs.marks(leases.staying(wanted))[protected.jobs].all():
        return wanted
    is_protected = jobs.marks(protected.jobs)
    asked = wanted.jobs[~is_protected[wanted.jobs]]
    free = capacity - _taken(leases, protected)
    first = select(np.sort(asked[is_first[asked]]), free)
    free = free - _taken(leases, first)
    first = _joined(first, select(np.sort(asked[~is_first[asked]]), free))
    free = capacity - _taken(leases, protected) - _taken(leases, first)
    rest = rows[~is_protected[rows] & ~jobs.marks(asked)[rows]]
    if not _hold(leases, wanted, is_chosen=jobs.marks(np.concatenate([protected.jobs, first.jobs]))):
        return _joined(protected, first, select(rest, free))
    again = _unchanged(leases, select(rest[jobs.lease[rest] >= 0], free))
    free = free - _taken(leases, again)
    others = select(rest[~jobs.marks(again.jobs)[rest]], _less_held(leases, rows, free))
    return _joined(protected, first, again, others)


def filled(leases: LeaseBook, waiting: Ints, free: Ints, select: Select) -> Chosen:
    """Jobs that get GPUs that are free within a round: those with reservations first, others what is not reserved."""
    jobs = leases.jobs
    is_first = (jobs.held_type[waiting] != NOT_HELD) & jobs.total("target")[waiting].any(axis=1)
    if not is_first.any():
        return select(waiting, free)
    first = select(waiting[is_first], free)
    jobs.held_type[first.jobs] = NOT_HELD
    free = _less_held(leases, waiting[is_first], free - _taken(leases, first))
    return _joined(first, select(waiting[~is_first], free))


def _hold(leases: LeaseBook, wanted: Chosen, is_chosen: Bools) -> bool:
    """Reserves GPUs for gangs of `wanted` with a share that get nothing; returns whether there are any.

    One job of a pair stands for both, and a job that joins a running partner needs no GPUs of its own.
    """
    rows, domains, partner = wanted
    is_gang = leases.jobs.gpus[rows] > 1
    has_share = leases.jobs.total("target")[rows, leases.pool.domain_type[domains]] > 0
    comes = (partner >= 0) & (is_chosen[partner] | (partner < rows))
    passed = is_gang & has_share & ~is_chosen[rows] & ~comes
    leases.jobs.held_type[rows[passed]] = leases.pool.domain_type[domains[passed]]
    return bool(passed.any())


def _less_held(leases: LeaseBook, rows: Ints, free: Ints) -> Ints:
    """Free GPUs of each domain (L,) minus those of its type that are reserved for jobs among `rows`."""
    jobs, pool = leases.jobs, leases.pool
    rows = rows[jobs.held_type[rows] != NOT_HELD]
    held = np.zeros(len(pool.gpu_types), dtype=np.int64)
    np.add.at(held, jobs.held_type[rows], jobs.gpus[rows])
    return np.asarray(np.maximum(free - held[pool.domain_type], 0))


def _taken(leases: LeaseBook, chosen: Chosen) -> Ints:
    """GPUs of each domain that these jobs take, (L,); a pair takes them once."""
    counts = np.zeros(len(leases.pool.domain_type), dtype=np.int64)
    counted = (chosen.partner < 0) | (chosen.partner > chosen.jobs)
    np.add.at(counts, chosen.domains[counted], leases.jobs.gpus[chosen.jobs[counted]])
    return counts


def _unchanged(leases: LeaseBook, chosen: Chosen) -> Chosen:
    """The chosen jobs whose leases continue with the same partner."""
    same = chosen.partner == leases.jobs.partner[chosen.jobs]
    return _of(Chosen(*(column[same] for column in chosen)), leases, leases.staying(chosen))


def _of(chosen: Chosen, leases: LeaseBook, rows: Ints) -> Chosen:
    """The chosen jobs that are among `rows`."""
    among = leases.jobs.marks(rows)[chosen.jobs]
    return Chosen(*(column[among] for column in chosen))


def _joined(*parts: Chosen) -> Chosen:
    return Chosen(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

"""Leases that have just begun are not taken away for another job's sake: a start must be worth its while.

Theory of operation. A round is first planned as if nobody were kept. Where that would end a lease that is younger than
`lease_min_s`, it is planned again around such leases: who was wanted takes what is left, in the same order; then come
those that run, where they run; then anybody. For a gang the GPUs would fall free one by one, and each go to somebody
who is kept in turn: what a wanted gang with a share does not get because of a kept lease is held for it. Free GPUs of
that type go to nobody new, and in the next round the gang comes before all others. So it waits until those
who are kept have earned their starts, and for what is left of the round at most, once its turn has come.

A job may need longer than `lease_min_s` to its first step. Its lease is looked at when it is that old: if no progress
has been told by then it goes on being young until it is `start_max_s` old, and, from the first progress that is told,
for `lease_min_s`. Whoever was quicker counts from its start: nobody knows from when on, as progress is told now and
then only.

Only other jobs' urgency is held off. Cancelling, failing, draining, silence and loss end leases as ever.
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

Select = Callable[[Ints, Ints], Chosen]  # of these jobs (K,), with this many free GPUs in each lot (L,)
NOT_HELD = -1


def kept(leases: LeaseBook, settings: MechanismSettings, now_s: float, fixed: Ints) -> Chosen:
    """The leases that are too young to be taken away, as chosen; both of a pair, or neither.

    A promise counts from when it was given, a lease from when it began: one that never begins is not kept for ever.
    Those whose jobs take long to start are marked in `slow_lease`. The leases of `fixed` jobs are no plan's to end.
    """
    jobs, pool = leases.jobs, leases.pool
    rows = jobs.leased[~jobs.marks(fixed)[jobs.leased]]
    rows = jobs.with_partners(rows[_are_young(jobs, rows, settings, now_s)])
    rows = rows[jobs.rate[rows, jobs.lease_type[rows]] > 0]
    if pool.any_silent:
        rows = rows[~jobs.marks(leases_on(jobs, pool, pool.silent))[rows]]
    partner = jobs.partner[rows]
    rows = rows[(partner < 0) | jobs.marks(rows)[partner]]
    young = Chosen(rows, pool.lot_of[jobs.gpu_first[rows]], jobs.partner[rows])
    return _of(young, leases, leases.staying(young))


def _are_young(jobs: JobTable, rows: Ints, settings: MechanismSettings, now_s: float) -> Bools:
    """Whether the leases of these jobs have not yet earned their starts, (K,)."""
    age_s, works = now_s - jobs.began_s[rows], jobs.worked_s[rows] >= 0
    is_new = age_s < settings.lease_min_s
    is_slow = ~is_new & ~works & (age_s < settings.start_max_s) & (jobs.state[rows] == JobState.RUNNING)
    jobs.slow_lease[rows[is_slow]] = jobs.lease[rows[is_slow]]
    was_slow = works & (jobs.slow_lease[rows] == jobs.lease[rows])
    return np.asarray(is_new | is_slow | (was_slow & (now_s - jobs.worked_s[rows] < settings.lease_min_s)))


def unguarded(leases: LeaseBook, rows: Ints, free: Ints, select: Select) -> Chosen:
    """Who would run in the coming round if no lease were kept: those who were passed over first, (K,) of `rows`.

    `free` (L,): GPUs of each lot that the plan may give out.
    """
    jobs = leases.jobs
    passed = rows[(jobs.held_type[rows] != NOT_HELD) & (jobs.lease[rows] < 0)]
    passed = passed[jobs.total("target")[passed].any(axis=1)]
    if not len(passed):
        return select(rows, free)
    first = select(passed, free)
    return _joined(first, select(rows[~jobs.marks(first.jobs)[rows]], free - _taken(leases, first)))


def planned(leases: LeaseBook, rows: Ints, capacity: Ints, wanted: Chosen, young: Chosen, select: Select) -> Chosen:
    """Who runs in the coming round: `wanted` itself where that ends no young lease.

    `rows` are all jobs that may be chosen, `capacity` (L,) the GPUs that may be given out. Jobs that are passed over
    are marked in `held_type`.
    """
    jobs = leases.jobs
    is_first = jobs.held_type[: jobs.count] != NOT_HELD
    jobs.held_type[: jobs.count] = NOT_HELD
    if jobs.marks(leases.staying(wanted))[young.jobs].all():
        return wanted
    is_kept = jobs.marks(young.jobs)
    asked = wanted.jobs[~is_kept[wanted.jobs]]
    free = capacity - _taken(leases, young)
    first = select(np.sort(asked[is_first[asked]]), free)
    free = free - _taken(leases, first)
    first = _joined(first, select(np.sort(asked[~is_first[asked]]), free))
    free = capacity - _taken(leases, young) - _taken(leases, first)
    rest = rows[~is_kept[rows] & ~jobs.marks(asked)[rows]]
    if not _hold(leases, wanted, is_chosen=jobs.marks(np.concatenate([young.jobs, first.jobs]))):
        return _joined(young, first, select(rest, free))
    again = _unchanged(leases, select(rest[jobs.lease[rest] >= 0], free))
    free = free - _taken(leases, again)
    others = select(rest[~jobs.marks(again.jobs)[rest]], _less_held(leases, rows, free))
    return _joined(young, first, again, others)


def filled(leases: LeaseBook, waiting: Ints, free: Ints, select: Select) -> Chosen:
    """Who gets GPUs that are free within a round: first those for whom they are held, others what is not held."""
    jobs = leases.jobs
    is_first = (jobs.held_type[waiting] != NOT_HELD) & jobs.total("target")[waiting].any(axis=1)
    if not is_first.any():
        return select(waiting, free)
    first = select(waiting[is_first], free)
    jobs.held_type[first.jobs] = NOT_HELD
    free = _less_held(leases, waiting[is_first], free - _taken(leases, first))
    return _joined(first, select(waiting[~is_first], free))


def _hold(leases: LeaseBook, wanted: Chosen, is_chosen: Bools) -> bool:
    """Marks gangs of `wanted` with a share that get nothing, one of a pair for both; returns whether there are any.

    One who would have come to a job that runs anyhow needs no GPUs of its own.
    """
    rows, lots, partner = wanted
    is_gang = leases.jobs.gpus[rows] > 1
    has_share = leases.jobs.total("target")[rows, leases.pool.lot_type[lots]] > 0
    comes = (partner >= 0) & (is_chosen[partner] | (partner < rows))
    passed = is_gang & has_share & ~is_chosen[rows] & ~comes
    leases.jobs.held_type[rows[passed]] = leases.pool.lot_type[lots[passed]]
    return bool(passed.any())


def _less_held(leases: LeaseBook, rows: Ints, free: Ints) -> Ints:
    """Free GPUs of each lot (L,) less those that are held for jobs among `rows`, wherever of the type they may be."""
    jobs, pool = leases.jobs, leases.pool
    rows = rows[jobs.held_type[rows] != NOT_HELD]
    held = np.zeros(len(pool.gpu_types), dtype=np.int64)
    np.add.at(held, jobs.held_type[rows], jobs.gpus[rows])
    return np.asarray(np.maximum(free - held[pool.lot_type], 0))


def _taken(leases: LeaseBook, chosen: Chosen) -> Ints:
    """GPUs of each lot that these jobs have, (L,); a pair takes them once."""
    counts = np.zeros(len(leases.pool.lot_type), dtype=np.int64)
    counted = (chosen.partner < 0) | (chosen.partner > chosen.jobs)
    np.add.at(counts, chosen.lots[counted], leases.jobs.gpus[chosen.jobs[counted]])
    return counts


def _unchanged(leases: LeaseBook, chosen: Chosen) -> Chosen:
    """Those of the chosen whose leases go on as they are, beside whom they are."""
    same = chosen.partner == leases.jobs.partner[chosen.jobs]
    return _of(Chosen(*(column[same] for column in chosen)), leases, leases.staying(chosen))


def _of(chosen: Chosen, leases: LeaseBook, rows: Ints) -> Chosen:
    """Those of the chosen who are among `rows`."""
    among = leases.jobs.marks(rows)[chosen.jobs]
    return Chosen(*(column[among] for column in chosen))


def _joined(*parts: Chosen) -> Chosen:
    return Chosen(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

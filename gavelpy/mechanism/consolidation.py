"""Gangs wait for GPUs that are close together, with patience.

Theory of operation. A plan selects jobs by the number of GPUs. With `consolidate_s`, the places of a plan are tried
before it is in force: a waiting gang that would be further apart than it may be is *held back*, and the plan is made
again without it, so that others use the GPUs meanwhile. A gang may be apart up to a level: first the best one at which
it would fit in an empty cluster (one node, if a node is large enough), and one worse after each `consolidate_s` since
it was first held back. So it waits at most `consolidate_s` for each level, and a plan gives it the best level that is
free. Levels are nodes, racks, zones and anywhere, as far as nodes state them: see `topology`.

With `defragment`, running jobs may move for a gang that is held back: see `defragmentation`.

A gang with a lease is not held back. Jobs on one GPU, and pairs that share GPUs, are not either.

*Fragmentation delay.* While a job is held back, its waiting counts as fragmentation delay; all other waiting is
fair-share delay. Source of the two terms: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters" (ATC '19),
section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism import defragmentation
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.taking import Chosen
from gavelpy.mechanism.topology import WORDS, PlaceLevel, best_levels, groups, level_of
from gavelpy.mechanism.waiting import NOT_NOW, Apart, best_of, steps, worst_level
from gavelpy.model.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.mechanism.leases import LeaseBook
    from gavelpy.mechanism.planning import Planner

TRIES = 4  # plans that are made to give others the GPUs of gangs that are held back


class Tried(NamedTuple):
    """A plan before it is in force."""

    chosen: Chosen
    grants: Chosen  # those of them with new leases
    leaving: Ints  # jobs that lose their leases


def planned(planner: Planner, rows: Ints, plan: Callable[[Ints], Tried]) -> Tried:
    """The plan of these rows without gangs that would be too far apart."""
    jobs = planner.leases.jobs
    reservations_before = jobs.held_type[: jobs.count].copy() if jobs.any_held else None
    held: list[int] = []
    for tries in range(TRIES):
        tried = plan(rows)
        apart = _too_far_apart(planner, tried)
        if not len(apart):
            break
        held += apart.tolist()
        rows = rows[~jobs.marks(apart)[rows]]
        if tries == TRIES - 2:
            rows = _last_try(planner, rows, tried)
        if reservations_before is not None:
            jobs.held_type[: jobs.count] = reservations_before
    else:
        stays = ~jobs.marks(apart)
        tried = tried._replace(chosen=tried.chosen.among(stays[tried.chosen.jobs]))
    if held and planner.settings.defragment:
        tried = _with_moves(planner, tried, held)
    _book(planner, tried.chosen, held)
    return tried


def _with_moves(planner: Planner, tried: Tried, held: list[int]) -> Tried:
    """The plan in which running jobs also move for gangs that are held back, where that pays."""
    leases, jobs, (chosen, grants, leaving) = planner.leases, planner.leases.jobs, tried
    free = _open_gpus(planner, leaving)
    offsets, gpus = leases.placed(grants, planner.sets, free, planner.now_s)
    free[gpus] = False
    staying = jobs.leased[~jobs.marks(np.concatenate([leaving, grants.jobs]))[jobs.leased]]
    moved, places = defragmentation.relocated(planner, chosen, free, staying, held)
    if not places:
        return tried
    own = dict(zip(grants.jobs.tolist(), np.split(gpus, offsets[1:-1]), strict=True)) if len(grants.jobs) else {}
    planner.places.update(own | places)
    stays = ~jobs.marks(moved.jobs)[chosen.jobs]
    movers = moved.jobs[jobs.lease[moved.jobs] >= 0]
    return Tried(
        Chosen(*map(np.concatenate, zip(chosen.among(stays), moved, strict=True))),
        Chosen(*map(np.concatenate, zip(grants, moved, strict=True))),
        np.union1d(leaving, movers),
    )


def _open_gpus(planner: Planner, leaving: Ints) -> Bools:
    """The usable GPUs that no job holds when these leave, (G,)."""
    pool, gone = planner.leases.pool, np.append(leaving, NONE)
    return np.asarray(pool.usable & np.isin(pool.job, gone) & np.isin(pool.beside, gone))


def _last_try(planner: Planner, rows: Ints, tried: Tried) -> Ints:
    """These jobs without the gangs that wait behind those of the plan, so that other jobs use the GPUs meanwhile."""
    jobs, anywhere = planner.leases.jobs, len(groups(planner.leases.pool)) - 1
    behind = rows[(jobs.gpus[rows] > 1) & (jobs.lease[rows] < 0) & ~jobs.marks(tried.chosen.jobs)[rows]]
    since_s = [jobs.apart.get(row, Apart()).held_s for row in behind.tolist()]
    is_patient = [one < 0 or steps(one, planner.now_s, planner.settings) < anywhere for one in since_s]
    return rows[~jobs.marks(behind[np.array(is_patient, dtype=np.bool_)])[rows]]


def worst_levels(leases: LeaseBook, chosen: Chosen, now_s: float) -> Ints:
    """The level that each of these jobs should not exceed, (K,)."""
    jobs, found = leases.jobs, np.full(len(chosen.jobs), int(PlaceLevel.ANYWHERE))
    is_asked = (chosen.gpus > 1) & (chosen.partner < 0) & (jobs.lease[chosen.jobs] < 0)
    for domain in np.unique(chosen.domains[is_asked]).tolist():
        here = np.flatnonzero(is_asked & (chosen.domains == domain))
        best = best_levels(leases.pool, domain, chosen.gpus[here].tolist())
        found[here] = [
            worst_level(leases, row, level, now_s) for row, level in zip(chosen.jobs[here].tolist(), best, strict=True)
        ]
    return found


def _too_far_apart(planner: Planner, tried: Tried) -> Ints:
    """The gangs of a plan that would be further apart than they may be; rows, ascending."""
    leases, pool, grants = planner.leases, planner.leases.pool, tried.grants
    worst = worst_levels(leases, grants, planner.now_s)
    if (worst == PlaceLevel.ANYWHERE).all():
        return grants.jobs[:0]
    offsets, gpus = leases.placed(grants, planner.sets, _open_gpus(planner, tried.leaving), planner.now_s)
    asked = np.flatnonzero(worst < PlaceLevel.ANYWHERE).tolist()
    is_apart = [level_of(pool, gpus[offsets[k] : offsets[k + 1]]) > worst[k] for k in asked]
    return np.sort(grants.jobs[np.array(asked)[np.array(is_apart, dtype=np.bool_)]])


def _book(planner: Planner, chosen: Chosen, held: list[int]) -> None:
    """Notes who is held back now, when the next of them may be further apart, and the delays that are over."""
    jobs, settings, now_s = planner.leases.jobs, planner.settings, planner.now_s
    if jobs.apart:
        is_chosen, is_held = jobs.marks(chosen.jobs), jobs.marks(np.array(held, dtype=np.int64))
        for row, one in jobs.apart.items():
            if one.open_s >= 0 and (is_chosen[row] or not is_held[row]):
                jobs.apart[row] = one.closed(now_s)
    for row in held:
        one = jobs.apart.get(row, Apart())
        held_s = one.held_s if one.held_s >= 0 else now_s
        jobs.apart[row] = Apart(held_s, one.open_s if one.open_s >= 0 else now_s, one.delay_s)
        relax_s = held_s + (steps(held_s, now_s, settings) + 1) * settings.consolidate_s
        jobs.relax_s = min(jobs.relax_s, relax_s)


def started(jobs: JobTable, rows: Ints) -> None:
    """These jobs have new leases: their patience starts from zero when they wait again."""
    is_started = jobs.marks(rows)
    for row, one in jobs.apart.items():
        if is_started[row]:
            jobs.apart[row] = one._replace(held_s=NOT_NOW)


def end_patience(jobs: JobTable, now_s: float) -> None:
    """No gang waits for GPUs in one place any more, because settings changed."""
    jobs.apart = {row: one.closed(now_s)._replace(held_s=NOT_NOW) for row, one in jobs.apart.items()}
    jobs.relax_s = math.inf


def fragmentation_delays_s(core: SchedulerCore) -> Floats:
    """The fragmentation delay of each job so far, by serial; 0 for jobs that have left the tables."""
    found = np.zeros(core.jobs.ids.next_serial)
    for row, one in core.jobs.apart.items():
        found[core.jobs.ids.serial(row)] = one.until(core.now_s)
    return found


def place_notes(core: SchedulerCore, row: int) -> list[str]:
    """The fragmentation delay of a job, and moves that made a place for a gang, for people."""
    if row < 0:
        return []
    moves, delay_s = defragmentation.moved_in_words(core, row), core.jobs.apart.get(row, Apart()).until(core.now_s)
    because = "are fragmentation delay: enough GPUs were free, but not close together"
    return [f"{delay_s:.0f} s of its waiting {because}", *moves] if delay_s else moves


def held_back_in_words(core: SchedulerCore, row: int) -> str:
    """That a gang is held back, for people; empty = it is not."""
    jobs, consolidate_s = core.jobs, core.settings.consolidate_s
    one = jobs.apart.get(row, Apart())
    if one.held_s < 0 or one.open_s < 0 or not consolidate_s:
        return ""
    next_s = one.held_s + (steps(one.held_s, core.now_s, core.settings) + 1) * consolidate_s
    domains = np.flatnonzero(jobs.rate[row, core.pool.domain_type] > 0).tolist()
    best = {best_of(core.leases, row, domain) for domain in domains}
    levels = {worst_level(core.leases, row, level, core.now_s) for level in best}
    where = " or ".join(WORDS[level] for level in sorted(levels))
    text = f"{jobs.gpus[row]} GPUs are free, but not on {where}"
    text = f"{text}; it waits for that until {next_s:g} s, and then accepts GPUs further apart"
    return "; ".join(filter(None, [text, defragmentation.why_not_in_words(core, row)]))

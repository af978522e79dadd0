"""Moves running jobs so that GPUs in one place become free for a gang, where that is worth more than the moves cost.

Theory of operation. A gang that is held back (see `consolidation`) waits although enough GPUs are free, and often other
jobs cannot use them. If jobs of one node move to free GPUs elsewhere, the node has room for the gang. Both sides are
GPU time of one type, so the type's price (marginal value) is a common factor:

    worth  GPUs of the gang x the time that it would wait: until its patience accepts a place that is free now, or until
           running jobs end whose GPUs make a place. Zero if the gang has no share of the type: it is owed nothing.
    cost   the sum, over the jobs that move, of their GPUs x the time that a stop and a start cost them: as measured,
           else `turn_costs.REFERENCE_S`; with `keep_unsaved`, also the steps since the checkpoint of a program that
           does not save when it is stopped.

Only GPUs that the plan leaves free are used, so no other job gets less. For each place, the `JOBS_TRIED` jobs that are
cheapest per GPU are tried in all combinations; the cheapest one of any place is taken, if its jobs fit elsewhere
without being further apart than now. A job moves only if a plan could preempt it, of the gang's priority class or a
lower one, and if it has its GPUs alone. Where nodes limit jobs (a choice of nodes, CPU cores, memory, reservations for
users), or directories of checkpoints differ, no job moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism import non_preemptible
from gavelpy.mechanism.eligibility import NOT_HELD
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import JobState, Resumes
from gavelpy.mechanism.strategies import PlacementRule, place_by
from gavelpy.mechanism.taking import Chosen
from gavelpy.mechanism.topology import PlaceLevel, groups, level_of
from gavelpy.mechanism.turn_costs import REFERENCE_S, turn_s
from gavelpy.mechanism.waiting import Apart, Move, best_of, worst_level
from gavelpy.model.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.mechanism.planning import Planner

GANGS_TRIED = 4  # of one plan
PLACES_TRIED = 16  # of one gang, those first from which the fewest GPUs must leave
JOBS_TRIED = 8  # of one place


@dataclass(frozen=True, eq=False)
class Relocation:
    """A place for a gang, and the new GPUs of the jobs that leave it."""

    places: dict[int, Ints]  # GPUs of the gang and of each job that moves
    domain: int
    worth_gpu_s: float
    cost_gpu_s: float


class _Place(NamedTuple):
    """GPUs close together that a gang could have."""

    gpus: Bools  # (G,) of one domain
    missing: int  # GPUs that must become free


def relocated(
    planner: Planner, chosen: Chosen, free: Bools, staying: Ints, held: list[int]
) -> tuple[Chosen, dict[int, Ints]]:
    """The jobs that get other GPUs so that gangs among `held` can run, with those; and the GPUs of each.

    `chosen`: the plan so far; `free` (G,): GPUs that it leaves free; `staying`: jobs with leases that continue.
    """
    places: dict[int, Ints] = {}
    columns: list[tuple[int, int, int, int]] = []
    jobs, free = planner.leases.jobs, free.copy()
    for row in held[:GANGS_TRIED]:
        found = relocation(planner, row, free, staying, chosen)
        if found is None or not found.worth_gpu_s > found.cost_gpu_s:
            continue
        movers = [job for job in found.places if job != row]
        for job in movers:
            free[jobs.gpus_held(job)] = True
        for job, gpus in found.places.items():
            free[gpus] = False
            columns.append((job, found.domain, NONE, len(gpus)))
        move = Move(planner.now_s, jobs.ids.serial(row), int(jobs.gpus[row]), found.worth_gpu_s, found.cost_gpu_s)
        jobs.moved |= dict.fromkeys(movers, move)
        places |= found.places
        staying = staying[~np.isin(staying, movers)]
        chosen = Chosen(*np.column_stack([chosen, np.array(columns[-1:]).T]))
    return Chosen(*np.array(columns, dtype=np.int64).reshape(-1, 4).T), places


def relocation(planner: Planner, row: int, free: Bools, staying: Ints, chosen: Chosen) -> Relocation | None:
    """The cheapest moves that give a gang a place, whether they pay or not; None = there are none."""
    jobs, pool = planner.leases.jobs, planner.leases.pool
    is_simple = planner.sets is None and planner.reserved is None and pool.shares_checkpoints and not pool.is_divided
    if not is_simple or jobs.smallest[row]:
        return None
    movers = _movers(planner, staying, int(jobs.rank[row]))
    found = [
        one
        for domain in np.flatnonzero(jobs.rate[row, pool.domain_type] > 0).tolist()
        if _may_have(planner, row, domain, free, staying, chosen)
        for one in _of_domain(planner, row, domain, free, movers)
    ]
    return max(found, key=lambda one: one.worth_gpu_s - one.cost_gpu_s, default=None)


def why_not_in_words(core: SchedulerCore, row: int) -> str:
    """That no moves free GPUs for a gang that is held back, or that they do not pay; empty = without the setting."""
    if not core.settings.defragment:
        return ""
    planner, jobs = core.planner, core.jobs
    none = Chosen(*np.zeros((4, 0), dtype=np.int64))
    found = relocation(planner, row, planner.free_gpus, jobs.leased, none)
    if found is None:
        return "no moves of running jobs would free them"
    movers = " and ".join(f"job {jobs.ids.serial(job)}" for job in found.places if job != row)
    return f"a move of {movers} would free them, {_balance(found.worth_gpu_s, found.cost_gpu_s)}"


def moved_in_words(core: SchedulerCore, row: int) -> list[str]:
    """For which gang a job was moved last, and which jobs were moved for it, for people."""
    jobs, serial = core.jobs, core.jobs.ids.serial(row)
    notes = []
    if row in jobs.moved:
        move = jobs.moved[row]
        what = f"moved at {move.at_s:g} s to free {move.gpus} GPUs in one place for job {move.gang}"
        notes.append(f"{what}, {_balance(move.worth_gpu_s, move.cost_gpu_s)}")
    for_it = [f"job {jobs.ids.serial(other)}" for other, move in jobs.moved.items() if move.gang == serial]
    return [*notes, f"moved to free GPUs in one place for this job: {', '.join(for_it)}"] if for_it else notes


def _balance(worth_gpu_s: float, cost_gpu_s: float) -> str:
    return f"worth {worth_gpu_s:.0f} GPU s less of waiting, at a cost of {cost_gpu_s:.0f} GPU s"


def _may_have(planner: Planner, row: int, domain: int, free: Bools, staying: Ints, chosen: Chosen) -> bool:
    """Whether enough GPUs are free for this gang, without those kept for others, and its teams' limits leave them."""
    jobs, pool, size = planner.leases.jobs, planner.leases.pool, int(planner.leases.jobs.gpus[row])
    counts = pool.domain_counts(free)
    kind = int(pool.domain_type[domain])
    others = np.flatnonzero(jobs.held_type[: jobs.count] == kind) if jobs.any_held else np.zeros(0, dtype=np.int64)
    if counts[domain] - int(jobs.gpus[others[others != row]].sum()) < size:
        return False
    if not planner.settings.limits_teams:
        return True
    holding = np.setdiff1d(np.union1d(planner.fixed, staying), chosen.jobs)
    teams = planner.wanting(np.append(chosen.jobs, row), holding).teams
    assert teams is not None, "there are limits"
    return teams.room(counts, chosen).allows(kind, size, row)


def _movers(planner: Planner, staying: Ints, rank: int) -> Ints:
    """Those of these jobs that a plan may move for a gang of this priority class; rows, ascending."""
    jobs, pool = planner.leases.jobs, planner.leases.pool
    rows = staying[jobs.marks(np.union1d(planner.fixed, planner.protected.jobs))[staying] == 0]
    may = (jobs.state[rows] == JobState.RUNNING) & (jobs.partner[rows] < 0) & (jobs.hold[rows] == NOT_HELD)
    may &= (jobs.rank[rows] >= rank) & ~non_preemptible.is_finishing(jobs, rows) & (jobs.smallest[rows] == 0)
    rows = rows[may & (jobs.rate[rows, jobs.lease_type[rows]] > 0)]
    return np.sort(rows[~np.isin(rows, pool.jobs_holding(~pool.usable))] if not pool.usable.all() else rows)


def _of_domain(planner: Planner, row: int, domain: int, free: Bools, movers: Ints) -> Iterator[Relocation]:
    """The cheapest relocation of each place for this gang."""
    jobs, pool, size = planner.leases.jobs, planner.leases.pool, int(planner.leases.jobs.gpus[row])
    worth_gpu_s = size * _wait_s(planner, row, domain, free)
    cost_gpu_s = _costs_gpu_s(planner, movers)
    home = [(job, jobs.gpus_held(job), cost) for job, cost in zip(movers.tolist(), cost_gpu_s.tolist(), strict=True)]
    least = math.inf
    for place in _places(planner, row, domain, free):
        inside = [(cost, job, gpus) for job, gpus, cost in home if place.gpus[gpus].all()]
        inside = sorted(inside, key=lambda one: (one[0] / len(one[2]), one[1]))[:JOBS_TRIED]
        sets = [
            (sum(one[0] for one in some), some)
            for count in range(1, len(inside) + 1)
            for some in combinations(inside, count)
            if sum(len(one[2]) for one in some) >= place.missing
        ]
        for cost, some in sorted(sets, key=lambda one: (one[0], [job for _, job, _ in one[1]])):
            if cost >= least:
                break
            if elsewhere := _elsewhere(planner, place, free, [(job, gpus) for _, job, gpus in some]):
                open_gpus = free & place.gpus
                open_gpus[np.concatenate([gpus for _, _, gpus in some])] = True
                own = place_by(pool, open_gpus, np.array([domain]), np.array([size]), PlacementRule())[1]
                least = cost
                yield Relocation(elsewhere | {row: own}, domain, worth_gpu_s, cost)
                break


def _places(planner: Planner, row: int, domain: int, free: Bools) -> list[_Place]:
    """The places that are large enough, at levels that the gang accepts now, most nearly free ones first."""
    pool, size = planner.leases.pool, int(planner.leases.jobs.gpus[row])
    worst = worst_level(planner.leases, row, best_of(planner.leases, row, domain), planner.now_s)
    here = pool.usable & (pool.domain_of == domain)
    found = []
    for level, group in groups(pool).items():
        if level > worst or level is PlaceLevel.ANYWHERE:
            continue
        room = np.bincount(group[pool.node_of[here]], minlength=group.max(initial=0) + 1)
        is_free = np.bincount(group[pool.node_of[here & free]], minlength=len(room))
        near = np.flatnonzero((room >= size) & (is_free < size)).tolist()
        found += [(size - int(is_free[at]), int(level), at, group) for at in near]
    found.sort(key=lambda one: one[:3])
    return [_Place(here & (group[pool.node_of] == at), missing) for missing, _, at, group in found[:PLACES_TRIED]]


def _elsewhere(planner: Planner, place: _Place, free: Bools, movers: list[tuple[int, Ints]]) -> dict[int, Ints]:
    """Free GPUs outside of a place for each of these jobs, the largest first; empty = they do not fit."""
    pool, found = planner.leases.pool, dict[int, Ints]()
    left = free & ~place.gpus
    for job, gpus in sorted(movers, key=lambda one: (-len(one[1]), one[0])):
        domain = int(pool.domain_of[gpus[0]])
        if np.count_nonzero(left & (pool.domain_of == domain)) < len(gpus):
            return {}
        new = place_by(pool, left, np.array([domain]), np.array([len(gpus)]), PlacementRule())[1]
        if level_of(pool, new) > level_of(pool, gpus):
            return {}
        found[job] = new
        left[new] = False
    return found


def _wait_s(planner: Planner, row: int, domain: int, free: Bools) -> float:
    """How long a gang would wait for GPUs of a domain if no job moved; 0 = it is owed none."""
    leases, jobs, pool, now_s = planner.leases, planner.leases.jobs, planner.leases.pool, planner.now_s
    if not jobs.share[row, pool.domain_type[domain]] > 0:
        return 0.0
    size, best = int(jobs.gpus[row]), best_of(leases, row, domain)
    levels = [level for level in groups(pool) if level >= best]
    here = pool.usable & (pool.domain_of == domain)
    nodes = pool.node_of[here & free]
    steps = next(k for k, level in enumerate(levels) if np.bincount(groups(pool)[level][nodes]).max(initial=0) >= size)
    held_s = jobs.apart.get(row, Apart()).held_s
    patience_s = (held_s if held_s >= 0 else now_s) + steps * planner.settings.consolidate_s - now_s
    ends_s = _ends_s(jobs, np.asarray(pool.job), here, free)
    first_s = math.inf
    for level in levels[:-1]:
        group = groups(pool)[level][pool.node_of]
        for at in np.unique(group[here]).tolist():
            of_place = np.sort(ends_s[here & (group == at)])
            first_s = min(first_s, float(of_place[size - 1]) if len(of_place) >= size else math.inf)
    return max(min(patience_s, first_s), 0.0)


def _ends_s(jobs: JobTable, holder: Ints, here: Bools, free: Bools) -> Floats:
    """In how many seconds each GPU (G,) becomes free when its job ends, at its rate; infinite = not known."""
    ends_s = np.where(free, 0.0, np.inf)
    gpus = np.flatnonzero(here & (holder != NONE) & ~free)
    rows = holder[gpus]
    rate = jobs.rate[rows, jobs.lease_type[rows]]
    left = np.maximum(jobs.steps_total[rows] - jobs.steps_done[rows], 0.0)
    ends_s[gpus] = np.divide(left, rate, out=np.full(len(rows), np.inf), where=rate > 0)
    return ends_s


def _costs_gpu_s(planner: Planner, rows: Ints) -> Floats:
    """GPU time that a move costs each of these jobs, (K,)."""
    jobs = planner.leases.jobs
    lost_s = turn_s(jobs, rows)
    lost_s = np.where(lost_s > 0, lost_s, REFERENCE_S)
    if planner.settings.keep_unsaved:
        again = np.maximum(jobs.steps_done[rows] - jobs.steps_saved[rows], 0.0)
        again = np.where(jobs.resumes[rows] == Resumes.DECLARED, 0.0, again)
        lost_s = lost_s + again / jobs.rate[rows, jobs.lease_type[rows]]
    return np.asarray(lost_s * jobs.gpus[rows])

"""Quotas and guaranteed GPUs of teams in requests and plans: who may take which GPUs, who lends, who gives back.

The rules are those of `model.team_limits`, here for whole leases. A plan's queue is in its usual order, by urgency; a
job is passed over if it would exceed the quota of its team or of a team above, or take GPUs that are guaranteed to a
team whose waiting jobs can use them. So at the end of a round these jobs get what is guaranteed to them, before any job
beyond what is guaranteed to its own team: a *borrower* leaves then, also if `lease_min_s` protects its lease. What no
job of the team could use after all is lent, first within the team above it: the queue is processed again for the jobs
that got nothing.

A job that may not be preempted once it runs could not give GPUs back. So such jobs together leave what is guaranteed to
others, whether or not they can use it now.

Leases count in full until they end. Within a round no lease is taken back for what is guaranteed. GPUs reserved for
users (`windows`) are not guaranteed to teams; their jobs count for quotas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import sizes
from gavelpy.mechanism.commands import SizesOfJobs
from gavelpy.mechanism.domains import can_run
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.named_round import has_turn
from gavelpy.mechanism.node_resources import RESOURCES, all_needs
from gavelpy.mechanism.non_preemptible import is_barred
from gavelpy.mechanism.taking import NONE_CHOSEN, Chosen
from gavelpy.mechanism.team_room import TeamRoom
from gavelpy.mechanism.teams import entities_of, limits_of
from gavelpy.mechanism.windows import OUTSIDE
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem
from gavelpy.model.team_limits import CLUSTER, NEGLIGIBLE, TeamLimits

if TYPE_CHECKING:
    from gavelpy.mechanism.planning import Planner
    from gavelpy.mechanism.settings import MechanismSettings


def limits_of_jobs(
    jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rows: Ints, gpu_types: tuple[str, ...] = ()
) -> TeamLimits:
    """The configured quotas and guaranteed GPUs, on these types or the cluster's, and the teams of these jobs."""
    names = tuple(jobs.entities)
    team = entities_of(names, settings.teams)[1][jobs.entity[rows]]
    limits = limits_of(names, settings.teams, gpu_types or pool.gpu_types)
    if not limits.resources:
        return replace(limits, team=team)
    columns = [RESOURCES.index(name) for _, name in limits.resources]
    return replace(limits, team=team, per_gpu=all_needs(jobs)[rows][:, columns] / THOUSANDTHS)


def may_hold(jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rows: Ints) -> Bools:
    """Whether each job fits in the quotas of its teams if no other job holds any of them, (K, T)."""
    return limits_of_jobs(jobs, pool, settings, rows).fits(sizes.smallest(jobs, rows))


def can_ever_hold(jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rows: Ints) -> Bools:
    """Whether each job could have its GPUs of each type if no other job held any, (K, T).

    It could not beyond the quotas of its teams, nor, if it would not be preempted, where it needs GPUs that are
    guaranteed to other teams.
    """
    if not settings.limits_teams:
        return np.ones((len(rows), len(pool.gpu_types)), dtype=np.bool_)
    limits = limits_of_jobs(jobs, pool, settings, rows)
    least = sizes.smallest(jobs, rows)
    found, T = limits.fits(least), limits.type_count
    barred = np.flatnonzero(is_barred(jobs, settings, rows))
    if not len(barred) or not limits.guaranteed[:, :T].any():
        return found
    limits = replace(limits, quota=limits.quota[:, :T], guaranteed=limits.guaranteed[:, :T], resources=())
    empty = TeamRoom(limits, None, pool.usable_counts.astype(np.float64), limits, np.zeros(len(rows), dtype=np.bool_))
    for k in barred.tolist():
        found[k] &= [empty.allows(t, int(least[k]), k) for t in range(T)]
    return found


def held(jobs: JobTable, limits: TeamLimits, rows: Ints) -> Floats:
    """GPUs under leases of these jobs by their own team, (E, T); `limits` has their teams.

    Two co-located jobs of one team count once. Those of two teams count for each, and for a team above both twice.
    """
    here = np.flatnonzero(jobs.lease[rows] >= 0)
    gpus = np.zeros((len(rows), limits.type_count))
    gpus[here, jobs.lease_type[rows[here]]] = jobs.gpus[rows[here]]
    return limits.of_teams(_counted(limits, gpus, jobs.entity, rows, jobs.partner[rows]), limits.team)


def _counted(limits: TeamLimits, gpus: Floats, entity: Ints, rows: Ints, partner: Ints) -> Floats:
    """What these jobs with GPUs (N, T) count for in each column, (N, K); two of one team that share GPUs: half of them.

    `limits` has their teams.
    """
    found = limits.with_resources(gpus).copy()
    shares = (partner >= 0) & (entity[rows] == entity[partner])
    found[:, : limits.type_count] *= np.where(shares, 0.5, 1.0)[:, None]
    return np.asarray(found)


def limits_of_problem(
    jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rows: Ints, exempt: Ints, problem: AllocationProblem
) -> tuple[AllocationProblem, TeamLimits | None]:
    """The problem without rates at which jobs would exceed quotas alone, and what is left for its teams.

    `exempt` jobs keep their GPUs. None = no team has limits.
    """
    if not settings.limits_teams:
        return problem, None
    limits = limits_of_jobs(jobs, pool, settings, rows)
    if len(exempt):
        limits = limits.less(held(jobs, limits_of_jobs(jobs, pool, settings, exempt), exempt))
    rate = problem.member_rate_steps_per_s
    if ((rate > 0) & ~(fits := limits.fits(problem.gpus_asked))).any():
        problem = replace(problem, member_rate_steps_per_s=np.where(fits, rate, 0.0))
    runs = can_run(jobs, pool, rows) & limits.fits(sizes.smallest(jobs, rows))
    if pool.is_divided:
        runs &= (jobs.part[rows] == OUTSIDE)[:, None]
    return problem, usable(limits, jobs, rows, runs)


def usable(limits: TeamLimits, jobs: JobTable, rows: Ints, runs: Bools) -> TeamLimits:
    """With no more guaranteed than these jobs can use, which run on these types (K, T)."""
    least, most = sizes.smallest(jobs, rows), sizes.largest(jobs, rows)
    return limits.usable(least.astype(np.float64), runs, most.astype(np.float64))


def within_quotas(found: SizesOfJobs | None, limits: TeamLimits | None) -> SizesOfJobs | None:
    """These sizes without rates at which a job alone would exceed what is left of quotas."""
    if found is None or limits is None:
        return found
    fits = limits.of(found.rows).fits(found.gpus)
    return replace(found, rate_steps_per_s=np.where(fits, found.rate_steps_per_s, 0.0))


_MANY = {"cpus": "CPU cores", "memory_gib": "GiB of memory"}


class TeamReasons:
    """Why limits of teams keep GPUs from waiting jobs."""

    def __init__(self, jobs: JobTable, pool: GpuPool, settings: MechanismSettings) -> None:
        self._jobs, self._pool, self._settings = jobs, pool, settings
        self._limits = limits_of_jobs(jobs, pool, settings, np.arange(jobs.count))
        leased = self._limits.of(jobs.leased)
        own = held(jobs, leased, jobs.leased)
        self.held, self.left = leased.with_below(own), leased.less(own)

    def quota(self, row: int, could_run: Bools) -> str:
        """Which quotas keep a job from all the types (T,) on which it could run; empty if they leave it one."""
        limits, gpus, texts = self._limits, int(self._jobs.gpus[row]), []
        for t in np.flatnonzero(could_run).tolist():
            above = limits.above(int(limits.team[row]))
            team = next((team for team in above if self.held[team, t] + gpus > limits.quota[team, t]), CLUSTER)
            if team == CLUSTER:
                if not (text := self._resource(row, t, above)):
                    return ""
                texts.append(text)
                continue
            name, quota, gpu_type = limits.names[team], limits.quota[team, t], self._pool.gpu_types[t]
            if gpus > quota:
                texts.append(f"needs {gpus} GPUs; the quota of team {name} is {quota:g} {gpu_type}")
            else:
                texts.append(f"team {name} holds {self.held[team, t]:g} of its quota of {quota:g} {gpu_type}")
        return "; ".join(texts)

    def _resource(self, row: int, gpu_type: int, above: Sequence[int]) -> str:
        """Which quota of CPU cores or memory keeps a job from a type; empty = none."""
        limits, gpus = self._limits, int(self._jobs.gpus[row])
        for k, i in limits.columns_of(gpu_type):
            amount, what = gpus * limits.per_gpu[row, i], _MANY[limits.resources[i][1]]
            for team in above:
                held, quota = self.held[team, k], limits.quota[team, k]
                if held + amount > quota + NEGLIGIBLE:
                    whole = f"{quota:g} {what} of {self._pool.gpu_types[gpu_type]} nodes"
                    if amount > quota:
                        return f"needs {amount:g} {what}; the quota of team {limits.names[team]} is {whole}"
                    return f"team {limits.names[team]} holds {held:g} of its quota of {whole}"
        return ""

    def guaranteed(self, row: int, could_run: Bools) -> str:
        """For which teams free GPUs are kept from a job because it could not give them back; empty = for none."""
        jobs, limits, pool = self._jobs, self._limits, self._pool
        if not is_barred(jobs, self._settings, np.array([row]))[0]:
            return ""
        for t in np.flatnonzero(could_run & (pool.free_counts >= jobs.gpus[row])).tolist():
            above = limits.above(int(limits.team[row]))
            others = [team for team in np.flatnonzero(self.left.guaranteed[:, t] > 0).tolist() if team not in above]
            if others:
                names = " and ".join(limits.names[team] for team in others)
                text = f"free {pool.gpu_types[t]} are guaranteed to team {names}"
                return f"{text}; only jobs that can be preempted borrow them"
        return self._never(row, np.flatnonzero(could_run).tolist())

    def _never(self, row: int, types: list[int]) -> str:
        """That a job which borrows nothing needs more GPUs of each type than are not guaranteed to other teams."""
        limits, gpus, texts = self._limits, int(self._jobs.gpus[row]), []
        above = limits.above(int(limits.team[row]))
        for t in types:
            given = [team for team in np.flatnonzero(limits.guaranteed[:, t] > 0).tolist() if team not in above]
            highest = [team for team in given if not set(limits.above(team)[1:]) & set(given)]
            left = int(max(self._pool.counts[t] - limits.guaranteed[highest, t].sum(), 0))
            if left >= gpus:
                return ""
            names = " and ".join(limits.names[team] for team in highest)
            texts.append(f"all but {left} {self._pool.gpu_types[t]} are guaranteed to team {names}")
        whole = f"needs {gpus} GPU{'s' if gpus > 1 else ''}; {'; '.join(texts)}"
        return f"{whole}; only jobs that can be preempted borrow them" if texts else ""


class TeamsOfPlan:
    """What a plan leaves to each team, for the parts of the queue that it processes one after the other."""

    def __init__(self, planner: Planner) -> None:
        jobs, pool, settings = planner.leases.jobs, planner.leases.pool, planner.settings
        self._planner, self._jobs, self._pool = planner, jobs, pool
        everyone = limits_of_jobs(jobs, pool, settings, np.arange(jobs.count))
        self._everyone = everyone
        own = held(jobs, everyone.of(planner.holding), planner.holding)
        own += self._of_chosen(planner.elsewhere)
        self._left = everyone.less(own)
        self._total = self._of_nodes()
        if planner.part != OUTSIDE:
            self._left = replace(self._left, guaranteed=np.zeros_like(own))
        demand = planner.demand[~jobs.marks(planner.elsewhere.jobs)[planner.demand]]
        self._demand, runs = demand, can_run(jobs, pool, demand)
        runs &= has_turn(jobs, settings, planner.named, demand)
        self._runs = runs & everyone.of(demand).fits(sizes.smallest(jobs, demand))
        self._barred: Bools = np.zeros(jobs.count, dtype=np.bool_)
        if self._left.guaranteed.any():
            self._barred[jobs.active] = is_barred(jobs, settings, jobs.active)

    def room(self, free: Ints, chosen: Chosen) -> TeamRoom:
        """What is left of these free GPUs (L,) after these jobs of the same class, which hold others."""
        left, capacity = self._next_to(free, chosen)
        strict = None
        if self._barred.any():
            stays = self._barred[chosen.jobs] | ((chosen.partner >= 0) & self._barred[chosen.partner])
            gives = chosen.among(~stays & ((chosen.partner < 0) | (chosen.partner > chosen.jobs)))
            free = free.copy()
            np.add.at(free, gives.domains, gives.gpus)
            strict = self._next_to(free, chosen.among(stays))
        return TeamRoom(self._usable(left, chosen.jobs), strict, capacity, self._everyone, self._barred)

    def _next_to(self, free: Ints, chosen: Chosen) -> tuple[TeamLimits, Floats]:
        """The limits next to these jobs, and the capacity (K,) of these free GPUs (L,)."""
        left = self._left.less(self._of_chosen(chosen)) if len(chosen.jobs) else self._left
        capacity = self._by_type(free)
        if self._everyone.resources:
            capacity = np.concatenate([capacity, np.maximum(self._total - self._used_by(chosen), 0.0)])
        return left, capacity

    def lent(self, asked: Ints, chosen: Chosen) -> Iterator[TeamLimits]:
        """What is still guaranteed after the turn of these jobs: first without that of the lowest teams.

        So what a team cannot use goes to the team above it first. `chosen`: as in `room`.
        """
        if not self._left.guaranteed.any():
            return
        left = self._left.less(self._of_chosen(chosen)) if len(chosen.jobs) else self._left
        now = self._usable(left, chosen.jobs)
        rest = self._usable(left, np.concatenate([chosen.jobs, asked])).guaranteed
        for layer in reversed(now.layers):
            guaranteed = now.guaranteed.copy()
            guaranteed[layer] = rest[layer]
            if not np.array_equal(guaranteed, now.guaranteed):
                yield (now := replace(now, guaranteed=guaranteed))

    def guaranteed(self) -> Ints:
        """GPUs of each type that are guaranteed to teams whose jobs in the plan can use them, (T,)."""
        return self._usable(self._left, NONE_CHOSEN.jobs).reserved.astype(np.int64)

    def keeping(self, leases: Chosen, capacity: Ints) -> Chosen:
        """Those of these leases that can continue next to what the plan's other jobs are guaranteed, oldest first."""
        jobs, room = self._jobs, self.room(capacity, NONE_CHOSEN)
        kept: set[int] = set()
        type_of = self._pool.domain_type
        for k in np.lexsort((leases.jobs, jobs.began_s[leases.jobs])).tolist():
            row, partner, gpu_type = int(leases.jobs[k]), int(leases.partner[k]), int(type_of[leases.domains[k]])
            if row in kept or not room.allows(gpu_type, int(leases.gpus[k]), row, partner):
                continue
            room.take(gpu_type, int(leases.gpus[k]), row, partner)
            kept |= {row, partner} - {-1}
        return leases.among(np.isin(leases.jobs, np.array(sorted(kept), dtype=np.int64)))

    def _usable(self, left: TeamLimits, served: Ints) -> TeamLimits:
        """What is guaranteed to those of the plan's jobs that are not among `served`."""
        waits = ~self._jobs.marks(served)[self._demand]
        demand = self._demand[waits]
        return usable(left.of(demand), self._jobs, demand, self._runs[waits])

    def _of_chosen(self, chosen: Chosen) -> Floats:
        """What these jobs hold by their own team, (E, K), counted as in `held`."""
        limits, gpus = self._everyone.of(chosen.jobs), self._gpus_of(chosen)
        return limits.of_teams(_counted(limits, gpus, self._jobs.entity, chosen.jobs, chosen.partner), limits.team)

    def _gpus_of(self, chosen: Chosen) -> Floats:
        gpus = np.zeros((len(chosen.jobs), self._everyone.type_count))
        gpus[np.arange(len(chosen.jobs)), self._pool.domain_type[chosen.domains]] = chosen.gpus
        return gpus

    def _of_nodes(self) -> Floats:
        """What nodes have of each resource for the plan's jobs, without its other leases; infinite = not known."""
        limits, pool, planner = self._everyone, self._pool, self._planner
        if not limits.resources:
            return np.zeros(0)
        nodes = np.unique(pool.node_of[pool.usable])
        kinds, amounts = np.array(pool.node_type)[nodes], np.array(pool.node_amounts)[nodes] / THOUSANDTHS
        found = np.zeros(len(limits.resources))
        for i, (kind, name) in enumerate(limits.resources):
            of_type = amounts[kinds == kind, RESOURCES.index(name)]
            found[i] = of_type.sum() if (of_type > 0).all() else np.inf
        jobs, holding = self._jobs, planner.holding[self._jobs.lease[planner.holding] >= 0]
        gpus = np.zeros((len(holding), limits.type_count))
        gpus[np.arange(len(holding)), jobs.lease_type[holding]] = jobs.gpus[holding]
        used = limits.of(holding).with_resources(gpus)[:, limits.type_count :].sum(axis=0)
        return np.asarray(found - used - self._used_by(planner.elsewhere))

    def _used_by(self, chosen: Chosen) -> Floats:
        """What these jobs need of each resource other than GPUs, (K - T)."""
        amounts = self._everyone.of(chosen.jobs).with_resources(self._gpus_of(chosen))
        return np.asarray(amounts[:, self._everyone.type_count :].sum(axis=0))

    def _by_type(self, free: Ints) -> Floats:
        found = np.zeros(len(self._pool.gpu_types))
        np.add.at(found, self._pool.domain_type, free)
        return found

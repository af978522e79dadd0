"""Teams in a running scheduler: their jobs and GPUs, quotas, what they borrow and lend, and at what price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.gpus import NONE, GpuPool
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.mechanism.team_plan import held, limits_of_jobs
from gavelpy.mechanism.teams import RESOURCES, parted
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import THOUSANDTHS
from gavelpy.model.team_limits import CLUSTER, NEGLIGIBLE, RESOURCE, TeamLimits
from gavelpy.model.team_problem import WORDS, TeamRow, title

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState


@dataclass(frozen=True)
class TeamLimitStatus:
    """Limits of a team on one GPU type, and what it holds there with the teams below it."""

    gpu_type: str  # which the cluster may not have; or a resource of its nodes, as "v100:cpus"
    quota: int  # -1 = no limit
    guaranteed: int
    held: int
    borrowed: int  # of GPUs guaranteed to other teams
    lent: int  # of those guaranteed to it
    marginal_value: float  # of one more GPU of the quota, by the last allocation; NaN = nothing is optimised


@dataclass(frozen=True)
class TeamStatus:
    """A team. Its numbers do not include the teams below it, but those of `limits` do."""

    name: str
    weight: float
    policy: str
    parent: str  # empty = none
    members: Sequence[str]  # empty = all
    jobs_waiting: int
    jobs_running: int
    gpus_in_use: int
    gpus_owed: float  # shares in the allocation in force, in GPUs
    limits: Sequence[TeamLimitStatus]  # on the types with a limit of any team


def team_statuses(scheduler: SchedulerState) -> list[TeamStatus]:
    """The configured teams with numbers of their own jobs."""
    jobs, pool = scheduler.core.jobs, scheduler.core.pool
    teams = scheduler.core.settings.teams
    if not teams:
        return []
    active, names = jobs.active, len(jobs.entities)
    entity = jobs.entity[active]
    runs = jobs.state[active] == JobState.RUNNING
    of_holder = jobs.entity[pool.job[pool.job != NONE]]
    alone = jobs.target[active].sum(axis=1) * jobs.gpus[active]  # of jobs of one size
    owed = (alone + jobs.claims.gpus_owed(jobs.count)[active])[entity >= 0]
    waiting, running, in_use, shares = (
        np.bincount(rows[rows >= 0], weights, minlength=names)
        for rows, weights in ((entity[~runs], None), (entity[runs], None), (of_holder, None), (entity, owed))
    )
    columns = [[*counts.tolist(), 0] for counts in (waiting, running, in_use, shares)]
    row_of = {name: row for row, name in enumerate(jobs.entities)}
    limits = _Limits(scheduler) if scheduler.core.settings.limits_teams else None
    found = []
    for place, team in enumerate(teams):
        row = row_of.get(team.name, names)  # the last place: no job has named it
        waits, runs_now, gpus, owed_gpus = (column[row] for column in columns)
        found.append(
            TeamStatus(
                name=team.name,
                weight=team.weight,
                policy=str(team.policy),
                parent=team.parent,
                members=team.members,
                jobs_waiting=int(waits),
                jobs_running=int(runs_now),
                gpus_in_use=int(gpus),
                gpus_owed=float(owed_gpus),
                limits=() if limits is None else limits.of_team(place),
            )
        )
    return found


def team_notes(scheduler: SchedulerState, job: int) -> list[str]:
    """What the teams of an unfinished job have to do with its GPUs, or with those that it waits for."""
    core = scheduler.core
    row = core.jobs.ids.row(job)
    if not core.settings.limits_teams or core.jobs.state[row] > LAST_ALIVE:
        return []
    found, waits = _Limits(scheduler), core.jobs.lease[row] < 0
    above = found.limits.above(int(limits_of_jobs(core.jobs, core.pool, core.settings, np.array([row])).team[0]))
    types = np.flatnonzero(core.jobs.rate[row] > 0) if waits else core.jobs.lease_type[[row]]
    notes = []
    columns = [(t, k, i) for t in types.tolist() for k, i in ((t, -1), *found.limits.columns_of(t))]
    needs = limits_of_jobs(core.jobs, core.pool, core.settings, np.array([row]), found.columns[: found.type_count])
    for t, i, team in ((k, i, team) for _, k, i in columns for team in above):
        status, name = found.on_type(team, t), found.limits.names[team]
        needed = core.jobs.gpus[row] * (1.0 if i < 0 else needs.per_gpu[0, i])
        if status.quota >= 0 and needed and (not waits or status.held + needed > status.quota):
            worth = _worth(status.marginal_value, f"{WORDS[parted(status.gpu_type)[1]]} of this quota")
            notes.append(f"team {name} holds {status.held} of its quota of {status.quota} {status.gpu_type}{worth}")
        if status.borrowed and not waits:
            lenders = f"{status.borrowed} {status.gpu_type} of team {found.lenders(team, t)}"
            worth = _worth(found.price(t), f"{status.gpu_type} that is not guaranteed to others")
            notes.append(f"team {name} borrows {lenders}, to the end of a round in which that team needs them{worth}")
    return notes


def _worth(price: float, what: str) -> str:
    """What the last allocation shows about one more GPU, as a clause; empty if it gains nothing or is not known."""
    return f"; one more {what} raises the objective by {price:.3g}" if price > 0 else ""


def _whole(amount: float) -> int:
    """An amount for people, rounded up."""
    return math.ceil(amount - NEGLIGIBLE)


def _of_nodes(pool: GpuPool, kind: int, resource: int) -> float:
    """What the nodes of a type have of a resource."""
    nodes = np.unique(pool.node_of[pool.usable & (pool.type_of == kind)]).tolist()
    return float(sum(pool.node_amounts[node][resource] for node in nodes)) / THOUSANDTHS


class _Limits:
    """Limits of teams, and what they hold now."""

    def __init__(self, scheduler: SchedulerState) -> None:
        core, self._engine = scheduler.core, scheduler.engine
        jobs, pool = core.jobs, core.pool
        named = {name for team in core.settings.teams for name in (*team.quota, *team.guaranteed)}
        types = (*pool.gpu_types, *sorted({parted(name)[0] for name in named} - set(pool.gpu_types)))
        self.limits: TeamLimits = limits_of_jobs(jobs, pool, core.settings, jobs.leased, types)
        self.columns = (*types, *(f"{types[kind]}{RESOURCE}{name}" for kind, name in self.limits.resources))
        self._shown = [k for k, name in enumerate(self.columns) if name in named]
        none = replace(self.limits, team=np.where(self.limits.team < 0, 0, -1))
        own = held(jobs, self.limits, jobs.leased)
        others: Floats = held(jobs, none, jobs.leased).sum(axis=0)
        capacity = np.zeros(len(self.columns))
        capacity[: len(pool.counts)] = pool.counts
        capacity[len(types) :] = [_of_nodes(pool, kind, RESOURCES.index(name)) for kind, name in self.limits.resources]
        self._held = self.limits.with_below(own)
        self._borrowed, self._lent = self.limits.loans(np.vstack([own, others]), capacity)

    @property
    def type_count(self) -> int:
        """How many of the columns are GPU types."""
        return self.limits.type_count

    def of_team(self, team: int) -> list[TeamLimitStatus]:
        """The status of a team on the types with a limit of any team."""
        return [self.on_type(team, t) for t in self._shown]

    def on_type(self, team: int, t: int) -> TeamLimitStatus:
        """The status of a team on a type."""
        kind, resource = parted(self.columns[t])
        quota, row = self.limits.quota[team, t], title(self.limits.names, TeamRow(team, (), resource))
        return TeamLimitStatus(
            gpu_type=self.columns[t],
            quota=int(quota) if math.isfinite(quota) else -1,
            guaranteed=int(self.limits.guaranteed[team, t]),
            held=_whole(self._held[team, t]),
            borrowed=_whole(self._borrowed[team, t]),
            lent=_whole(self._lent[team, t]),
            marginal_value=self._engine.resource_prices.get((kind, row), 0.0),
        )

    def lenders(self, team: int, t: int) -> str:
        """The teams next to a team that lend GPUs of a type."""
        beside = np.flatnonzero((self.limits.parent == self.limits.parent[team]) & (self._lent[:, t] > 0))
        return " and ".join(self.limits.names[lender] for lender in beside.tolist())

    def price(self, t: int) -> float:
        """What one more GPU of a type that is not guaranteed to others is worth, by the last allocation."""
        gpu_type, resource = parted(self.columns[t])
        rows = f"{title(self.limits.names, TeamRow(CLUSTER, (), resource))} not guaranteed"
        prices = self._engine.resource_prices.items()
        of_type = [price for (kind, row), price in prices if kind == gpu_type and row.startswith(rows)]
        return max(of_type, default=0.0)

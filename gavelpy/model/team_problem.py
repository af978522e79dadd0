"""The limits of teams in a problem: rows of quotas and of what is guaranteed, as further resources.

Each row limits what the jobs in a team, outside of some teams below it, hold of one resource: see `team_limits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import GPUS, THOUSANDTHS, AllocationProblem
from gavelpy.model.team_limits import CLUSTER, NEGLIGIBLE, TeamLimits

WORDS = {GPUS: "GPU", "cpus": "CPU core", "memory_gib": "GiB of memory"}


@dataclass(frozen=True)
class TeamRow:
    """A constraint on shares: how much of a resource the jobs in a team hold, outside of some teams below it."""

    team: int  # or CLUSTER
    without: tuple[int, ...] = ()  # ascending
    resource: str = GPUS


@dataclass(frozen=True, eq=False)
class TeamProblem:
    """A problem, and the limits of the teams of its jobs."""

    limits: TeamLimits
    problem: AllocationProblem

    def quotas(self) -> list[TeamRow]:
        """The rows of quotas that can limit the problem's jobs."""
        most = np.zeros(self.problem.job_count)
        np.maximum.at(most, self.problem.member_job, self.problem.gpus_occupied[self.problem.member_configuration])
        amounts = self.limits.with_resources(most[:, None] * np.ones(len(self.problem.gpu_types)))
        wanted = self.limits.with_below(self.limits.of_teams(amounts, self.limits.team))
        limits = self.limits.quota < np.minimum(wanted, self.capacity)
        return [
            TeamRow(team, (), name)
            for name in self.counted
            for team in np.flatnonzero(limits[:, self._columns(name)].any(axis=1)).tolist()
        ]

    @property
    def counted(self) -> list[str]:
        """The resources that any column is of, GPUs first."""
        return list(dict.fromkeys([GPUS, *(name for _, name in self.limits.resources)]))

    def _columns(self, resource: str) -> list[int]:
        """The columns of a resource."""
        if resource == GPUS:
            return list(range(self.limits.type_count))
        return [self.limits.type_count + i for i, (_, name) in enumerate(self.limits.resources) if name == resource]

    def _types(self, resource: str) -> list[int]:
        """The GPU type of each of its columns."""
        if resource == GPUS:
            return list(range(self.limits.type_count))
        return [kind for kind, name in self.limits.resources if name == resource]

    @cached_property
    def capacity(self) -> Floats:
        """What the problem has of each column, (K,); infinite where it does not count a resource."""
        found = np.full(self.limits.quota.shape[1], np.inf)
        found[: self.limits.type_count] = self.problem.gpu_counts
        for k, (kind, name) in zip(self.limits.of_resources, self.limits.resources, strict=True):
            if name in self.problem.resources:
                found[k] = self.problem.capacity[kind, self.problem.resources.index(name)] / THOUSANDTHS
        return found

    def exceeded(self, share: Floats) -> list[TeamRow]:
        """Rows that these shares (C, T) exceed because of guaranteed GPUs; empty if they keep within all."""
        if not self.limits.guaranteed.any():
            return []
        own, others = self._held(share)
        need, reserve = self.limits.reserves(own)
        whole, capacity = others + reserve[self.limits.parent < 0].sum(axis=0), self.capacity
        found: dict[TeamRow, None] = {}
        for team in (CLUSTER, *range(len(self.limits.names))):
            more = whole - capacity if team == CLUSTER else need[team] - self.limits.quota[team]
            for k in np.flatnonzero(more > NEGLIGIBLE).tolist():
                lacking = self._lacking(team, need[:, k], self.limits.guaranteed[:, k])
                if lacking:
                    name = GPUS if k < self.limits.type_count else self.limits.resources[k - self.limits.type_count][1]
                    found[TeamRow(team, lacking, name)] = None
        return list(found)

    def _held(self, share: Floats) -> tuple[Floats, Floats]:
        """What the jobs of each team itself hold by these shares (C, T), (E, K), and those of no team, (K,)."""
        first = self.problem.member_job[np.searchsorted(self.problem.member_configuration, np.arange(len(share)))]
        gpus = self.problem.gpus_occupied[:, None] * share
        own, others = self.limits.of_teams(gpus, self.limits.team[first]), gpus[self.limits.team[first] < 0].sum(axis=0)
        if not self.limits.resources:
            return own, others
        members = share[self.problem.member_configuration]  # (M, T)
        team = self.limits.team[self.problem.member_job]
        amounts = np.column_stack(
            [self._needed(name) * members[:, kind] for kind, name in self.limits.resources]
        )  # (M, K - T)
        more = np.zeros((len(self.limits.names), len(self.limits.resources)))
        np.add.at(more, team[team >= 0], amounts[team >= 0])
        return np.column_stack([own, more]), np.concatenate([others, amounts[team < 0].sum(axis=0)])

    def _needed(self, resource: str) -> Floats:
        """What each membership needs of a resource other than GPUs, (M,): alone as the problem states it."""
        i = next(i for i, (_, name) in enumerate(self.limits.resources) if name == resource)
        rows = self.problem.member_configuration
        found = self.problem.gpus_occupied[rows] * self.limits.per_gpu[self.problem.member_job, i]
        if resource in self.problem.resources:
            stated = self.problem.occupied[rows, self.problem.resources.index(resource)]
            found = np.where(self.problem.member_count[rows] == 1, stated, found)
        return np.asarray(found)

    def _lacking(self, above: int, need: Floats, guaranteed: Floats) -> tuple[int, ...]:
        """The highest teams below `above` that have less than is guaranteed to them."""
        found: list[int] = []
        look = np.flatnonzero(self.limits.parent == above).tolist()
        while look:
            team = look.pop()
            if guaranteed[team] > need[team] + NEGLIGIBLE:
                found.append(team)
            else:
                look += np.flatnonzero(self.limits.parent == team).tolist()
        return tuple(sorted(found))

    def with_rows(self, rows: Sequence[TeamRow]) -> AllocationProblem:
        """The problem with these rows as further resources: a job needs its GPUs of each row that counts it.

        Two co-located jobs count for a team if one of them is in it, and as outside of others if both are.
        """
        if not rows:
            return self.problem
        demand = [self._demand(row) for row in rows]
        amounts = [self._amount(row, needed) for row, needed in zip(rows, demand, strict=True)]
        capacity = np.floor(np.column_stack(amounts) * THOUSANDTHS + NEGLIGIBLE).astype(np.int64)
        return replace(
            self.problem,
            team_rows=len(rows),
            resources=(*self.problem.resources, *(title(self.limits.names, row) for row in rows)),
            capacity=np.column_stack([self.problem.capacity, capacity]),
            demand=np.column_stack([self.problem.demand, *demand]),
        )

    def _amount(self, row: TeamRow, demand: Ints) -> Floats:
        """What a row allows on each type, (T,); all that the configurations need (C,) where nothing limits it."""
        columns, capacity = self._columns(row.resource), self.capacity
        most = capacity if row.team == CLUSTER else np.minimum(self.limits.quota[row.team], capacity)
        allowed = np.maximum(most - self.limits.guaranteed[list(row.without)].sum(axis=0), 0.0)[columns]
        found = np.full(len(self.problem.gpu_types), float(demand.sum()) / THOUSANDTHS)
        found[self._types(row.resource)] = np.where(np.isinf(allowed), found[self._types(row.resource)], allowed)
        return found

    def _demand(self, row: TeamRow) -> Ints:
        """What each configuration needs of a row, (C,), in thousandths."""
        outside = np.zeros(len(self.limits.team), dtype=np.bool_)
        for team in row.without:
            outside |= self.limits.is_in(team)
        if row.resource != GPUS:
            is_counted = (self.limits.is_in(row.team) & ~outside)[self.problem.member_job]
            needed, found = np.rint(self._needed(row.resource) * THOUSANDTHS), np.zeros(len(self.problem.demand))
            np.add.at(found, self.problem.member_configuration, np.where(is_counted, needed, 0.0))
            return found.astype(np.int64)
        counts, excluded = (np.zeros(self.problem.configuration_count, dtype=np.bool_) for _ in range(2))
        np.logical_or.at(
            counts, self.problem.member_configuration, self.limits.is_in(row.team)[self.problem.member_job]
        )
        np.logical_or.at(excluded, self.problem.member_configuration, outside[self.problem.member_job])
        return np.asarray((counts & ~excluded) * self.problem.demand[:, 0])


def title(names: Sequence[str], row: TeamRow) -> str:
    """The name of a row as a resource."""
    what = WORDS.get(row.resource, f"of {row.resource}")
    whose = f"{what} of the quota of {names[row.team]}" if row.team != CLUSTER else what
    others = ", ".join(names[team] for team in row.without)
    return f"{whose} not guaranteed to {others}" if others else whose

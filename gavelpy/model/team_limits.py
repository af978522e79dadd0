"""Quotas and guaranteed GPUs of a tree of teams: how much of each GPU type a team may hold, and what is left for it.

Theory of operation. For one GPU type, let own_i be the GPUs of the jobs of team i itself, q_i its quota and f_i the
GPUs that are guaranteed to it, as far as its jobs can use them now. Then, from the lowest teams up,

    need_i     = own_i + Σ_c reserve_c        over the teams c right below i
    reserve_i  = max(f_i, need_i)

and shares or plans must have need_i <= q_i for each team, and need <= GPUs for the whole cluster, which counts like a
team above all others. So no team exceeds its quota, and what is guaranteed to a team remains free until its jobs have
it.

As rows of a linear program: for each team i and each set S of teams below it, none of them below another, the jobs in i
outside of S hold at most q_i − Σ_S f. These are too many rows to list, and few of them limit anything: `exceeded` finds
one that given shares exceed. Those with an empty S are the quotas.

GPUs that other jobs hold anyway are subtracted (`less`): from the quotas, and from what is guaranteed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem

CLUSTER = -1  # in place of a team: all jobs
NEGLIGIBLE = 1e-6  # GPUs


@dataclass(frozen=True)
class TeamRow:
    """A constraint on shares: the jobs in a team, outside of some teams below it, hold at most so many GPUs."""

    team: int  # or CLUSTER
    without: tuple[int, ...] = ()  # ascending


@dataclass(frozen=True, eq=False)
class TeamLimits:
    """Quotas and guaranteed GPUs of E teams on T GPU types, and the team of each of J jobs."""

    names: tuple[str, ...]  # E
    parent: Ints  # (E,) row of the team above, -1 = none
    quota: Floats  # (E, T) GPUs; infinite = no limit
    guaranteed: Floats  # (E, T) GPUs
    team: Ints  # (J,) row of each job's team, -1 = none

    # The tree ---------------------------------------------------------------------------------------------------

    @cached_property
    def layers(self) -> list[Ints]:
        """The teams of each level, the top level first."""
        depth, above = np.zeros(len(self.parent), dtype=np.int64), self.parent
        while (above >= 0).any():
            depth += above >= 0
            above = np.where(above >= 0, self.parent[above], -1)
        return [np.flatnonzero(depth == d) for d in range(depth.max(initial=-1) + 1)]

    def of_teams(self, amounts: Floats, team: Ints) -> Floats:
        """Sums of amounts (K, T) by the team of each, (E, T); without those of no team."""
        own = np.zeros((len(self.names), amounts.shape[1]))
        inside = team >= 0
        np.add.at(own, team[inside], amounts[inside])
        return own

    def with_below(self, own: Floats) -> Floats:
        """Amounts of each team (E, T) with those of the teams below it."""
        total = own.copy()
        for layer in reversed(self.layers[1:]):
            np.add.at(total, self.parent[layer], total[layer])
        return total

    def above(self, team: int) -> list[int]:
        """A team and those above it, up to the top; empty for none."""
        found: list[int] = []
        while team != CLUSTER:
            found.append(team)
            team = int(self.parent[team])
        return found

    def is_in(self, team: int) -> Bools:
        """Whether each job is in a team or below it, (J,)."""
        if team == CLUSTER:
            return np.ones(len(self.team), dtype=np.bool_)
        inside = np.zeros(len(self.names) + 1, dtype=np.bool_)  # the last place: no team
        inside[team] = True
        for layer in self.layers[1:]:
            inside[layer] |= inside[self.parent[layer]]
        return np.asarray(inside[self.team])

    @cached_property
    def largest(self) -> Floats:
        """The most GPUs that a job of each team can hold within the quotas, (E, T)."""
        most = self.quota.copy()
        for layer in self.layers[1:]:
            most[layer] = np.minimum(most[layer], most[self.parent[layer]])
        return most

    def fits(self, gpus: Ints | Floats) -> Bools:
        """Whether jobs that need so many GPUs, (J,), can hold them within the quotas of their teams, (J, T)."""
        most = np.vstack([self.largest, np.full(self.quota.shape[1], np.inf)])  # the last place: no team
        return np.asarray(gpus[:, None] <= most[self.team])

    # What is left -----------------------------------------------------------------------------------------------

    def of(self, rows: Ints) -> TeamLimits:
        """The same for some of the jobs."""
        return replace(self, team=self.team[rows])

    def less(self, own: Floats) -> TeamLimits:
        """What is left if jobs of each team, without the teams below it, hold these GPUs (E, T)."""
        held = self.with_below(own)
        return replace(
            self, quota=np.maximum(self.quota - held, 0.0), guaranteed=np.maximum(self.guaranteed - held, 0.0)
        )

    def usable(self, gpus: Floats, runs: Bools, most: Floats | None = None) -> TeamLimits:
        """With no more guaranteed than these jobs can use: (J,) GPUs of each, and whether it runs on each type (J, T).

        A job that needs more GPUs than are guaranteed uses none of them; one with several sizes, of which `gpus` has
        the least, uses up to `most` (J,).
        """
        most = gpus if most is None else most
        wanted = np.zeros_like(self.guaranteed)
        for size in np.unique(gpus).tolist():
            of_size = np.where(gpus == size, most, 0.0)
            total = self.with_below(self.of_teams(of_size[:, None] * runs, self.team))
            wanted += np.where(size <= self.guaranteed, total, 0.0)
        return replace(self, guaranteed=np.minimum(self.guaranteed, wanted))

    def usable_by(self, problem: AllocationProblem) -> TeamLimits:
        """With no more guaranteed than the problem's jobs can use, each alone in any of its sizes."""
        alone = problem.member_count[problem.member_configuration] == 1
        jobs, gpus = problem.member_job[alone], problem.gpus_occupied[problem.member_configuration[alone]]
        least, most = np.full(problem.job_count, np.inf), np.zeros(problem.job_count)
        np.minimum.at(least, jobs, gpus)
        np.maximum.at(most, jobs, gpus)
        return self.usable(least, (problem.rate_alone_steps_per_s > 0) & self.fits(least), most)

    def fitted(self, capacity: Floats) -> TeamLimits:
        """With no more guaranteed than there is, by GPU type (T,), and within the quotas of the teams above.

        Where it is too much, each team gets a part in proportion, in whole GPUs, the first teams the rest.
        """
        need, part = self.reserves(np.zeros_like(self.guaranteed))
        if (need <= self.quota).all() and (part[self.parent < 0].sum(axis=0) <= capacity).all():
            return self
        guaranteed = self.guaranteed.copy()
        for team in (CLUSTER, *np.concatenate(self.layers).tolist()):
            below = np.flatnonzero(self.parent == team)
            limit = capacity if team == CLUSTER else np.minimum(self.quota[team], part[team])
            for t in np.flatnonzero(part[below].sum(axis=0) > limit).tolist():
                part[below, t] = _in_proportion(part[below, t], float(limit[t]))
            guaranteed[below] = np.minimum(guaranteed[below], part[below])
        return replace(self, guaranteed=guaranteed)

    def reserves(self, own: Floats) -> tuple[Floats, Floats]:
        """`need` and `reserve` of each team, (E, T) each, where jobs of each team itself hold these GPUs (E, T)."""
        need, reserve = own.copy(), np.zeros_like(own)
        for layer in reversed(self.layers):
            reserve[layer] = np.maximum(self.guaranteed[layer], need[layer])
            below = layer[self.parent[layer] >= 0]
            np.add.at(need, self.parent[below], reserve[below])
        return need, reserve

    @property
    def reserved(self) -> Floats:
        """GPUs of each type that are guaranteed in all, (T,)."""
        return np.asarray(self.reserves(np.zeros_like(self.guaranteed))[1][self.parent < 0].sum(axis=0))

    def loans(self, own: Floats, capacity: Floats) -> tuple[Floats, Floats]:
        """GPUs that each team borrows and lends while jobs of each team itself hold `own`, (E, T) each.

        Of `capacity` (T,) GPUs of each type, `own` has one more row for jobs of no team. Among teams with the same
        parent, those that lend have the fewest of what is guaranteed to them, those that borrow the most beyond that.
        """
        need = self.with_below(own[:-1])
        whole, borrowed, lent = np.maximum(need, self.guaranteed), np.zeros_like(need), np.zeros_like(need)
        for team in (CLUSTER, *range(len(self.names))):
            below = np.flatnonzero(self.parent == team)
            room = (capacity if team == CLUSTER else whole[team]) - own[team]
            for t in np.flatnonzero(whole[below].sum(axis=0) > room).tolist():
                over = float(whole[below, t].sum() - room[t])
                lent[below, t] = _from_the_largest(whole[below, t] - need[below, t], over)
                excess = need[below, t] - self.guaranteed[below, t]
                borrowed[below, t] = _from_the_largest(excess, float(lent[below, t].sum()))
        return borrowed, lent

    # Rows of a problem ------------------------------------------------------------------------------------------

    def quotas(self, problem: AllocationProblem) -> list[TeamRow]:
        """The rows of quotas that can limit the problem's jobs."""
        most = np.zeros(problem.job_count)
        np.maximum.at(most, problem.member_job, problem.gpus_occupied[problem.member_configuration])
        wanted = self.with_below(self.of_teams(most[:, None] * np.ones(len(problem.gpu_types)), self.team))
        limits = (self.quota < np.minimum(wanted, problem.gpu_counts)).any(axis=1)
        return [TeamRow(team) for team in np.flatnonzero(limits).tolist()]

    def exceeded(self, problem: AllocationProblem, share: Floats) -> list[TeamRow]:
        """Rows that these shares (C, T) exceed because of guaranteed GPUs; empty if they keep within all."""
        if not self.guaranteed.any():
            return []
        first = problem.member_job[np.searchsorted(problem.member_configuration, np.arange(len(share)))]
        gpus = problem.gpus_occupied[:, None] * share
        need, reserve = self.reserves(self.of_teams(gpus, self.team[first]))
        top = self.parent < 0
        whole = gpus[self.team[first] < 0].sum(axis=0) + reserve[top].sum(axis=0)
        found: dict[TeamRow, None] = {}
        for team in (CLUSTER, *range(len(self.names))):
            over = whole > problem.gpu_counts if team == CLUSTER else need[team] > self.quota[team]
            more = whole - problem.gpu_counts if team == CLUSTER else need[team] - self.quota[team]
            for t in np.flatnonzero(over & (more > NEGLIGIBLE)).tolist():
                lacking = self._lacking(team, need[:, t], self.guaranteed[:, t])
                if lacking:
                    found[TeamRow(team, lacking)] = None
        return list(found)

    def _lacking(self, above: int, need: Floats, guaranteed: Floats) -> tuple[int, ...]:
        """The highest teams below `above` that have less than is guaranteed to them."""
        found: list[int] = []
        look = np.flatnonzero(self.parent == above).tolist()
        while look:
            team = look.pop()
            if guaranteed[team] > need[team] + NEGLIGIBLE:
                found.append(team)
            else:
                look += np.flatnonzero(self.parent == team).tolist()
        return tuple(sorted(found))

    def with_rows(self, problem: AllocationProblem, rows: Sequence[TeamRow]) -> AllocationProblem:
        """The problem with these rows as further resources: a job needs its GPUs of each row that counts it.

        Two co-located jobs count for a team if one of them is in it, and as outside of others if both are.
        """
        if not rows:
            return problem
        columns = [self._counts(problem, row) for row in rows]
        amounts = [self.amount(row, problem.gpu_counts) for row in rows]
        capacity = np.floor(np.column_stack(amounts) * THOUSANDTHS + NEGLIGIBLE).astype(np.int64)
        return replace(
            problem,
            team_rows=len(rows),
            resources=(*problem.resources, *(self.title(row) for row in rows)),
            capacity=np.column_stack([problem.capacity, capacity]),
            demand=np.column_stack([problem.demand, np.column_stack(columns) * problem.demand[:, :1]]),
        )

    def amount(self, row: TeamRow, gpu_counts: Floats) -> Floats:
        """GPUs of each type that a row allows, (T,)."""
        most = gpu_counts if row.team == CLUSTER else np.minimum(self.quota[row.team], gpu_counts)
        return np.asarray(np.maximum(most - self.guaranteed[list(row.without)].sum(axis=0), 0.0))

    def title(self, row: TeamRow) -> str:
        """The name of a row as a resource."""
        whose = f"GPU of the quota of {self.names[row.team]}" if row.team != CLUSTER else "GPU"
        others = ", ".join(self.names[team] for team in row.without)
        return f"{whose} not guaranteed to {others}" if others else whose

    def _counts(self, problem: AllocationProblem, row: TeamRow) -> Ints:
        """Whether each configuration counts in a row, (C,) of 0 and 1."""
        outside = np.zeros(len(self.team), dtype=np.bool_)
        for team in row.without:
            outside |= self.is_in(team)
        counts, excluded = (np.zeros(problem.configuration_count, dtype=np.bool_) for _ in range(2))
        np.logical_or.at(counts, problem.member_configuration, self.is_in(row.team)[problem.member_job])
        np.logical_or.at(excluded, problem.member_configuration, outside[problem.member_job])
        return np.asarray(counts & ~excluded, dtype=np.int64)


def _in_proportion(amounts: Floats, limit: float) -> Floats:
    """Whole numbers in proportion to these amounts, up to them, with this sum at most; the first get the rest."""
    total, limit = amounts.sum(), np.floor(limit)
    parts = np.floor(amounts * limit / total)
    rest = int(limit - parts.sum())
    for k in np.flatnonzero(parts + 1 <= amounts)[:rest].tolist():
        parts[k] += 1
    return np.asarray(parts)


def _from_the_largest(amounts: Floats, total: float) -> Floats:
    """Parts of these amounts, the largest first, with this sum at most."""
    parts = np.zeros_like(amounts)
    for k in np.argsort(-amounts, kind="stable").tolist():
        parts[k] = min(max(amounts[k], 0.0), total)
        total -= parts[k]
    return parts

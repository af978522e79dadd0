"""Quotas and guarantees of a tree of teams: how many GPUs, CPU cores and memory a team may hold, and what is left.

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

The same holds for CPU cores and memory of the nodes of a type, each on its own: columns after those of GPU types. A job
needs an amount of them with each of its GPUs; of two co-located jobs each needs its own.

GPUs that other jobs hold anyway are subtracted (`less`): from the quotas, and from what is guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem

CLUSTER = -1  # in place of a team: all jobs
NEGLIGIBLE = 1e-6  # GPUs
RESOURCE = ":"  # between a GPU type and a resource of its nodes, in the names of columns


@dataclass(frozen=True, eq=False)
class TeamLimits:
    """Quotas and guarantees of E teams on K columns, and the team of each of J jobs.

    The first T columns are GPUs by type; the others are `resources` of the nodes of a type.
    """

    names: tuple[str, ...]  # E
    parent: Ints  # (E,) row of the team above, -1 = none
    quota: Floats  # (E, K); infinite = no limit
    guaranteed: Floats  # (E, K)
    team: Ints  # (J,) row of each job's team, -1 = none
    resources: tuple[tuple[int, str], ...] = ()  # (K - T) GPU type and resource
    per_gpu: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # (J, K - T) of each job; unused without any

    @property
    def type_count(self) -> int:
        """T."""
        return int(self.quota.shape[1]) - len(self.resources)

    def columns_of(self, gpu_type: int) -> list[tuple[int, int]]:
        """The columns of resources of a type, and the column of `per_gpu` of each."""
        return [(self.type_count + i, i) for i, (kind, _) in enumerate(self.resources) if kind == gpu_type]

    def with_resources(self, gpus: Floats) -> Floats:
        """What each job holds, (J, K), that holds these GPUs of each type (J, T)."""
        if not self.resources:
            return gpus
        kinds = [kind for kind, _ in self.resources]
        return np.column_stack([gpus, gpus[:, kinds] * self.per_gpu])

    def needing(self, problem: AllocationProblem) -> TeamLimits:
        """The same with what the problem's jobs need of each resource with each GPU, each alone."""
        if not self.resources:
            return self
        alone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)[::-1]
        found = np.zeros((problem.job_count, len(self.resources)))
        for i, (_, name) in enumerate(self.resources):
            if name in problem.resources:
                rows = problem.member_configuration[alone]
                amount = problem.occupied[rows, problem.resources.index(name)] / problem.gpus_occupied[rows]
                found[problem.member_job[alone], i] = amount  # of several sizes, the first one counts
        return replace(self, per_gpu=found)

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
        """Sums of amounts (N, K) by the team of each, (E, K); without those of no team."""
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
        most = np.vstack([self.largest, np.full(self.quota.shape[1], np.inf)])[self.team]  # the last place: no team
        found = gpus[:, None] <= most[:, : self.type_count]
        for i, (kind, _) in enumerate(self.resources):
            found[:, kind] &= gpus * self.per_gpu[:, i] <= most[:, self.type_count + i] + NEGLIGIBLE
        return np.asarray(found)

    # What is left -----------------------------------------------------------------------------------------------

    def of(self, rows: Ints) -> TeamLimits:
        """The same for some of the jobs."""
        return replace(self, team=self.team[rows], per_gpu=self.per_gpu[rows] if self.resources else self.per_gpu)

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
        amounts = self.with_resources(most[:, None] * runs)
        whole = slice(0, self.type_count)
        for columns, least in (
            (whole, gpus),
            *((slice(k, k + 1), gpus * self.per_gpu[:, k - self.type_count]) for k in self.of_resources),
        ):
            for size in np.unique(least).tolist():
                of_size = np.where((least == size)[:, None], amounts[:, columns], 0.0)
                total = self.with_below(self.of_teams(of_size, self.team))
                wanted[:, columns] += np.where(size <= self.guaranteed[:, columns], total, 0.0)
        return replace(self, guaranteed=np.minimum(self.guaranteed, wanted))

    @property
    def of_resources(self) -> range:
        """The columns of resources."""
        return range(self.type_count, self.quota.shape[1])

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
        whole = self.reserves(np.zeros_like(self.guaranteed))[1][self.parent < 0].sum(axis=0)
        return np.asarray(whole[: self.type_count])

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

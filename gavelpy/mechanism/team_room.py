"""What the quotas and guarantees of teams leave while a plan processes its queue, job by job: see `team_plan`.

Each job takes its GPUs, and what it needs with them of the CPU cores and memory that any team has limits of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.team_limits import CLUSTER, NEGLIGIBLE, TeamLimits

_Entry = tuple[int, dict[int, float], bool]  # column, amounts by team, and whether those of a pair add up


class TeamRoom:
    """What teams may still take while a plan processes its queue."""

    def __init__(
        self,
        limits: TeamLimits,
        strict: tuple[TeamLimits, Floats] | None,
        capacity: Floats,
        everyone: TeamLimits,
        barred: Bools,
    ) -> None:
        """`strict`: limits and capacity that jobs which are `barred` (N,) from borrowing share among them; None = none.

        These limits have all that is guaranteed, whether or not it is wanted now. `everyone` has the teams of all jobs
        (N,), and what they need.
        """
        team, per_gpu = everyone.team, everyone.per_gpu
        self._capacity, self._team = capacity, team.tolist()
        self._per_gpu = per_gpu.tolist()
        self._columns = [limits.columns_of(t) for t in range(limits.type_count)]
        self._plain = _Ledger(limits, capacity)
        self._strict = None if strict is None else _Ledger(*strict)
        self._barred: list[bool] = barred.tolist()
        self._taken: list[_Entry] = []

    def allows(self, gpu_type: int, gpus: int, job: int, partner: int = -1) -> bool:
        """Whether a job or pair may take so many GPUs, with the CPU cores and memory that it needs."""
        entries = self._entries(gpu_type, gpus, job, partner)
        if not all(self._plain.fits(*entry) for entry in entries):
            return False
        if self._strict is None or not self._stays(job, partner):
            return True
        return all(self._strict.fits(*entry) for entry in entries)

    def owes(self, gpu_type: int, gpus: int, job: int, gang: int) -> bool:
        """Whether so many GPUs of a type are still guaranteed to a team of the job that `gang`, a job, is not in."""
        return self._plain.owes(gpu_type, gpus, self._team[job], self._team[gang])

    def take(self, gpu_type: int, gpus: int, job: int, partner: int = -1) -> None:
        """Books the GPUs of a job or pair."""
        strict = self._strict if self._stays(job, partner) else None
        for entry in self._entries(gpu_type, gpus, job, partner):
            self._taken.append(entry)
            self._plain.book(*entry)
            if strict is not None:
                strict.book(*entry)

    def lend(self, limits: TeamLimits) -> None:
        """From now on, no more is guaranteed than by these limits."""
        self._plain = _Ledger(limits, self._capacity)
        for entry in self._taken:
            self._plain.book(*entry)

    def _stays(self, job: int, partner: int) -> bool:
        """Whether a job or pair could not give its GPUs back."""
        return self._barred[job] or (partner >= 0 and self._barred[partner])

    def _entries(self, gpu_type: int, gpus: int, job: int, partner: int) -> Sequence[_Entry]:
        """What a job or pair takes of each column; of other resources than GPUs, each of a pair its own."""
        of_gpus = {self._team[job]: float(gpus)}
        if partner >= 0:
            of_gpus[self._team[partner]] = float(gpus)
        found: list[_Entry] = [(gpu_type, of_gpus, False)]
        for column, i in self._columns[gpu_type]:
            amounts: dict[int, float] = {}
            for row in (job, partner) if partner >= 0 else (job,):
                amounts[self._team[row]] = amounts.get(self._team[row], 0.0) + gpus * self._per_gpu[row][i]
            if any(amounts.values()):
                found.append((column, amounts, True))
        return found


class _Ledger:
    """`need` of each team by GPU type, and what is neither needed nor reserved."""

    def __init__(self, limits: TeamLimits, capacity: Floats) -> None:
        limits = limits.fitted(capacity)
        need, reserve = limits.reserves(np.zeros_like(limits.guaranteed))
        self._parent: list[int] = limits.parent.tolist()
        self._need: list[list[float]] = need.T.tolist()
        self._guaranteed: list[list[float]] = limits.guaranteed.T.tolist()
        self._quota: list[list[float]] = limits.quota.T.tolist()
        self._left: list[float] = (capacity - reserve[limits.parent < 0].sum(axis=0)).tolist()

    def fits(self, column: int, amounts: Mapping[int, float], is_sum: bool) -> bool:
        """Whether jobs of these teams may take so much of a column together."""
        need, quota = self._need[column], self._quota[column]
        slack = NEGLIGIBLE if is_sum else 0.0
        return all(
            amount <= (self._left[column] if team == CLUSTER else quota[team] - need[team]) + slack
            for team, amount in self._more(column, amounts, is_sum).items()
        )

    def book(self, column: int, amounts: Mapping[int, float], is_sum: bool) -> None:
        """Books them."""
        for team, amount in self._more(column, amounts, is_sum).items():
            if team == CLUSTER:
                self._left[column] -= amount
            else:
                self._need[column][team] += amount

    def owes(self, column: int, amount: float, team: int, other: int) -> bool:
        """Whether so much more is guaranteed to a team, or to one above it, but to none that `other` is in or below."""
        need, guaranteed = self._need[column], self._guaranteed[column]
        shared = {CLUSTER}
        while other != CLUSTER:
            shared.add(other)
            other = self._parent[other]
        while team not in shared and amount > 0:
            amount = max(need[team] + amount, guaranteed[team]) - max(need[team], guaranteed[team])
            team = self._parent[team]
        return amount <= 0

    def _more(self, column: int, amounts: Mapping[int, float], is_sum: bool) -> dict[int, float]:
        """What these amounts add to the need of each team up to the top, where that is not reserved already.

        A team above both jobs of a pair needs its GPUs once, but the sum of other resources (`is_sum`).
        """
        need, guaranteed = self._need[column], self._guaranteed[column]
        found: dict[int, float] = {}
        is_pair = len(amounts) > 1
        for team, amount in amounts.items():
            while team != CLUSTER and amount > 0:
                before = found.get(team, 0.0) if is_pair else 0.0
                found[team] = before + amount if is_sum or amount > before else before
                floor, base = guaranteed[team], need[team] + (before if is_sum else 0.0)
                after = base + amount
                amount = (after if after > floor else floor) - (base if base > floor else floor)
                team = self._parent[team]
            if amount > 0:  # else they are guaranteed, also if borrowers have more than is left for barred jobs
                before = found.get(CLUSTER, 0.0)
                found[CLUSTER] = before + amount if is_sum else max(before, amount)
        return found

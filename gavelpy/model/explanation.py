"""Explains an allocation: the constraint that limits the rate of each job.

A job has the first of these limits that applies: it cannot run; it needs more GPUs than any type has; it runs at full
speed; it is at its rate floor; the policy leaves better GPUs idle; it runs all the time while better GPUs are full; all
GPUs that it can use are full.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem

NEAR = 1e-6  # relative: tolerance for equal rates and full GPU types


class Limit(IntEnum):
    """What limits a job's rate."""

    CANNOT_RUN = 0  # the job runs on no type that has GPUs
    OVERSIZED = 1  # every type on which it runs has fewer GPUs than it needs
    SPEED = 2  # it runs all the time on its fastest GPUs
    FLOOR = 3  # it has exactly its rate floor
    POLICY = 4  # better GPUs are idle, but the policy gains nothing by using them
    TIME = 5  # it runs all the time, partly on slower or shared GPUs, as better ones are full
    CAPACITY = 6  # it could run longer, but all GPUs that it can use are full


@dataclass(frozen=True, eq=False)
class Explanation:
    """The limit of each job, as arrays, as JSON and as text."""

    allocation: Allocation
    limit: Ints  # (J,) of Limit
    gpu_types: Bools  # (J, T) the types concerned: with TIME and CAPACITY full, with POLICY idle, with SPEED in use

    def text(self, job: int) -> str:
        """What limits the job in that row, as a clause without subject.

        >>> from gavelpy.policies.max_min_fairness import MaxMinFairness
        >>> p = AllocationProblem.of(["a", "b"], ["v100"], [1], [[4.0], [4.0]])
        >>> explanation(MaxMinFairness().allocate(p)).text(0)
        'has 50 % of its time: v100 (shadow price 0.5) is full'
        """
        jobs = self.allocation.problem.job_count
        if isinstance(job, bool) or not isinstance(job, int | np.integer) or not 0 <= job < jobs:
            raise InvalidInput(f"job must be a row in [0, {jobs}), got {job!r}")
        match Limit(int(self.limit[job])):
            case Limit.CANNOT_RUN | Limit.OVERSIZED:
                return why_stuck(self.allocation.problem, job)
            case Limit.SPEED:
                return f"runs all the time on {_listed(self._names(job))}, as fast as it can"
            case Limit.FLOOR:
                return f"has its rate floor of {self.allocation.rate_floor_steps_per_s[job]:.4g} steps/s"
            case Limit.POLICY:
                is_rule = bool(np.isnan(self.allocation.shadow_prices).all())
                cause = "the policy gives no more" if is_rule else "more would not raise the objective"
                return f"{self._time(job)}; {cause}, although {_are(self._idle(job), 'idle')}"
            case Limit.TIME:
                return f"{self._time(job)}, but not all at full speed: {_are(self._priced(job), 'full')}"
            case Limit.CAPACITY:
                return f"{self._time(job)}: {_are(self._priced(job), 'full')}"

    def to_json(self) -> dict[str, dict[str, Any]]:  # Any: JSON
        """By job: `held_by` (the limit), the `gpu_types` concerned, and the `text`."""
        types, ids = self.allocation.problem.gpu_types, self.allocation.problem.job_ids
        return {
            ids[job]: {
                "held_by": Limit(code).name.lower(),
                "gpu_types": [name for name, is_concerned in zip(types, concerned, strict=True) if is_concerned],
                "text": self.text(job),
            }
            for job, (code, concerned) in enumerate(zip(self.limit.tolist(), self.gpu_types.tolist(), strict=True))
        }

    def _names(self, job: int) -> list[str]:
        types = self.allocation.problem.gpu_types
        return [types[t] for t in np.flatnonzero(self.gpu_types[job]).tolist()]

    def _priced(self, job: int) -> list[str]:
        """Names of the types, with their shadow prices if positive."""
        prices = self.allocation.shadow_prices[self.gpu_types[job]].tolist()
        named = zip(self._names(job), prices, strict=True)
        return [f"{name} (shadow price {price:.3g})" if price > 0 else name for name, price in named]

    def _idle(self, job: int) -> list[str]:
        """Idle GPUs of each type concerned."""
        problem = self.allocation.problem
        left = (problem.gpu_counts - problem.gpus_occupied @ self.allocation.share)[self.gpu_types[job]].tolist()
        return [f"{gpus:.3g} {name}" for gpus, name in zip(left, self._names(job), strict=True)]

    def _time(self, job: int) -> str:
        time = float(_time_of(self.allocation, job))
        return f"has {100 * time:.3g} % of its time" if time > 0 else "has no share"


def explanation(allocation: Allocation) -> Explanation:
    """What limits each job of `allocation`.

    A type with fewer GPUs than a job needs counts only if the job has a share of it, as in the papers. After a blind
    policy, pass `allocation.evaluated_on(true problem)`; otherwise rates are those that the policy assumed.
    """
    problem, rates = allocation.problem, allocation.rate_steps_per_s
    time, gpus = allocation.job_share, problem.gpu_counts
    alone = _rate_alone(allocation)
    best = alone.max(axis=1, initial=0.0)
    floors = allocation.rate_floor_steps_per_s if len(allocation.rate_floor_steps_per_s) else np.zeros(len(best))
    full = problem.gpus_occupied @ allocation.share >= gpus * (1 - NEAR)
    all_time = time.sum(axis=1) >= 1 - NEAR
    slowest = np.where(all_time, _slowest_in_use(allocation), 0.0)
    better = alone > slowest[:, None] * (1 + NEAR)  # types on which more time would raise the rate
    idle = better & ~full
    at_speed = (rates >= best * (1 - NEAR)) | (all_time & ~better.any(axis=1))
    at_floor = (floors > 0) & (rates <= floors * (1 + NEAR))
    conditions = [~problem.can_run, problem.is_oversized, at_speed, at_floor, idle.any(axis=1), all_time]
    limit = np.select(conditions, [*Limit][:-1], default=Limit.CAPACITY)
    by_row = limit[:, None]
    concerned = np.where(by_row == Limit.SPEED, time > 0, np.where(by_row == Limit.POLICY, idle, better & full))
    concerned &= ~np.isin(by_row, (Limit.CANNOT_RUN, Limit.OVERSIZED, Limit.FLOOR))
    return Explanation(allocation, limit.astype(np.int64), concerned)


def why_stuck(problem: AllocationProblem, job: int) -> str:
    """Why the job in that row cannot run on this cluster; for jobs that cannot run and for oversized gangs."""
    gpus, usable = problem.gpus_asked[job], problem.rate_alone_steps_per_s[job] > 0
    if not usable.any():
        return "runs on none of the cluster's GPU types"
    most = problem.gpu_counts[usable].max()
    return f"needs {gpus:g} GPUs of one type; the types on which it runs have at most {most:g}"


def _rate_alone(allocation: Allocation) -> Floats:
    """Rate of each job alone on each type that can serve it, (J, T)."""
    p = allocation.problem
    possible = p.fits & (p.is_whole | (allocation.share > 0))
    rates = np.where(possible[p.member_configuration], p.member_rate_steps_per_s, 0.0)
    if p.runs_alone:
        return rates
    best = np.zeros((p.job_count, len(p.gpu_types)))
    lone = p.member_count[p.member_configuration] == 1
    np.maximum.at(best, p.member_job[lone], rates[lone])
    return best


def _slowest_in_use(allocation: Allocation) -> Floats:
    """Lowest rate at which each job runs some of the time, alone or co-located, (J,); infinite = it never runs."""
    p = allocation.problem
    in_use = allocation.share[p.member_configuration] > NEAR
    slowest: Floats = np.where(in_use, p.member_rate_steps_per_s, np.inf).min(axis=1, initial=np.inf)
    if p.runs_alone:
        return slowest
    least = np.full(p.job_count, np.inf)
    np.minimum.at(least, p.member_job, slowest)
    return least


def _time_of(allocation: Allocation, job: int) -> float:
    p = allocation.problem
    return float(allocation.share[p.member_configuration[p.member_job == job]].sum())


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _are(names: list[str], what: str) -> str:
    return f"{_listed(names)} {'are' if len(names) > 1 else 'is'} {what}"

"""Why each job gets what it gets: the constraint that holds its rate, read from an allocation's own arrays.

A job is held, in this order, by being unable to run; by asking for more GPUs than any type has; by its own speed; by
the floor it was promised; by nothing but its policy, where GPUs that would serve it better are idle; by its time,
where all of it is used and better GPUs are full; or by GPUs that are full.
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

NEAR = 1e-6  # relative: figures so near are equal, and GPUs so nearly used up are full


class Hold(IntEnum):
    """What keeps a job's rate from being higher."""

    CANNOT_RUN = 0  # it runs on no type that has GPUs
    OVERSIZED = 1  # every type that it runs on has fewer GPUs than it asks for
    SPEED = 2  # it runs all the time on its fastest GPUs
    FLOOR = 3  # it has the rate it was promised, and no more
    POLICY = 4  # GPUs that would serve it better are idle, and the policy gains nothing by giving it those
    TIME = 5  # it runs all the time, in part on GPUs that are not its fastest, or shared: better ones are full
    CAPACITY = 6  # it could run for longer, but all GPUs that it can use are full


@dataclass(frozen=True, eq=False)
class Explanation:
    """What holds each job. `to_json` and `text` say it for people."""

    allocation: Allocation
    hold: Ints  # (J,) of Hold
    gpu_types: Bools  # (J, T) the types that hold it are full, of POLICY idle, of SPEED those it runs on

    def text(self, job: int) -> str:
        """What holds the job in that row, in a clause without a subject.

        >>> from gavelpy.policies.max_min_fairness import MaxMinFairness
        >>> p = AllocationProblem.of(["a", "b"], ["v100"], [1], [[4.0], [4.0]])
        >>> explanation(MaxMinFairness().allocate(p)).text(0)
        'has 50 % of its time: v100 (price 0.5) is full'
        """
        jobs = self.allocation.problem.job_count
        if isinstance(job, bool) or not isinstance(job, int | np.integer) or not 0 <= job < jobs:
            raise InvalidInput(f"job must be a row in [0, {jobs}), got {job!r}")
        match Hold(int(self.hold[job])):
            case Hold.CANNOT_RUN | Hold.OVERSIZED:
                return why_stuck(self.allocation.problem, job)
            case Hold.SPEED:
                return f"runs all the time on {_listed(self._names(job))}, as fast as it can"
            case Hold.FLOOR:
                return f"has the {self.allocation.rate_floor_steps_per_s[job]:.4g} steps/s it was promised, and no more"
            case Hold.POLICY:
                ruled = bool(np.isnan(self.allocation.shadow_prices).all())
                decided = "the policy gives no more" if ruled else "the objective gains nothing by more"
                return f"{self._time(job)}, and {decided}, though {_are(self._idle(job), 'idle')}"
            case Hold.TIME:
                return f"{self._time(job)}, but not all at full speed: {_are(self._priced(job), 'full')}"
            case Hold.CAPACITY:
                return f"{self._time(job)}: {_are(self._priced(job), 'full')}"

    def to_json(self) -> dict[str, dict[str, Any]]:  # Any: JSON
        """By job: `held_by`, the `gpu_types` concerned, and the `text`."""
        types, ids = self.allocation.problem.gpu_types, self.allocation.problem.job_ids
        return {
            ids[job]: {
                "held_by": Hold(code).name.lower(),
                "gpu_types": [name for name, meant in zip(types, concerned, strict=True) if meant],
                "text": self.text(job),
            }
            for job, (code, concerned) in enumerate(zip(self.hold.tolist(), self.gpu_types.tolist(), strict=True))
        }

    def _names(self, job: int) -> list[str]:
        types = self.allocation.problem.gpu_types
        return [types[t] for t in np.flatnonzero(self.gpu_types[job]).tolist()]

    def _priced(self, job: int) -> list[str]:
        """Names, with what a GPU is worth to the objective where it is worth something."""
        prices = self.allocation.shadow_prices[self.gpu_types[job]].tolist()
        named = zip(self._names(job), prices, strict=True)
        return [f"{name} (price {price:.3g})" if price > 0 else name for name, price in named]

    def _idle(self, job: int) -> list[str]:
        """How many GPUs are left of each type."""
        problem = self.allocation.problem
        left = (problem.gpu_counts - problem.gpus_occupied @ self.allocation.share)[self.gpu_types[job]].tolist()
        return [f"{gpus:.3g} {name}" for gpus, name in zip(left, self._names(job), strict=True)]

    def _time(self, job: int) -> str:
        time = float(_time_of(self.allocation, job))
        return f"has {100 * time:.3g} % of its time" if time > 0 else "has no share"


def explanation(allocation: Allocation) -> Explanation:
    """What holds each job of `allocation`.

    A type with fewer GPUs than a job asks for cannot serve it, unless it has a share of it, as in the papers. After a
    blind policy, pass `allocation.evaluated_on(true problem)`: otherwise speeds are what the policy believed.
    """
    problem, rates = allocation.problem, allocation.rate_steps_per_s
    time, gpus = allocation.job_share, problem.gpu_counts
    alone = _rate_alone(allocation)
    best = alone.max(axis=1, initial=0.0)
    floors = allocation.rate_floor_steps_per_s if len(allocation.rate_floor_steps_per_s) else np.zeros(len(best))
    full = problem.gpus_occupied @ allocation.share >= gpus * (1 - NEAR)
    all_time = time.sum(axis=1) >= 1 - NEAR
    slowest = np.where(all_time, _slowest_in_use(allocation), 0.0)
    better = alone > slowest[:, None] * (1 + NEAR)  # types where more time would be a higher rate
    idle = better & ~full
    at_speed = (rates >= best * (1 - NEAR)) | (all_time & ~better.any(axis=1))
    at_floor = (floors > 0) & (rates <= floors * (1 + NEAR))
    claims = [~problem.can_run, problem.is_oversized, at_speed, at_floor, idle.any(axis=1), all_time]
    hold = np.select(claims, [*Hold][:-1], default=Hold.CAPACITY)
    h = hold[:, None]
    concerned = np.where(h == Hold.SPEED, time > 0, np.where(h == Hold.POLICY, idle, better & full))
    concerned &= ~np.isin(h, (Hold.CANNOT_RUN, Hold.OVERSIZED, Hold.FLOOR))
    return Explanation(allocation, hold.astype(np.int64), concerned)


def why_stuck(problem: AllocationProblem, job: int) -> str:
    """Why no scheduler can run the job in that row: for those that cannot run, and oversized gangs."""
    gpus, usable = problem.gpus_asked[job], problem.rate_alone_steps_per_s[job] > 0
    if not usable.any():
        return "runs on none of the cluster's GPU types"
    return f"asks for {gpus:g} GPUs of one type; those it runs on have at most {problem.gpu_counts[usable].max():g}"


def _rate_alone(allocation: Allocation) -> Floats:
    """Rate of each job by itself on each type that can serve it, (J, T)."""
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
    """The least rate that a job runs at for some of its time, alone or with others, (J,); infinite = it never runs."""
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

"""Explains an allocation: the constraint that limits the rate of each job, and marginal values in words.

A job has the first of these limits that applies: it cannot run; it needs more GPUs than any type has; it runs at full
speed; it is at its rate floor; the policy leaves better GPUs idle; it runs all the time while better GPUs are full; all
GPUs that it can use are full.

Marginal values are the shadow prices as relative gains of what the policy optimises. Objectives are concave in the
numbers of GPUs while the same jobs can run, so a shadow price is an upper bound on the gain from one more GPU: hence
"by up to".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem

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
        p, prices = self.allocation.problem, self.allocation.resource_prices
        full = _full(self.allocation)
        named = [
            (p.gpu_types[t] if r == 0 else f"{p.resources[r]} of {p.gpu_types[t]}", prices[t, r])
            for t in np.flatnonzero(self.gpu_types[job]).tolist()
            for r in np.flatnonzero(full[t]).tolist()
        ]
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
    time = allocation.job_share
    alone = _rate_alone(allocation)
    best = alone.max(axis=1, initial=0.0)
    floors = allocation.rate_floor_steps_per_s if len(allocation.rate_floor_steps_per_s) else np.zeros(len(best))
    full = _full(allocation).any(axis=1)
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


def _full(allocation: Allocation) -> Bools:
    """Whether each resource of each type is used up, (T, R); of resources that a type does not have, only GPUs are."""
    p = allocation.problem
    amount = p.row_capacity.reshape(len(p.resources), -1)
    full = p.used(allocation.share).reshape(amount.shape) >= amount * (1 - NEAR)
    full[1:] &= amount[1:] > 0
    return np.asarray(full.T)


def why_stuck(problem: AllocationProblem, job: int) -> str:
    """Why the job in that row cannot run on this cluster; for jobs that cannot run and for oversized gangs."""
    gpus, usable = problem.gpus_asked[job], problem.rate_alone_steps_per_s[job] > 0
    if not usable.any():
        return "runs on none of the cluster's GPU types"
    most = problem.gpu_counts[usable].max()
    lone = problem.member_configuration[(problem.member_job == job)][:1]
    for name, need, amount in zip(
        problem.resources[1:], problem.occupied[lone[0], 1:], problem.capacity.T[1:], strict=True
    ):
        if gpus <= most and need > (highest := amount[usable].max() / THOUSANDTHS):
            return f"needs {need:g} of {name}; the types on which it runs have at most {highest:g}"
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


_ROUNDING = 1e-9  # smaller gains count as zero: the objective itself is proved to 1e-8 only


class Transform(StrEnum):
    """How the goal follows from the objective, which is always maximised."""

    IDENTITY = "identity"  # goal = objective
    RECIPROCAL = "reciprocal"  # goal = 1 / objective, the smaller the better (a makespan)
    LOGARITHM = "logarithm"  # objective = Σ weights x log(goal), the goal being a weighted geometric mean


@dataclass(frozen=True)
class Goal:
    """What a policy optimises, in words that fit "one more V100 raises {name} by up to 1.8 %"."""

    name: str = "the objective"
    transform: Transform = Transform.IDENTITY
    better: str = "lower"  # with RECIPROCAL: "one more V100 makes {name} up to 1.2 % {better}"

    def __post_init__(self) -> None:
        for field in ("name", "better"):
            if not getattr(self, field).strip():
                raise InvalidInput(f"{field} of a goal must be words, got {getattr(self, field)!r}")
        object.__setattr__(self, "transform", _transform(self.transform))


def relative_gain(allocation: Allocation, goal: Goal, resource: int = 0) -> Floats:
    """Upper bound on the relative improvement of `goal` by one more GPU of each type, (T,): 0.018 is 1.8 %.

    Or by one more of another resource, by its number.

    With shadow price p and objective f: p / f; for a reciprocal p / (f + p), since 1 / f falls to 1 / (f + p); for a
    logarithm exp(p / Σ weights) - 1. NaN if nothing is optimised; infinite if the objective is 0 and p > 0.
    """
    objective, prices = allocation.certificate.objective, allocation.resource_prices[:, resource]
    if goal.transform is Transform.LOGARITHM:
        weights = float(allocation.problem.weight[allocation.problem.can_run].sum())
        return np.expm1(prices / (weights if weights > 0 else 1.0))
    whole = objective + prices if goal.transform is Transform.RECIPROCAL else np.full(len(prices), objective)
    from_zero = np.where(prices > 0, np.inf, 0.0 * prices)  # NaN stays NaN
    return np.divide(prices, whole, out=from_zero, where=np.isfinite(prices) & (whole > 0))


def marginal_value_sentences(allocation: Allocation, goal: Goal | None = None) -> list[str]:
    """For each GPU type and resource a sentence on the gain from one more; empty if nothing is optimised.

    >>> from gavelpy.model.problem import THOUSANDTHS, AllocationProblem
    >>> from gavelpy.policies.max_min_fairness import MaxMinFairness
    >>> p = AllocationProblem.of(["a", "b", "c"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0], [1.0, 1.0]])
    >>> for sentence in marginal_value_sentences(MaxMinFairness().allocate(p), MaxMinFairness.optimises):
    ...     print(sentence)
    one more v100 raises the worst job's share by up to 60 %
    one more k80 raises the worst job's share by up to 40 %
    """
    goal = Goal() if goal is None else goal
    sentences = []
    for r, resource in enumerate(allocation.problem.resources):
        gains, prices = relative_gain(allocation, goal, r).tolist(), allocation.resource_prices[:, r].tolist()
        for gpu_type, gain, price in zip(allocation.problem.gpu_types, gains, prices, strict=True):
            if not np.isnan(price):
                sentences.append(_sentence(f"{resource} of {gpu_type}" if r else gpu_type, gain, price, goal))
    return sentences


def _sentence(gpu_type: str, gain: float, price: float, goal: Goal) -> str:
    subject, reciprocal = f"one more {gpu_type}", goal.transform is Transform.RECIPROCAL
    if gain <= _ROUNDING:
        effect = f"make {goal.name} {goal.better}" if reciprocal else f"raise {goal.name}"
        return f"{subject} does not {effect}"
    if np.isinf(gain):
        return f"{subject} raises {goal.name} from zero to at most {price:.4g}"
    if reciprocal:
        return f"{subject} makes {goal.name} up to {_percent(gain)} {goal.better}"
    return f"{subject} raises {goal.name} by up to {_percent(gain)}"


def _percent(part: float) -> str:
    percent = 100.0 * part
    if percent < 0.001:
        return "0.001 %"
    return f"{percent:,.0f} %" if percent >= 10 else f"{percent:.2g} %"


def _transform(value: str) -> Transform:
    try:
        return Transform(value)
    except ValueError:
        raise InvalidInput(f"transform must be one of {', '.join(Transform)}, got {value!r}") from None

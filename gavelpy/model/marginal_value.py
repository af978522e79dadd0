"""Marginal values in words: an allocation's shadow prices as relative gains of what its policy optimises.

Objectives are concave in the numbers of GPUs while the same jobs can run, so a shadow price is an upper bound on the
gain from one more GPU: hence "by up to".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats

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


def relative_gain(allocation: Allocation, goal: Goal) -> Floats:
    """Upper bound on the relative improvement of `goal` by one more GPU of each type, (T,): 0.018 is 1.8 %.

    With shadow price p and objective f: p / f; for a reciprocal p / (f + p), since 1 / f falls to 1 / (f + p); for a
    logarithm exp(p / Σ weights) - 1. NaN if nothing is optimised; infinite if the objective is 0 and p > 0.
    """
    objective, prices = allocation.certificate.objective, allocation.shadow_prices
    if goal.transform is Transform.LOGARITHM:
        weights = float(allocation.problem.weight[allocation.problem.can_run].sum())
        return np.expm1(prices / (weights if weights > 0 else 1.0))
    whole = objective + prices if goal.transform is Transform.RECIPROCAL else np.full(len(prices), objective)
    from_zero = np.where(prices > 0, np.inf, 0.0 * prices)  # NaN stays NaN
    return np.divide(prices, whole, out=from_zero, where=np.isfinite(prices) & (whole > 0))


def marginal_value_sentences(allocation: Allocation, goal: Goal | None = None) -> list[str]:
    """For each GPU type a sentence on the gain from one more GPU; empty if nothing is optimised.

    >>> from gavelpy.model.problem import AllocationProblem
    >>> from gavelpy.policies.max_min_fairness import MaxMinFairness
    >>> p = AllocationProblem.of(["a", "b", "c"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0], [1.0, 1.0]])
    >>> for sentence in marginal_value_sentences(MaxMinFairness().allocate(p), MaxMinFairness.optimises):
    ...     print(sentence)
    one more v100 raises the worst job's share by up to 60 %
    one more k80 raises the worst job's share by up to 40 %
    """
    goal = Goal() if goal is None else goal
    gains = zip(allocation.problem.gpu_types, relative_gain(allocation, goal).tolist(), strict=True)
    priced = zip(gains, allocation.shadow_prices.tolist(), strict=True)
    return [_sentence(gpu_type, gain, price, goal) for (gpu_type, gain), price in priced if not np.isnan(price)]


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

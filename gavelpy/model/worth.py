"""What one more GPU is worth, in words: an allocation's prices as parts of what its policy optimises.

Objectives are concave in the numbers of GPUs while the same jobs can run, so a price is the most that one more GPU
gains: hence "by up to".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats

_ROUNDING = 1e-9  # gains below are none: the objective itself is proved to 1e-8 only


class Reading(StrEnum):
    """How an objective, which is always maximised, reads in terms of what people ask for."""

    ITSELF = "itself"  # it is the objective
    RECIPROCAL = "reciprocal"  # it is 1 / objective, and the smaller the better (a makespan)
    LOGARITHM = "logarithm"  # it is the weighted geometric mean whose logarithm, times Σ weights, is the objective


@dataclass(frozen=True)
class Quantity:
    """What a policy optimises, in words that fit a sentence: "one more V100 raises {name} by up to 1.8 %"."""

    name: str = "the objective"
    reading: Reading = Reading.ITSELF
    better: str = "lower"  # of a reciprocal: "one more V100 makes {name} up to 1.2 % {better}"

    def __post_init__(self) -> None:
        for field in ("name", "better"):
            if not getattr(self, field).strip():
                raise InvalidInput(f"{field} of a quantity must be words, got {getattr(self, field)!r}")
        object.__setattr__(self, "reading", _reading(self.reading))


def relative_gain(allocation: Allocation, quantity: Quantity) -> Floats:
    """The part by which one more GPU of each type makes `quantity` better at most, (T,): 0.018 is 1.8 %.

    With price p and objective f: p / f; of a reciprocal p / (f + p), for 1 / f falls to 1 / (f + p); of a logarithm
    exp(p / Σ weights) - 1. NaN where nothing is optimised, infinite where something comes from nothing.
    """
    objective, prices = allocation.certificate.objective, allocation.prices
    if quantity.reading is Reading.LOGARITHM:
        weights = float(allocation.problem.weight[allocation.problem.can_run].sum())
        return np.expm1(prices / (weights if weights > 0 else 1.0))
    whole = objective + prices if quantity.reading is Reading.RECIPROCAL else np.full(len(prices), objective)
    from_nothing = np.where(prices > 0, np.inf, 0.0 * prices)  # NaN stays NaN
    return np.divide(prices, whole, out=from_nothing, where=np.isfinite(prices) & (whole > 0))


def price_sentences(allocation: Allocation, quantity: Quantity | None = None) -> list[str]:
    """A sentence for each GPU type, what one more of it gains; none where nothing is optimised.

    >>> from gavelpy.model.problem import AllocationProblem
    >>> from gavelpy.policies.max_min_fairness import MaxMinFairness
    >>> p = AllocationProblem.of(["a", "b", "c"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0], [1.0, 1.0]])
    >>> for sentence in price_sentences(MaxMinFairness().allocate(p), MaxMinFairness.optimises):
    ...     print(sentence)
    one more v100 raises the worst job's share by up to 60 %
    one more k80 raises the worst job's share by up to 40 %
    """
    quantity = Quantity() if quantity is None else quantity
    gains = zip(allocation.problem.gpu_types, relative_gain(allocation, quantity).tolist(), strict=True)
    priced = zip(gains, allocation.prices.tolist(), strict=True)
    return [_sentence(gpu_type, gain, price, quantity) for (gpu_type, gain), price in priced if not np.isnan(price)]


def _sentence(gpu_type: str, gain: float, price: float, quantity: Quantity) -> str:
    subject, reciprocal = f"one more {gpu_type}", quantity.reading is Reading.RECIPROCAL
    if gain <= _ROUNDING:
        told = f"make {quantity.name} {quantity.better}" if reciprocal else f"raise {quantity.name}"
        return f"{subject} does not {told}"
    if np.isinf(gain):
        return f"{subject} raises {quantity.name} from nothing to at most {price:.4g}"
    if reciprocal:
        return f"{subject} makes {quantity.name} up to {_percent(gain)} {quantity.better}"
    return f"{subject} raises {quantity.name} by up to {_percent(gain)}"


def _percent(part: float) -> str:
    percent = 100.0 * part
    if percent < 0.001:
        return "0.001 %"
    return f"{percent:,.0f} %" if percent >= 10 else f"{percent:.2g} %"


def _reading(value: str) -> Reading:
    try:
        return Reading(value)
    except ValueError:
        raise InvalidInput(f"reading must be one of {', '.join(Reading)}, got {value!r}") from None

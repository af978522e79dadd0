"""The vocabulary: what a policy may ask the solver layer to optimise.

r_j(x) is the effective rate of job j in steps/s under shares x. The constraints are the same for all and live in the
solver layer: shares x >= 0, a time budget of 1 per job over all configurations that hold it, and each type's GPUs.
A job that can run nowhere gets no share and has no part in any objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, floats, require


def _no_floors() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class MaxMin:
    """Maximise  min_j scale_j r_j(x)  over the jobs that can run, and with what is left  Σ_j scale_j r_j(x)."""

    scale: Floats  # (J,) > 0
    rate_floor_steps_per_s: Floats = field(default_factory=_no_floors)  # (J,) r_j at least this; empty = none

    def __post_init__(self) -> None:
        _freeze(self, "scale", zero_allowed=False)


@dataclass(frozen=True, eq=False)
class MaxSum:
    """Maximise  Σ_j gain_j r_j(x)."""

    gain: Floats  # (J,) >= 0
    rate_floor_steps_per_s: Floats = field(default_factory=_no_floors)

    def __post_init__(self) -> None:
        _freeze(self, "gain", zero_allowed=True)


@dataclass(frozen=True, eq=False)
class MaxSumLog:
    """Maximise  Σ_j weight_j log r_j(x)  over the jobs that can run (Nash welfare, proportional fairness)."""

    weight: Floats  # (J,) > 0
    rate_floor_steps_per_s: Floats = field(default_factory=_no_floors)

    def __post_init__(self) -> None:
        _freeze(self, "weight", zero_allowed=False)


@dataclass(frozen=True, eq=False)
class MaxConcave:
    """Maximise  value(r(x))  for any concave, non-decreasing `value`, written with cvxpy atoms.

    `value` takes a cvxpy expression of J rates in steps/s and returns a scalar one. The proof of the answer needs a
    gradient: where the optimum is at a kink of `value` the answer cannot be certified, and solving fails.
    """

    value: Callable[[Any], Any]  # Any: cvxpy has no types, and must not be loaded to say this
    rate_floor_steps_per_s: Floats = field(default_factory=_no_floors)

    def __post_init__(self) -> None:
        _freeze(self, "", zero_allowed=True)


Objective = MaxMin | MaxSum | MaxSumLog | MaxConcave


def _freeze(objective: Objective, name: str, *, zero_allowed: bool) -> None:
    """Makes the arrays read-only float64 (J,) and raises InvalidInput where a value is out of range."""
    if name:
        values = floats(name, getattr(objective, name), np.shape(getattr(objective, name))[:1])
        allowed = "finite and >= 0" if zero_allowed else "finite and > 0"
        require(name, values, np.isfinite(values) & ((values > 0) | (zero_allowed & (values == 0))), allowed)
        object.__setattr__(objective, name, values)
    floor = objective.rate_floor_steps_per_s
    floor = floats("rate_floor_steps_per_s", floor, np.shape(floor)[:1])
    require("rate_floor_steps_per_s", floor, np.isfinite(floor) & (floor >= 0), "finite and >= 0")
    object.__setattr__(objective, "rate_floor_steps_per_s", floor)
    if name and len(floor) and len(floor) != len(getattr(objective, name)):
        raise InvalidInput(
            f"rate_floor_steps_per_s must be empty or have one entry for each of {len(getattr(objective, name))} jobs, "
            f"got {len(floor)}"
        )

"""The objectives that a policy may pass to the solver.

r_j(x) is the effective rate of job j in steps/s under shares x. The constraints are the same for all objectives: shares
x >= 0, a time budget of 1 per job over all configurations that contain it, and each type's GPUs. A job that can run
nowhere gets no share and does not count in any objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Floats, Ints, floats, ints, require

_EMPTY: Floats = np.zeros(0)
_EMPTY.flags.writeable = False


def _none() -> Floats:
    return _EMPTY


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class MaxMin:
    """Maximise  min_j scale_j (r_j(x) - base_j)  over the jobs that can run, then  Σ_j scale_j r_j(x).

    A job of scale 0 does not count in the minimum; its floor holds nevertheless. A row may stand for several equal jobs
    (see equal_jobs.py), whose number is its weight in the sum.
    """

    scale: Floats  # (J,) >= 0
    rate_floor_steps_per_s: Floats = field(default_factory=_none)  # (J,) r_j at least this; empty = none
    base_steps_per_s: Floats = field(default_factory=_none)  # (J,) >= 0; empty = zero
    count: Floats = field(default_factory=_none)  # (J,) jobs of each row, which needs the GPUs of all; empty = one

    def __post_init__(self) -> None:
        _freeze(self, "scale", zero_allowed=True)
        if len(self.scale) and not self.scale.any():
            raise InvalidInput(f"scale must be > 0 for some job, got 0 for all {len(self.scale)}")
        _freeze_optional(self, "base_steps_per_s", len(self.scale))
        _freeze_optional(self, "count", len(self.scale))


@dataclass(frozen=True, eq=False)
class MaxSum:
    """Maximise  Σ_j gain_j Σ_t worth_t r_jt(x),  r_jt being the rate of job j on GPU type t.

    Floors are on the rates themselves, whatever the factor of a type.
    """

    gain: Floats  # (J,) >= 0
    rate_floor_steps_per_s: Floats = field(default_factory=_none)
    gpu_type_worth: Floats = field(default_factory=_none)  # (T,) >= 0; empty = 1 for all

    def __post_init__(self) -> None:
        _freeze(self, "gain", zero_allowed=True)
        _freeze_optional(self, "gpu_type_worth", None)


@dataclass(frozen=True, eq=False)
class MaxSumLog:
    """Maximise  Σ_j weight_j log r_j(x)  over the jobs that can run (Nash welfare, proportional fairness)."""

    weight: Floats  # (J,) > 0
    rate_floor_steps_per_s: Floats = field(default_factory=_none)

    def __post_init__(self) -> None:
        _freeze(self, "weight", zero_allowed=False)


@dataclass(frozen=True, eq=False)
class MaxConcave:
    """Maximise  value(r(x))  for any concave, non-decreasing `value`, written with cvxpy atoms.

    `value` takes a cvxpy expression of J rates in steps/s and returns a scalar one. The certificate needs a gradient:
    if the optimum is at a kink of `value`, the answer cannot be certified and has a warning.
    """

    value: Callable[[Any], Any]  # Any: cvxpy has no types, and is not loaded here
    rate_floor_steps_per_s: Floats = field(default_factory=_none)

    def __post_init__(self) -> None:
        _freeze(self, "", zero_allowed=True)


@dataclass(frozen=True, eq=False)
class MaxMinLexicographic:
    """Maximise the least scale_j r_j(x), then the second least, and so on: water filling.

    Bertsekas and Gallager, Data Networks, section 6.5.2. The levels are unique; the shares need not be.
    """

    scale: Floats  # (J,) > 0

    def __post_init__(self) -> None:
        _freeze(self, "scale", zero_allowed=False)


@dataclass(frozen=True, eq=False)
class ProgressiveFilling:
    """Raise all rates together, r_j >= base_j + time x speed_j, until no job's rate can rise any more.

    `speed` returns how fast each job's rate rises when some are saturated (cannot rise unless another falls): it takes
    the saturated jobs (J,) and returns speeds (J,) >= 0 in steps/s. A job of speed 0 keeps its rate. It is called again
    whenever a job saturates. Gavel (OSDI '20) section 4.3, with floors.
    """

    speed: Callable[[Bools], Floats]
    alike: Ints = field(
        default_factory=_no_ints
    )  # (J,) equal for jobs with proportional speeds and rates; empty = none

    def __post_init__(self) -> None:
        object.__setattr__(self, "alike", ints("alike", self.alike, np.shape(self.alike)[:1]))


@dataclass(frozen=True, eq=False)
class MinMaxFinishTime:
    """Minimise  max_j (age_j + steps_j / r_j(x)) / isolated_j  over the jobs that can run; the objective is 1 over it.

    Then the same for the jobs that are not yet at their best rate: a job whose ratio no share can lower runs at its
    best rate, and the others are as even as possible.
    """

    steps: Floats  # (J,) > 0 remaining
    age_s: Floats  # (J,) >= 0
    isolated_s: Floats  # (J,) > 0 from submission to finish on an isolated share

    def __post_init__(self) -> None:
        _freeze(self, "steps", zero_allowed=False)
        _freeze(self, "age_s", zero_allowed=True)
        _freeze(self, "isolated_s", zero_allowed=False)


LinearObjective = MaxMin | MaxSum
LevelObjective = MaxMinLexicographic | ProgressiveFilling | MinMaxFinishTime  # a sequence or a root of linear ones
ConcaveObjective = MaxSumLog | MaxConcave
Objective = LinearObjective | LevelObjective | ConcaveObjective


def _freeze(objective: Objective, name: str, *, zero_allowed: bool) -> None:
    """Makes the array and the floors read-only float64 (J,), and raises InvalidInput if a value is out of range."""
    if name:
        values = floats(name, getattr(objective, name), np.shape(getattr(objective, name))[:1])
        _require(name, values, zero_allowed=zero_allowed)
        object.__setattr__(objective, name, values)
    if hasattr(objective, "rate_floor_steps_per_s"):
        _freeze_optional(objective, "rate_floor_steps_per_s", len(getattr(objective, name)) if name else None)


def _freeze_optional(objective: Objective, name: str, count: int | None) -> None:
    """Like `_freeze` for an array that may be empty, or else must have `count` entries."""
    if getattr(objective, name) is _EMPTY:
        return
    values = floats(name, getattr(objective, name), np.shape(getattr(objective, name))[:1])
    _require(name, values, zero_allowed=True)
    if count is not None and len(values) not in (0, count):
        raise InvalidInput(f"{name} must be empty or have one entry for each of {count} jobs, got {len(values)}")
    object.__setattr__(objective, name, values)


def _require(name: str, values: Floats, *, zero_allowed: bool) -> None:
    """Raises InvalidInput naming the first value that is out of range."""
    least, most = float(values.min(initial=np.inf)), float(values.max(initial=0.0))
    if not ((least > 0 or (zero_allowed and least == 0)) and most < np.inf):
        allowed = "finite and >= 0" if zero_allowed else "finite and > 0"
        require(name, values, np.isfinite(values) & ((values > 0) | (zero_allowed & (values == 0))), allowed)

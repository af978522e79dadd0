"""The problem, the result and the arrays of the interior point method. Axes: K classes of equal jobs, T GPU types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gavelpy.model.arrays import Floats

RISE_MAX = 3.0  # factor by which a rate may rise in a step, under logarithms: above, λ = w / v is not linear
FALL_MAX = 0.7  # fraction by which the dual of a rate may fall in a step


@dataclass(frozen=True, eq=False)
class Level:
    """Maximise L  such that  r_i >= base_i + slope_i L.   Σ_i slope_i > 0; a class of slope 0 has a floor only."""

    base: Floats  # (K,) in units of the class's best rate, as all rates here
    slope: Floats  # (K,) >= 0


@dataclass(frozen=True, eq=False)
class Sum:
    """Maximise  Σ_i count_i Σ_j gain_ij x_ij  such that  r_i >= floor_i."""

    gain: Floats  # (K, T) >= 0 objective units of one job at share 1
    floor: Floats  # (K,) >= 0


@dataclass(frozen=True, eq=False)
class SumLog:
    """Maximise  Σ_i count_i weight_i log r_i."""

    weight: Floats  # (K,) > 0


@dataclass(frozen=True, eq=False)
class Form:
    """A problem in which every job runs alone; every class can run somewhere.

    Shares x_ij >= 0 with Σ_j x_ij <= 1 and Σ_i count_i gpus_i x_ij <= capacity_j; rates r_i = Σ_j rate_ij x_ij.
    """

    rate: Floats  # (K, T) in units of the class's best rate; 0 = cannot run there, and has no share there
    gpus: Floats  # (K,) > 0 that one job occupies
    count: Floats  # (K,) > 0 jobs in the class
    capacity: Floats  # (T,) >= 0 GPUs
    goal: Level | Sum | SumLog


@dataclass(frozen=True, eq=False)
class InteriorPoint:
    """A point near the optimum, and the duals that prove how near. Shares satisfy constraints to `residual` only.

    Duals are in objective units: Σ_j capacity_j prices_j + Σ_i count_i (budget_duals_i - rate_duals_i base_i), plus
    Σ_i count_i weight_i (log(weight_i / rate_duals_i) - 1) under logarithms, is an upper bound up to rounding.
    """

    share: Floats  # (K, T) of one job of the class
    prices: Floats  # (T,) per GPU
    level: float  # L; 0 if the goal is not a level
    rate_duals: Floats  # (K,) per unit of rate of one job
    budget_duals: Floats  # (K,) per unit of time of one job
    iterations: int
    gap: float  # relative: to the level, the sum, or the sum of count x weight
    residual: float  # largest violation of a time budget, a rate or (relative) a capacity


class Rows(NamedTuple):
    """A form as arrays for the kernels; arrays that a goal does not use are zero."""

    rate: Floats  # (K, T)
    gpus: Floats  # (K,)
    jobs: Floats  # (K,) jobs in the class
    base: Floats  # (K,)
    slope: Floats  # (K,)
    weight: Floats  # (K,)
    gain: Floats  # (K, T), or (0, 0) for none


class Iterate(NamedTuple):
    """Positive variables of the classes, each followed by its complement, or a step of them."""

    share: Floats  # (K, T) x
    reduced_cost: Floats  # (K, T) z = budget_dual + gpus price - gain - rate_dual rate; 1 where the class cannot run
    idle: Floats  # (K,) s, the time not used
    budget_dual: Floats  # (K,) σ
    surplus: Floats  # (K,) v, the rate above base + slope L; under logarithms, the rate
    rate_dual: Floats  # (K,) λ


class Reach(NamedTuple):
    """Products x z, s σ, v λ over all jobs, and their changes along a direction."""

    product: float  # Σ x z
    from_primal: float  # Σ dx z
    from_dual: float  # Σ x dz
    from_both: float  # Σ dx dz

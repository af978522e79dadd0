"""The interior point's problem and arrays, and its kernels in numpy.

The kernels are fast to load, for few classes, and the oracle of the tests of `numba_kernels`.

Newton's equations for one class, with rates a, D = x / z, Ds = s / σ, Dv = v / λ, and steps dσ, dλ of its duals, dp of
prices and dL of the level (d is the slope, g the GPUs):

    [ Σ D + Ds     -Σ D a      ] [dσ]   [ f1 + Σ_j w_j             ]
    [ -Σ D a       Σ D a² + Dv ] [dλ] = [ f2 + d dL - Σ_j a_j w_j  ]       w_j = c_j - D_j g dp_j

and dx_j = w_j - D_j (dσ - a_j dλ). Eliminating dσ and dλ leaves one small system in (dp, dL) for all classes together.
Near an optimum D is huge or tiny; so determinants and entries of the small system are sums of positive terms, with
products of differences (a_j - a_m) instead of the textbook's differences of products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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


class _Condensed(NamedTuple):
    """The 2 x 2 systems of all classes."""

    spread: Floats  # (K, T) D
    aim: Floats  # (K, T) c
    dual_excess: Floats  # (K, T) difference between z's definition and z
    idle_spread: Floats  # (K,) Ds
    idle_aim: Floats  # (K,) ds + Ds dσ
    surplus_spread: Floats  # (K,) Dv
    surplus_aim: Floats  # (K,) dv + Dv dλ
    time: Floats  # (K,) f1
    rate: Floats  # (K,) f2
    m11: Floats  # (K,)
    m12: Floats  # minus the entry off the diagonal
    m22: Floats
    determinant: Floats
    tilt: Floats  # (K, T) m22 - a m12
    pull: Floats  # (K, T) a m11 - m12


def condense(
    rows: Rows,
    at: Iterate,
    step: Iterate,
    prices: Floats,
    level: float,
    target: float,
    second: float,
    matrix: Floats,
    rhs: Floats,
) -> None:
    """Adds all classes to the small system: `matrix` (T + 1, T + 1), only if `second` is 0, and `rhs` (T + 1,).

    Unknowns are (dp, -dL). Products aim at `target`, less `second` times the products of the last `step`.
    """
    q = _condensed(rows, at, step, prices, level, target, second)
    a, D, T = rows.rate, q.spread, len(prices)
    moved = _solved(rows, q, np.zeros(T), 0.0)
    gpus, slope = rows.jobs * rows.gpus, rows.jobs * rows.slope
    rhs[:-1] += gpus @ moved.share
    rhs[-1] -= slope @ moved.rate_dual
    if second > 0:
        return
    difference = a[:, :, None] - a[:, None, :]
    cross = np.einsum("km,kmj,kml->kjl", D, difference, difference) + q.surplus_spread[:, None, None]
    cross += q.idle_spread[:, None, None] * a[:, :, None] * a[:, None, :]
    per_class = gpus * rows.gpus / q.determinant
    coupling = -np.einsum("k,kj,kl,kjl->jl", per_class, D, D, cross)
    others = 1.0 - np.eye(T)
    pairs = D[:, :, None] * D[:, None, :] * difference**2
    apart = 0.5 * np.einsum("kml,jm,jl->kj", pairs, others, others)  # over pairs without j
    lone = q.idle_spread[:, None] * (D * a**2) + q.surplus_spread[:, None] * D
    rest = apart + lone @ others + (q.idle_spread * q.surplus_spread)[:, None]
    np.fill_diagonal(coupling, np.einsum("k,kj,kj->j", per_class, D, rest))
    matrix[:-1, :-1] += coupling
    with_level = (slope * rows.gpus / q.determinant) @ (D * q.pull)
    matrix[:-1, -1] += with_level
    matrix[-1, :-1] += with_level
    matrix[-1, -1] += (slope * rows.slope / q.determinant) @ q.m11


def direct(
    rows: Rows,
    at: Iterate,
    step: Iterate,
    prices: Floats,
    price_step: Floats,
    level: float,
    level_step: float,
    target: float,
    second: float,
    steepest: Floats,
) -> Reach:
    """Overwrites `step` with the direction for these steps of prices and level, and measures it.

    `steepest` (2, K) gets each class's largest decrease relative to the variable, of primal variables and of duals.
    """
    q = _condensed(rows, at, step, prices, level, target, second)
    for old, new in zip(step, _solved(rows, q, price_step, level_step), strict=True):
        old[:] = new
    for k in (0, 1):
        steepest[k] = np.max([_steepest(at[i], step[i]) for i in (k, k + 2, k + 4)], axis=0)
    if rows.weight.any():
        steepest[0] = np.maximum(steepest[0], step.surplus / at.surplus / RISE_MAX)
        steepest[1] = np.maximum(steepest[1], -step.rate_dual / at.rate_dual / FALL_MAX)
    sums = np.zeros(4)
    linear = np.where(rows.weight > 0, 0.0, rows.jobs)  # under logarithms v λ goes to the weight, not to zero
    runs = np.where(rows.rate > 0, rows.jobs[:, None], 0.0)
    for k, count in ((0, runs), (2, rows.jobs), (4, linear)):
        x, z, dx, dz = at[k], at[k + 1], step[k], step[k + 1]
        sums += [(count * x * z).sum(), (count * dx * z).sum(), (count * x * dz).sum(), (count * dx * dz).sum()]
    return Reach(*sums.tolist())


def advance(rows: Rows, at: Iterate, step: Iterate, lengths: Floats, level: float, used: Floats) -> tuple[float, float]:
    """Advances along `step`, each class by `lengths` (2, K): primal variables, then dual ones.

    Fills `used` (T,) with the GPUs in use, and returns the largest residual of time and rate, and the products.
    """
    for k, (variable, change) in enumerate(zip(at, step, strict=True)):
        length = lengths[k % 2]
        variable += (length[:, None] if variable.ndim == 2 else length) * change
    used[:] = (rows.jobs * rows.gpus) @ at.share
    time = 1.0 - at.idle - at.share.sum(axis=1)
    rate = rows.base + rows.slope * level + at.surplus - (rows.rate * at.share).sum(axis=1)
    linear = np.where(rows.weight > 0, 0.0, 1.0)
    products = (at.share * at.reduced_cost).sum(axis=1) + at.idle * at.budget_dual + linear * at.surplus * at.rate_dual
    return float(max(np.abs(time).max(), np.abs(rate).max())), float(rows.jobs @ products)


def _condensed(
    rows: Rows, at: Iterate, step: Iterate, prices: Floats, level: float, target: float, second: float
) -> _Condensed:
    a, runs = rows.rate, rows.rate > 0
    D = np.where(runs, at.share / at.reduced_cost, 0.0)
    priced = at.budget_dual[:, None] + rows.gpus[:, None] * prices - a * at.rate_dual[:, None]
    dual_excess = (priced - rows.gain if len(rows.gain) else priced) - at.reduced_cost
    aimed = (target - second * step.share * step.reduced_cost) / at.reduced_cost
    Ds, Dv = at.idle / at.budget_dual, at.surplus / at.rate_dual
    idle_aim = (target - second * step.idle * step.budget_dual) / at.budget_dual - at.idle
    product = target - second * step.surplus * step.rate_dual
    if rows.weight.any():  # a step so long that the product is no small correction gets none
        product = np.clip(rows.weight - second * step.surplus * step.rate_dual, 0.0, 2.0 * rows.weight)
    surplus_aim = product / at.rate_dual - at.surplus
    sum_d, sum_da, sum_daa = D.sum(axis=1), (D * a).sum(axis=1), (D * a * a).sum(axis=1)
    difference = a[:, :, None] - a[:, None, :]
    pairs = np.einsum("kj,km,kjm->k", D, D, difference**2)
    return _Condensed(
        spread=D,
        aim=np.where(runs, aimed - at.share - D * dual_excess, 0.0),
        dual_excess=dual_excess,
        idle_spread=Ds,
        idle_aim=idle_aim,
        surplus_spread=Dv,
        surplus_aim=surplus_aim,
        time=idle_aim - (1.0 - at.share.sum(axis=1) - at.idle),
        rate=surplus_aim + rows.base + rows.slope * level + at.surplus - (a * at.share).sum(axis=1),
        m11=sum_d + Ds,
        m12=sum_da,
        m22=sum_daa + Dv,
        determinant=Ds * sum_daa + Dv * sum_d + Ds * Dv + 0.5 * pairs,
        tilt=Dv[:, None] - np.einsum("km,km,kjm->kj", D, a, difference),
        pull=Ds[:, None] * a + np.einsum("km,kjm->kj", D, difference),
    )


def _solved(rows: Rows, q: _Condensed, price_step: Floats, level_step: float) -> Iterate:
    """Every class's part of the direction for these steps of prices and level.

    D times a rounded dual is a large error. So the row of time gives what rounding has left of it to its freest
    variable, and then the equations are solved once more for what is left of the row of rate.
    """
    a, D, T = rows.rate, q.spread, len(price_step)
    dearer = rows.gpus[:, None] * price_step
    w, f1, f2 = q.aim - D * dearer, q.time, q.rate + rows.slope * level_step
    dσ = ((w * q.tilt).sum(axis=1) + q.m22 * f1 + q.m12 * f2) / q.determinant
    dλ = (q.m12 * f1 + q.m11 * f2 - (w * q.pull).sum(axis=1)) / q.determinant
    change = dσ[:, None] - a * dλ[:, None]
    dx, ds, dv = w - D * change, q.idle_aim - q.idle_spread * dσ, q.surplus_aim - q.surplus_spread * dλ
    left = q.idle_aim - f1 - ds - dx.sum(axis=1)
    freest = np.column_stack((D, q.idle_spread)).argmax(axis=1)
    dx += np.where(np.arange(T) == freest[:, None], left[:, None], 0.0)
    ds += np.where(freest == T, left, 0.0)
    left = (f2 - q.surplus_aim + dv - (a * dx).sum(axis=1)) / q.determinant
    return Iterate(
        share=dx + D * q.pull * left[:, None],
        reduced_cost=np.where(a > 0, change + dearer + q.dual_excess, 0.0),
        idle=ds - q.idle_spread * q.m12 * left,
        budget_dual=dσ,
        surplus=dv - q.surplus_spread * q.m11 * left,
        rate_dual=dλ,
    )


def _steepest(variable: Floats, change: Floats) -> Floats:
    """Each class's largest decrease relative to the variable itself, (K,); 0 for shares that must be zero."""
    ratio = np.divide(-change, variable, out=np.zeros_like(change), where=variable > 0)
    return np.maximum(ratio.max(axis=1) if ratio.ndim == 2 else ratio, 0.0)

"""The interior point's kernels in numba: one pass over the classes each, in order, so that sums are reproducible.

The equations are those of numpy_kernels.py, which is the oracle of the tests. Importing this module loads numba; the
machine code is cached on disk for the next process.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.solve.compiled import njit
from gavelpy.solve.interior.numpy_kernels import FALL_MAX, RISE_MAX, Iterate, Reach, Rows

_compiled = njit(cache=True, nogil=True, error_model="numpy")
_inlined = njit(inline="always", error_model="numpy")


class _Class(NamedTuple):
    """One class's scratch, (T,) each."""

    spread: Floats
    step: Floats  # of its shares
    dual_excess: Floats
    pull: Floats


class _Solved(NamedTuple):
    """One class's 2 x 2 system and its solution."""

    idle_spread: float
    surplus_spread: float
    m11: float
    inverse: float  # of the determinant
    idle: float
    budget_dual: float
    surplus: float
    rate_dual: float


@_compiled  # type: ignore[untyped-decorator]  # numba has no types
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
    """As numpy_kernels.condense."""
    K, T = rows.rate.shape
    q = _Class(np.empty(T), np.empty(T), np.empty(T), np.empty(T))
    unmoved, others, apart = np.zeros(T), np.empty(T), np.empty(T)
    for i in range(K):
        solved = _solved(rows, at, step, prices, unmoved, level, 0.0, target, second, i, q)
        gpus, slope = rows.jobs[i] * rows.gpus[i], rows.jobs[i] * rows.slope[i]
        for j in range(T):
            rhs[j] += gpus * q.step[j]
        rhs[T] -= slope * solved.rate_dual
        if second > 0:
            continue
        _couple(rows.rate, i, q.spread, solved, gpus * rows.gpus[i] * solved.inverse, others, apart, matrix)
        if slope > 0:
            for j in range(T):
                with_level = slope * rows.gpus[i] * solved.inverse * q.spread[j] * q.pull[j]
                matrix[j, T] += with_level
                matrix[T, j] += with_level
            matrix[T, T] += slope * rows.slope[i] * solved.inverse * solved.m11


@_compiled  # type: ignore[untyped-decorator]
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
    """As numpy_kernels.direct."""
    K, T = rows.rate.shape
    q = _Class(np.empty(T), np.empty(T), np.empty(T), np.empty(T))
    product = from_primal = from_dual = from_both = 0.0
    for i in range(K):
        solved = _solved(rows, at, step, prices, price_step, level, level_step, target, second, i, q)
        s, σ, v, λ = at.idle[i], at.budget_dual[i], at.surplus[i], at.rate_dual[i]
        ds, dσ, dv, dλ = solved.idle, solved.budget_dual, solved.surplus, solved.rate_dual
        step.idle[i], step.budget_dual[i], step.surplus[i], step.rate_dual[i] = ds, dσ, dv, dλ
        primal, dual = max(0.0, -ds / s, -dv / v), max(0.0, -dσ / σ, -dλ / λ)
        if rows.weight[i] > 0:
            primal, dual = max(primal, dv / v / RISE_MAX), max(dual, -dλ / λ / FALL_MAX)
        linear = 0.0 if rows.weight[i] > 0 else 1.0  # under logarithms v λ goes to the weight, not to zero
        products, by_primal = s * σ + linear * v * λ, ds * σ + linear * dv * λ
        by_dual, by_both = s * dσ + linear * v * dλ, ds * dσ + linear * dv * dλ
        for j in range(T):
            if rows.rate[i, j] > 0:
                x, z, dx = at.share[i, j], at.reduced_cost[i, j], q.step[j]
                dz = dσ - rows.rate[i, j] * dλ + rows.gpus[i] * price_step[j] + q.dual_excess[j]
                step.share[i, j], step.reduced_cost[i, j] = dx, dz
                primal, dual = max(primal, -dx / x), max(dual, -dz / z)
                products += x * z
                by_primal += dx * z
                by_dual += x * dz
                by_both += dx * dz
        steepest[0, i], steepest[1, i] = primal, dual
        product += rows.jobs[i] * products
        from_primal += rows.jobs[i] * by_primal
        from_dual += rows.jobs[i] * by_dual
        from_both += rows.jobs[i] * by_both
    return Reach(product, from_primal, from_dual, from_both)


@_compiled  # type: ignore[untyped-decorator]
def advance(rows: Rows, at: Iterate, step: Iterate, lengths: Floats, level: float, used: Floats) -> tuple[float, float]:
    """As numpy_kernels.advance."""
    K, T = rows.rate.shape
    residual = product = 0.0
    used[:] = 0.0
    for i in range(K):
        primal, dual = lengths[0, i], lengths[1, i]
        at.idle[i] += primal * step.idle[i]
        at.budget_dual[i] += dual * step.budget_dual[i]
        at.surplus[i] += primal * step.surplus[i]
        at.rate_dual[i] += dual * step.rate_dual[i]
        time, rate = 1.0 - at.idle[i], rows.base[i] + rows.slope[i] * level + at.surplus[i]
        products = at.idle[i] * at.budget_dual[i]
        if not rows.weight[i] > 0:
            products += at.surplus[i] * at.rate_dual[i]
        for j in range(T):
            at.share[i, j] += primal * step.share[i, j]
            at.reduced_cost[i, j] += dual * step.reduced_cost[i, j]
            time -= at.share[i, j]
            rate -= rows.rate[i, j] * at.share[i, j]
            used[j] += rows.jobs[i] * rows.gpus[i] * at.share[i, j]
            products += at.share[i, j] * at.reduced_cost[i, j]
        product += rows.jobs[i] * products
        residual = max(residual, abs(time), abs(rate))
    return residual, product


@_inlined  # type: ignore[untyped-decorator]
def _solved(
    rows: Rows,
    at: Iterate,
    step: Iterate,
    prices: Floats,
    price_step: Floats,
    level: float,
    level_step: float,
    target: float,
    second: float,
    i: int,
    q: _Class,
) -> _Solved:
    """Class i's part of the direction; fills `q`. numpy_kernels._condensed and ._solved in one."""
    T, D, dx = len(prices), q.spread, q.step
    Ds, Dv = at.idle[i] / at.budget_dual[i], at.surplus[i] / at.rate_dual[i]
    idle_aim, surplus_aim = _aims(rows, at, step, target, second, i)
    f1 = idle_aim - 1.0 + at.idle[i]
    f2 = surplus_aim + rows.base[i] + rows.slope[i] * (level + level_step) + at.surplus[i]
    f1, f2, m11, m12, m22 = _spread(rows, at, step, prices, price_step, target, second, i, q, f1, f2)
    pairs, dσ, dλ = 0.0, (m22 + Dv) * f1 + m12 * f2, m12 * f1 + (m11 + Ds) * f2
    for j in range(T):
        q.pull[j], tilt = Ds * rows.rate[i, j], Dv
        for m in range(T):
            difference = rows.rate[i, j] - rows.rate[i, m]
            tilt -= D[m] * rows.rate[i, m] * difference
            q.pull[j] += D[m] * difference
            if m < j:
                pairs += D[j] * D[m] * difference * difference
        dσ += dx[j] * tilt
        dλ -= dx[j] * q.pull[j]
    inverse = 1.0 / (Ds * m22 + Dv * m11 + Ds * Dv + pairs)
    dσ *= inverse
    dλ *= inverse
    ds, dv = idle_aim - Ds * dσ, surplus_aim - Dv * dλ
    freest, free, left = -1, Ds, idle_aim - f1 - ds
    for j in range(T):
        dx[j] -= D[j] * (dσ - rows.rate[i, j] * dλ)
        left -= dx[j]
        if D[j] > free:
            freest, free = j, D[j]
    if freest < 0:
        ds += left
    else:
        dx[freest] += left
    left = f2 - surplus_aim + dv
    for j in range(T):
        left -= rows.rate[i, j] * dx[j]
    left *= inverse
    for j in range(T):
        dx[j] += D[j] * q.pull[j] * left
    return _Solved(Ds, Dv, m11 + Ds, inverse, ds - Ds * m12 * left, dσ, dv - Dv * (m11 + Ds) * left, dλ)


@_inlined  # type: ignore[untyped-decorator]
def _aims(rows: Rows, at: Iterate, step: Iterate, target: float, second: float, i: int) -> tuple[float, float]:
    """Required values of ds + Ds dσ and dv + Dv dλ."""
    idle_aim = (target - second * step.idle[i] * step.budget_dual[i]) / at.budget_dual[i] - at.idle[i]
    product = -second * step.surplus[i] * step.rate_dual[i]
    if rows.weight[i] > 0:
        product = min(max(rows.weight[i] + product, 0.0), 2.0 * rows.weight[i])
    else:
        product += target
    return idle_aim, product / at.rate_dual[i] - at.surplus[i]


@_inlined  # type: ignore[untyped-decorator]
def _spread(
    rows: Rows,
    at: Iterate,
    step: Iterate,
    prices: Floats,
    price_step: Floats,
    target: float,
    second: float,
    i: int,
    q: _Class,
    time: float,
    rate: float,
) -> tuple[float, float, float, float, float]:
    """Fills D, w and z's dual excess; returns f1 and f2 including the shares, and Σ D, Σ D a, Σ D a²."""
    sum_d = sum_da = sum_daa = 0.0
    for j in range(len(prices)):
        q.spread[j] = q.step[j] = q.dual_excess[j] = 0.0
        a, x, z = rows.rate[i, j], at.share[i, j], at.reduced_cost[i, j]
        if a > 0:
            gain, inverse = rows.gain[i, j] if len(rows.gain) else 0.0, 1.0 / z
            D = x * inverse
            excess = at.budget_dual[i] + rows.gpus[i] * prices[j] - a * at.rate_dual[i] - gain - z
            product = target - second * step.share[i, j] * step.reduced_cost[i, j]
            q.spread[j], q.dual_excess[j] = D, excess
            q.step[j] = product * inverse - x - D * (excess + rows.gpus[i] * price_step[j])
            time += x
            rate -= a * x
            sum_d += D
            sum_da += D * a
            sum_daa += D * a * a
    return time, rate, sum_d, sum_da, sum_daa


@_inlined  # type: ignore[untyped-decorator]
def _couple(
    rate: Floats, i: int, D: Floats, solved: _Solved, factor: float, others: Floats, apart: Floats, matrix: Floats
) -> None:
    """Adds one class's coupling between the prices of types; `others` and `apart` (T,) are scratch."""
    T = len(D)
    Ds, Dv = solved.idle_spread, solved.surplus_spread
    others[:] = Ds * Dv
    apart[:] = 0.0
    for j in range(T):
        for m in range(j):
            difference = rate[i, j] - rate[i, m]
            pair = D[j] * D[m] * difference * difference
            cross = Ds * rate[i, j] * rate[i, m] + Dv
            for k in range(T):
                cross += D[k] * (rate[i, k] - rate[i, j]) * (rate[i, k] - rate[i, m])
                if k not in (j, m):
                    apart[k] += pair
            coupling = factor * D[j] * D[m] * cross
            matrix[j, m] -= coupling
            matrix[m, j] -= coupling
        for k in range(T):
            if k != j:
                others[k] += D[j] * (Ds * rate[i, j] * rate[i, j] + Dv)
    for j in range(T):
        matrix[j, j] += factor * D[j] * (others[j] + apart[j])

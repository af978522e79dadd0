"""Prices to begin with: near those of the highest level or sum, by one of three methods.

For some hundred classes: HiGHS on the
whole program, as Newton's method needs the numba kernels, which take long to load. For more: Newton's method from equal
prices. If these fail: a block interior point, which types that are nearly free do not slow down; 3 to 50 times slower.
The exact step follows in each case, so the rounding of these prices is in no answer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.solve.interior import Form, Level, Sum, optimum
from gavelpy.solve.prices.newton import (
    FIRST_STEPS,
    PRICE_FLOOR,
    ROUGH_ERROR,
    Dual,
    Point,
    descend,
    near,
    roughly,
    sampled,
)
from gavelpy.solve.prices.table import Table
from gavelpy.solve.small_programs import BoxedModel, solve_small
from gavelpy.solve.solver import Solver

NEWTON_MIN = 256  # classes; below, HiGHS finds prices as fast as Newton's method
_FIRST_LEVEL = 0.7  # of the level of an even split for a job of median value at its best rate
_UNSURE = 0.1  # relative: closer to the limit, a sample's bound does not show whether it can be reached
_INSIDE = 1e-9  # gap at which an interior point is close enough


def roughly_level(dual: Dual, value: Floats) -> Point:
    """The point after the first steps to the highest level, of all jobs or of a sample.

    If its bound is above the least of the values, (K,), that value is probably the limit of the level.
    """
    dual, limit, W = replace(dual, is_rough=True), float(value.min()), dual.table.gpu_counts
    table = dual.table
    level = min(limit, _FIRST_LEVEL * float(np.median(value)) * W.sum() / table.load.sum())
    start = Point(np.ones(len(W)), level)
    found = roughly(dual, start)
    if abs(found.bound - limit) > _UNSURE * limit or sampled(dual) is None:
        return found
    return descend(dual, Point(found.price, found.level), ROUGH_ERROR, FIRST_STEPS)


def near_level(dual: Dual, value: Floats, solver: Solver, start: Point | None, *, inside: bool) -> Point:
    """A point near the highest level; if its bound is the least of the values, (K,), that value may be the limit.

    `inside`: by the interior point; else from `start`, if it is given.
    """
    table, limit = dual.table, float(value.min())
    if inside:
        at = optimum(_form(table, Level(np.zeros(len(value)), 1.0 / value)), _INSIDE)
        level = min(at.level, limit)
        return Point(_floored(at.prices), level, bound=min(level * (1 + 10 * _INSIDE), limit))
    found = by_highs_level(table, 1.0 / value, limit, solver) if len(value) < NEWTON_MIN else None
    return found or near(replace(dual, is_rough=True), start or roughly_level(dual, value))


def near_sum(dual: Dual, floor: Floats, solver: Solver, *, inside: bool) -> Point:
    """A point near the highest sum of gains that gives every class its floor, (K,)."""
    table = dual.table
    if inside:
        return Point(_floored(optimum(_form(table, Sum(table.gain, floor)), _INSIDE).prices), 0.0)
    found = by_highs_sum(table, floor, solver) if len(floor) < NEWTON_MIN else None
    if found is not None:
        return found
    per_gpu = table.gain.max(axis=1) / table.gpus
    return near(replace(dual, is_rough=True), Point(np.full(len(table.gpu_counts), float(per_gpu.mean())), 0.0))


def _form(table: Table, goal: Level | Sum) -> Form:
    return Form(table.rate, table.gpus, table.count, table.gpu_counts, goal)


def _floored(price: Floats) -> Floats:
    floored: Floats = np.maximum(price, PRICE_FLOOR * price.max())
    return floored


def by_highs_level(table: Table, per_level: Floats, level_max: float, solver: Solver) -> Point | None:
    """Prices of the highest level up to `level_max`; a unit of level needs the rate `per_level`. None: not found."""
    K = len(per_level)
    unit = min(level_max, float(table.gpu_counts.sum() / (table.load @ per_level)))
    model = _model(table, np.zeros(K), np.zeros(table.rate.shape))
    column = np.arange(K, dtype=np.int32)
    model = BoxedModel(
        start=np.append(model.start, model.start[-1] + K).astype(np.int32),
        row=np.concatenate([model.row, column]),
        value=np.concatenate([model.value, -per_level * unit]),
        row_lower=model.row_lower,
        row_upper=model.row_upper,
        cost=np.append(model.cost, -float(K)),  # so that the duals of the rates are about 1
        lower=np.append(model.lower, 0.0),
        upper=np.append(model.upper, level_max / unit),
    )
    found = solve_small(solver, model)
    if found is None:
        return None
    level = level_max if found.column[-1] >= model.upper[-1] else float(found.column[-1]) * unit
    return Point(_prices(table, found.row_dual), level, bound=level)


def by_highs_sum(table: Table, floor: Floats, solver: Solver) -> Point | None:
    """Prices of the highest sum of gains that gives every class its floor, (K,); None if they are not found."""
    unit = float(table.gain.max()) or 1.0
    found = solve_small(solver, _model(table, floor, table.gain / unit))
    return None if found is None else Point(_prices(table, found.row_dual) * unit, 0.0)


def _model(table: Table, floor: Floats, gain: Floats) -> BoxedModel:
    """Rows: rates, times, GPUs as fractions of a type. Columns: classes by types."""
    K, T = table.rate.shape
    k, t = np.nonzero(table.rate > 0)
    rows = np.column_stack([k, K + k, 2 * K + t])
    values = np.column_stack([table.rate[k, t], np.ones(len(k)), table.load[k] / table.gpu_counts[t]])
    free = np.full(K, np.inf)
    return BoxedModel(
        start=np.arange(0, 3 * len(k) + 1, 3, dtype=np.int32),
        row=rows.ravel().astype(np.int32),
        value=values.ravel(),
        row_lower=np.concatenate([floor, -free, np.full(T, -np.inf)]),
        row_upper=np.concatenate([free, np.ones(K + T)]),
        cost=-table.count[k] * gain[k, t],
        lower=np.zeros(len(k)),
        upper=np.full(len(k), np.inf),
    )


def _prices(table: Table, row_dual: Floats) -> Floats:
    return _floored(np.maximum(-row_dual[-len(table.gpu_counts) :], 0.0) / table.gpu_counts)

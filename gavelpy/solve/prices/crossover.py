"""From prices near the best ones to the exact optimum, by restricted programs in boxes that follow the prices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.highs import solve_small
from gavelpy.solve.prices.dual import PRICE_FLOOR, Dual, Point, kernels
from gavelpy.solve.prices.restricted import Box, Units, model, restricted, times
from gavelpy.solve.prices.table import Modes, Sweep
from gavelpy.solve.solver import Solver

_JOBS_IN_DOUBT = 16  # at first
_JOBS_IN_DOUBT_PER_TYPE = 6
_FEW_JOBS = 16384  # with more, a sweep costs more than a larger program
_GROWTH = 1.7
_FAST_GROWTH = 6.0
_PATIENCE = 4  # attempts before all jobs are doubted, if they are no more than
_WHOLE = 2500
_DEAR = 1e6
_TIED = 1e-10  # relative
_MORE_THAN_TIED = 1.2
ATTEMPTS = 14
_BOX_MAX = 0.3  # relative half-width
_AT_REST = 1e-9  # of a type's GPUs: elastic demand below is rounding


@dataclass(frozen=True, eq=False)
class Vertex:
    """The exact optimum: mixes of two modes, and the times of the few jobs that the last program moved."""

    price: Floats  # (T,)
    level: float
    leveled: bool
    low: Modes  # (K,)
    high: Modes  # (K,)
    base: Floats  # (K,) need at level 0, if its slope were the same from there
    slope: Floats  # (K,)
    rows: Ints  # (S,)
    time: Floats  # (S, T)
    attempts: int

    @property
    def need(self) -> Floats:
        """Least rate of each job at the level, (K,)."""
        return self.base + self.slope * self.level


def exact(
    dual: Dual, near: Point, solver: Solver, attempts: int = ATTEMPTS, known: Sweep | None = None
) -> Vertex | None:
    """The optimum near `near`, or None when it is not found in a few attempts. `known` is the sweep there."""
    table, price, level = dual.table, near.price, near.level
    K, T = table.rate.shape
    in_doubt = (_JOBS_IN_DOUBT + _JOBS_IN_DOUBT_PER_TYPE * T) * max(1.0, (K / _FEW_JOBS) ** 0.5)
    W = table.gpu_counts
    for attempt in range(1, attempts + 1):
        if dual.level_max is not None:
            level = min(level, dual.level_max)
        need, slope = dual.needs.at(level)
        s = known if known and attempt == 1 else kernels(K).sweep(table, need, slope, price, 0.0, level)
        if s.short:
            return None
        if dual.leveled:
            norm = float(dual.drift(s) @ price)
            if not norm > 0:
                return None
            price = price / norm
            level = -float(price @ s.used) if dual.is_size else level
        if not price.max() > 0:
            return None
        tied = int((s.margin < _TIED).sum())  # of one kind at its kink: all of them have the same choice
        rows, half = _in_doubt(s, int(max(in_doubt, _MORE_THAN_TIED * tied)))
        free = price <= 2 * PRICE_FLOOR * price.max()
        box = _box(dual, price, level, free, half)
        some = table.some(rows)
        mixes = replace(s, low=s.low[rows], high=s.high[rows])
        r = restricted(some, mixes, need[rows], price, slope[rows], level)
        units = Units(money=float(min(half, 1.0) * price.max()), gpus=float(some.load.mean()))
        answer = solve_small(solver, model(some, r, dual.over(s, level), dual.drift(s) * level, box, units))
        if answer is None:
            in_doubt *= _FAST_GROWTH
            continue
        step = float(answer.column[len(r.column_row)]) if dual.leveled else 0.0
        more, less = np.split(answer.column[-2 * T :] * units.gpus / np.tile(W, 2), 2)
        slack = free | np.isinf(half)
        price = price - answer.row_dual[2 * len(rows) :] * (units.money / units.gpus)
        price = np.maximum(price, PRICE_FLOOR * price.max())
        inside = box.sigma is None or box.sigma[0] * (1 - 1e-9) < step < half * (1 - 1e-9)
        level *= 1.0 + step
        if inside and max(more.max(), np.where(slack, 0.0, less).max()) <= _AT_REST:
            base = need - slope * (level / (1.0 + step))
            time = times(r, answer, step, T)
            return Vertex(price, level, dual.leveled, s.low, s.high, base, slope, rows, time, attempt)
        price = np.where(free & (more > _AT_REST), 1e3 * price, price)
        in_doubt *= _GROWTH if attempt < _PATIENCE or K > _WHOLE else _FAST_GROWTH
    return None


def _box(dual: Dual, price: Floats, level: float, free: Bools, half: float) -> Box:
    """Where the mixes of the jobs outside hold; without any such job, everywhere."""
    limit = np.inf if dual.level_max is None or dual.is_size else dual.level_max / level - 1.0
    if np.isinf(half):
        return Box(np.full(len(price), _DEAR * price.max()), price, (-1.0, min(_DEAR, limit)) if dual.leveled else None)
    sigma = (-half, min(half, limit)) if dual.leveled else None
    return Box(half * price, np.where(free, 0.0, half * price), sigma)


def _in_doubt(s: Sweep, count: int) -> tuple[Ints, float]:
    """Rows of the jobs whose mix is least sure, and how far prices may move before another job joins them."""
    if count >= len(s.margin):
        return np.arange(len(s.margin)), np.inf
    order = np.argpartition(s.margin, count)
    edge = float(s.margin[order[count]]) * (1 - 1e-9)
    return np.sort(order[:count]), min(max(edge, 1e-13), _BOX_MAX)

"""The search for the best mix of modes, from approximate prices to the exact optimum; no step uses an earlier answer.

columns of a sample     first prices
Broyden's steps         prices at which the rows are nearly used up
boxes                   columns of the jobs whose mix may change in a box around these prices, until the optimum is
                        inside the box; the other jobs keep their modes
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.sizes.column_kernels import COLUMNS_PER_ROW, DONE, best_mix, times_of
from gavelpy.solve.sizes.hull_kernels import demand, duals, mixes
from gavelpy.solve.sizes.table import Best, ModeGoal, Modes

_SAMPLE_PART, _SAMPLE_LEAST, _SAMPLE_MOST = 16, 512, 2048
_SLOPES_SAMPLE = 2048
_ALL_AT_ONCE = 512  # classes: fewer need no sample
_IN_DOUBT, _IN_DOUBT_PER_ROW, _GROWTH = 192, 32, 2.0
_BOXES = 12
_BOX_MAX = 0.3  # relative half-width
_LEAST_UNIT = 1e-3  # of the mean price: unit of a price near zero
_DEAR = 1e6  # of the value of all rows: the price of what does not exist
_EDGE = 1e-12
_SAME, _ROUGHLY = 1e-12, 3e-3  # relative gain of a column at which the search ends: exactly, and for first prices
_STEPS, _STEP_MAX, _DIFFERENCE, _CLOSE = 7, 0.2, 0.02, 5e-3


def best_of_goal(modes: Modes, goal: ModeGoal, start: Floats, level: float) -> Best | None:
    """The best mix, searched from prices `start` (P,); None if there is none, or if it is not found."""
    K, free = len(modes.rate), np.zeros(modes.row_count)
    whole = _weight(modes, goal)
    too_few = goal.is_level and goal.limit * whole > modes.row_count
    if not too_few and (_demand(modes, goal, free, goal.limit)[0] <= 1.0).all():  # there is enough for all
        start, level = free, goal.limit
    elif K > _ALL_AT_ONCE:
        some, its = _sampled(modes, goal, min(max(K // _SAMPLE_PART, _SAMPLE_LEAST), _SAMPLE_MOST), whole)
        _, start, level, _ = _searched(some, its, start, level, None, _ROUGHLY)
        some, its = _sampled(modes, goal, _SLOPES_SAMPLE, whole)
        start, level = _near(modes, goal, some, its, start, level)
    in_doubt = float(_IN_DOUBT + _IN_DOUBT_PER_ROW * modes.row_count) if K > _ALL_AT_ONCE else K
    for _ in range(_BOXES):
        box = _box(modes, goal, start, level, int(in_doubt))
        ended, price, found, columns = _searched(modes.some(box.rows), goal.some(box.rows), start, level, box)
        inside = box.first * (1 + _EDGE) < found < box.last * (1 - _EDGE) or found >= goal.limit * (1 - _EDGE)
        if ended == DONE and (inside or box.first == 0 or not goal.is_level):
            return _assembled(modes, goal, box, columns, price, found)
        if len(box.rows) == K:
            return None
        start, level, in_doubt = price, found, in_doubt * _GROWTH
    return None


def _sampled(modes: Modes, goal: ModeGoal, size: int, whole: float) -> tuple[Modes, ModeGoal]:
    """About as many classes, which count for all."""
    few = np.arange(0, len(modes.rate), max(1, len(modes.rate) // size))
    some, its = modes.some(few), goal.some(few)
    return replace(some, count=some.count * (whole / _weight(some, its))), its


def _weight(modes: Modes, goal: ModeGoal) -> float:
    """How much the jobs of a sample count: what they need for a unit of level, or their values."""
    if not goal.is_level:
        return float(modes.count @ goal.money)
    per_rate = np.divide(modes.load[:, :, 0], modes.rate, where=modes.rate > 0, out=np.full(modes.rate.shape, np.inf))
    return float((modes.count * goal.rise) @ reduce(np.minimum, per_rate.T))


def _near(
    modes: Modes, goal: ModeGoal, some: Modes, its: ModeGoal, price: Floats, level: float
) -> tuple[Floats, float]:
    """Prices and level nearer to the optimum, by Broyden's method; the first slopes are those of a sample.

    Unknown are the logarithms of the prices and of the level. At the optimum, the rows that have a price are used up,
    and a unit of level costs 1.
    """
    size, best = np.inf, (price, level)
    system, before, step = np.zeros((0, 0)), np.zeros(0), np.zeros(0)
    rows = np.zeros(0, dtype=np.int64)
    for _ in range(_STEPS):
        used, drift = _demand(modes, goal, price, level)
        if not len(rows):
            rows = np.flatnonzero((price > _LEAST_UNIT * float(price.mean())) | (used > 1.0))
            system = _slopes(some, its, price, level, rows)
            if goal.is_level:  # only ratios of prices matter to the rows used
                last = np.append(drift[rows] * price[rows], 0.0)
                system = np.vstack([np.column_stack([system, drift[rows] * level]), last])
        over = used[rows] - 1.0
        if goal.is_level:
            over = np.append(over, float(drift @ price) - 1.0)
        now = float(np.abs(over).max(initial=0.0))
        if now < size:
            size, best = now, (price, level)
        if now < _CLOSE:
            break
        if len(step):
            system = system + np.outer(over - before - system @ step, step) / float(step @ step)
        step = np.clip(np.linalg.lstsq(system, -over, rcond=1e-10)[0], -_STEP_MAX, _STEP_MAX)
        if not step.any():
            break
        before, price = over, price.copy()
        price[rows] *= np.exp(step[: len(rows)])
        if goal.is_level:
            level = min(level * float(np.exp(step[-1])), goal.limit)
    return best


def _demand(modes: Modes, goal: ModeGoal, price: Floats, level: float) -> tuple[Floats, Floats]:
    used, drift = np.empty(modes.row_count), np.empty(modes.row_count)
    needs = goal.needs(level)
    demand(modes.rate, modes.load, modes.rows, modes.count, needs, goal.rise, goal.money, price, used, drift)
    return used, drift


def _slopes(modes: Modes, goal: ModeGoal, price: Floats, level: float, rows: Ints) -> Floats:
    """Change of these rows' use by the logarithms of their prices, over a step that smooths the jobs' kinks."""
    slopes: Floats = np.zeros((len(rows), len(rows)))
    for i, q in enumerate(rows.tolist()):
        ends = []
        for sign in (-1.0, 1.0):
            moved = price.copy()
            moved[q] *= 1.0 + sign * _DIFFERENCE
            ends.append(_demand(modes, goal, moved, level)[0][rows])
        slopes[:, i] = (ends[1] - ends[0]) / (2.0 * _DIFFERENCE)
    return slopes


@dataclass(frozen=True, eq=False)
class _Box:
    """Prices and levels within which only the jobs in doubt, `rows`, may change their mix."""

    rows: Ints
    low: Floats  # (P,) prices
    high: Floats
    first: float  # level
    last: float
    used: Floats  # (P,) by the others at the level in the middle
    drift: Floats  # (P,) that they use more for a unit of level
    modes_low: Ints  # (K,) mixes of all jobs in the middle: modes, part in the upper one, its rise by level
    modes_high: Ints
    part: Floats
    climb: Floats
    level: float


def _box(modes: Modes, goal: ModeGoal, price: Floats, level: float, in_doubt: int) -> _Box:
    K, P = len(modes.rate), modes.row_count
    unit = np.maximum(price, _LEAST_UNIT * float(price.mean()) + 1e-300)
    low, high, part, climb, margin, used, drift = _mixes(modes, goal, price, unit, level)
    dear = _DEAR * max(float(price.sum()), goal.limit)
    if in_doubt >= K:
        rows, first, last = np.arange(K), 0.0, goal.limit
        lowest, highest = np.zeros(P), np.full(P, dear)
    else:
        order = np.argpartition(margin, in_doubt)
        half = min(float(margin[order[in_doubt]]) * (1 - 1e-9), _BOX_MAX)
        rows = np.sort(order[:in_doubt])
        first, last = level * (1 - half), min(level * (1 + half), goal.limit)
        lowest, highest = np.maximum(price - half * unit, 0.0), price + half * unit
    some = _mixes(modes.some(rows), goal.some(rows), price, unit, level)
    return _Box(rows, lowest, highest, first, last, used - some[5], drift - some[6], low, high, part, climb, level)


def _mixes(
    modes: Modes, goal: ModeGoal, price: Floats, unit: Floats, level: float
) -> tuple[Ints, Ints, Floats, Floats, Floats, Floats, Floats]:
    K, P = len(modes.rate), modes.row_count
    low, high = np.empty(K, dtype=np.int64), np.empty(K, dtype=np.int64)
    part, climb, margin, used, drift = np.empty(K), np.empty(K), np.empty(K), np.empty(P), np.empty(P)
    mixes(
        modes.rate, modes.load, modes.rows, modes.count, goal.needs(level), goal.rise, goal.money, price, unit,
        low, high, part, climb, margin, used, drift,
    )  # fmt: skip
    return low, high, part, climb, margin, used, drift


@dataclass(frozen=True, eq=False)
class _Columns:
    """Parts of the columns, with their prices and levels."""

    part: Floats
    price: Floats
    level: Floats


def _searched(
    modes: Modes, goal: ModeGoal, start: Floats, level: float, box: _Box | None, same: float = _SAME
) -> tuple[int, Floats, float, _Columns]:
    """How it ended, prices, level and columns; without a box for any prices and levels."""
    P, none = modes.row_count, np.zeros(modes.row_count)
    most = COLUMNS_PER_ROW * P
    columns = _Columns(np.zeros(most), np.zeros((most, P)), np.zeros(most))
    dear = np.full(P, _DEAR * max(float(start.sum()), goal.limit))
    low, high, used, drift = (none, dear, none, none) if box is None else (box.low, box.high, box.used, box.drift)
    first, last = (0.0, goal.limit) if box is None else (box.first, box.last)
    price = start.copy()
    ended, found, _ = best_mix(
        modes.rate, modes.load, modes.rows, modes.count, goal.need, goal.rise, goal.money, goal.is_level, first, last,
        used, drift, level, low, high, price, columns.part, columns.price, columns.level, same,
    )  # fmt: skip
    return ended, price, found, columns


def _assembled(modes: Modes, goal: ModeGoal, box: _Box, columns: _Columns, price: Floats, level: float) -> Best:
    """The times of all jobs: those outside the box keep their modes."""
    K = len(modes.rate)
    time, rows = np.zeros(modes.rate.shape), np.arange(K)
    part = np.clip(box.part + box.climb * (level - box.level), 0.0, 1.0)
    time[rows, box.modes_high] = part
    runs = np.flatnonzero(box.modes_low >= 0)
    time[runs, box.modes_low[runs]] = 1.0 - part[runs]
    some, its, here = modes.some(box.rows), goal.some(box.rows), np.zeros((len(box.rows), modes.rate.shape[1]))
    times_of(
        some.rate, some.load, some.rows, its.need, its.rise, its.money, goal.is_level,
        columns.part, columns.price, columns.level, here,
    )  # fmt: skip
    time[box.rows] = here
    price = np.where(price > _EDGE * price.max(initial=0.0), price, 0.0)
    steepness = np.zeros(K)
    duals(modes.rate, modes.load, modes.rows, goal.needs(level), goal.money, price, steepness)
    return Best(time, price, level, steepness)

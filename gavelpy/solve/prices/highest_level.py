"""The highest level of needs that rise with it, each up to its own limit, for jobs that run alone.

At a given level needs are fixed, and a program computes how many times the cluster, s, they need. Its prices are valid
at every level: Σ worth need(level) <= Σ budgets + p·W wherever shares exist. So the root of that inequality is at least
the highest level, and it is the next level to try: from above, until s is 1.

Where numba is in use, compiled steps on tangents of the needs find prices and level in less time. The answer follows
from the structure there if it is unique (vertex.py), so its bytes do not depend on the search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.linear import TRACE
from gavelpy.solve.prices.crossover import ATTEMPTS, exact, first_in_doubt
from gavelpy.solve.prices.engine import with_free_types_spent, with_the_rest_spent
from gavelpy.solve.prices.level_curve import Along, LevelCurve, Loops, near_root, proved, root_of
from gavelpy.solve.prices.newton import PRICE_FLOOR, Dual, Point, near, roughly
from gavelpy.solve.prices.table import INTERPRETED, Bends, Fixed, Lines, Table, compiled, fixed, kernels, search_kernels
from gavelpy.solve.prices.vertex import Mix, as_left, by_kernels, from_prices, in_doubt
from gavelpy.solve.solver import NUMPY_ROWS_MAX, Solver

_STEPS_MAX = 60
_FITS = 1e-12
_FREE = 4e-12  # of the highest price: a type that costs no more is free
_SAME_LEVEL = 1e-9  # relative: a smaller step of the level is the last
_LEVEL_UNITS = 2.0**22
_BETWEEN = 1e-3  # of a unit: levels of two searches differ by less
_FAR = 1e-7  # relative
_NEARLY = 1e-10  # relative: while near prices lower the level by more, no exact ones are needed
_RETRIED = 4  # programs for a step of many jobs
_LOWER = 0.7  # of a level that is too high
_MANY = 1024  # classes: far from the best prices, the exact step takes longer than more of Newton's steps
_MOST_NEEDS = 0.9  # of the sum of all limits
_ENOUGH = 1e6  # times the GPUs of a free type
_AWAKE = 1e-3  # of the highest price: start of prices that were zero at another level


def highest(table: Table, curve: LevelCurve, value: Floats | None, solver: Solver, kind: str) -> Mix | None:
    """Times at the highest level, with prices scaled to p·W = 1; None if it is not found.

    If all needs reach their limits before GPUs are scarce, the level is infinite and prices are zero. GPUs left of free
    types go to the highest sum of values, (K,) of a class's best rate; None: they are left. `kind` is that of the
    prices that are kept.
    """
    mix = _by_steps(table, curve, value, solver, kind)
    if mix is not None:
        return mix
    if len(table.gpus) > NUMPY_ROWS_MAX:
        return _by_sizes_or_structure(table, curve, value, solver)
    with INTERPRETED.search():  # with a trace more GPUs, as the steps do, so that both find the same structure
        more = _by_sizes(replace(table, gpu_counts=table.gpu_counts * (1.0 + TRACE)), curve, solver)
        mix = None
        if more is not None and 0.0 < abs(more.level) < np.inf:
            mix = _completed(table, curve, value, Point(more.price, more.level), solver)
        if mix is not None:
            return mix
        found = _by_sizes(table, curve, solver)
    return None if found is None else _with_the_rest(table, curve, value, found, solver)


def _by_sizes_or_structure(table: Table, curve: LevelCurve, value: Floats | None, solver: Solver) -> Mix | None:
    """The answer by sizes of clusters, and from its structure if it is unique."""
    start = _near_size(table, curve)
    mix = _from_size(table, curve, value, start, solver)
    if mix is not None and abs(mix.level - start.level) <= _SAME_LEVEL * abs(mix.level):  # a bound that it reaches
        return mix
    found = _by_sizes(table, curve, solver, start)
    if found is None:
        return None
    mix = _from_size(table, curve, value, Point(found.price, found.level), solver)
    return _with_the_rest(table, curve, value, found, solver) if mix is None else mix


def _from_size(table: Table, curve: LevelCurve, value: Floats | None, found: Point, solver: Solver) -> Mix | None:
    """The answer from the structure at the level and prices of a size, if it is unique."""
    if not 0.0 < abs(found.level) < np.inf:
        return None
    of_more = _structure(table, curve, found, has_trace=True)
    return None if of_more is None else _completed(table, curve, value, Point(found.price, of_more.level), solver)


def _with_the_rest(table: Table, curve: LevelCurve, value: Floats | None, found: Mix, solver: Solver) -> Mix | None:
    return found if value is None else with_the_rest_spent(table, value, curve.at(found.level), found, solver)


def _by_steps(table: Table, curve: LevelCurve, value: Floats | None, solver: Solver, kind: str) -> Mix | None:
    """The answer by compiled steps, where they are in use, if it is unique; None if it is not, or is not found.

    From the prices that are kept, or from those of a few steps of Newton's method.
    """
    (K, T), W = table.rate.shape, table.gpu_counts
    if K <= NUMPY_ROWS_MAX and search_kernels() is None:
        return None
    at, even = (kind, T), np.full(T, 1.0 / W.sum())
    for start in (solver.points.get(at), None):
        point = start
        if point is None:
            level = curve.near_root(
                table.load / W.sum(), 1.0
            )  # bound from equal prices: needs cost as on the best type
            if level == np.inf:  # nothing is known of the level, if there is one
                level = curve.root(np.ones(K), _MOST_NEEDS * float(curve.at(np.inf).sum()))
            dual = Dual(table, Along(curve), np.inf, root=near_root, loops=compiled, bends=curve.bends, is_rough=True)
            point = (roughly if K < _MANY and curve.bends is None else near)(dual, Point(even, level))
        found, box = _bent_steps(table, curve.bends, point) if point.level else (None, None)
        if found is None and point.level:
            found = _stepped(table, curve, point, solver)
        mix = None
        if found is not None and not _is_between(found.level):
            mix = _completed(table, curve, value, found, solver, compiled, box)
            if mix is not None and start and _is_far(found.level, mix.level):
                mix = None  # a cold search may not find it
        if mix is not None:
            solver.points[at] = found
            return mix
        if start is None:
            break
    return None


def _stepped(table: Table, curve: LevelCurve, start: Point, solver: Solver) -> Point | None:
    """The highest level with a trace more GPUs: each step has the tangents of the needs at the last level.

    Classes that reach their needs on free types leave the search; if such types are scarce, they do not get their needs
    in the end. A small program takes the step where the kinks of the compiled one are not independent.
    """
    from gavelpy.solve.prices.descent_kernels import ENDLESS, FOUND, SINGULAR, UNBOUNDED

    price, level, W = start.price.copy(), start.level, table.gpu_counts * (1.0 + TRACE)
    for _ in range(_STEPS_MAX):
        need, slope = curve.at(level), curve.slope(level) * abs(level)
        free = price <= _FREE * price.max()
        rows = np.flatnonzero(need > table.rate[:, free].max(axis=1, initial=0.0) * (1.0 + _FITS))
        if not slope[rows].any():
            return None
        some, here = table.some(rows), np.where(free, _ENOUGH * W, W)
        before = np.maximum(price, PRICE_FLOOR * price.max())
        tangents = _Tangents(need[rows], slope[rows])
        end, part = _step(some, tangents, here, price)
        if end == SINGULAR and len(rows) > NUMPY_ROWS_MAX:  # from better prices, it may not be
            dual = Dual(replace(some, gpu_counts=here), tangents, level_max=np.inf)
            price = near(dual, Point(before, 1.0)).price.copy()
            end, part = _step(some, tangents, here, price)
        if end == SINGULAR:
            dual = Dual(replace(some, gpu_counts=here), tangents, level_max=np.inf)
            is_large = len(rows) > NUMPY_ROWS_MAX
            vertex = exact(dual, Point(before, 1.0), solver, _RETRIED if is_large else ATTEMPTS)
            if vertex is None:
                return None
            end, part, price = FOUND, vertex.level, vertex.price
        if end == UNBOUNDED:  # classes at their limits need more than there is: the level is too high
            price, part = start.price.copy(), _LOWER
        elif end not in (FOUND, ENDLESS) or not part > 0.0:
            return None
        elif end == FOUND and abs(part - 1.0) <= _SAME_LEVEL:
            return Point(price, level + (part - 1.0) * abs(level))
        level += (part - 1.0) * abs(level)
    return None


class _Box(NamedTuple):
    """Modes of all jobs near prices that are all above zero, and which jobs are in doubt (bent_kernels.py)."""

    half: float
    low: Ints  # (K,)
    high: Ints  # (K,)
    margin: Floats  # (K,)


def _bent_steps(table: Table, bends: Bends | Lines | None, start: Point) -> tuple[Point | None, _Box | None]:
    """What `_stepped` returns, in one call, where no step has kinks that are not independent; and the last box."""
    if bends is None:
        return None, None
    from gavelpy.solve.prices.bent_kernels import stepped
    from gavelpy.solve.prices.descent_kernels import FOUND

    K, price, W = len(table.gpus), start.price.copy(), table.gpu_counts * (1.0 + TRACE)
    figures, modes, margin = map(fixed, (table.gpus, table.count, *bends)), np.empty((2, K), np.int64), np.empty(K)
    doubted, by_lines = in_doubt(*table.rate.shape), isinstance(bends, Lines)
    end, level, half = stepped(fixed(table.rate), *figures, by_lines, W, doubted, start.level, *modes, margin, price)
    if end != FOUND:
        return None, None
    return Point(price, float(level)), _Box(half, modes[0], modes[1], margin) if half > 0.0 else None


def _of_box(table: Table, bends: Bends | Lines, near: Point, box: _Box) -> _Structure | None:
    """The structure near these prices, from the modes of a box: as `_structure`, without a sweep over all jobs."""
    from gavelpy.solve.prices.bent_kernels import modes_at

    (K, T), level = table.rate.shape, _rounded(near.level)
    (need, rise), (low, high), rows = np.empty((2, K)), np.empty((2, K), np.int8), np.empty(K, np.int64)
    figures = map(fixed, (table.rate, table.gpus, table.count, *bends))
    count, norm = modes_at(
        *figures, isinstance(bends, Lines), level, near.price, box.half, first_in_doubt(K, T), *box[1:], need, rise,
        low, high, rows,
    )  # fmt: skip
    if count < 0 or not norm > 0.0:
        return None
    more, at = replace(table, gpu_counts=table.gpu_counts * (1.0 + TRACE)), Point(near.price / norm, 1.0)
    found = by_kernels(more, need - rise, rise, True, at, low, high, rows[:count], table.gpu_counts)
    if found is None:
        return None
    unit, at_level = float(found.price @ table.gpu_counts), level + (found.level - 1.0) * abs(level)
    mix = Mix(found.time, found.steepness / unit, found.price / unit, at_level, is_unique=True)
    none = np.zeros(0, dtype=np.int64)
    return _Structure(mix, at_level, np.zeros(T, dtype=np.bool_), none, np.zeros(0))


def _step(table: Table, tangents: _Tangents, gpu_counts: Floats, price: Floats) -> tuple[int, float]:
    """Moves the prices to the best ones for these needs; returns how that ended, and the level, of which 1 is here."""
    from gavelpy.solve.prices.table_kernels import best_prices

    needs = (table.gpus, table.count, tangents.need, tangents.rise)
    end, level = best_prices(
        table.rate, table.gain, *map(np.array, needs), gpu_counts, in_doubt(*table.rate.shape), 1.0, True, True, price
    )
    return int(end), float(level)


@dataclass(frozen=True, eq=False)
class _Tangents:
    """Needs that are linear around a level, which is 1."""

    need: Floats  # (K,) at 1
    rise: Floats  # (K,)

    def at(self, level: float) -> tuple[Floats, Floats]:
        """See Needs."""
        return self.need + self.rise * (level - 1.0), self.rise

    def some(self, rows: Ints) -> _Tangents:
        """See Needs."""
        return _Tangents(self.need[rows], self.rise[rows])


def _rounded(level: float) -> float:
    """The level, rounded to its first bits."""
    mantissa, exponent = math.frexp(level)
    return math.ldexp(round(mantissa * _LEVEL_UNITS) / _LEVEL_UNITS, exponent)


def _is_between(level: float) -> bool:
    """Whether the rounding of another search might round this level to another number."""
    return abs(math.frexp(level)[0] * _LEVEL_UNITS % 1.0 - 0.5) < _BETWEEN


def _is_far(more: float, level: float) -> bool:
    """Whether a trace more GPUs changes the level so much that the structure may be another one."""
    return abs(more - level) > _FAR * abs(level)


@dataclass(frozen=True, eq=False)
class _Structure:
    """What prices and the needs determine of an answer."""

    mix: Mix  # with zero times of the others, which reach their needs on free types
    level: float
    free: Bools  # (T,)
    others: Ints  # classes
    least: Floats  # (K,) needs of the others


def _structure(
    table: Table,
    curve: LevelCurve,
    near: Point,
    loops: Loops = kernels,
    *,
    has_trace: bool = False,
) -> _Structure | None:
    """The structure near these prices and this level, if it is unique: its bytes do not depend on them.

    The needs are tangents at the rounded level, so their error is that of the rounding, squared. `has_trace`: for a
    trace more GPUs.
    """
    price, W = np.where(near.price > _FREE * near.price.max(), near.price, 0.0), table.gpu_counts
    level = _rounded(near.level)
    need, rise = curve.at(level), curve.slope(level) * abs(level)
    free = price <= 0
    by_free = table.rate[:, free].max(axis=1, initial=0.0)
    priced = need > by_free * (1.0 + _FITS)
    rows = np.flatnonzero(priced)
    if free.all() or not rise[rows].any():
        return None
    some, floored = table.some(rows), np.maximum(price, PRICE_FLOOR * price.max())
    more, tangents = replace(some, gpu_counts=W * (1.0 + TRACE)), _Tangents(need[rows], rise[rows])
    dual = Dual(more, tangents, level_max=np.inf, loops=loops)
    s = dual.swept(floored, 1.0)
    norm = float(s.drift @ price)
    if s.short or not norm > 0:
        return None
    found = from_prices(dual, Point(floored / norm, 1.0), more.gpu_counts if has_trace else W, s)
    if found is None:
        return None
    time, steepness = np.zeros(table.rate.shape), np.zeros(len(need))
    unit = float(found.price @ W)
    time[rows], steepness[rows] = found.time, found.steepness / unit
    at = level + (found.level - 1.0) * abs(level)
    mix = Mix(time, steepness, found.price / unit, at, is_unique=True)
    least = np.minimum(need + rise * (found.level - 1.0), by_free)
    return _Structure(mix, at, free, np.flatnonzero(~priced), least)


def _completed(
    table: Table, curve: LevelCurve, value: Floats | None, near: Point, solver: Solver,
    loops: Loops = kernels, box: _Box | None = None,
) -> Mix | None:  # fmt: skip
    """The answer from the structure; the classes that have no part in it get what it leaves."""
    s = None if box is None or curve.bends is None else _of_box(table, curve.bends, near, box)
    s = _structure(table, curve, near, loops) if s is None else s
    if s is None:
        return None
    others = s.others if value is not None else s.others[s.least[s.others] > 0]
    if not len(others):
        return s.mix
    values = np.ones(len(s.least)) if value is None else value
    return with_free_types_spent(table, values, s.least, s.mix, others, s.free, solver)


def _by_sizes(table: Table, curve: LevelCurve, solver: Solver, start: Point | None = None) -> Mix | None:
    """The answer by sizes of clusters, from a bound and prices; GPUs left of free types are not yet spent."""
    level, point = _first_size(table, curve) if start is None else (start.level, Point(start.price, -1.0))
    for _ in range(_STEPS_MAX):
        dual, point = _near(table, curve, level, point)
        vertex = exact(dual, point, solver)
        if vertex is None:
            return None
        lower = proved(table, curve, vertex.need, vertex.price)
        if -vertex.level <= 1.0 + _FITS or not lower < level:
            return as_left(table, vertex, level)
        level, point = lower, Point(vertex.price, vertex.level)
    return None


def _near_size(table: Table, curve: LevelCurve) -> Point:
    """The lowest bound on the level that near prices of sizes prove, and these prices: no exact step is needed."""
    level, point = _first_size(table, curve)
    for _ in range(_STEPS_MAX):
        _, point = _near(table, curve, level, point)
        price = point.price / float(point.price @ table.gpu_counts)
        lower = proved(table, curve, curve.at(level), price)
        if not level - lower > _NEARLY * abs(level):
            break
        level = lower
    return Point(price, level)


def _first_size(table: Table, curve: LevelCurve) -> tuple[float, Point]:
    """An upper bound on the level, and prices for the size of a cluster that reaches it."""
    W = table.gpu_counts
    even = np.full(len(W), 1.0 / W.sum())
    level = proved(table, curve, curve.at(np.inf), even)
    if level == np.inf:
        return level, Point(even, -1.0)
    found = near(Dual(table, Along(curve), level_max=np.inf, root=root_of), Point(even, level))
    price = found.price / float(found.price @ W)
    return min(level, proved(table, curve, curve.at(found.level), price)), Point(price, -1.0)


def _near(table: Table, curve: LevelCurve, level: float, point: Point) -> tuple[Dual, Point]:
    """The size of a cluster that reaches a level, and a point near it."""
    dual = _size(table, curve.at(level))
    return dual, near(dual, Point(np.maximum(point.price, _AWAKE * point.price.max()), point.level))


def _size(table: Table, need: Floats) -> Dual:
    return Dual(table, Fixed(need), level_max=np.inf, is_size=True)

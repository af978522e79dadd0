"""The search for the best mix of modes, from approximate prices to the exact optimum; no step uses an earlier answer.

columns of a sample     first prices
Broyden's steps         prices at which the rows are nearly used up
boxes                   columns of the jobs whose mix may change in a box around these prices, until the optimum is
                        inside the box; the other jobs keep their modes
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.sizes.column_kernels import DONE, best_mix
from gavelpy.solve.sizes.hull_kernels import IDLE, duals, margins, set_edges, sweep, uses
from gavelpy.solve.sizes.table import Best, ModeGoal, Modes, ModeTimes

_SAMPLE_PART, _SAMPLE_LEAST, _SAMPLE_MOST = 32, 256, 2048
_SECOND_SAMPLE = 2048
_FAR_TOO_MUCH = 1.2  # of a row: that a sample uses
_ALL_AT_ONCE = 512  # classes: fewer need no sample
_IN_DOUBT, _IN_DOUBT_PER_ROW, _GROWTH = 192, 32, 2.0
_BOXES = 12
_BOX_MAX = 0.3  # relative half-width
_LEAST_UNIT = 1e-3  # of the mean price: unit of a price near zero
_DEAR = 1e6  # of the value of all rows: the price of what does not exist
_EDGE = 1e-12
_TRACE = 1e-3  # of the first prices, where a sample has enough of everything
_SAME, _ROUGHLY = 1e-12, 3e-3  # relative gain of a column at which the search ends: exactly, and for first prices
_STEPS, _STEP_MAX, _DIFFERENCE, _CLOSE, _CLOSE_JOBS = 7, 0.2, 0.04, 5e-3, 8192


@dataclass(frozen=True, eq=False)
class _Jobs:
    """Classes of jobs with their goal, and the modes between which each was last: the next sweep looks there first."""

    modes: Modes
    goal: ModeGoal
    low: Ints  # (K,)
    high: Ints

    def some(self, classes: Ints) -> _Jobs:
        """Some of the classes."""
        return _Jobs(self.modes.some(classes), self.goal.some(classes), self.low[classes], self.high[classes])

    def sampled(self, size: int, whole: float) -> _Jobs:
        """About as many classes, which count for all, `whole`."""
        K = len(self.low)
        some = self.some(np.arange(0, K, max(1, K // size)))
        return replace(some, modes=replace(some.modes, count=some.modes.count * (whole / some.weight())))

    def weight(self) -> float:
        """How much the jobs count: what they need for a unit of level, or their values."""
        modes, goal = self.modes, self.goal
        if not goal.is_level:
            return float(modes.count @ goal.money)
        return float((modes.count * goal.rise) @ modes.least_load)

    def demand(self, price: Floats, level: float) -> tuple[Floats, Floats]:
        """Rows used at these prices and level, and how much more for a unit of level, (P,)."""
        mixes = self.mixed(price, level)
        return mixes.used, mixes.drift

    def mixed(self, price: Floats, level: float) -> _Mixes:
        """The cheapest mixes at these prices and level."""
        m, g, of_all = self.modes, self.goal, np.zeros((2, self.modes.row_count))
        need, part, climb = np.empty_like(g.need) if g.is_level else g.need, *np.empty((2, len(self.low)))
        sweep(
            m.rate, m.load, m.rows, m.count, need, g.rise, g.money, price, level if g.is_level else -1.0,
            self.low, self.high, part, climb, *of_all,
        )  # fmt: skip
        return _Mixes(need, part, climb, *of_all)

    def mixes(self, need: Floats, part: Floats) -> _Mixes:
        """The mixes with these parts (K,) of the upper modes."""
        m, of_all, climb = self.modes, np.zeros((2, self.modes.row_count)), np.empty(len(part))
        uses(m.rate, m.load, m.rows, m.count, need, self.goal.rise, self.low, self.high, part, climb, *of_all)
        return _Mixes(need, part, climb, *of_all)


@dataclass(frozen=True, eq=False)
class _Mixes:
    """Mixes of two modes each."""

    need: Floats  # (K,)
    part: Floats  # (K,) in the upper mode
    climb: Floats  # (K,) its rise by level
    used: Floats  # (P,) part of each row
    drift: Floats  # (P,) its rise by level


def best_of_goal(modes: Modes, goal: ModeGoal, start: Floats, level: float) -> Best | None:
    """The best mix, searched from prices `start` (P,); None if there is none, or if it is not found."""
    K, P = len(modes.rate), modes.row_count
    jobs, first = _Jobs(modes, goal, np.full(K, IDLE), np.full(K, IDLE)), start
    whole = jobs.weight()
    second = jobs.sampled(_SECOND_SAMPLE, whole) if K >= 2 * _SECOND_SAMPLE else jobs
    mixes: _Mixes | None = None
    if not (goal.is_level and goal.limit * whole > P) and _is_enough(jobs, second):
        start, level = np.zeros(P), goal.limit
    elif K > _ALL_AT_ONCE:
        some = jobs.sampled(min(max(K // _SAMPLE_PART, _SAMPLE_LEAST), _SAMPLE_MOST), whole)
        _, start, level, _ = _searched(some, start, level, None, _ROUGHLY)
        start, level, mixes = _near(jobs, second, start if start.any() else _TRACE * first, level)
    in_doubt = float(_IN_DOUBT + _IN_DOUBT_PER_ROW * P) if K > _ALL_AT_ONCE else K
    for _ in range(_BOXES):
        mixes = jobs.mixed(start, level) if mixes is None else mixes
        box = _box(jobs, start, level, mixes, int(in_doubt), float(first.sum()))
        ended, price, found, time = _searched(box.jobs, start, level, box)
        inside = box.first * (1 + _EDGE) < found < box.last * (1 - _EDGE) or found >= goal.limit * (1 - _EDGE)
        if ended == DONE and (inside or box.first == 0 or not goal.is_level):
            return _assembled(jobs, box, time, price, found)
        if len(box.rows) == K:
            return None
        start, level, mixes, in_doubt = price, found, None, in_doubt * _GROWTH
    return None


def _is_enough(jobs: _Jobs, some: _Jobs) -> bool:
    """Whether there is enough for all jobs at the limit, each in its fastest mode. Some of the jobs may refute it."""
    free, limit = np.zeros(jobs.modes.row_count), jobs.goal.limit
    if some is not jobs and (some.demand(free, limit)[0] > _FAR_TOO_MUCH).any():
        return False
    return bool((jobs.demand(free, limit)[0] <= 1.0).all())


def _near(jobs: _Jobs, some: _Jobs, price: Floats, level: float) -> tuple[Floats, float, _Mixes | None]:
    """Prices and level nearer to the optimum, and the mixes there, if these are of the last step.

    Broyden's method; the first slopes, and the first step if these are not all jobs, are those of some of the jobs.
    Unknown are the logarithms of the prices and of the level. At the optimum, the rows that have a price are used up,
    and a unit of level costs 1.
    """
    at = some.mixed(price, level)
    rows, system = _system(some, at, price, level)
    if some is not jobs:
        step = _step(system, _over(some, at, rows, price))
        price, level = _moved(jobs.goal, price, level, rows, step)
        at = jobs.mixed(price, level)
    size, best, of_best = np.inf, (price, level), at
    before, step = np.zeros(0), np.zeros(0)
    close = _CLOSE * min(1.0, _CLOSE_JOBS / len(jobs.low))
    for n in range(_STEPS):
        at = jobs.mixed(price, level) if n else at
        over = _over(jobs, at, rows, price)
        now = float(np.abs(over).max(initial=0.0))
        if now < size:
            size, best, of_best = now, (price, level), at
        if now < close:
            break
        if len(step):
            system = system + np.outer(over - before - system @ step, step) / float(step @ step)
        before, step = over, _step(system, over)
        if not step.any():
            break
        price, level = _moved(jobs.goal, price, level, rows, step)
    return *best, of_best if of_best is at else None


def _over(jobs: _Jobs, at: _Mixes, rows: Ints, price: Floats) -> Floats:
    """By how much these rows are used more than there is, and by how much a unit of level costs more than 1."""
    over: Floats = at.used[rows] - 1.0
    return np.append(over, float(at.drift @ price) - 1.0) if jobs.goal.is_level else over


def _step(system: Floats, over: Floats) -> Floats:
    """The change of the logarithms at which the linear equations hold."""
    return np.clip(np.linalg.lstsq(system, -over, rcond=1e-10)[0], -_STEP_MAX, _STEP_MAX)


def _moved(goal: ModeGoal, price: Floats, level: float, rows: Ints, step: Floats) -> tuple[Floats, float]:
    """Prices of these rows and the level after a step."""
    price = price.copy()
    price[rows] *= np.exp(step[: len(rows)])
    return price, min(level * float(np.exp(step[-1])), goal.limit) if goal.is_level else level


def _system(some: _Jobs, at: _Mixes, price: Floats, level: float) -> tuple[Ints, Floats]:
    """The rows that have a price, or are used more than there is; and the slopes of the unknowns' equations."""
    rows = np.flatnonzero((price > _LEAST_UNIT * float(price.mean())) | (at.used > 1.0))
    system = _slopes(some, at.used[rows], price, level, rows)
    if some.goal.is_level:  # only ratios of prices matter to the rows used
        last = np.append(at.drift[rows] * price[rows], 0.0)
        system = np.vstack([np.column_stack([system, at.drift[rows] * level]), last])
    return rows, system


def _slopes(jobs: _Jobs, used: Floats, price: Floats, level: float, rows: Ints) -> Floats:
    """Change of the use of these rows by the logarithms of their prices, over a step that smooths the jobs' kinks."""
    slopes: Floats = np.zeros((len(rows), len(rows)))
    for i, q in enumerate(rows.tolist()):
        moved = price.copy()
        moved[q] *= 1.0 + _DIFFERENCE
        slopes[:, i] = (jobs.demand(moved, level)[0][rows] - used) / _DIFFERENCE
    return slopes


@dataclass(frozen=True, eq=False)
class _Box:
    """Prices and levels within which only the jobs in doubt, `rows`, may change their mix."""

    rows: Ints
    jobs: _Jobs
    low: Floats  # (P,) prices
    high: Floats
    first: float  # level
    last: float
    used: Floats  # (P,) by the others at the level in the middle
    drift: Floats  # (P,) that they use more for a unit of level
    part: Floats  # (K,) of all jobs in the middle, in the upper one of their two modes; and its rise by level
    climb: Floats
    level: float


def _box(jobs: _Jobs, price: Floats, level: float, mixes: _Mixes, in_doubt: int, scale: float) -> _Box:
    K, P, m, g = len(jobs.low), len(price), jobs.modes, jobs.goal
    unit = np.maximum(price, _LEAST_UNIT * float(price.mean()) + 1e-300)
    margin = np.empty(K)
    margins(
        m.rate, m.load, m.rows, mixes.need, g.rise, g.money, price, unit, jobs.low, jobs.high, mixes.part, margin
    )  # fmt: skip
    dear = _DEAR * max(float(price.sum()), g.limit, scale)
    if in_doubt >= K:
        rows, first, last = np.arange(K), 0.0, g.limit
        lowest, highest = np.zeros(P), np.full(P, dear)
    else:
        order = np.argpartition(margin, in_doubt)
        half = min(float(margin[order[in_doubt]]) * (1 - 1e-9), _BOX_MAX)
        rows = np.sort(order[:in_doubt])
        first, last = level * (1 - half), min(level * (1 + half), g.limit)
        lowest, highest = np.maximum(price - half * unit, 0.0), price + half * unit
    some = jobs.some(rows)
    its = some.mixes(mixes.need[rows], mixes.part[rows])
    used, drift = mixes.used - its.used, mixes.drift - its.drift
    return _Box(rows, some, lowest, highest, first, last, used, drift, mixes.part, mixes.climb, level)


def _searched(
    jobs: _Jobs, start: Floats, level: float, box: _Box | None, same: float = _SAME
) -> tuple[int, Floats, float, Floats]:
    """How it ended, prices, level and times (K, M); without a box for any prices and levels."""
    m, g, none = jobs.modes, jobs.goal, np.zeros(len(start))
    dear = np.full(len(start), _DEAR * max(float(start.sum()), g.limit))
    low, high, used, drift = (none, dear, none, none) if box is None else (box.low, box.high, box.used, box.drift)
    first, last = (0.0, g.limit) if box is None else (box.first, box.last)
    price, time = start.copy(), np.empty(m.rate.shape)
    ended, found, _ = best_mix(
        m.rate, m.load, m.rows, m.count, g.need, g.rise, g.money, g.is_level, first, last, used, drift, level,
        low, high, price, same, jobs.low, jobs.high, time,
    )  # fmt: skip
    return ended, price, found, time


def _assembled(jobs: _Jobs, box: _Box, of_box: Floats, price: Floats, level: float) -> Best:
    """The times of all jobs: those outside the box keep their modes."""
    part = np.clip(box.part + box.climb * (level - box.level), 0.0, 1.0)
    price = np.where(price > _EDGE * price.max(initial=0.0), price, 0.0)
    times = ModeTimes(jobs.low.copy(), jobs.high.copy(), part, box.rows, of_box)  # the next line changes edges
    return Best(times, price, level, _steepness(jobs, box, jobs.goal.needs(level), price))


def _steepness(jobs: _Jobs, box: _Box, need: Floats, price: Floats) -> Floats:
    """Marginal cost of each rate at its need, (K,). The edges of the jobs outside the box are those of a level."""
    modes, goal, steepness = jobs.modes, jobs.goal, np.zeros(len(need))
    if not goal.is_level and not need.any():
        return steepness
    some = box.jobs if goal.is_level else jobs
    needs, none, part = need[box.rows] if some is box.jobs else need, np.zeros(len(some.low)), np.empty(len(some.low))
    set_edges(some.modes.rate, some.modes.load, modes.rows, needs, none, price, some.low, some.high, part)
    if some is box.jobs:
        jobs.low[box.rows], jobs.high[box.rows] = some.low, some.high
    duals(modes.rate, modes.load, modes.rows, need, goal.money, price, jobs.low, jobs.high, steepness)
    return steepness

"""Jobs and their modes as arrays for the prices of rows: K classes of jobs, M modes, P rows (a resource of a type).

Also the search for the best mix: columns over a sample of the jobs find prices near the optimum; then over the jobs
whose mix may change in a box around them, until the optimum is inside the box. No step depends on an earlier answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.program import Classes, classes_of, singletons
from gavelpy.solve.sizes.column_kernels import COLUMNS_PER_ROW, DONE, best_mix, times_of
from gavelpy.solve.sizes.hull_kernels import duals, mixes

_SAMPLE_PART, _SAMPLE_LEAST, _SAMPLE_MOST = 8, 512, 2048
_ALL_AT_ONCE = 1024  # classes: fewer need no sample
_IN_DOUBT, _IN_DOUBT_PER_ROW, _GROWTH = 192, 32, 2.0
_BOXES = 12
_BOX_MAX = 0.3  # relative half-width
_LEAST_UNIT = 1e-3  # of the mean price: unit of a price near zero
_DEAR = 1e6  # of the value of all rows: the price of what does not exist
_DISTINCT, _COMPARED = 0.9, 1024  # part of the rows compared first that must differ, so that no classes are looked for
_EDGE = 1e-12


@dataclass(frozen=True, eq=False)
class Modes:
    """K classes of jobs with M modes, in scaled numbers: rates in units of the best, loads in parts of a row."""

    rate: Floats  # (K, M) 0 = no such mode
    load: Floats  # (K, M, R)
    rows: Ints  # (M, R) of P rows
    count: Floats  # (K,) jobs in the class
    row_count: int  # P

    def some(self, classes: Ints) -> Modes:
        """The modes of some classes."""
        return replace(self, rate=self.rate[classes], load=self.load[classes], count=self.count[classes])


@dataclass(frozen=True, eq=False)
class ModeGoal:
    """The highest level with rates `rise` x level, up to `limit`; or the highest sum of `money` x rate above `need`."""

    need: Floats  # (K,) of a sum
    rise: Floats  # (K,) of a level; 0 for a sum
    money: Floats  # (K,) of a sum; 0 for a level
    limit: float = 0.0  # 0 = it is a sum

    @property
    def is_level(self) -> bool:
        """Whether it is a level."""
        return self.limit > 0

    def some(self, classes: Ints) -> ModeGoal:
        """The goal of some classes."""
        return replace(self, need=self.need[classes], rise=self.rise[classes], money=self.money[classes])

    def needs(self, level: float) -> Floats:
        """Least rates (K,)."""
        return np.minimum(level * self.rise, 1.0) if self.is_level else self.need


@dataclass(frozen=True, eq=False)
class Best:
    """The best mix."""

    time: Floats  # (K, M)
    price: Floats  # (P,) of a whole row
    level: float
    steepness: Floats  # (K,) marginal cost of a rate


@dataclass(frozen=True, eq=False)
class ModeTable:
    """A problem in which every configuration is of one job."""

    problem: AllocationProblem
    best_steps_per_s: Floats  # (J,)
    jobs: Ints  # rows of those that can run
    classes: Classes  # of those
    configuration: Ints  # (J, S) row of each size; -1 = none
    modes: Modes
    value: Floats  # (K,) objective units of a job at its best rate
    floor: Floats  # (K,) least rates

    def per_job(self, per_class: Floats) -> Floats:
        """Values of all jobs, (J,), from those of classes; zero for jobs that can run nowhere."""
        figures: Floats = np.zeros(self.problem.job_count)
        figures[self.jobs] = per_class[self.classes.of_job]
        return figures

    def shares(self, time: Floats) -> Floats:
        """Shares (C, T) from times (K, M)."""
        S, T = self.configuration.shape[1], len(self.problem.gpu_types)
        share: Floats = np.zeros((self.problem.configuration_count, T))
        of_job = time.reshape(-1, S, T)[self.classes.of_job]
        rows = self.configuration[self.jobs]
        there = rows >= 0
        share[rows[there]] = of_job[there]
        return share


def mode_table(problem: AllocationProblem, per_step_per_s: Floats, floor_steps_per_s: Floats) -> ModeTable:
    """The table; values and floors are (J,)."""
    J, T, R = problem.job_count, len(problem.gpu_types), len(problem.resources)
    order = np.argsort(problem.member_job, kind="stable")
    sorted_jobs = problem.member_job[order]
    first = np.searchsorted(sorted_jobs, np.arange(J))
    slot = np.arange(J and len(order)) - first[sorted_jobs]
    S = int(slot.max(initial=0)) + 1
    configuration = np.full((J, S), -1)
    configuration[sorted_jobs, slot] = problem.member_configuration[order]
    rate: Floats = np.zeros((J, S, T))
    rate[problem.member_job[order], slot] = np.where(problem.fits, problem.member_rate_steps_per_s, 0.0)[order]
    best = rate.reshape(J, S * T).max(axis=1, initial=0.0)
    jobs = np.flatnonzero(best > 0)
    rate = rate.reshape(J, S * T)[jobs] / best[jobs, None]
    need = np.where((configuration >= 0)[:, :, None], problem.occupied[configuration], 0.0)[jobs]
    value, floor = best[jobs] * per_step_per_s[jobs], floor_steps_per_s[jobs] / best[jobs]
    features = np.column_stack([rate, need.reshape(len(jobs), S * R), value, floor])
    classes = _classes(features)
    k = classes.representative
    amount = np.where(problem.row_capacity > 0, problem.row_capacity, 1.0).reshape(R, T)
    load = (need[k][:, :, None, :] / amount.T).reshape(len(k), S * T, R)
    rows = np.arange(R) * T + np.tile(np.arange(T), S)[:, None]
    modes = Modes(np.ascontiguousarray(rate[k]), load, rows, classes.count.astype(np.float64), R * T)
    return ModeTable(problem, best, jobs, classes, configuration, modes, value[k], floor[k])


def _classes(features: Floats) -> Classes:
    step = max(1, len(features) // _COMPARED)
    some = features[::step]
    if step > 1 and len(classes_of(some).count) > _DISTINCT * len(some):
        return singletons(len(features))
    return classes_of(features)


def best_of_goal(modes: Modes, goal: ModeGoal, start: Floats, level: float) -> Best | None:
    """The best mix, searched from prices `start` (P,); None if there is none, or if it is not found."""
    K = len(modes.rate)
    if K > _ALL_AT_ONCE:
        part = min(max(K // _SAMPLE_PART, _SAMPLE_LEAST), _SAMPLE_MOST)
        few = np.arange(0, K, K // part)
        some = modes.some(few)
        some = replace(some, count=some.count * (modes.count.sum() / some.count.sum()))
        _, start, level, _ = _searched(some, goal.some(few), start, level, None)
    in_doubt = float(_IN_DOUBT + _IN_DOUBT_PER_ROW * modes.row_count) if K > _ALL_AT_ONCE else K
    for _ in range(_BOXES):
        box = _box(modes, goal, start, level, int(in_doubt))
        ended, price, found, columns = _searched(modes.some(box.rows), goal.some(box.rows), start, level, box)
        inside = not goal.is_level or (
            (found > box.first * (1 + _EDGE) or box.first == 0)
            and (found < box.last * (1 - _EDGE) or box.last == goal.limit)
        )
        if ended == DONE and inside:
            return _assembled(modes, goal, box, columns, price, found)
        if len(box.rows) == K:
            return None
        start, level, in_doubt = price, found, in_doubt * _GROWTH
    return None


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
    modes: Modes, goal: ModeGoal, start: Floats, level: float, box: _Box | None
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
        used, drift, level, low, high, price, columns.part, columns.price, columns.level,
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


def is_free(modes: Modes, price: Floats) -> Bools:
    """Whether every row that a mode uses has no price, (K, M)."""
    free: Bools = (modes.rate > 0) & ~((modes.load > 0) & (price > 0)[modes.rows]).any(axis=2)
    return free


def used_by(modes: Modes, time: Floats) -> Floats:
    """Part of each row that these times use, (P,)."""
    used: Floats = np.zeros(modes.row_count)
    np.add.at(used, modes.rows, np.einsum("k,km,kmr->mr", modes.count, time, modes.load))
    return used

"""The exact optimum from approximate prices, by small linear programs over the jobs whose mix is in doubt.

A program covers a box of prices and level. A job outside it keeps its two modes anywhere in the box, so its demand is
affine in the level. A job inside may move some of its time z to any other mode t, from its low and high modes a and b:
with φ = (r_t - r_a) / (r_b - r_a), a unit of z takes 1 - φ from a and φ from b and leaves the job's rate unchanged. (If
a rate above the need has a gain, another z moves time from a to b.) Around the point (p, τ) the program is

    min  Σ excess z + Σ_t d_t (e⁺_t + e⁻_t)      over z >= 0, e >= 0, a step σ of the level
    s.t. low and high shares stay >= 0,   and   Σ swaps z + drift σ + e⁻ - e⁺ = W - used

where excess is z's reduced cost at p and d the half-width of the box: the duals of the last rows are the changes of the
prices, which cannot leave the box. If no e is used and σ is inside, the jobs outside had the right mixes, and this is
the optimum. Otherwise the next box is around the new prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.prices.newton import PRICE_FLOOR, Dual, Point
from gavelpy.solve.prices.table import Modes, Sweep, Table, kernels
from gavelpy.solve.small_programs import BoxedModel, Solved, solve_small
from gavelpy.solve.solver import Solver

_JOBS_IN_DOUBT = 16  # in the first program
_JOBS_IN_DOUBT_PER_TYPE = 6
_FEW_JOBS = 16384  # jobs; with more, a sweep costs more than a larger program
_GROWTH = 1.7
_FAST_GROWTH = 6.0
_PATIENCE = 4  # attempts before all jobs are in doubt, if there are at most
_WHOLE = 2500
_DEAR = 1e6
_TIED = 1e-10  # relative
_MORE_THAN_TIED = 1.2
ATTEMPTS = 14
_BOX_MAX = 0.3  # relative half-width
_AT_REST = 1e-9  # of a type's GPUs: e below is rounding


@dataclass(frozen=True, eq=False)
class Vertex:
    """The exact optimum: mixes of two modes, and the times of the jobs in the last program."""

    price: Floats  # (T,)
    level: float
    leveled: bool
    low: Modes  # (K,)
    high: Modes  # (K,)
    base: Floats  # (K,) need at level 0, extrapolated with the slope
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
    """The optimum near `near`, or None if it is not found within `attempts`. `known` is the sweep there."""
    table, price, level = dual.table, near.price, near.level
    K, T = table.rate.shape
    in_doubt = _first_in_doubt(K, T)
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
        if not price.max() > 0 or (dual.leveled and level == 0.0 and not dual.is_size):
            return None
        tied = int((s.margin < _TIED).sum())  # equal jobs at a kink: all of them have the same choice
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
    """Where the mixes of the jobs outside are valid; everywhere if there is no such job."""
    limit = np.inf if dual.level_max is None or dual.is_size else dual.level_max / level - 1.0
    if np.isinf(half):
        return Box(np.full(len(price), _DEAR * price.max()), price, (-1.0, min(_DEAR, limit)) if dual.leveled else None)
    sigma = (-half, min(half, limit)) if dual.leveled else None
    return Box(half * price, np.where(free, 0.0, half * price), sigma)


def first_in_doubt(classes: int, gpu_types: int) -> int:
    """How many classes are in doubt in the first program."""
    return int(_first_in_doubt(classes, gpu_types))


def _first_in_doubt(classes: int, gpu_types: int) -> float:
    return (_JOBS_IN_DOUBT + _JOBS_IN_DOUBT_PER_TYPE * gpu_types) * max(1.0, math.sqrt(classes / _FEW_JOBS))


def most_in_doubt(s: Sweep, gpu_types: int) -> Ints:
    """Rows of the classes in doubt in the first program at this sweep."""
    tied = int((s.margin < _TIED).sum())
    return _in_doubt(s, int(max(_first_in_doubt(len(s.margin), gpu_types), _MORE_THAN_TIED * tied)))[0]


def _in_doubt(s: Sweep, count: int) -> tuple[Ints, float]:
    """Rows of the jobs with the least margins, and how far prices may move before another job is in doubt."""
    if count >= len(s.margin):
        return np.arange(len(s.margin)), np.inf
    order = np.argpartition(s.margin, count)
    edge = float(s.margin[order[count]]) * (1 - 1e-9)
    return np.sort(order[:count]), min(max(edge, 1e-13), _BOX_MAX)


@dataclass(frozen=True, eq=False)
class Restricted:
    """The S jobs in doubt, with their times by mode; mode T is idle."""

    low: Ints  # (S,) mode
    high: Ints
    theta: Floats  # (S,) share of high
    theta_slope: Floats  # (S,) per relative step of level
    phi: Floats  # (S, T + 1)
    excess: Floats  # (S, T + 1) reduced cost of a unit of time
    column_row: Ints  # (Z,) row
    column_mode: Ints  # (Z,)
    spare: Floats  # (S,) rate beyond the need, of jobs with one mode; 0 for the others
    spare_slope: Floats  # (S,)

    @property
    def is_single(self) -> Bools:
        """Whether a job runs in one mode, (S,)."""
        return np.asarray(self.low == self.high)


def restricted(
    table: Table, s: Sweep, need: Floats, price: Floats, slope: Floats | None = None, level: float = 0.0
) -> Restricted:
    """The jobs of a small table around their mixes in the sweep `s` at this point."""
    S, T = table.rate.shape
    rate = np.zeros((S, T + 1))
    rate[:, :T] = table.rate
    cost = np.zeros((S, T + 1))
    cost[:, :T] = table.gpus[:, None] * price
    if len(table.gain):
        cost[:, :T] -= table.gain
    low, high = s.low.astype(np.int64) % (T + 1), s.high.astype(np.int64) % (T + 1)  # IDLE is mode T
    single = low == high
    rising = np.zeros(S) if slope is None else slope
    at = np.arange(S)
    low_rate, high_rate, low_cost, high_cost = rate[at, low], rate[at, high], cost[at, low], cost[at, high]
    rise = 1.0 / np.where(single, 1.0, high_rate - low_rate)
    theta = np.where(single, 0.0, (need - low_rate) * rise)
    phi = np.where(single[:, None], 0.0, (rate - low_rate[:, None]) * rise[:, None])
    excess = cost - low_cost[:, None] - phi * (high_cost - low_cost)[:, None]
    possible = rate > 0
    possible[:, T] = True
    possible[at, low] = possible[at, high] = False
    beyond = np.flatnonzero(~single) if len(table.gain) else at[:0]  # these may gain from more than the need
    possible[beyond, high[beyond]] = True
    phi[beyond, high[beyond]] = 0.0
    excess[beyond, high[beyond]] = (high_cost - low_cost)[beyond]
    column_row, column_mode = np.nonzero(possible)
    return Restricted(
        low=low,
        high=high,
        theta=theta,
        theta_slope=np.where(single, 0.0, rising * rise) * level,
        phi=phi,
        excess=np.maximum(excess, 0.0),
        column_row=column_row,
        column_mode=column_mode,
        spare=np.where(single, low_rate - need, 0.0),
        spare_slope=np.where(single, rising, 0.0) * level,
    )


def swaps(r: Restricted, gpu_types: int) -> Floats:
    """Change of the time in each mode for a unit of each column, (Z, T)."""
    i, t, Z = r.column_row, r.column_mode, np.arange(len(r.column_row))
    change = np.zeros((len(i), gpu_types + 1))
    change[Z, t] = 1.0
    phi = r.phi[i, t]
    change[Z, r.low[i]] -= 1.0 - phi
    change[Z, r.high[i]] -= phi
    return change[:, :gpu_types]


@dataclass(frozen=True, eq=False)
class Box:
    """How far prices (T,) may rise and fall, and the least and largest relative step of the level, if any."""

    rise: Floats
    fall: Floats
    sigma: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class Units:
    """Units in which the program's numbers are about 1."""

    money: float
    gpus: float


def model(table: Table, r: Restricted, over: Floats, drift: Floats, box: Box, units: Units) -> BoxedModel:
    """The program in HiGHS's arrays. Rows: low shares, high shares or spare rates, GPU types.

    Columns: z, then σ where there is a level, then e⁺ and e⁻.
    """
    S, T, Z = len(r.low), len(over), len(r.column_row)
    i, t = r.column_row, r.column_mode
    phi, load = r.phi[i, t], table.load[i] / units.gpus
    rate = np.concatenate([table.rate, np.zeros((S, 1))], axis=1)
    single = r.is_single
    second = np.where(single[i], rate[i, r.low[i]] - rate[i, t], np.where(t == r.high[i], -1.0, phi))
    change = swaps(r, T) * load[:, None]
    block = np.column_stack([1.0 - phi, second, change])
    row = np.column_stack([i, S + i, np.broadcast_to(2 * S + np.arange(T), (Z, T))])
    kept = block != 0.0
    start = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    index, value = [row[kept]], [block[kept]]
    cost, lower, upper = [table.count[i] * r.excess[i, t] / units.money], [np.zeros(Z)], [np.full(Z, np.inf)]
    starts = [start]
    if box.sigma is not None:
        column = np.concatenate([r.theta_slope, np.where(single, r.spare_slope, -r.theta_slope), drift / units.gpus])
        used = np.flatnonzero(column)
        index.append(used)
        value.append(column[used])
        starts.append(starts[-1][-1:] + len(used))
        cost.append(np.zeros(1))
        lower.append(np.array([box.sigma[0]]))
        upper.append(np.array([box.sigma[1]]))
    ends = starts[-1][-1] + 1 + np.arange(2 * T)
    index.append(np.tile(2 * S + np.arange(T), 2))
    value.append(np.repeat([-1.0, 1.0], T))
    starts.append(ends)
    cost.append(np.concatenate([box.rise, box.fall]) * (units.gpus / units.money))
    lower.append(np.zeros(2 * T))
    upper.append(np.full(2 * T, np.inf))
    limits = np.concatenate([np.where(single, 1.0, 1.0 - r.theta), np.where(single, r.spare, r.theta)])
    balance = -over / units.gpus
    return BoxedModel(
        start=np.concatenate(starts).astype(np.int32),
        row=np.concatenate(index).astype(np.int32),
        value=np.concatenate(value),
        row_lower=np.concatenate([np.full(2 * S, -np.inf), balance]),
        row_upper=np.concatenate([limits, balance]),
        cost=np.concatenate(cost),
        lower=np.concatenate(lower),
        upper=np.concatenate(upper),
    )


def times(r: Restricted, answer: Solved, sigma: float, gpu_types: int) -> Floats:
    """Time of each job in doubt on each type, (S, T), after the program."""
    S = len(r.low)
    time = np.zeros((S, gpu_types + 1))
    at = np.arange(S)
    theta = r.theta + r.theta_slope * sigma
    time[at, r.low] += 1.0 - theta
    time[at, r.high] += theta
    change = np.zeros((S, gpu_types))
    np.add.at(change, r.column_row, swaps(r, gpu_types) * answer.column[: len(r.column_row), None])
    return np.asarray(np.maximum(time[:, :gpu_types] + change, 0.0))

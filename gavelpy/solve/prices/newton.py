"""The dual function of a linear problem, and approximate optimal prices by Newton's method.

The dual of a level problem is the level τ at which the cost of all needs at prices p equals the value of the GPUs:
Σ_i c_i(τ; p) = p·W. Every p gives a bound, and the least bound is the optimum. With many jobs this function is almost
smooth. At the optimum the GPUs used are those that exist:

    used(p, τ) = W,   in which   d used/dτ = drift   and   d used/dp = -curvature   (smoothed over a width).

Only ratios of prices matter there, and they are scaled to drift·p = 1. A sum has no level, and its prices have a unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.prices.table import Bends, Lines, Needs, Sweep, Table, compiled, kernels

PRICE_FLOOR = 1e-12  # of the highest price: price of a free type, so that no job uses it without need
_EXCESS = 2e-4  # of a type's GPUs: excess demand from which the exact step continues
_JOBS, _PART = 32.0, 0.06  # if `best_prices` follows: the GPUs of this many jobs by the number of types, up to a part
_STEPS_MAX = 40
_IDLE, _IDLE_OF_MANY = 1e-5, 1e-6  # relative fall of the bound in a step that achieves nothing; of compiled steps
_IDLE_STEPS = 4  # that may follow each other
FIRST_STEPS = 6  # after which the bound shows whether a level of some interest can be reached
_LEAP = 1.0  # largest change of the logarithm of a price in a step
_SHORTEST, _SHORTER, _SHORT = 0.05, 0.3, 0.7  # fractions of a step that was too long
_LONGER = 4.0  # factor from one step to the next
_WIDE = 0.3  # first and largest width of smoothing
_STIFFNESS = 1e-6  # of the GPUs used: demand falls by at least this if a price doubles
_NEXT_TO_NOTHING = 1e-200
_ROUNDING = 1e-13
_SAMPLE_PART, _SAMPLE_LEAST, _SAMPLE_MOST = 8, 1024, 8192  # one job of so many; bounds of their number
_ROUGH_PART, _ROUGH_LEAST = 16, 512  # the same if rough prices are near enough
_CONVERGED = 10.0  # excess below which more steps in a sample bring a point no nearer
_SAMPLED = 4  # times a sample's jobs: for fewer, a sample saves nothing
_SAMPLE_ERROR, ROUGH_ERROR = 0.02, 0.05  # relative error of a sample's prices
_KINKS = 10.0  # jobs whose kinks a width should contain
_NEGLIGIBLE = 1e-3  # of the highest price: a type below it that is not used up is free
_SPECK = 1e-9  # of the highest price: a type that costs no more is free unless it is scarce
_TINY = 1e-10  # of the highest price: what a negligible one becomes
_ALIKE = 30.0  # times a negligible price: others up to this become specks with it
_LOW = 0.1  # of the highest price: a price that may leap to zero
_FIRST, _BACK, _HALF = 0.01, 0.3, 0.5  # prices return to a part of that before they fell, or of the highest
_SCARCE = 1e-6  # of the value of free types: excess demand at which they are scarce together
_NEAR = 0.2  # of a price: a step that is shorter is the last, for bent needs


@dataclass(frozen=True, eq=False)
class Dual:
    """A linear problem: the highest level at which needs are feasible, or the highest gain at fixed needs."""

    table: Table
    needs: Needs
    level_max: float | None = None  # levels above have no meaning; None = there is no level
    root: Callable[[Dual, Sweep, Floats, Floats], float] | None = (
        None  # bound that a sweep proves, for needs with bends
    )
    is_size: bool = False  # the level is minus the number of clusters that fixed needs take
    loops: Callable[[int], ModuleType] = kernels  # for this number of jobs
    bends: Bends | Lines | None = None  # the same needs as arrays, for compiled steps
    is_rough: bool = False  # whether prices some per cent off are near enough

    @property
    def leveled(self) -> bool:
        """Whether there is a level."""
        return self.level_max is not None

    def over(self, s: Sweep, level: float) -> Floats:
        """GPUs used minus GPUs that exist, (T,)."""
        return s.used + self.table.gpu_counts * level if self.is_size else s.used - self.table.gpu_counts

    def drift(self, s: Sweep) -> Floats:
        """GPUs that a unit of level takes, (T,)."""
        return self.table.gpu_counts if self.is_size else s.drift

    def sampled(self, rows: Ints) -> Dual:
        """The problem of some of the jobs, with their part of the GPUs."""
        some = self.table.some(rows)
        part = float(some.load.sum() / self.table.load.sum())
        bends = None if self.bends is None else type(self.bends)(*(figures[rows] for figures in self.bends))
        table = replace(some, gpu_counts=self.table.gpu_counts * part)
        return replace(self, table=table, needs=self.needs.some(rows), bends=bends, loops=compiled)

    def swept(self, price: Floats, level: float, width: float = 0.0) -> Sweep:
        """The cheapest mix of every job at this point."""
        need, slope = self.needs.at(level)
        return self.loops(len(need)).sweep(self.table, need, slope, price, width, level)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the dual."""

    price: Floats  # (T,)
    level: float
    excess: float = math.inf  # largest difference between GPUs used and existing, in units of the tolerance
    bound: float = math.inf  # upper bound on the level or sum: the least on the way here


def near(dual: Dual, start: Point) -> Point:
    """The best point of some steps from `start`: the GPUs used are nearly those that exist.

    Most steps use a sample of many jobs, with their part of the GPUs, unless `start` is the point of such steps.
    """
    few = sampled(dual)
    if few is None:
        return descend(dual, start, _WIDE)
    if start.excess > _CONVERGED:
        start = descend(few, start, _WIDE)
    return descend(dual, Point(start.price, start.level), ROUGH_ERROR if dual.is_rough else _SAMPLE_ERROR)


def roughly(dual: Dual, start: Point) -> Point:
    """The best point of a few steps from `start`, for searches that need no better one; of a sample of many jobs."""
    return descend(sampled(dual) or dual, start, _WIDE, FIRST_STEPS)


def sampled(dual: Dual) -> Dual | None:
    """The problem of a sample of the jobs; None if they are few."""
    K = len(dual.table.gpus)
    part, least = (_ROUGH_PART, _ROUGH_LEAST) if dual.is_rough else (_SAMPLE_PART, _SAMPLE_LEAST)
    sample = min(max(K // part, least), _SAMPLE_MOST)
    return None if _SAMPLED * sample > K else dual.sampled(np.arange(0, K, K // sample))


def descend(dual: Dual, start: Point, width: float, steps_max: int | None = None) -> Point:
    """Newton's steps. A step that increases the dual function is undone and shortened."""
    table, W = dual.table, dual.table.gpu_counts
    job = float(table.load.mean())
    close = np.maximum(_EXCESS * W, np.clip(_PART * W, job, max(_JOBS / len(W), 1.0) * job) if dual.is_rough else job)
    narrowest = min(_KINKS / len(table.gpus), _WIDE)
    is_compiled = dual.loops(len(table.gpus)) is compiled(0)
    if dual.bends or (is_compiled and dual.root is None and not dual.is_size):
        return _descend_compiled(dual, start, close, narrowest, width, steps_max or _STEPS_MAX)
    price, level, leap, is_bent = start.price, start.level, _LEAP, dual.root is not None
    best, base, leaps = start, _Base(start.price, start.level), _Leaps(np.full(len(W), _FIRST))
    least, idle = np.inf, 0
    for _ in range(steps_max or _STEPS_MAX):
        s = dual.swept(price, level, width)
        price, bound = _bound(dual, s, price, level)
        if not np.isfinite(bound):
            break
        over = dual.over(s, level)
        if dual.is_size:
            level, over = bound, dual.over(s, bound)
        elif is_bent:
            level, over = bound, over + s.drift * (bound - level)
        active = (price > _SPECK * price.max()) | (over > 0)
        excess = float(np.abs(over[active] / close[active]).max(initial=0.0))
        if excess < best.excess:
            best = Point(price, level, excess)
        idle = idle + 1 if bound > least - _IDLE * abs(bound) else 0
        least = min(least, bound)
        if (excess < 1.0 and not is_bent) or idle > _IDLE_STEPS:
            break
        if bound <= base.bound + _ROUNDING * abs(bound) or excess < 1.0:
            base = _based(dual, s, _Base(price, level, bound), over, active, leaps)
            if excess < 1.0 and np.abs(base.plain).max() < _NEAR:
                break
            leap = min(_LONGER * leap, _LEAP)
        elif base.leaping.any():
            base, leaps.allowed, leap = base.without_leaps(), False, _LEAP
        else:
            leap = base.shorter(float(over @ (price * base.step))) * base.taken(leap)
        part = base.taken(leap) / base.length if base.length > 0 else 0.0
        price = _moved(base, part, over)
        level = base.level + part * base.rise
        width = min(max(min(width, 2.0 * base.taken(leap)), narrowest), _WIDE)
    price = np.where(best.price > _SPECK * best.price.max(), best.price, PRICE_FLOOR * best.price.max())
    return replace(best, price=price, bound=least)


def _descend_compiled(dual: Dual, start: Point, close: Floats, narrowest: float, width: float, steps_max: int) -> Point:
    """The same steps, in one call."""
    from gavelpy.solve.prices.newton_kernels import descend

    t, price = dual.table, start.price.copy()
    settings = (
        PRICE_FLOOR, _IDLE_OF_MANY, float(_IDLE_STEPS), _LEAP, _SHORTEST, _SHORTER, _SHORT, _LONGER, _WIDE, _STIFFNESS,
        _ROUNDING, narrowest, _NEGLIGIBLE,
    )  # fmt: skip
    base, slope = dual.needs.at(start.level if dual.bends else 0.0)
    figures = (t.gpus, t.count, base, slope, *(dual.bends or [np.zeros(0)] * 3), t.gpu_counts)
    excess, bound, level = descend(
        t.rate, t.gain, *map(np.array, figures), isinstance(dual.bends, Lines), dual.leveled, close, settings,
        steps_max, float(start.level), width, price,
    )  # fmt: skip
    return Point(price, level, excess, bound)


@dataclass
class _Leaps:
    """Prices that become zero in one step, where Newton's step makes them negative, and return if types are scarce."""

    last: Floats  # (T,) part of the highest price before it became zero
    allowed: bool = True  # to zero


@dataclass(frozen=True, eq=False)
class _Base:
    """The point with the least bound so far, and the step from there."""

    price: Floats
    level: float
    bound: float = math.inf
    step: Floats = field(default_factory=lambda: np.zeros(1))  # (T,) of the logarithms of prices
    rise: float = 0.0  # of the level
    leaping: Bools = field(default_factory=lambda: np.zeros(1, dtype=np.bool_))  # (T,) prices with a step of any length
    plain: Floats = field(default_factory=lambda: np.zeros(1))  # (T,) the step without leaps
    plain_rise: float = 0.0
    slope: float = 0.0  # how fast the bound falls along that

    def without_leaps(self) -> _Base:
        """The same point with Newton's step."""
        return replace(self, step=self.plain, rise=self.plain_rise, leaping=np.zeros(len(self.price), dtype=np.bool_))

    def shorter(self, slope: float) -> float:
        """Fraction of a step that was too long: to the zero of the slope, by the secant."""
        if not self.slope > slope:
            return _SHORTER
        return min(max(self.slope / (self.slope - slope), _SHORTEST), _SHORT)

    @property
    def length(self) -> float:
        """Largest relative change in a full step, but for prices that leap."""
        longest = float(np.abs(np.where(self.leaping, 0.0, self.step)).max())
        return max(longest, abs(self.rise / self.level) if self.level else 0.0)

    def taken(self, leap: float) -> float:
        """Largest relative change in the part that is taken."""
        return min(self.length, leap)


def _based(dual: Dual, s: Sweep, at: _Base, over: Floats, active: Bools, leaps: _Leaps) -> _Base:
    """The point with the step from there. Keeps in `leaps` which prices were lost, and whether more may be."""
    price, most, W = at.price, at.price.max(), dual.table.gpu_counts
    drift, gone = dual.drift(s), np.zeros(len(price), dtype=np.bool_)
    step, rise = plain, plain_rise = _step(s, drift, price, over, active, gone, leveled=dual.leveled)
    slope = float(over @ (price * plain))
    while leaps.allowed and (more := active & ~gone & (over < 0) & (step < -1.0) & (price < _LOW * most)).any():
        gone |= more
        step, rise = _step(s, drift, price, over, active, gone, leveled=dual.leveled)
    if gone.any():
        step = np.where(gone, np.log(PRICE_FLOOR * most / price), step)
        leaps.last = np.where(gone, price / most, leaps.last)
    free = price <= _SPECK * most
    if free.any() and float((price * over)[free].sum()) > _SCARCE * float((price * W)[free].sum()):
        gone, leaps.allowed = free, False
        back = min(_BACK * leaps.last[free].max() * most, _HALF * price[~free].min())
        step = np.where(free, math.log(back / price[free].max()), 0.0)
        rise, plain, plain_rise = 0.0, _HALF * step, 0.0
    return replace(at, step=step, rise=rise, leaping=gone, plain=plain, plain_rise=plain_rise, slope=slope)


def _bound(dual: Dual, s: Sweep, price: Floats, level: float) -> tuple[Floats, float]:
    """The price (scaled if there is a level), and the upper bound that it proves. Scales `s` with it.

    With a level: the root of the tangent in τ to Σ c_i(τ; p) - p·W, which is convex, so the bound is above its root.
    """
    if not dual.leveled:
        return price, s.reward - float(price @ dual.over(s, level))
    norm = float(dual.drift(s) @ price)
    if not norm > 0:
        return price, np.inf
    price = price / norm
    s.curvature[:] *= norm
    if dual.root is not None:
        return price, dual.root(dual, s, dual.needs.at(level)[0], price)
    return price, level - float(price @ dual.over(s, level))


def _moved(base: _Base, part: float, over: Floats) -> Floats:
    """The prices after a part of the step; negligible ones become specks if their types are not used up.

    So do prices not much higher. They keep their ratios, which divide the jobs among these types.
    """
    moved = np.where(base.leaping, base.step, part * base.step)
    price: Floats = np.maximum(base.price * np.exp(moved), PRICE_FLOOR * base.price.max())
    most, low = price.max(), _NEGLIGIBLE * price.max()
    few = price < (_ALIKE * low if ((price > _SPECK * most) & (price < low)).any() else low)
    if few.any() and float((price * over)[few].sum()) < 0:
        smaller = price * min(_TINY * most / price[few].max(), 1.0)
        price = np.where(few, np.maximum(smaller, PRICE_FLOOR * most), price)
    return price


def _step(
    s: Sweep, drift: Floats, price: Floats, over: Floats, active: Bools, gone: Bools, *, leveled: bool
) -> tuple[Floats, float]:
    """Newton's change of each price's logarithm, (T,), and of the level; the prices of types `gone` become zero."""
    a = np.flatnonzero(active & ~gone)
    N, lost = len(a), np.where(gone, price, 0.0)
    system = np.zeros((N + leveled, N + leveled))
    system[:N, :N] = -s.curvature[np.ix_(a, a)] * price[a]
    system[np.diag_indices(N)] -= _STIFFNESS * s.used[a] + _NEXT_TO_NOTHING
    right = -over[a] - (s.curvature @ lost)[a]
    if leveled:
        system[:N, N], system[N, :N] = drift[a], drift[a] * price[a]
        right = np.append(right, drift @ lost)
    scale = np.maximum(
        np.abs(system).max(axis=1), _NEXT_TO_NOTHING
    )  # so that the balance of a cheap type has the same weight
    answer = np.linalg.lstsq(system / scale[:, None], right / scale, rcond=1e-13)[0]
    step = np.zeros(len(price))
    step[a] = answer[:N]
    return step, float(answer[N]) if leveled else 0.0

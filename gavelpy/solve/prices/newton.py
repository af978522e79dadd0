"""Prices near the best ones: Newton's method on a dual function that so many jobs make almost smooth.

The dual of a level problem is the level τ at which what all needs cost, at prices p, is what the GPUs are worth:
Σ_i c_i(τ; p) = p·W. Every p gives a bound, and its least is the optimum. There the GPUs used are those there are:

    used(p, τ) = W,   in which   d used/dτ = drift   and   d used/dp = -curvature   (smoothed over a width).

Only ratios of prices matter there, and they are scaled to drift·p = 1. A sum has no level, and its prices have a unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.prices.table import Needs, Sweep, Table
from gavelpy.solve.solver import NUMPY_ROWS_MAX

PRICE_FLOOR = 1e-12  # of the highest price: what a free type costs, so that nobody uses it in vain


@dataclass(frozen=True, eq=False)
class Dual:
    """Needs of rate that rise with a level, as high as can be; or fixed needs and the most gain, without a level."""

    table: Table
    needs: Needs
    level_max: float | None = None  # no level above has a meaning; None = there is no level
    root: Callable[[Dual, Sweep, Floats, Floats], float] | None = None  # what a sweep proves, where needs bend
    is_size: bool = False  # the level is minus the number of times that the cluster must be there for fixed needs

    @property
    def leveled(self) -> bool:
        """Whether there is a level to raise."""
        return self.level_max is not None

    def over(self, s: Sweep, level: float) -> Floats:
        """GPUs used above those there are, (T,)."""
        return s.used + self.table.gpu_counts * level if self.is_size else s.used - self.table.gpu_counts

    def drift(self, s: Sweep) -> Floats:
        """GPUs that a unit of level takes, (T,)."""
        return self.table.gpu_counts if self.is_size else s.drift

    def sampled(self, rows: Ints) -> Dual:
        """The same for some of the jobs, and their part of the GPUs."""
        some = self.table.some(rows)
        part = float(some.load.sum() / self.table.load.sum())
        return replace(self, table=replace(some, gpu_counts=self.table.gpu_counts * part), needs=self.needs.some(rows))

    def swept(self, price: Floats, level: float, width: float = 0.0) -> Sweep:
        """What every job does at this point."""
        need, slope = self.needs.at(level)
        return kernels(len(need)).sweep(self.table, need, slope, price, width, level)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the dual."""

    price: Floats  # (T,)
    level: float
    excess: float = math.inf  # largest difference of GPUs used to GPUs there, in units of what is close
    bound: float = math.inf  # no level is above, or no sum; the least that was met on the way here


def kernels(jobs: int) -> ModuleType:
    """The loops over that many jobs: in numpy, or in machine code, which takes a second to load."""
    if jobs <= NUMPY_ROWS_MAX:
        from gavelpy.solve.prices import numpy_kernels

        return numpy_kernels
    from gavelpy.solve.prices import numba_kernels

    return numba_kernels


_EXCESS = 2e-4  # of a type's GPUs: excess of demand that the exact step takes from here
_JOBS = 1.0  # or so many jobs' GPUs
_STEPS_MAX = 40
_LEAP = 1.0  # most that a price may change in a step, in its logarithm
_SHORTEST, _SHORTER, _SHORT = 0.05, 0.3, 0.7  # parts of a step that went too far
_LONGER = 4.0  # from one step to the next
_WIDE = 0.3  # first width of smoothing, and the largest
_STIFFNESS = 1e-6  # of the GPUs used: demand falls by this, at least, as a price doubles
_NEXT_TO_NOTHING = 1e-200
_ROUNDING = 1e-13
_SAMPLE = 8192  # jobs
_SAMPLE_ERROR = 0.02  # relative, of a sample's prices
_KINKS = 10.0  # jobs whose kinks a width should hold
_NEGLIGIBLE = 1e-3  # of the highest price: below, a type that is not used up is free


def near(dual: Dual, start: Point) -> Point:
    """The best point of some steps from `start`: the GPUs used are nearly those there are.

    Most steps are taken on a sample of the jobs, and of the GPUs as many as they would get.
    """
    K = len(dual.table.gpus)
    if K < 2 * _SAMPLE:
        return _descend(dual, start, _WIDE)
    rows = np.arange(0, K, K // _SAMPLE)
    few = dual.sampled(rows)
    roughly = _descend(few, start, _WIDE)
    return _descend(dual, Point(roughly.price, roughly.level), _SAMPLE_ERROR)


def _descend(dual: Dual, start: Point, width: float) -> Point:
    """Newton's steps. One that makes the dual function greater is taken back and shortened."""
    table, W = dual.table, dual.table.gpu_counts
    close = np.maximum(_EXCESS * W, _JOBS * float(table.load.mean()))
    narrowest = min(_KINKS / len(table.gpus), _WIDE)
    price, level, leap = start.price, start.level, _LEAP
    best, base = start, _Base(start.price, start.level, np.inf, np.zeros(len(W)), 0.0, 0.0)
    for _ in range(_STEPS_MAX):
        s = dual.swept(price, level, width)
        price, bound = _bound(dual, s, price, level)
        if not np.isfinite(bound):
            break
        over = dual.over(s, level)
        if dual.is_size:
            level, over = bound, dual.over(s, bound)
        elif dual.root is not None:
            level, over = bound, over + s.drift * (bound - level)
        floor = PRICE_FLOOR * price.max()
        active = (price > floor) | (over > 0)
        excess = float(np.abs(over[active] / close[active]).max(initial=0.0))
        if excess < best.excess:
            best = Point(price, level, excess)
        if excess < 1.0:
            break
        if bound <= base.bound + _ROUNDING * abs(bound):
            step, rise = _step(s, dual.drift(s), price, over, active, leveled=dual.leveled)
            base = _Base(price, level, bound, step, rise, float(over @ (price * step)))
            leap = min(_LONGER * leap, _LEAP)
        else:
            leap = base.shorter(float(over @ (price * base.step))) * base.taken(leap)
        part = base.taken(leap) / base.length if base.length > 0 else 0.0
        price = np.maximum(base.price * np.exp(part * base.step), PRICE_FLOOR * base.price.max())
        price[(price < _NEGLIGIBLE * price.max()) & (over < 0)] = floor
        level = base.level + part * base.rise
        width = min(max(min(width, 2.0 * base.taken(leap)), narrowest), _WIDE)
    return replace(best, bound=min(base.bound, bound))


@dataclass(frozen=True, eq=False)
class _Base:
    """The point with the least bound so far, and the way from there."""

    price: Floats
    level: float
    bound: float
    step: Floats  # (T,) of the logarithms of prices
    rise: float  # of the level
    slope: float  # how fast the bound falls along the step

    def shorter(self, slope: float) -> float:
        """Part of a step that went too far, to where the slope is there, at which it was nought by the secant."""
        if not self.slope > slope:
            return _SHORTER
        return min(max(self.slope / (self.slope - slope), _SHORTEST), _SHORT)

    @property
    def length(self) -> float:
        """Largest relative change in a whole step."""
        return max(float(np.abs(self.step).max()), abs(self.rise / self.level) if self.level else 0.0)

    def taken(self, leap: float) -> float:
        """The same of the part that is taken."""
        return min(self.length, leap)


def _bound(dual: Dual, s: Sweep, price: Floats, level: float) -> tuple[Floats, float]:
    """The price (scaled, with a level), and what it proves: nothing is better than the bound. `s` is scaled with it.

    With a level: the root of the tangent in τ to Σ c_i(τ; p) - p·W, which is convex, so that it is above the root.
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


def _step(
    s: Sweep, drift: Floats, price: Floats, over: Floats, active: Bools, *, leveled: bool
) -> tuple[Floats, float]:
    """Newton's change of each price's logarithm, (T,), and of the level."""
    a = np.flatnonzero(active)
    N = len(a)
    system = np.zeros((N + leveled, N + leveled))
    system[:N, :N] = -s.curvature[np.ix_(a, a)] * price[a]
    system[np.diag_indices(N)] -= _STIFFNESS * s.used[a] + _NEXT_TO_NOTHING
    if leveled:
        system[:N, N], system[N, :N] = drift[a], drift[a] * price[a]
    scale = np.maximum(np.abs(system).max(axis=1), _NEXT_TO_NOTHING)  # a cheap type's balance counts as much
    right = np.append(-over[a], np.zeros(int(leveled)))
    answer = np.linalg.lstsq(system / scale[:, None], right / scale, rcond=1e-13)[0]
    step = np.zeros(len(price))
    step[a] = answer[:N]
    return step, float(answer[N]) if leveled else 0.0

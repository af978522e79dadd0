"""What rates cost under given prices, for classes that run alone: the duals that prices prove by themselves.

Under prices a class pays  cost(y) = min { Σ_t c_t x_t : Σ_t x_t <= 1, Σ_t r_t x_t >= y }  for rate y, which is convex.
With any worth w >= 0 of its rate and the budget max(0, max_t (w r_t - c_t)) for its time, cost(y) >= w y - budget; with
a slope of the cost at y as worth the two are equal, and slopes are among those between two types, or a type and rest.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats

_EQUAL = 1e-13  # relative: two worths that give as much
_ROUNDING = 1e-15  # of what the best rate earns


def worths_of(rate: Floats, cost: Floats, need: Floats) -> tuple[Floats, Floats]:
    """Worth of each class's rate (K,), the steepest slope of its cost at `need`, and the budget of its time (K,).

    `rate` and `cost` are (K, T) for all of the class's time, `rate` 0 where it may not run. At a class's best rate,
    above which there is nothing, it is the slope up to that rate: steeper ones prove as much, with more rounding.

    The cost is the lower convex hull of rest and of the types. The walk along it starts at rest, and each step takes
    the least slope to a higher rate (gift wrapping), so there are at most T steps.
    """
    K, T = rate.shape
    rows = np.arange(K)
    open_cost = np.where(rate > 0, cost, np.inf)
    worth, best, size = np.zeros(K), np.zeros(K), _EQUAL * need + _ROUNDING * rate.max(axis=1, initial=0.0)
    rate_here, cost_here = np.zeros(K), np.zeros(K)
    for _ in range(T):
        slopes = _slopes(rate - rate_here[:, None], open_cost - cost_here[:, None])
        following = slopes.argmin(axis=1)
        slope = slopes[rows, following]
        rises = np.isfinite(slope)
        if not rises.any():
            break
        slope = np.where(rises, slope, 0.0)
        value = np.where(rises, slope * (need - rate_here) + cost_here, 0.0)
        worth, best = _steepest(worth, best, slope, value, size)
        rate_here = np.where(rises, rate[rows, following], rate_here)
        cost_here = np.where(rises, open_cost[rows, following], cost_here)
    return worth, budgets_of(rate, cost, worth)


def _slopes(rise: Floats, dearer: Floats) -> Floats:
    """Slopes >= 0 between points that differ by so much; infinite where the second is not at a higher rate."""
    higher = (rise > 0) & np.isfinite(dearer)
    slopes: Floats = np.full(rise.shape, np.inf)
    return np.divide(np.maximum(dearer, 0.0), rise, where=higher, out=slopes)


def _steepest(worth: Floats, best: Floats, slope: Floats, value: Floats, size: Floats) -> tuple[Floats, Floats]:
    """The steeper of two slopes where it is worth as much but for rounding, and the best value so far, (K,)."""
    as_good = (value >= best - slope * size) & ((slope > worth) | (value > best + slope * size))
    return np.where(as_good, slope, worth), np.maximum(best, value)


def budgets_of(rate: Floats, cost: Floats, worth: Floats) -> Floats:
    """The least budgets (K,) with which rates worth (K,) earn nothing beyond what they cost."""
    earned: Floats = np.where(rate > 0, worth[:, None] * rate - cost, 0.0)
    return np.asarray(earned.max(axis=1, initial=0.0))

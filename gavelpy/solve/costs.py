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
    above which there is nothing, it is the steepest slope that there is.
    """
    K, T = rate.shape
    open_rate = np.concatenate([np.zeros((K, 1)), rate], axis=1)
    open_cost = np.concatenate([np.zeros((K, 1)), np.where(rate > 0, cost, np.inf)], axis=1)
    worth, best, size = np.zeros(K), np.zeros(K), _EQUAL * need + _ROUNDING * rate.max(axis=1, initial=0.0)
    for low in range(T + 1):
        for high in range(1, T + 1):
            rise = open_rate[:, high] - open_rate[:, low]
            possible = (rise > 0) & np.isfinite(open_cost[:, high]) & np.isfinite(open_cost[:, low])
            dearer = np.where(possible, open_cost[:, high], 0.0) - np.where(possible, open_cost[:, low], 0.0)
            slope = np.divide(dearer, rise, where=possible & (dearer > 0), out=np.zeros(K))
            value = slope * need - budgets_of(rate, cost, slope)
            better = value > best + slope * size
            steeper = (value >= best - slope * size) & (slope > worth)
            worth = np.where(better | steeper, slope, worth)
            best = np.maximum(best, value)
    return worth, budgets_of(rate, cost, worth)


def budgets_of(rate: Floats, cost: Floats, worth: Floats) -> Floats:
    """The least budgets (K,) with which rates worth (K,) earn nothing beyond what they cost."""
    earned: Floats = np.where(rate > 0, worth[:, None] * rate - cost, 0.0)
    return np.asarray(earned.max(axis=1, initial=0.0))

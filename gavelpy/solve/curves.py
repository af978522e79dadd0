"""What jobs need for a finish-time ratio: curves that fall as the ratio grows, each from the job's best rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats, Ints

_ULPS = 1e-15
_ROUNDING = 1e-11  # of sums


@dataclass(frozen=True, eq=False)
class Curves:
    """What each of n jobs needs for a ratio, with rates in units of its best and times in units of 1 / that."""

    isolated: Floats  # (n,)
    age: Floats  # (n,)
    cap: Floats  # (n,) the most it can have of the cluster; below 1 for gangs larger than a type

    @property
    def own(self) -> Floats:
        """The least ratio of each job, if it had the cluster to itself, (n,)."""
        return (self.age + 1.0 / self.cap) / self.isolated

    def targets(self, ratio: float) -> Floats:
        """The lesser of what each job needs for `ratio` and the most it can have, (n,)."""
        time_left = ratio * self.isolated - self.age
        late = time_left * self.cap <= 1.0
        return np.where(late, self.cap, 1.0 / np.where(late, 1.0, time_left))

    def fall(self, ratio: float) -> Floats:
        """How fast each target falls as the ratio grows, (n,) >= 0."""
        targets = self.targets(ratio)
        return np.where(targets < self.cap, self.isolated * targets**2, 0.0)

    def taken(self, rows: Ints) -> Curves:
        """Those of some jobs."""
        return Curves(self.isolated[rows], self.age[rows], self.cap[rows])

    def root(self, weight: Floats, budget: float, worth: float) -> tuple[float, float]:
        """Two ratios a few units in the last place apart: Σ weight x targets > budget + worth at the first only.

        Both are the least of `own` where the sum never is above. `worth` is that of the cluster. Newton's method
        between bounds.
        """
        limit = budget + worth
        limit += _ROUNDING * worth + _ULPS * limit  # equal as long as jobs have all they can is not above
        low = float(self.own.min())
        if weight @ self.targets(low) <= limit:
            return low, low
        high = float(((self.age + len(weight) * weight / limit) / self.isolated).max())  # each takes its part at most
        ratio = low
        while high - low > 4 * _ULPS * high:
            excess = float(weight @ self.targets(ratio)) - limit
            low, high = (ratio, high) if excess > 0 else (low, ratio)
            slope = float(weight @ self.fall(ratio))
            ratio += excess / slope + _ULPS * ratio if slope > 0 else math.inf
            if not low < ratio < high:
                ratio = math.sqrt(low) * math.sqrt(high) if high > 2 * low else (low + high) / 2
        return low, high


@dataclass(frozen=True, eq=False)
class Rising:
    """The same with minus the ratio as the level, so that needs rise with it (prices/rising.py)."""

    curves: Curves

    def at(self, level: float) -> Floats:
        """Targets at a level, (n,); it may be infinite."""
        return self.curves.cap if level == np.inf else self.curves.targets(-level)

    def slope(self, level: float) -> Floats:
        """How fast they rise, (n,)."""
        return self.curves.fall(-level)

    def some(self, rows: Ints) -> Rising:
        """Those of some jobs."""
        return Rising(self.curves.taken(rows))

    def root(self, worth: Floats, budget: float) -> float:
        """The highest level at which Σ worth x target is at most `budget`, of which the cluster is worth 1."""
        return -self.curves.root(worth, budget - 1.0, 1.0)[1]

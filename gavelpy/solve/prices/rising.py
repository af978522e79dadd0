"""The highest level at which all needs can be had, for needs that rise with it as they like, each up to its own best.

At a level, needs are fixed, and a program says how many times the cluster, s, they take; its prices hold at every
level: Σ worth need(level) <= Σ budgets + p·W wherever shares exist. So the root of that is no lower than the highest
level, and the next one to try: from above, until s is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.crossover import exact
from gavelpy.solve.prices.dual import Dual, Point, kernels
from gavelpy.solve.prices.needs import Fixed
from gavelpy.solve.prices.newton import near
from gavelpy.solve.prices.table import Sweep, Table
from gavelpy.solve.prices.vertex import Mix, as_left
from gavelpy.solve.solver import Solver

_STEPS_MAX = 60
_FITS = 1e-12
_AWAKE = 1e-3  # of the highest price: where prices start again that fell to nothing at another level


class Curve(Protocol):
    """How needs rise."""

    def at(self, level: float) -> Floats:
        """Needs of the K classes at a level, in units of their best rates: in 0..1, none falling as the level rises."""
        ...  # a protocol's body

    def slope(self, level: float) -> Floats:
        """How fast the needs rise with the level there, (K,) >= 0."""
        ...  # a protocol's body

    def some(self, rows: Ints) -> Curve:
        """The curve of some of the jobs."""
        ...  # a protocol's body

    def root(self, worth: Floats, budget: float) -> float:
        """The highest level at which Σ worth_k need_k is at most `budget`; infinite if it always is."""
        ...  # a protocol's body


@dataclass(frozen=True, eq=False)
class _Along:
    """The needs along a curve."""

    curve: Curve

    def at(self, level: float) -> tuple[Floats, Floats]:
        """See Needs."""
        return self.curve.at(level), self.curve.slope(level)

    def some(self, rows: Ints) -> _Along:
        """See Needs."""
        return _Along(self.curve.some(rows))


def highest(table: Table, curve: Curve, solver: Solver) -> Mix | None:
    """Times at the highest level, its prices scaled to p·W = 1; None where it is not found.

    Where every need stops rising before GPUs are scarce the level is infinite, and prices are zero.
    """
    W = table.gpu_counts
    even = np.full(len(W), 1.0 / W.sum())
    most = curve.at(np.inf)
    level = _proved(table, curve, most, even)
    if level < np.inf:
        found = near(Dual(table, _Along(curve), level_max=np.inf, root=_root), Point(even, level))
        price = found.price / float(found.price @ W)
        level = min(level, _proved(table, curve, curve.at(found.level), price))
        point = Point(price, -1.0)
    else:
        point = Point(even, -1.0)
    for _ in range(_STEPS_MAX):
        dual = _size(table, curve.at(level))
        point = near(dual, Point(np.maximum(point.price, _AWAKE * point.price.max()), point.level))
        vertex = exact(dual, point, solver)
        if vertex is None:
            return None
        lower = _proved(table, curve, vertex.need, vertex.price)
        if -vertex.level <= 1.0 + _FITS or not lower < level:
            return as_left(table, vertex, level)
        level, point = lower, Point(vertex.price, vertex.level)
    return None


def _size(table: Table, need: Floats) -> Dual:
    return Dual(table, Fixed(need), level_max=np.inf, is_size=True)


def _proved(table: Table, curve: Curve, need: Floats, price: Floats) -> float:
    """No level above has shares, by these prices and what jobs pay at these needs."""
    s = kernels(len(need)).sweep(table, need, np.zeros(len(need)), price, 0.0, 0.0)
    return _root(Dual(table, _Along(curve)), s, need, price)


def _root(dual: Dual, s: Sweep, need: Floats, price: Floats) -> float:
    """The same from the sweep there."""
    assert isinstance(dual.needs, _Along)
    table = dual.table
    steepness = kernels(len(need)).settle(table, s.low, s.high, need, price)[1]
    left = steepness[:, None] * table.rate - table.gpus[:, None] * price
    budgets = np.where(table.rate > 0, left, 0.0).max(axis=1, initial=0.0)
    worth = table.count * steepness
    return dual.needs.curve.root(worth, float(table.count @ budgets + price @ table.gpu_counts))

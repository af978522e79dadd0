"""Needs as functions of a level, and the upper bounds on it that prices prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.newton import Dual
from gavelpy.solve.prices.table import Bends, Lines, Sweep, Table, kernels

Loops = Callable[[int], ModuleType]


class LevelCurve(Protocol):
    """Needs as functions of a level."""

    def at(self, level: float) -> Floats:
        """Needs of the K classes at a level, in units of their best rates: in 0..1, non-decreasing in the level."""
        ...  # a protocol's body

    def slope(self, level: float) -> Floats:
        """Slopes of the needs at a level, (K,) >= 0."""
        ...  # a protocol's body

    def some(self, rows: Ints) -> LevelCurve:
        """The curve of some of the jobs."""
        ...  # a protocol's body

    def root(self, worth: Floats, budget: float) -> float:
        """The highest level at which Σ worth_k need_k is at most `budget`; infinite if it always is."""
        ...  # a protocol's body

    def near_root(self, worth: Floats, budget: float) -> float:
        """As `root`, up to rounding: for a search whose steps are in no answer."""
        ...  # a protocol's body

    @property
    def bends(self) -> Bends | Lines | None:
        """The curve as arrays for compiled steps, if there are such steps for it."""
        ...  # a protocol's body


@dataclass(frozen=True, eq=False)
class Along:
    """The needs of a curve."""

    curve: LevelCurve

    def at(self, level: float) -> tuple[Floats, Floats]:
        """See Needs."""
        return self.curve.at(level), self.curve.slope(level)

    def some(self, rows: Ints) -> Along:
        """See Needs."""
        return Along(self.curve.some(rows))


def proved(table: Table, curve: LevelCurve, need: Floats, price: Floats) -> float:
    """Upper bound on the level from these prices and the marginal costs at these needs."""
    s = kernels(len(need)).sweep(table, need, np.zeros(len(need)), price, 0.0, 0.0)
    return root_of(Dual(table, Along(curve)), s, need, price)


def root_of(dual: Dual, s: Sweep, need: Floats, price: Floats) -> float:
    """The bound, from the sweep there."""
    assert isinstance(dual.needs, Along)
    return dual.needs.curve.root(*_worth_and_budget(dual, s, need, price))


def near_root(dual: Dual, s: Sweep, need: Floats, price: Floats) -> float:
    """The bound, up to rounding."""
    assert isinstance(dual.needs, Along)
    return dual.needs.curve.near_root(*_worth_and_budget(dual, s, need, price))


def _worth_and_budget(dual: Dual, s: Sweep, need: Floats, price: Floats) -> tuple[Floats, float]:
    """Marginal costs of all classes, (K,), and the value of their time and of the GPUs."""
    table = dual.table
    steepness = dual.loops(len(need)).settle(table, s.low, s.high, need, price)[1]
    left = steepness[:, None] * table.rate - table.gpus[:, None] * price
    budgets = np.where(table.rate > 0, left, 0.0).max(axis=1, initial=0.0)
    return table.count * steepness, float(table.count @ budgets + price @ table.gpu_counts)

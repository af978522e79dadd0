"""The highest level of needs that rise with it, each up to its own limit, for jobs that run alone.

At a given level needs are fixed, and a program computes how many times the cluster, s, they need. Its prices are valid
at every level: Σ worth need(level) <= Σ budgets + p·W wherever shares exist. So the root of that inequality is at least
the highest level, and it is the next level to try: from above, until s is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.crossover import exact
from gavelpy.solve.prices.engine import with_the_rest_spent
from gavelpy.solve.prices.newton import Dual, Point, near
from gavelpy.solve.prices.table import Fixed, Sweep, Table, kernels
from gavelpy.solve.prices.vertex import Mix, as_left
from gavelpy.solve.program import Program
from gavelpy.solve.solver import Solver

_STEPS_MAX = 60
_FITS = 1e-12
_AWAKE = 1e-3  # of the highest price: start of prices that were zero at another level


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


@dataclass(frozen=True, eq=False)
class _Along:
    """The needs of a curve."""

    curve: LevelCurve

    def at(self, level: float) -> tuple[Floats, Floats]:
        """See Needs."""
        return self.curve.at(level), self.curve.slope(level)

    def some(self, rows: Ints) -> _Along:
        """See Needs."""
        return _Along(self.curve.some(rows))


def highest(table: Table, curve: LevelCurve, solver: Solver) -> Mix | None:
    """Times at the highest level, with prices scaled to p·W = 1; None if it is not found.

    If all needs reach their limits before GPUs are scarce, the level is infinite and prices are zero.
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


def _proved(table: Table, curve: LevelCurve, need: Floats, price: Floats) -> float:
    """Upper bound on the level from these prices and the marginal costs at these needs."""
    s = kernels(len(need)).sweep(table, need, np.zeros(len(need)), price, 0.0, 0.0)
    return _root(Dual(table, _Along(curve)), s, need, price)


def _root(dual: Dual, s: Sweep, need: Floats, price: Floats) -> float:
    """The bound, from the sweep there."""
    assert isinstance(dual.needs, _Along)
    table = dual.table
    steepness = kernels(len(need)).settle(table, s.low, s.high, need, price)[1]
    left = steepness[:, None] * table.rate - table.gpus[:, None] * price
    budgets = np.where(table.rate > 0, left, 0.0).max(axis=1, initial=0.0)
    worth = table.count * steepness
    return dual.needs.curve.root(worth, float(table.count @ budgets + price @ table.gpu_counts))


@dataclass(frozen=True, eq=False)
class Height:
    """The highest level of a curve in a program: infinite if all classes reach their limits."""

    level: float
    share: Floats  # (E,)
    worth: Floats  # (K,) marginal value of a class's rate: with the prices it proves that no level is higher
    price: Floats  # (T,) per GPU


def height(
    program: Program, gpu_counts: Floats, curve: LevelCurve, solver: Solver, value: Floats | None = None
) -> Height | None:
    """The highest level at which the needs of all classes are feasible on these GPUs, (T,), or None: not found.

    For programs in which every job runs alone; a class counts as one large job. With the `value` of each class at its
    best rate, (K,), GPUs left of free types go to the highest sum of values.
    """
    at = program.member_class, program.entry_type[program.member_entry]
    whole = np.zeros((len(program.value), len(gpu_counts)))
    whole[at] = program.member_rate
    load = np.zeros(len(program.value))
    load[at[0]] = (program.entry_load * program.problem.gpu_counts[program.entry_type])[program.member_entry]
    types = np.flatnonzero((gpu_counts > 0) & (whole > 0).any(axis=0))
    if not len(types):
        return None
    table = Table(
        rate=np.ascontiguousarray(whole[:, types]),
        gpus=load,
        count=np.ones(len(load)),
        gpu_counts=gpu_counts[types],
        gain=np.zeros((0, len(types))),
    )
    mix = highest(table, curve, solver)
    if mix is not None and value is not None:
        mix = with_the_rest_spent(table, value, curve.at(mix.level), mix, solver)
    if mix is None:
        return None
    share = np.zeros(len(program.entry_type))
    share[program.member_entry] = _spread(mix.time, types, whole.shape)[at]
    return Height(mix.level, share, mix.steepness, _spread(mix.price, types, gpu_counts.shape))


def _spread(figures: Floats, types: Ints, shape: tuple[int, ...]) -> Floats:
    spread: Floats = np.zeros(shape)
    spread[..., types] = figures
    return spread

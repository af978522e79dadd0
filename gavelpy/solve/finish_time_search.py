"""The search for the least finish-time ratio by linear programs: the models, and Newton's method on their duals.

`finish_time.py` explains the search and certifies its result. Rows of the LP: rates of the K classes, their time
budgets, capacities of the T types. Columns: E entries, and s. `Curves` are the needs of jobs as functions of the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.certificate import Candidate, Duals
from gavelpy.solve.linear import TRACE
from gavelpy.solve.prices.table import Bends
from gavelpy.solve.program import Program
from gavelpy.solve.solver import HighsEffort, Model, Optimum, Run, Solver

_STEPS_MAX = 100  # of the search, which needs about eight
_BELOW = 1e-6  # relative distance of the first ratio below its bound, so that the first LP is not at a kink
_CLOSE = 1e-9  # relative: bounds this close prove the same
_ULPS = 1e-15
_ROUNDING = 1e-11  # of sums
_DECIDES = 1e-9  # relative: jobs whose own bounds are this close to the worst one's
KIND = "finish time"  # of kept prices
_OTHER_OPTIONS: tuple[Mapping[str, float], ...] = (  # HiGHS's names
    {"simplex_strategy": 4},  # primal
    {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
)


def by_highs(
    program: Program, curves: Curves, effort: HighsEffort, kept: float, solver: Solver, *, exclusive: bool
) -> Candidate:
    """Shares at the root, and the duals that prove it. Its level is the ratio.

    `kept` is the fraction of the targets that is required; `exclusive`: whether best rates may exclude each other.
    """
    classes, T = curves.taken(program.classes.representative), len(program.problem.row_capacity)
    K, E, count = len(program.value), len(program.entry_type), program.classes.count
    proof = _even_prices(program)
    bound = _root(classes, proof)[0]
    ratio = max(bound * (1.0 - _BELOW), float(classes.own.min()))
    targets = kept * classes.targets(ratio)
    model = _model_of_losses(program, targets, classes.cap) if exclusive else _model_of_size(program, targets)
    enough = 0.0 if exclusive else 1.0  # s at which the targets are feasible
    run = _Search(program.problem, solver, effort, model)
    row_upper = model.row_upper.copy()
    row_upper[-T:] += TRACE if effort.on_face else 0.0  # as in linear.py: prices of the next GPU
    found = run.solve(np.append(np.zeros(E), float(K)), row_upper)  # so that duals of the rates are about 1
    for _ in range(_STEPS_MAX):
        low, high = _root(classes, found)
        if low >= bound * (1.0 - _CLOSE):  # else at a kink, where the duals are not unique
            bound, proof = low, found
        if found.column[E] <= enough or high <= ratio:
            break
        ratio = high
        found = run.at(kept * classes.targets(ratio))
    gain = np.bincount(program.member_entry, program.member_rate * count[program.member_class], minlength=E)
    if effort.on_face:
        with suppress(SolverFailed):  # if the optima are one point within HiGHS's tolerances, it may find none
            found = run.on_face(found, np.append(-gain / gain.max(), 0.0))
    return Candidate(program.shares(found.column[:E]), _duals(program, proof), ratio)


def _duals(program: Program, optimum: Optimum) -> Duals:
    K, amount, count = len(program.value), program.problem.row_capacity, program.classes.count
    best = program.best_rate_steps_per_s
    return Duals(
        level=np.zeros(program.problem.job_count),
        floor=program.per_job(np.maximum(optimum.row_dual[:K], 0.0) / count) / np.where(best > 0, best, 1.0),
        budget=program.per_job(np.maximum(-optimum.row_dual[K : 2 * K], 0.0) / count),
        price=np.maximum(-optimum.row_dual[2 * K :], 0.0) / np.where(amount > 0, amount, 1.0),
    )


def _root(curves: Curves, optimum: Optimum) -> tuple[float, float]:
    K = len(curves.cap)
    return curves.root(
        optimum.row_dual[:K], -float(optimum.row_dual[K : 2 * K].sum()), -float(optimum.row_dual[2 * K :].sum())
    )


def _even_prices(program: Program) -> Optimum:
    """Duals for a first bound: GPUs of all types have the same price, and co-located jobs share the cost."""
    K, gpus = len(program.value), program.problem.gpu_counts
    cost = K * program.entry_load[0] * gpus[program.entry_type] / gpus.sum()
    cost /= np.bincount(program.member_entry, minlength=len(cost))
    runs = program.member_rate > 0
    least = np.full(K, np.inf)
    np.minimum.at(least, program.member_class[runs], cost[program.member_entry[runs]] / program.member_rate[runs])
    none, free = np.zeros(len(cost) + 1), np.zeros(len(program.problem.row_capacity) - len(gpus))
    return Optimum(none, none, np.concatenate([least, np.zeros(K), -K * gpus / gpus.sum(), free]))


def _model_of_size(program: Program, targets: Floats) -> Model:
    """The targets on a cluster with s times the GPUs."""
    T = len(program.problem.row_capacity)
    return _model(program, targets, 2 * len(program.value) + np.arange(T), np.full(T, -1.0), capacity=0.0)


def _model_of_losses(program: Program, targets: Floats, best: Floats) -> Model:
    """The targets less s times the best rates (K,), on the true cluster."""
    return _model(program, targets, np.arange(len(best)), best, capacity=1.0)


def _model(program: Program, targets: Floats, row_of_s: Ints, value_of_s: Floats, *, capacity: float) -> Model:
    K, E, T = len(program.value), len(program.entry_type), len(program.problem.row_capacity)
    load_row, load_entry, load = program.loads()
    runs = program.member_rate > 0
    row = [program.member_class[runs], K + program.member_class, 2 * K + load_row, row_of_s]
    column = [program.member_entry[runs], program.member_entry, load_entry, np.full(len(row_of_s), E)]
    value = [program.member_rate[runs], program.member_time, load, value_of_s]
    columns = np.concatenate(column)
    order = np.argsort(columns, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=E + 1))])
    return Model(
        start=start.astype(np.int32),
        row=np.concatenate(row)[order].astype(np.int32),
        value=np.concatenate(value)[order],
        column_lower=np.zeros(E + 1),
        row_lower=np.concatenate([targets, np.full(K + T, -np.inf)]),
        row_upper=np.concatenate([np.full(K, np.inf), np.ones(K), np.full(T, capacity)]),
    )


class _Search(Run):
    """One model, solved for one ratio after another."""

    def at(self, targets: Floats) -> Optimum:
        """The optimum with other targets, from the last basis."""
        rows = np.arange(len(targets), dtype=np.int32)
        self._model = replace(self._model, row_lower=np.append(targets, self._model.row_lower[len(targets) :]))
        self._highs.changeRowsBounds(len(rows), rows, targets, np.full(len(rows), np.inf))
        return self._optimum()

    def _optimum(self) -> Optimum:
        """From the last basis; if HiGHS ends slightly above its tolerances, without a basis and with other options."""
        for options in _OTHER_OPTIONS:
            with suppress(SolverFailed):
                return super()._optimum()
            self._highs.clearSolver()
            for name, value in options.items():
                self._highs.setOptionValue(name, value)
        return super()._optimum()


@dataclass(frozen=True, eq=False)
class Curves:
    """Needs of n jobs as functions of the ratio, with rates in units of the best one and times in units of 1 / that."""

    isolated: Floats  # (n,)
    age: Floats  # (n,)
    cap: Floats  # (n,) highest possible rate in the cluster; below 1 for gangs larger than a type

    @property
    def own(self) -> Floats:
        """Least ratio of each job alone in the cluster, (n,)."""
        return (self.age + 1.0 / self.cap) / self.isolated

    def targets(self, ratio: float) -> Floats:
        """The lesser of each job's need for `ratio` and its highest possible rate, (n,)."""
        time_left = ratio * self.isolated - self.age
        late = time_left * self.cap <= 1.0
        return np.where(late, self.cap, 1.0 / np.where(late, 1.0, time_left))

    def fall(self, ratio: float) -> Floats:
        """Decrease of each target per increase of the ratio, (n,) >= 0."""
        return self._fall_at(self.targets(ratio))

    def _fall_at(self, targets: Floats) -> Floats:
        return np.where(targets < self.cap, self.isolated * targets**2, 0.0)

    def taken(self, rows: Ints) -> Curves:
        """The curves of some jobs."""
        return Curves(self.isolated[rows], self.age[rows], self.cap[rows])

    def root(self, weight: Floats, budget: float, worth: float, near: float | None = None) -> tuple[float, float]:
        """Two ratios a few units in the last place apart: Σ weight x targets > budget + worth at the first only.

        Both are the least of `own` if the sum is never above. `worth` is the value of the cluster. Newton's method
        between bounds, from `near` if it is given.
        """
        limit = budget + worth
        limit += _ROUNDING * worth + _ULPS * limit  # equality while jobs have their highest rates is not above
        low = least = float(self.own.min())
        if not weight.any():
            return low, low  # no target has a price: the sum is never above
        high = float(((self.age + len(weight) * weight / limit) / self.isolated).max())  # each takes at most its part
        ratio = low if near is None or not low < near < high else near
        if ratio == low and weight @ self.targets(low) <= limit:
            return low, low
        while high - low > 4 * _ULPS * high:
            targets = self.targets(ratio)
            excess = float(weight @ targets) - limit
            low, high = (ratio, high) if excess > 0 else (low, ratio)
            slope = float(weight @ self._fall_at(targets))
            ratio += excess / slope + math.copysign(_ULPS * ratio, excess) if slope > 0 else math.inf
            if not low < ratio < high:
                ratio = math.sqrt(low) * math.sqrt(high) if high > 2 * low else (low + high) / 2
        return (low, low) if low == least and weight @ self.targets(low) <= limit else (low, high)


def prices_of_own(per_gpu: Floats, curves: Curves) -> Floats:
    """Increase of the objective per GPU of each type if the best rates of the worst jobs determine it, (T,)."""
    worst = np.flatnonzero(curves.own >= curves.own.max() * (1.0 - _DECIDES))
    c, gain = curves.taken(worst), per_gpu[worst]
    prices: Floats = (gain * (c.isolated / (c.age * c.cap + 1.0) ** 2)[:, None]).min(axis=0)  # d(1 / own) / d(cap)
    return prices


@dataclass(frozen=True, eq=False)
class Rising:
    """The curves with minus the ratio as the level, so that needs rise with it (prices/highest_level.py)."""

    curves: Curves

    def at(self, level: float) -> Floats:
        """Targets at a level, (n,); it may be infinite."""
        return self.curves.cap if level == np.inf else self.curves.targets(-level)

    def slope(self, level: float) -> Floats:
        """Slopes of the targets, (n,)."""
        return self.curves.fall(-level)

    def some(self, rows: Ints) -> Rising:
        """The curves of some jobs."""
        return Rising(self.curves.taken(rows))

    def root(self, worth: Floats, budget: float) -> float:
        """The highest level at which Σ worth x target is at most `budget`, of which 1 is the value of the cluster."""
        return -self.curves.root(worth, budget - 1.0, 1.0)[1]

    def near_root(self, worth: Floats, budget: float) -> float:
        """As `root`, up to rounding, in a compiled loop."""
        from gavelpy.solve.prices.curve_kernels import ratio_of

        c, limit = self.curves, budget + _ROUNDING + _ULPS * budget
        return -float(ratio_of(c.isolated, c.age, c.cap, worth, limit))

    @property
    def bends(self) -> Bends:
        """See LevelCurve."""
        return Bends(self.curves.isolated, self.curves.age, self.curves.cap)

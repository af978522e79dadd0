"""A primal-dual interior point method with Mehrotra's predictor and corrector, for numpy or numba kernels.

S. Mehrotra, On the implementation of a primal-dual interior point method, SIAM J. Optimization 2 (1992). Two equations
of each class are eliminated (numpy_kernels.py); the remaining ones couple the T prices and the level. Duals are
feasible from the start and stay feasible. Under logarithms the product of a rate and its dual goes to the class's
weight instead of zero.

We depart from the textbook in one point. Of many thousand classes a few, whose best GPU type is just changing, would
limit the step of all others. So the primal step is as long as most classes allow, and the others go as far as they can;
the rows of capacity are violated slightly, and the next step corrects them. Not with a level, which all classes share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.interior.numpy_kernels import Form, InteriorPoint, Iterate, Level, Reach, Rows, Sum, SumLog
from gavelpy.solve.solver import NUMPY_ROWS_MAX

ITERATIONS_MAX = 120
RESIDUAL_MAX = 1e-10
_NEARLY = 0.995  # of the distance to where the first variable becomes zero
_LAGGING = 0.005  # fraction of the classes that may take shorter steps
_LEAST_CLAIM = 0.1  # start: of a class, relative to the mean claim
_CENTRED = 0.3  # start: product of a price and its slack, in units of a job's value at its best rate


class Kernels(Protocol):
    """The three passes over all classes. See numpy_kernels.py."""

    def condense(
        self,
        rows: Rows,
        at: Iterate,
        step: Iterate,
        prices: Floats,
        level: float,
        target: float,
        second: float,
        matrix: Floats,
        rhs: Floats,
    ) -> None: ...  # a protocol's body

    def direct(
        self,
        rows: Rows,
        at: Iterate,
        step: Iterate,
        prices: Floats,
        price_step: Floats,
        level: float,
        level_step: float,
        target: float,
        second: float,
        steepest: Floats,
    ) -> Reach: ...  # a protocol's body

    def advance(
        self, rows: Rows, at: Iterate, step: Iterate, lengths: Floats, level: float, used: Floats
    ) -> tuple[float, float]: ...  # a protocol's body


def optimum(
    form: Form, tolerance: float = 1e-10, kernels: Kernels | None = None, *, residual_max: float = RESIDUAL_MAX
) -> InteriorPoint:
    """A point near the optimum of `form`; its gap and residual show how near, without a guarantee.

    Stops when gap <= tolerance and residual <= residual_max (or, with a level, rounding prevents a lower one), after
    ITERATIONS_MAX, or when rounding leaves no direction, for example if floors are infeasible. Deterministic; one
    thread.
    """
    types = np.flatnonzero((form.capacity > 0) & (form.rate > 0).any(axis=0))
    scaled = _scaled(form, types)
    search = _Search(scaled, _kernels_for(len(form.rate)) if kernels is None else kernels)
    with np.errstate(all="ignore"):  # values that are not finite end the search
        iterations = search.run(tolerance, residual_max)
    share, prices = np.zeros(form.rate.shape), np.zeros(len(form.capacity))
    share[:, types], prices[types] = search.at.share, search.prices * scaled.unit
    return InteriorPoint(
        share=share,
        prices=prices,
        level=search.level * scaled.level_unit,
        rate_duals=search.at.rate_dual * scaled.unit,
        budget_duals=search.at.budget_dual * scaled.unit,
        iterations=iterations,
        gap=search.gap,
        residual=search.residual,
    )


def _kernels_for(class_count: int) -> Kernels:
    if class_count <= NUMPY_ROWS_MAX:
        from gavelpy.solve.interior import numpy_kernels

        return numpy_kernels
    from gavelpy.solve.interior import numba_kernels  # loads numba

    return numba_kernels


@dataclass(frozen=True, eq=False)
class _Scaled:
    """The form on the usable types, in units in which a job's duals are about 1."""

    rows: Rows
    capacity: Floats  # (T,) > 0
    unit: float  # of the objective, and so of all duals
    level_unit: float
    level_worth: float  # Σ count slope λ; 0 without a level


def _scaled(form: Form, types: Ints) -> _Scaled:
    rate = np.ascontiguousarray(form.rate if len(types) == len(form.capacity) else form.rate[:, types])
    jobs = float(form.count.sum())
    zero, none = np.zeros(len(rate)), np.zeros((0, 0))
    match form.goal:
        case Level(base=base, slope=slope):
            level_unit = float(form.count @ rate.max(axis=1)) / float(form.count @ slope)
            rows = Rows(rate, form.gpus, form.count, base, slope * level_unit, zero, none)
            return _Scaled(rows, form.capacity[types], level_unit / jobs, level_unit, level_worth=jobs)
        case Sum(gain=gain, floor=floor):
            usable = np.where(rate > 0, gain[:, types], 0.0)
            unit = float(form.count @ usable.max(axis=1)) / jobs
            unit = unit if unit > 0 else 1.0
            rows = Rows(rate, form.gpus, form.count, floor, zero, zero, usable / unit)
            return _Scaled(rows, form.capacity[types], unit, 0.0, level_worth=0.0)
        case SumLog(weight=weight):
            unit = float(form.count @ weight) / jobs
            rows = Rows(rate, form.gpus, form.count, zero, zero, weight / unit, none)
            return _Scaled(rows, form.capacity[types], unit, 0.0, level_worth=0.0)


class _Search:
    """A point, and the arrays of its steps."""

    def __init__(self, scaled: _Scaled, kernels: Kernels) -> None:
        self._scaled, self._rows, self._kernels = scaled, scaled.rows, kernels
        self._logarithmic = bool(scaled.rows.weight.any())
        self.gap = self.residual = math.inf
        self._start()
        self._step = Iterate(*(np.zeros_like(variable) for variable in self.at))
        self._steepest = np.zeros((2, len(self._rows.rate)))  # of primal and dual variables of each class
        pairs = self._rows.jobs @ ((self._rows.rate > 0).sum(axis=1) + (1.0 if self._logarithmic else 2.0))
        self._pairs = float(pairs) + len(scaled.capacity)

    def _start(self) -> None:
        """Sets shares that satisfy all rows but those of rates and use nearly all scarce GPUs, and feasible duals."""
        rows, capacity = self._rows, self._scaled.capacity
        runs, load, jobs = rows.rate > 0, rows.jobs * rows.gpus, float(rows.jobs.sum())
        share = np.where(runs, _parts(self._claims(), load, runs, (1.0 - 0.5 / max(jobs, 1.0)) * capacity), 0.0)
        rate = (rows.rate * share).sum(axis=1)
        self.level, surplus, rate_dual = 0.0, np.maximum(rate - rows.base, 0.01), np.full(len(rate), 0.5)
        if self._scaled.level_worth:
            leveled = rows.slope > 0
            self.level = max(0.0, 0.5 * float(((rate - rows.base)[leveled] / rows.slope[leveled]).min()))
            surplus = np.maximum(rate - rows.base - rows.slope * self.level, 0.01)
            rate_dual[:] = self._scaled.level_worth / (rows.jobs @ rows.slope)
        elif self._logarithmic:
            surplus, rate_dual = rate, rows.weight / rate
        worth = rows.rate * rate_dual[:, None]
        worth += rows.gain if len(rows.gain) else 0.0
        best = worth.max(axis=1)
        mean = float(rows.jobs @ best) / jobs
        self.used = load @ share
        self.slack = capacity - self.used
        self.prices = np.minimum(0.5 * float(rows.jobs @ (best / rows.gpus)) / jobs, _CENTRED * mean / self.slack)
        left = np.where(runs, worth - rows.gpus[:, None] * self.prices, 0.0).max(axis=1)
        budget_dual = np.maximum(left, 0.0) + 0.3 * (rows.weight if self._logarithmic else mean)
        reduced_cost = np.where(runs, budget_dual[:, None] + rows.gpus[:, None] * self.prices - worth, 1.0)
        self.at = Iterate(share, reduced_cost, 1.0 - share.sum(axis=1), budget_dual, surplus, rate_dual)

    def _claims(self) -> Floats:
        """Time of each class at the start, relative to the others, (K,)."""
        rows = self._rows
        if self._scaled.level_worth:
            claim = rows.slope
        elif self._logarithmic:
            claim = rows.weight / rows.gpus
        else:
            return np.ones(len(rows.gpus))
        return claim + _LEAST_CLAIM * float(rows.jobs @ claim) / float(rows.jobs.sum())

    def run(self, tolerance: float, residual_max: float) -> int:
        """Steps until the point is within tolerance or cannot improve; returns their number."""
        before = math.inf
        for iteration in range(ITERATIONS_MAX):
            risen = self._scaled.level_worth > 0 and self.residual >= before  # only by rounding
            if self.gap <= tolerance and (self.residual <= residual_max or risen):
                return iteration
            before = self.residual
            try:
                moved = self._move()
            except np.linalg.LinAlgError:  # the small system is singular up to rounding
                return iteration
            if not moved:
                return iteration
        return ITERATIONS_MAX

    def _move(self) -> bool:
        """Makes one step of predictor and corrector; returns whether there was one."""
        T = len(self.prices)
        matrix, steps = np.zeros((T + 1, T + 1)), _Steps(np.zeros(T), np.zeros(T), 0.0)
        steps, reach = self._direction(matrix, steps, target=0.0, second=0.0)
        primal, dual = self._lengths(steps, nearly=1.0)
        now = reach.product + float(self.slack @ self.prices)
        then: float = (
            reach.product + primal * reach.from_primal + dual * reach.from_dual + primal * dual * reach.from_both
        )
        then += float((self.slack + primal * steps.slack) @ (self.prices + dual * steps.price))
        centring = min(1.0, max(0.01 if self._logarithmic else 1e-6, (then / now) ** 3))
        steps, _ = self._direction(matrix, steps, target=centring * now / self._pairs, second=1.0)
        primal, dual = self._lengths(steps, nearly=_NEARLY)
        if not math.isfinite(primal + dual):
            return False
        self.slack = self.slack + primal * steps.slack
        self.prices = self.prices + dual * steps.price
        self.level += primal * steps.level
        farthest = _NEARLY / np.maximum(self._steepest, _NEARLY)
        lengths = np.minimum(np.array([[primal], [dual]]), farthest)
        residual, product = self._kernels.advance(self._rows, self.at, self._step, lengths, self.level, self.used)
        self._measure(residual, product)
        return True

    def _direction(self, matrix: Floats, last: _Steps, *, target: float, second: float) -> tuple[_Steps, Reach]:
        """Solves the small system, which the predictor (`second` 0) fills, and completes the direction."""
        rows, T, s = self._rows, len(self.prices), self._scaled
        rhs = np.zeros(T + 1)
        self._kernels.condense(rows, self.at, self._step, self.prices, self.level, target, second, matrix, rhs)
        spread = self.slack / self.prices
        aim = (target - second * last.slack * last.price) / self.prices - self.slack
        demand = rhs[:T] + aim - (s.capacity - self.slack - self.used)
        among = matrix[:T, :T] + np.diag(spread)
        with_level, of_level = matrix[:T, T], matrix[T, T]
        level_lacks = rhs[T] + s.level_worth - float((rows.jobs * rows.slope) @ self.at.rate_dual)
        if s.level_worth:
            among += np.outer(with_level, with_level) / of_level
            demand += with_level * (level_lacks / of_level)
        unit = 1.0 / np.sqrt(np.diag(among))
        price = unit * np.linalg.solve(among * unit[:, None] * unit, demand * unit)
        level = float((level_lacks - with_level @ price) / of_level) if s.level_worth else 0.0
        steps = _Steps(price, aim - spread * price, level)
        reach = self._kernels.direct(
            rows, self.at, self._step, self.prices, price, self.level, level, target, second, self._steepest
        )
        return steps, reach

    def _lengths(self, steps: _Steps, *, nearly: float) -> tuple[float, float]:
        """Largest steps along the direction, at most 1, of primal variables (of most classes) and of dual ones."""
        K = len(self._rows.rate)
        most = K - 1 - (0 if self._scaled.level_worth else int(_LAGGING * K))
        primal = max(float(np.partition(self._steepest[0], most)[most]), float((-steps.slack / self.slack).max()))
        dual = max(float(self._steepest[1].max()), float((-steps.price / self.prices).max()))
        return nearly / max(primal, nearly), nearly / max(dual, nearly)

    def _measure(self, residual: float, product: float) -> None:
        rows, at = self._rows, self.at
        over = np.abs(self._scaled.capacity - self.slack - self.used) / self._scaled.capacity
        self.residual = max(residual, float(over.max()))
        total = product + float(self.slack @ self.prices)
        if self._logarithmic:
            ratio = at.surplus * at.rate_dual / rows.weight
            total += float((rows.jobs * rows.weight) @ (ratio - 1.0 - np.log(ratio)))
            value = float(rows.jobs @ rows.weight)
        elif self._scaled.level_worth:
            value = self._scaled.level_worth * abs(self.level)
        else:
            value = float(rows.jobs @ (rows.gain * at.share).sum(axis=1))
        self.gap = total / value if value > 0 else math.inf


def _parts(claim: Floats, load: Floats, runs: Bools, capacity: Floats) -> Floats:
    """Shares (K, T) in proportion to `claim` that use no more than `capacity`, and at most 1 / (T + 1) each."""
    most = 1.0 / (len(capacity) + 1)
    rise = np.minimum(capacity / ((load * claim) @ runs), most / float(claim.min()))
    for _ in range(8):  # the use is concave in the rise, so this converges from below
        used = load @ np.where(runs, np.minimum(most, claim[:, None] * rise), 0.0)
        rise = np.minimum(rise * capacity / used, most / float(claim.min()))
    return np.minimum(most, claim[:, None] * rise)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Steps of the variables that all classes share."""

    price: Floats  # (T,)
    slack: Floats  # (T,)
    level: float

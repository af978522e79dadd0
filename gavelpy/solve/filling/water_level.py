"""The highest level whose targets are feasible, and prices that prove it, by HiGHS or by the price engine.

Targets stop at limits, so the level is not a variable of an LP. At a given level they are fixed, and an LP computes by
how much they must be reduced, at least:

    minimise s   subject to   r_k(x) >= target_k(level) - s w_k,   and time budgets and capacities.

If that is positive, the LP's duals y, μ, π prove for every level that shares exist only if
Σ y_k target_k(level) <= Σ μ_k + Σ π_t left_t, so the root of that is the next level to try: from above, each step
starts from the last basis, and the last duals prove the level that is reached (Newton's method; it is finite).

With the effort IN_UNITS, each class's rate is in units of its target, as HiGHS's tolerances are absolute, and the
targets of saturated classes are reduced by a millionth of s, so that every level has shares and HiGHS cannot call a
late one infeasible for its rounding. If the rate of a saturated class is worth a million times that of a rising one,
such a level is wrong, and its gap shows that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import linear
from gavelpy.solve.certificate import failed
from gavelpy.solve.filling.targets import EvenTargets, Targets
from gavelpy.solve.prices.height import height
from gavelpy.solve.prices.table import Lines
from gavelpy.solve.program import Program
from gavelpy.solve.solver import IN_UNITS, REFINED, HighsEffort, Run, Solver

BY_PRICES = "prices"  # name of the price engine's rung
NEWTON_MIN = 512  # jobs; below, HiGHS is as fast, but for many classes
CLASSES_MIN = 256  # for so many, prices take a tenth of the time and less, once their kernels are loaded
LATER_MIN = 64  # classes with a target
_ROUNDING = 1e-14  # of w, and of a level: smaller differences are zero
_EXACT = 1e-9  # relative: if the proof of a level by prices is less exact, HiGHS computes it again
_NO_RISE, _NO_RISE_REFINED = 1e-10, 1e-14  # of a level: a smaller rise comes from the relaxation
_STEPS_MAX = 200
_WHOLE = 0.9  # of the cost of all reductions: the sum of the duals if a reduction is necessary
_FINE_QUICK, _FINE_CAREFUL = 10.0, 1.0  # units of shares and duals, since HiGHS's tolerances are absolute
# Part of a saturated rate that may be missing: later levels have no slack.
_RELAXED_QUICK, _RELAXED_CAREFUL, _RELAXED_REFINED = 1e-12, 1e-10, 4e-16
_ZOOM_BELOW = 1e-2  # of the expected rise
_YIELD = 1e-6  # of the reduction of a rising class: that of a saturated one, so that there are always shares
_LEAST_UNIT = 2.0**-30  # of rates and shares
_LEAST_GIVE = 1e-9  # of the largest: least w, so that HiGHS drops no coefficient


@dataclass(frozen=True, eq=False)
class Residual:
    """The part of the program that is not yet decided."""

    program: Program
    open: Bools  # (E,) entries that may have a share
    live: Bools  # (K,) classes with a target
    left: Floats  # (R T,) fraction of each resource of each type: GPUs first
    share: Floats  # (E,) of the level before, which satisfy the targets so far
    number: int = 0  # of its level: how many were found before


@dataclass(frozen=True, eq=False)
class Proof:
    """Duals in the program's units: Σ worth_k target_k <= Σ budget_k + Σ price_t left_t wherever shares exist."""

    worth: Floats  # (K,) of a class's rate
    budget: Floats  # (K,) of its time
    price: Floats  # (R T,) of all of a resource of a type

    def level(self, targets: Targets, left: Floats) -> float:
        """Upper bound on the level."""
        return targets.root(self.worth, float(self.budget.sum() + self.price @ left))


@dataclass(frozen=True, eq=False)
class WaterLevel:
    """The highest level; infinite when every target reaches its limit."""

    level: float
    share: Floats  # (E,) of each entry
    proof: Proof
    rung: str  # that computed it

    @property
    def noise(self) -> float:
        """Prices below this part of the highest, or values below this part of the total, are rounding."""
        return 1e-9 if self.rung == BY_PRICES else 1e-11


def highest_water_level(
    residual: Residual,
    targets: Targets,
    solver: Solver,
    effort: HighsEffort,
    *,
    by_prices: bool = False,
    next_gpu: bool = False,
) -> WaterLevel:
    """The highest level of `targets` in the residual. Raises SolverFailed if HiGHS finds none.

    `next_gpu`: if the level has a kink in the number of GPUs, prices are those of the next GPU, not of the last one.
    """
    found = _by_prices(residual, targets, solver) if by_prices else None
    if found is None:
        found = _by_highs(residual, targets, solver, effort, next_gpu=next_gpu)
    least = _NO_RISE_REFINED if found.rung in (REFINED.name, IN_UNITS.name) else _NO_RISE
    return replace(found, level=targets.start) if found.level <= targets.start * (1 + least) else found


def is_for_prices(problem: AllocationProblem, classes: int) -> bool:
    """Whether the price engine applies to a problem with so many classes of jobs."""
    return problem.is_plain and (problem.job_count >= NEWTON_MIN or classes >= CLASSES_MIN)


def _by_highs(
    residual: Residual, targets: Targets, solver: Solver, effort: HighsEffort, *, next_gpu: bool
) -> WaterLevel:
    """The highest level, by LPs of the whole residual."""
    proof = _at_one_price(residual)
    elastic = _Elastic(residual, targets, solver, effort, proof.level(targets, residual.left))
    if next_gpu:
        more = residual.left + linear.TRACE
        _, proof, _ = elastic.lowered(proof.level(targets, more), proof, more)
    level, proof, share = elastic.lowered(proof.level(targets, residual.left), proof, residual.left)
    return WaterLevel(level, share, proof, effort.name)


def _by_prices(residual: Residual, targets: Targets, solver: Solver) -> WaterLevel | None:
    """The highest level by the price engine, if many jobs run alone; None if it fails."""
    program, live = residual.program, np.flatnonzero(residual.live)
    if not is_for_prices(program.problem, len(residual.live)) or len(live) < LATER_MIN:
        return None
    some, counts = _narrowed(residual), program.problem.gpu_counts
    kind = f"water level {residual.number}"
    found = height(some, counts * residual.left, _LiveTargets(targets, live), solver, kind)
    if found is None:
        solver.falls["prices"] += 1
        return None
    share, worth, budget = np.zeros(len(residual.open)), np.zeros(len(residual.live)), np.zeros(len(residual.live))
    share[residual.open] = found.share
    worth[live] = found.worth
    price = found.price * counts
    earned = worth[live][some.member_class] * some.member_rate - some.cost(price)
    np.maximum.at(budget, live[some.member_class], earned)
    proof = Proof(worth, budget, price)
    level = proof.level(targets, residual.left)
    if level != found.level and not abs(level - found.level) <= _EXACT * found.level:
        solver.falls["prices"] += 1
        return None
    return WaterLevel(min(level, found.level), share, proof, BY_PRICES)


@dataclass(frozen=True, eq=False)
class _LiveTargets:
    """The targets of the live classes of a residual."""

    targets: Targets
    rows: Ints  # (L,) of its K classes

    def at(self, level: float) -> Floats:
        """See Targets."""
        return self.targets.at(level)[self.rows]

    def slope(self, level: float) -> Floats:
        """See Targets."""
        return self.targets.slope(level)[self.rows]

    def some(self, rows: Ints) -> _LiveTargets:
        """The targets of some of them."""
        return _LiveTargets(self.targets, self.rows[rows])

    def root(self, worth: Floats, budget: float) -> float:
        """See Targets."""
        of_all = np.zeros(len(self.targets.limit))
        of_all[self.rows] = worth
        return self.targets.root(of_all, budget)

    def near_root(self, worth: Floats, budget: float) -> float:
        """See LevelCurve."""
        return self.root(worth, budget)

    @property
    def bends(self) -> Lines | None:
        """See LevelCurve."""
        t = self.targets
        if not isinstance(t, EvenTargets):
            return None
        held, rising = t.saturated[self.rows], ~t.saturated[self.rows]
        base = np.where(held, t.held[self.rows], 0.0)
        return Lines(base, t.speed[self.rows] * rising, np.where(rising, t.limit[self.rows], base))


class _Elastic:
    """The LP of a residual, solved at one level after another."""

    def __init__(self, residual: Residual, targets: Targets, solver: Solver, effort: HighsEffort, end: float) -> None:
        self._residual, self._targets = residual, targets
        self._live = np.flatnonzero(residual.live)
        self._entries = np.flatnonzero(residual.open)
        self._some = _narrowed(residual)
        risen = (targets.at(end) - targets.at(targets.start))[self._live]
        self._solver, self._effort = solver, effort
        quick = effort.on_face
        self._fine = _FINE_QUICK if quick else _FINE_CAREFUL
        relaxed = _RELAXED_REFINED if effort.refines else _RELAXED_QUICK if quick else _RELAXED_CAREFUL
        self._least = np.where(risen > 0, 1.0, 1.0 - relaxed)
        self._around(np.zeros(len(self._entries)), risen, 1.0, targets.at(end)[self._live])

    def lowered(self, level: float, proof: Proof, left: Floats) -> tuple[float, Proof, Floats]:
        """The highest level at or below `level`, which `proof` proves, with its own proof, and shares (E,)."""
        for _ in range(_STEPS_MAX):
            column, found = self._solve(self._targets.at(level), left)
            lower = min(found.level(self._targets, left), level)
            done = lower >= level * (1 - _ROUNDING) and level < np.inf
            whole = (self._give / self._row_unit[: len(self._give)]).sum()
            lacks = column[-1] > _ROUNDING and found.worth[self._live] @ self._give > _WHOLE * whole
            if lacks:  # the level is infeasible, however slightly: these duals prove it
                level, proof = lower, found
            if done or not lacks:
                share = np.zeros(len(self._residual.open))
                share[self._entries] = column[:-1]
                return level, proof, share
            if self._effort.refines:
                self._zoom(level)
        raise failed(self._residual.program.problem, "no end", f"HiGHS: {_STEPS_MAX} steps of a level")

    def _zoom(self, level: float) -> None:
        """If targets rise much less than expected, solves for enlarged changes since the level before from now on."""
        target = self._targets.at(level)[self._live]
        risen = target - self._targets.at(self._targets.start)[self._live]
        if 0 < risen.max(initial=0.0) < _ZOOM_BELOW * self._give.max(initial=0.0):
            self._around(self._residual.share[self._entries], risen, 1.0 / risen.max(), target)

    def _around(self, base: Floats, risen: Floats, zoom: float, target: Floats) -> None:
        """Builds the model whose columns are changes of the shares `base`, enlarged `zoom` times."""
        K, T = len(self._live), len(self._residual.left)
        self._give = np.where(risen > 0, np.maximum(risen, _LEAST_GIVE * risen.max(initial=0.0)), 0.0)
        self._base, self._scale = base, self._fine * zoom
        self._row_unit, self._column_unit = np.ones(2 * K + T), np.ones(len(base) + 1)
        if self._effort.in_units:
            self._row_unit[:K], self._column_unit[:-1] = _units(self._some, target)
            yields = _YIELD * (self._give / self._row_unit[:K]).max(initial=0.0) * self._row_unit[:K]
            self._give = np.where(self._give > 0, self._give, yields)
        model = linear.model_of(self._some, np.arange(K), np.zeros(K), -self._give * zoom)
        self._rows = model.rows_at(np.append(base, 0.0))
        if self._effort.in_units:
            column = np.repeat(np.arange(len(base) + 1), np.diff(model.start))
            model = replace(model, value=model.value * self._column_unit[column] / self._row_unit[model.row])
        model.column_lower[:-1] = -self._scale * base / self._column_unit[:-1]
        self._lower = np.full(2 * K + T, -np.inf)
        self._upper = np.full(2 * K + T, np.inf)
        self._upper[K:-T] = self._enlarged(np.ones(K), slice(K, -T))
        self._cost = np.zeros(len(base) + 1)
        # So that duals are of that size.
        self._cost[-1] = self._fine * zoom * (self._give / self._row_unit[:K]).sum() or 1.0
        self._model = model
        self._run: Run | None = None

    def _enlarged(self, bound: Floats, rows: slice) -> Floats:
        """Bounds of some rows for the columns of this model."""
        enlarged: Floats = (self._scale * (bound - self._rows[rows])).astype(np.float64) / self._row_unit[rows]
        return enlarged

    def _solve(self, target: Floats, left: Floats) -> tuple[Floats, Proof]:
        K, T = len(self._live), len(left)
        self._lower[:K] = self._enlarged(target[self._live] * self._least, slice(K))
        self._upper[-T:] = self._enlarged(left, slice(-T, None))
        if self._run is None:
            model = replace(self._model, row_lower=self._lower, row_upper=self._upper)
            self._run = Run(self._residual.program.problem, self._solver, self._effort, model)
            optimum = self._run.solve(self._cost, self._upper)
        else:
            optimum = self._run.rebounded(self._lower, self._upper)
        if self._effort.refines:
            optimum = self._run.refined(optimum, self._cost, self._lower, self._upper)
        dual = optimum.row_dual / self._row_unit / self._fine
        changes = optimum.column[:-1] * self._column_unit[:-1]
        column = np.append(self._base + changes / self._scale, optimum.column[-1] / self._fine)
        return column, self._proof(dual[:K], -dual[K:-T], -dual[-T:])

    def _proof(self, worth: Floats, budget: Floats, price: Floats) -> Proof:
        """A valid proof from any duals: budgets are raised as far as necessary."""
        some, worths, budgets = self._some, np.maximum(worth, 0.0), np.maximum(budget, 0.0)
        prices = np.maximum(price, 0.0)
        if some.problem.runs_alone:
            budgets = np.zeros(len(budgets))
        at, entry, E = some.member_class, some.member_entry, len(some.entry_type)
        earned = worths[at] * some.member_rate - budgets[at] * some.member_time
        excess = np.bincount(entry, weights=earned, minlength=E) - some.cost(prices)
        missing = np.maximum(excess, 0.0) / np.bincount(entry, weights=some.member_time, minlength=E)
        np.maximum.at(extra := np.zeros(len(budgets)), at, missing[entry])
        whole = np.zeros((2, len(self._residual.live)))
        whole[:, self._live] = worths, budgets + extra
        return Proof(whole[0], whole[1], prices)


def _narrowed(residual: Residual) -> Program:
    """The program of the open entries and live classes only."""
    p = residual.program
    row, entry = np.cumsum(residual.live) - 1, np.cumsum(residual.open) - 1
    kept = residual.open[p.member_entry]
    live = residual.live
    return replace(
        p,
        value=p.value[live],
        floor=p.floor[live],
        base=p.base[live],
        entry_group=p.entry_group[residual.open],
        entry_type=p.entry_type[residual.open],
        entry_load=p.entry_load[:, residual.open],
        member_entry=entry[p.member_entry[kept]],
        member_class=row[p.member_class[kept]],
        member_rate=p.member_rate[kept],
        member_time=p.member_time[kept],
        member_alone=p.member_alone[kept],
    )


def _at_one_price(residual: Residual) -> Proof:
    """The proof from equal prices of all GPUs, where each job's marginal value is the least cost of its rate."""
    p = residual.program
    gpus = p.problem.gpu_counts
    price = np.append(gpus / gpus.sum(), np.zeros(len(residual.left) - len(gpus)))
    members = np.bincount(p.member_entry, minlength=len(p.entry_type))
    cost = (p.cost(price) / members)[p.member_entry]
    here = residual.open[p.member_entry] & (p.member_rate > 0)
    worth = np.full(len(p.value), np.inf)
    np.minimum.at(worth, p.member_class[here], cost[here] / p.member_rate[here])
    return Proof(np.where(residual.live & np.isfinite(worth), worth, 0.0), np.zeros(len(worth)), price)


def _units(program: Program, target: Floats) -> tuple[Floats, Floats]:
    """Units of classes' rates, (K,), and of shares, (E,), in which a target and what it takes are about 1.

    Both are powers of two, so nothing is rounded. HiGHS's tolerances are absolute: without units, those of a class
    whose target is a millionth of its best rate are a million times as large a part of it.
    """
    unit = _power_of_two(np.where(target > 0, np.maximum(target, _LEAST_UNIT), 1.0))
    share, runs = np.ones(len(program.entry_type)), program.member_rate > 0
    takes = unit[program.member_class[runs]] / program.member_rate[runs]
    np.minimum.at(share, program.member_entry[runs], takes)
    return unit, _power_of_two(np.maximum(share, _LEAST_UNIT))


def _power_of_two(figures: Floats) -> Floats:
    """The powers of two nearest to these figures."""
    return np.exp2(np.round(np.log2(figures))).astype(np.float64)

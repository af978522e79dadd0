"""One round of a filling: the highest level whose targets can be had, and prices that prove it, by HiGHS.

Targets stop at limits, so the level is no variable of an LP. At a given level they are fixed, and an LP finds by how
much they must be given up, at the least:

    minimise s   subject to   r_k(x) >= target_k(level) - s w_k,   and time budgets and capacities.

Where that is above zero the LP's duals y, μ, π prove for every level that shares exist only if
Σ y_k target_k(level) <= Σ μ_k + Σ π_t left_t, so the root of that is the next level to try: from above, each step
starts from the last basis, and the last duals prove the level that is reached (Newton's method; it is finite).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import linear
from gavelpy.solve.certificate import failed
from gavelpy.solve.filling.targets import Rise
from gavelpy.solve.prices.highest_level import height
from gavelpy.solve.program import Program
from gavelpy.solve.solver import REFINED, HighsEffort, Run

if TYPE_CHECKING:
    from gavelpy.solve.solver import Solver

BY_PRICES = "prices"  # the rung of the price engine
NEWTON_MIN = 512  # jobs, and classes of a round; below, HiGHS is quicker
_ROUNDING = 1e-14  # of w, and of a level: less is no difference
_EXACT = 1e-9  # relative: a level by prices that is proved less well is found again by HiGHS
_NO_RISE, _NO_RISE_REFINED = 1e-10, 1e-14  # of a level: less is what relaxed rates buy, and would look like a rate
_STEPS_MAX = 200
_WHOLE = 0.9  # of the cost of giving all up: what duals come to where something has to be
_FINE_QUICK, _FINE_CAREFUL = 10.0, 1.0  # units of a share and of a dual, since HiGHS's tolerances are absolute
_RELAXED_QUICK, _RELAXED_CAREFUL, _RELAXED_REFINED = (
    1e-12,
    1e-10,
    4e-16,
)  # part of a kept rate that may lack: later rounds have no room at all
_ZOOM_BELOW = 1e-2  # of the rise that was thought
_LEAST_GIVE = 1e-9  # of the largest: least w, so that no coefficient is lost


@dataclass(frozen=True, eq=False)
class Market:
    """What is still to be divided, and among whom."""

    program: Program
    open: Bools  # (E,) entries that may have a share
    live: Bools  # (K,) classes with a target to be kept here
    left: Floats  # (T,) parts of each type's GPUs
    share: Floats  # (E,) of the round before: what targets need by now


@dataclass(frozen=True, eq=False)
class Proof:
    """Duals in the program's units: Σ worth_k target_k <= Σ budget_k + Σ price_t left_t wherever shares exist."""

    worth: Floats  # (K,) of a class's rate
    budget: Floats  # (K,) of its time
    price: Floats  # (T,) of all GPUs of a type

    def level(self, rise: Rise, left: Floats) -> float:
        """No level above can be had."""
        return rise.root(self.worth, float(self.budget.sum() + self.price @ left))


@dataclass(frozen=True, eq=False)
class Raised:
    """The highest level; infinite when every target reaches its limit."""

    level: float
    share: Floats  # (E,) of each entry
    proof: Proof
    rung: str  # who found it

    @property
    def noise(self) -> float:
        """A price below this part of the highest, or a worth below this part of all, is a zero with rounding."""
        return 1e-9 if self.rung == BY_PRICES else 1e-11


def raised(
    market: Market, rise: Rise, solver: Solver, effort: HighsEffort, *, by_prices: bool = False, next_gpu: bool = False
) -> Raised:
    """The highest level of `rise` in the market. Raises SolverFailed when HiGHS finds none.

    With `next_gpu`, where the level has a kink in the GPUs there are, prices are what the next one earns, not the last.
    """
    found = _by_prices(market, rise, solver) if by_prices else None
    if found is None:
        found = _by_highs(market, rise, solver, effort, next_gpu=next_gpu)
    least = _NO_RISE_REFINED if found.rung == REFINED.name else _NO_RISE
    return replace(found, level=rise.start) if found.level <= rise.start * (1 + least) else found


def is_for_prices(problem: AllocationProblem) -> bool:
    """Whether the price engine may find levels of such a problem."""
    return problem.runs_alone and problem.job_count >= NEWTON_MIN


def _by_highs(market: Market, rise: Rise, solver: Solver, effort: HighsEffort, *, next_gpu: bool) -> Raised:
    """The highest level, by LPs of the whole market."""
    proof = _at_one_price(market)
    elastic = _Elastic(market, rise, solver, effort, proof.level(rise, market.left))
    if next_gpu:
        more = market.left + linear.TRACE
        _, proof, _ = elastic.lowered(proof.level(rise, more), proof, more)
    level, proof, share = elastic.lowered(proof.level(rise, market.left), proof, market.left)
    return Raised(level, share, proof, effort.name)


def _by_prices(market: Market, rise: Rise, solver: Solver) -> Raised | None:
    """The same by the price engine, where many jobs run alone."""
    program, live = market.program, np.flatnonzero(market.live)
    if not is_for_prices(program.problem) or len(live) < NEWTON_MIN:
        return None
    some, counts = _narrowed(market), program.problem.gpu_counts
    found = height(some, counts * market.left, _Live(rise, live), solver)
    if found is None:
        solver.falls["prices"] += 1
        return None
    share, worth, budget = np.zeros(len(market.open)), np.zeros(len(market.live)), np.zeros(len(market.live))
    share[market.open] = found.share
    worth[live] = found.worth
    price = found.price * counts
    earned = worth[live][some.member_class] * some.member_rate - some.entry_load * price[some.entry_type]
    np.maximum.at(budget, live[some.member_class], earned)
    proof = Proof(worth, budget, price)
    level = proof.level(rise, market.left)
    if level != found.level and not abs(level - found.level) <= _EXACT * found.level:
        solver.falls["prices"] += 1
        return None
    return Raised(min(level, found.level), share, proof, BY_PRICES)


@dataclass(frozen=True, eq=False)
class _Live:
    """The rise of the classes that are live in a market."""

    rise: Rise
    rows: Ints  # (L,) of its K classes

    def at(self, level: float) -> Floats:
        """Their targets, (L,)."""
        return self.rise.at(level)[self.rows]

    def slope(self, level: float) -> Floats:
        """How fast these rise, (L,)."""
        return self.rise.slope(level)[self.rows]

    def some(self, rows: Ints) -> _Live:
        """Those of some of them."""
        return _Live(self.rise, self.rows[rows])

    def root(self, worth: Floats, budget: float) -> float:
        """The highest level that the budget allows."""
        everyone = np.zeros(len(self.rise.limit))
        everyone[self.rows] = worth
        return self.rise.root(everyone, budget)


class _Elastic:
    """The LP of a market, at one level after another."""

    def __init__(self, market: Market, rise: Rise, solver: Solver, effort: HighsEffort, end: float) -> None:
        self._market, self._rise = market, rise
        self._live = np.flatnonzero(market.live)
        self._entries = np.flatnonzero(market.open)
        self._some = _narrowed(market)
        risen = (rise.at(end) - rise.at(rise.start))[self._live]
        self._solver, self._effort = solver, effort
        quick = effort.on_face
        self._fine = _FINE_QUICK if quick else _FINE_CAREFUL
        relaxed = _RELAXED_REFINED if effort.refines else _RELAXED_QUICK if quick else _RELAXED_CAREFUL
        self._least = np.where(risen > 0, 1.0, 1.0 - relaxed)
        self._around(np.zeros(len(self._entries)), risen, 1.0)

    def lowered(self, level: float, proof: Proof, left: Floats) -> tuple[float, Proof, Floats]:
        """The highest level at or below `level`, which `proof` proves, with its own proof, and shares (E,)."""
        for _ in range(_STEPS_MAX):
            column, found = self._solve(self._rise.at(level), left)
            lower = min(found.level(self._rise, left), level)
            done = lower >= level * (1 - _ROUNDING) and level < np.inf
            lacks = column[-1] > _ROUNDING and found.worth[self._live] @ self._give > _WHOLE * self._give.sum()
            if lacks:  # the level cannot be had, by however little: these duals know why
                level, proof = lower, found
            if done or not lacks:
                share = np.zeros(len(self._market.open))
                share[self._entries] = column[:-1]
                return level, proof, share
            if self._effort.refines:
                self._zoom(level)
        raise failed(self._market.program.problem, "no end", f"HiGHS: {_STEPS_MAX} steps of a level")

    def _zoom(self, level: float) -> None:
        """Where targets rise much less than was thought: from now on what changes since the round before, enlarged."""
        risen = (self._rise.at(level) - self._rise.at(self._rise.start))[self._live]
        if 0 < risen.max(initial=0.0) < _ZOOM_BELOW * self._give.max(initial=0.0):
            self._around(self._market.share[self._entries], risen, 1.0 / risen.max())

    def _around(self, base: Floats, risen: Floats, zoom: float) -> None:
        """Columns are changes of the shares `base`, so many times enlarged."""
        K, T = len(self._live), len(self._market.left)
        self._give = np.where(risen > 0, np.maximum(risen, _LEAST_GIVE * risen.max(initial=0.0)), 0.0)
        self._base, self._scale = base, self._fine * zoom
        model = linear.model_of(self._some, np.arange(K), np.zeros(K), -self._give * zoom)
        self._rows = model.rows_at(np.append(base, 0.0))
        model.column_lower[:-1] = -self._scale * base
        self._lower = np.full(2 * K + T, -np.inf)
        self._upper = np.full(2 * K + T, np.inf)
        self._upper[K:-T] = self._enlarged(np.ones(K), slice(K, -T))
        self._cost = np.zeros(len(base) + 1)
        self._cost[-1] = self._fine * zoom * self._give.sum() or 1.0  # so that duals are about as much
        self._model = model
        self._run: Run | None = None

    def _enlarged(self, bound: Floats, rows: slice) -> Floats:
        """Bounds of some rows for the columns of this model."""
        enlarged: Floats = (self._scale * (bound - self._rows[rows])).astype(np.float64)
        return enlarged

    def _solve(self, target: Floats, left: Floats) -> tuple[Floats, Proof]:
        K, T = len(self._live), len(left)
        self._lower[:K] = self._enlarged(target[self._live] * self._least, slice(K))
        self._upper[-T:] = self._enlarged(left, slice(-T, None))
        if self._run is None:
            model = replace(self._model, row_lower=self._lower, row_upper=self._upper)
            self._run = Run(self._market.program.problem, self._solver, self._effort, model)
            optimum = self._run.solve(self._cost, self._upper)
        else:
            optimum = self._run.rebounded(self._lower, self._upper)
        if self._effort.refines:
            optimum = self._run.refined(optimum, self._cost, self._lower, self._upper)
        dual = optimum.row_dual / self._fine
        column = np.append(self._base + optimum.column[:-1] / self._scale, optimum.column[-1] / self._fine)
        return column, self._proof(dual[:K], -dual[K:-T], -dual[-T:])

    def _proof(self, worth: Floats, budget: Floats, price: Floats) -> Proof:
        """What a solver's duals prove, whatever they are: budgets are raised until they do."""
        some, worths, budgets = self._some, np.maximum(worth, 0.0), np.maximum(budget, 0.0)
        prices = np.maximum(price, 0.0)
        if some.problem.runs_alone:
            budgets = np.zeros(len(budgets))
        at, entry, E = some.member_class, some.member_entry, len(some.entry_type)
        earned = worths[at] * some.member_rate - budgets[at] * some.member_time
        excess = np.bincount(entry, weights=earned, minlength=E) - some.entry_load * prices[some.entry_type]
        missing = np.maximum(excess, 0.0) / np.bincount(entry, weights=some.member_time, minlength=E)
        np.maximum.at(extra := np.zeros(len(budgets)), at, missing[entry])
        whole = np.zeros((2, len(self._market.live)))
        whole[:, self._live] = worths, budgets + extra
        return Proof(whole[0], whole[1], prices)


def _narrowed(market: Market) -> Program:
    """The program of what is open and live, in which nothing else is."""
    p = market.program
    row, entry = np.cumsum(market.live) - 1, np.cumsum(market.open) - 1
    kept = market.open[p.member_entry]
    live = market.live
    return replace(
        p,
        value=p.value[live],
        floor=p.floor[live],
        base=p.base[live],
        entry_group=p.entry_group[market.open],
        entry_type=p.entry_type[market.open],
        entry_load=p.entry_load[market.open],
        member_entry=entry[p.member_entry[kept]],
        member_class=row[p.member_class[kept]],
        member_rate=p.member_rate[kept],
        member_time=p.member_time[kept],
        member_alone=p.member_alone[kept],
    )


def _at_one_price(market: Market) -> Proof:
    """What it proves that every GPU costs the same and every job pays for its rate at least what it costs there."""
    p = market.program
    gpus = p.problem.gpu_counts
    price = gpus / gpus.sum()
    members = np.bincount(p.member_entry, minlength=len(p.entry_type))
    cost = (p.entry_load * price[p.entry_type] / members)[p.member_entry]
    here = market.open[p.member_entry] & (p.member_rate > 0)
    worth = np.full(len(p.value), np.inf)
    np.minimum.at(worth, p.member_class[here], cost[here] / p.member_rate[here])
    return Proof(np.where(market.live & np.isfinite(worth), worth, 0.0), np.zeros(len(worth)), price)

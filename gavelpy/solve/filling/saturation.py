"""Level after level of a filling, until no class can rise.

Each step finds the highest level whose targets are feasible for all classes (water_level.py), and prices that prove it.
A class is saturated if prices show that it could rise only if another class fell; it keeps its rate, and the others
rise.

By complementary slackness all shares that keep these rates are optimal at these prices. So if jobs run alone

    a class that is not saturated uses free types only: the best of them limits it, and it will saturate there
    a saturated class uses only types whose price equals its marginal value: usually one, which determines its share

Every step then saturates some type, so there are at most as many steps as types. If jobs share GPUs, every step solves
the whole program.

*Marginal values from prices.* At given prices the cost of rate y for a class is
cost(y) = min { Σ_t c_t x_t : Σ_t x_t <= 1, Σ_t r_t x_t >= y },  which is convex. With any marginal value w >= 0 of its
rate and the budget max(0, max_t (w r_t - c_t)) for its time, cost(y) >= w y - budget; if w is a slope of the cost at y
the two are equal. Slopes are those between two types, or between a type and idling.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.filling.targets import AT_LIMIT, Targets
from gavelpy.solve.filling.water_level import Proof, Residual, WaterLevel, highest_water_level
from gavelpy.solve.prices.table import fixed, search_kernels
from gavelpy.solve.program import Program
from gavelpy.solve.solver import CAREFUL, IN_UNITS, HighsEffort, Solver

_EQUAL = 1e-13  # relative: two slopes whose results are this close are equal
_ROUNDING = 1e-15  # of the value of the best rate
_TIED = 1e-12  # of the cost: an entry whose cost exceeds its value by less may be used later
_USED = 1e-9  # of a rate: an entry that gives more is in use, whatever rounding does to its price
_CANCELLED = 1e-12  # relative: rounding in a small difference of large numbers
ITS_OWN_BEST = -1  # the level of a class that is at its own best rate


@dataclass(frozen=True, eq=False)
class SaturatedLevel:
    """A level with its proof."""

    level: float
    target: Floats  # (K,) in units of the best rate
    proof: Proof


@dataclass(frozen=True, eq=False)
class Filled:
    """Rates at which each class cannot rise or has to stay."""

    share: Floats  # (E,)
    rate: Floats  # (K,) in units of the best rate
    levels: tuple[SaturatedLevel, ...]
    level_of: Ints  # (K,) level at which the class stopped, or ITS_OWN_BEST
    rungs: tuple[str, ...]  # that computed each level, and at the end the last targets if they are limits
    rising: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # classes that might still rise
    limit: Floats = field(default_factory=lambda: np.zeros(0))  # (K,) upper limits of those
    failure: str = ""  # of the solver, if the filling stopped early

    def after(self, found: WaterLevel, target: Floats, share: Floats, held: Bools) -> Filled:
        """With one more level, at which the classes `held` (K,) stopped."""
        level_of = np.where(held, len(self.levels), self.level_of)
        done = SaturatedLevel(found.level, target, found.proof)
        return Filled(share, target, (*self.levels, done), level_of, (*self.rungs, found.rung))

    def at_limits(self, found: WaterLevel, target: Floats, share: Floats) -> Filled:
        """With all classes that still rise at their limits."""
        return Filled(share, target, self.levels, self.level_of, (*self.rungs, found.rung))

    def stopped(self, targets: Targets, failure: SolverFailed) -> Filled:
        """As it is, if no further level was found; raises `failure` if there is no level at all."""
        if not self.levels:
            raise failure
        rising = np.flatnonzero(~targets.saturated & (self.rate < targets.limit))
        return replace(self, rising=rising, limit=targets.limit, failure=failure.status)


def fill_whole(program: Program, targets: Targets, solver: Solver, effort: HighsEffort) -> Filled:
    """Fills level after level with the whole program, for any configurations."""
    residual = _whole(program)
    filled = _empty(program)
    while _rises(targets):
        try:
            found = _highest_water_level(residual, targets, solver, effort, next_gpu=not filled.levels)
        except SolverFailed as failure:
            return filled.stopped(targets, failure)
        target = targets.at(found.level)
        if found.level == np.inf:
            return filled.at_limits(found, target, found.share)
        size = target if found.rung == IN_UNITS.name else targets.at(np.inf) - target  # in their units, duals are exact
        worth = np.where(targets.saturated, 0.0, found.proof.worth * size)
        stuck = worth >= min(found.noise * worth.sum(), worth.max())
        filled, residual = filled.after(found, target, found.share, stuck), replace(residual, share=found.share)
        targets = targets.advanced(found.level, stuck, targets.limit)
    return filled


def fill_residuals(
    program: Program, targets: Targets, solver: Solver, effort: HighsEffort, *, by_prices: bool
) -> Filled:
    """Fills level after level without the part that prices have decided, for jobs that run alone."""
    residual = _whole(program)
    filled = _empty(program)
    while _rises(targets):
        try:
            found = _highest_water_level(
                residual, targets, solver, effort, by_prices=by_prices, next_gpu=not filled.levels
            )
        except SolverFailed as failure:
            return filled.stopped(targets, failure)
        target, price = targets.at(found.level), found.proof.price
        share = np.where(residual.open, found.share, filled.share)
        if found.level == np.inf:
            return filled.at_limits(found, target, share)
        rate = by_type(program, np.where(residual.open, program.member_rate, 0.0))
        free = _is_free(program, price <= found.noise * price.max())
        limit = np.where(
            targets.saturated, targets.limit, np.minimum(targets.limit, np.where(free, rate, 0.0).max(axis=1))
        )
        rising = ~targets.saturated & (target < targets.limit * (1 - AT_LIMIT))
        stuck = rising & (limit <= target * (1 + AT_LIMIT))
        if not stuck.any() and rising.any():  # prices near zero were treated as zero
            stuck[np.argmax(np.where(rising, found.proof.worth * targets.speed, -1.0))] = True
        held = stuck | (rising & (limit < targets.limit))
        filled = filled.after(found, target, share, held)
        targets = targets.advanced(found.level, stuck, limit)
        residual, filled = _narrowed(residual, filled, targets, rate, price, free)
    return filled


def _highest_water_level(
    residual: Residual,
    targets: Targets,
    solver: Solver,
    effort: HighsEffort,
    *,
    next_gpu: bool,
    by_prices: bool = False,
) -> WaterLevel:
    """The highest level; if HiGHS finds none that can be refined, with its most careful options."""
    try:
        return highest_water_level(residual, targets, solver, effort, by_prices=by_prices, next_gpu=next_gpu)
    except SolverFailed:
        if not effort.refines:
            raise
        return highest_water_level(residual, targets, solver, CAREFUL, next_gpu=next_gpu)


def _whole(program: Program) -> Residual:
    K, E, T = len(program.value), len(program.entry_type), len(program.problem.row_capacity)
    return Residual(program, np.ones(E, dtype=np.bool_), np.ones(K, dtype=np.bool_), np.ones(T), np.zeros(E))


def _empty(program: Program) -> Filled:
    K = len(program.value)
    return Filled(np.zeros(len(program.entry_type)), np.zeros(K), (), np.full(K, ITS_OWN_BEST), ())


def _rises(targets: Targets) -> bool:
    return bool((targets.at(np.inf) > targets.at(targets.start)).any())


def _narrowed(
    residual: Residual, filled: Filled, targets: Targets, rate: Floats, price: Floats, free: Bools
) -> tuple[Residual, Filled]:
    """The residual without the entries that these prices exclude or determine, and the shares that they determine.

    `rate` (K, T) is that of the residual's open entries.
    """
    program, target = residual.program, filled.rate
    cost = by_type(program, program.cost(price))
    worth, budget = worths_of(rate, cost, target)
    dearer = cost + budget[:, None] - worth[:, None] * rate
    cancelled = _CANCELLED * worth * rate.max(axis=1)
    pays = dearer <= _TIED * (cost + budget[:, None]) + cancelled[:, None]
    pays &= (rate >= target[:, None] * (1 - AT_LIMIT)) | (target < rate.max(axis=1) * (1 - AT_LIMIT))[:, None]
    pays |= by_type(program, np.where(residual.open, filled.share, 0.0)) * rate > _USED * target[:, None]
    possible = (rate > 0) & np.where(targets.saturated[:, None], pays, free)
    fixed = residual.live & targets.saturated & (possible.sum(axis=1) <= 1)
    at = program.member_class, program.entry_type  # an entry is a membership: jobs run alone
    fixed_here = fixed[at[0]] & possible[at]
    share = np.where(fixed_here, target[at[0]] / np.where(fixed_here, program.member_rate, 1.0), filled.share)
    taken = program.taken(np.where(fixed_here, share, 0.0))
    live = residual.live & ~fixed
    share = np.where(possible[at] | ~residual.open, share, 0.0)
    left = np.maximum(residual.left - taken, 0.0)
    narrower = Residual(program, possible[at] & live[at[0]], live, left, share, residual.number + 1)
    return narrower, replace(filled, share=share)


def _is_free(program: Program, is_free: Bools) -> Bools:
    """Whether a type has a price of zero: (T,), or (K, T) for each class if there are several resources.

    `is_free` is (R T,); a class does not pay for a resource that it does not use.
    """
    if len(program.entry_load) == 1:
        return is_free
    priced = np.where(is_free, 0.0, 1.0)
    return by_type(program, np.where(program.cost(priced) > 0, 0.0, 1.0)) > 0


def by_type(program: Program, per_entry: Floats) -> Floats:
    """Values of entries (E,) as (K, T), for jobs that run alone; zero without an entry."""
    table: Floats = np.zeros((len(program.value), len(program.problem.gpu_types)))
    table[program.member_class, program.entry_type] = per_entry
    return table


def worths_of(rate: Floats, cost: Floats, need: Floats) -> tuple[Floats, Floats]:
    """Marginal value of each class's rate (K,), the steepest slope of its cost at `need`, and its budget (K,).

    `rate` and `cost` are (K, T) for all of the class's time, `rate` 0 where it may not run. At a class's best rate it
    is the slope up to that rate: steeper ones prove the same, with more rounding.

    The cost is the lower convex hull of idling and of the types. The search along it starts at idling, and each step
    takes the least slope to a higher rate (gift wrapping), so there are at most T steps.
    """
    K, T = rate.shape
    if search_kernels() is not None:
        from gavelpy.solve.prices.curve_kernels import slopes_of

        worth, budget = np.empty(K), np.empty(K)
        slopes_of(*map(fixed, (rate, cost, need)), _EQUAL, _ROUNDING, worth, budget)
        return worth, budget
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
    """Slopes >= 0 for these differences of rate and cost; infinite if the rate does not rise."""
    higher = (rise > 0) & np.isfinite(dearer)
    slopes: Floats = np.full(rise.shape, np.inf)
    return np.divide(np.maximum(dearer, 0.0), rise, where=higher, out=slopes)


def _steepest(worth: Floats, best: Floats, slope: Floats, value: Floats, size: Floats) -> tuple[Floats, Floats]:
    """The steeper of two slopes if its value is equal up to rounding, and the best value so far, (K,)."""
    as_good = (value >= best - slope * size) & ((slope > worth) | (value > best + slope * size))
    return np.where(as_good, slope, worth), np.maximum(best, value)


def budgets_of(rate: Floats, cost: Floats, worth: Floats) -> Floats:
    """The least budgets (K,) at which no rate has a value above its cost, at marginal values `worth` (K,)."""
    earned: Floats = np.where(rate > 0, worth[:, None] * rate - cost, 0.0)
    return np.asarray(earned.max(axis=1, initial=0.0))

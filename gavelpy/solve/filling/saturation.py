"""Rounds of a filling: levels, one after another, until nobody can rise.

A round finds the highest level that the targets of all can reach (raising.py), and prices that prove it. A class is
saturated when prices show that it could rise only if another fell; it keeps its rate, and the rest rise on.

By complementary slackness whatever keeps the rates of a round keeps its prices true. So where jobs run alone

    a class that is not saturated uses free types only: the best of them limits it, and it will saturate there unasked;
    a saturated one uses only types whose price its worth pays: mostly one, which fixes its share, and it is gone.

Every round then saturates some type, so there are no more rounds than types. Where jobs share GPUs the whole program
is solved in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.filling.targets import AT_LIMIT, Rise
from gavelpy.solve.filling.water_level import Market, Proof, Raised, raised
from gavelpy.solve.program import Program
from gavelpy.solve.solver import CAREFUL, HighsEffort, Solver

_EQUAL = 1e-13  # relative: two worths that give as much
_ROUNDING = 1e-15  # of what the best rate earns


def worths_of(rate: Floats, cost: Floats, need: Floats) -> tuple[Floats, Floats]:
    """Worth of each class's rate (K,), the steepest slope of its cost at `need`, and the budget of its time (K,).

    `rate` and `cost` are (K, T) for all of the class's time, `rate` 0 where it may not run. At a class's best rate,
    above which there is nothing, it is the slope up to that rate: steeper ones prove as much, with more rounding.

    The cost is the lower convex hull of rest and of the types. The walk along it starts at rest, and each step takes
    the least slope to a higher rate (gift wrapping), so there are at most T steps.
    """
    K, T = rate.shape
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
    """Slopes >= 0 between points that differ by so much; infinite where the second is not at a higher rate."""
    higher = (rise > 0) & np.isfinite(dearer)
    slopes: Floats = np.full(rise.shape, np.inf)
    return np.divide(np.maximum(dearer, 0.0), rise, where=higher, out=slopes)


def _steepest(worth: Floats, best: Floats, slope: Floats, value: Floats, size: Floats) -> tuple[Floats, Floats]:
    """The steeper of two slopes where it is worth as much but for rounding, and the best value so far, (K,)."""
    as_good = (value >= best - slope * size) & ((slope > worth) | (value > best + slope * size))
    return np.where(as_good, slope, worth), np.maximum(best, value)


def budgets_of(rate: Floats, cost: Floats, worth: Floats) -> Floats:
    """The least budgets (K,) with which rates worth (K,) earn nothing beyond what they cost."""
    earned: Floats = np.where(rate > 0, worth[:, None] * rate - cost, 0.0)
    return np.asarray(earned.max(axis=1, initial=0.0))


_TIED = 1e-12  # of the cost: an entry that costs so little more than its worth may be used later
_USED = 1e-9  # of a rate: an entry that gives so much is used, whatever rounding says of its price
_CANCELLED = 1e-12  # relative: rounding in a small difference of large figures
ITS_OWN_BEST = -1  # the round of a class that is at its own best rate


@dataclass(frozen=True, eq=False)
class Round:
    """A level and what proves it."""

    level: float
    target: Floats  # (K,) in units of the best rate
    proof: Proof


@dataclass(frozen=True, eq=False)
class Filled:
    """Every class at a rate where it cannot rise, or at which it was told to stay."""

    share: Floats  # (E,)
    rate: Floats  # (K,) in units of the best rate
    rounds: tuple[Round, ...]
    round_of: Ints  # (K,) whose prices hold the class, or ITS_OWN_BEST
    rungs: tuple[str, ...]  # who found the level of each round, and after them of the last targets, if they are limits
    rising: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # classes that might rise on
    limit: Floats = field(default_factory=lambda: np.zeros(0))  # (K,) how far those might
    failure: str = ""  # of the solver, where the filling stopped before its end

    def after(self, found: Raised, target: Floats, share: Floats, held: Bools) -> Filled:
        """This after one more round, whose prices hold the classes `held`, (K,)."""
        round_of = np.where(held, len(self.rounds), self.round_of)
        done = Round(found.level, target, found.proof)
        return Filled(share, target, (*self.rounds, done), round_of, (*self.rungs, found.rung))

    def at_limits(self, found: Raised, target: Floats, share: Floats) -> Filled:
        """This when all that still rise have reached their limits."""
        return Filled(share, target, self.rounds, self.round_of, (*self.rungs, found.rung))

    def stopped(self, rise: Rise, failure: SolverFailed) -> Filled:
        """This where no further level was found; raises `failure` if there is none at all."""
        if not self.rounds:
            raise failure
        rising = np.flatnonzero(~rise.saturated & (self.rate < rise.limit))
        return replace(self, rising=rising, limit=rise.limit, failure=failure.status)


def whole_rounds(program: Program, rise: Rise, solver: Solver, effort: HighsEffort) -> Filled:
    """Rounds on the whole program, for configurations of any kind."""
    market = _everything(program)
    filled = _nothing(program)
    while _rises(rise):
        try:
            found = _raised(market, rise, solver, effort, next_gpu=not filled.rounds)
        except SolverFailed as failure:
            return filled.stopped(rise, failure)
        target = rise.at(found.level)
        if found.level == np.inf:
            return filled.at_limits(found, target, found.share)
        worth = np.where(rise.saturated, 0.0, found.proof.worth * (rise.at(np.inf) - target))
        stuck = worth >= min(found.noise * worth.sum(), worth.max())
        filled, market = filled.after(found, target, found.share, stuck), replace(market, share=found.share)
        rise = rise.advanced(found.level, stuck, rise.limit)
    return filled


def narrowing_rounds(program: Program, rise: Rise, solver: Solver, effort: HighsEffort, *, by_prices: bool) -> Filled:
    """Rounds that leave out what prices have decided, for jobs that run alone."""
    market = _everything(program)
    filled = _nothing(program)
    while _rises(rise):
        try:
            found = _raised(market, rise, solver, effort, by_prices=by_prices, next_gpu=not filled.rounds)
        except SolverFailed as failure:
            return filled.stopped(rise, failure)
        target, price = rise.at(found.level), found.proof.price
        share = np.where(market.open, found.share, filled.share)
        if found.level == np.inf:
            return filled.at_limits(found, target, share)
        rate = by_type(program, np.where(market.open, program.member_rate, 0.0))
        free = price <= found.noise * price.max()
        limit = np.where(rise.saturated, rise.limit, np.minimum(rise.limit, np.where(free, rate, 0.0).max(axis=1)))
        rising = ~rise.saturated & (target < rise.limit * (1 - AT_LIMIT))
        stuck = rising & (limit <= target * (1 + AT_LIMIT))
        if not stuck.any() and rising.any():  # prices near zero were taken for zero
            stuck[np.argmax(np.where(rising, found.proof.worth * rise.speed, -1.0))] = True
        held = stuck | (rising & (limit < rise.limit))
        filled = filled.after(found, target, share, held)
        rise = rise.advanced(found.level, stuck, limit)
        market, filled = _narrowed(market, filled, rise, rate, price, free)
    return filled


def _raised(
    market: Market, rise: Rise, solver: Solver, effort: HighsEffort, *, next_gpu: bool, by_prices: bool = False
) -> Raised:
    """The highest level; where nothing can be refined because HiGHS finds none, with the most care it has."""
    try:
        return raised(market, rise, solver, effort, by_prices=by_prices, next_gpu=next_gpu)
    except SolverFailed:
        if not effort.refines:
            raise
        return raised(market, rise, solver, CAREFUL, next_gpu=next_gpu)


def _everything(program: Program) -> Market:
    K, E, T = len(program.value), len(program.entry_type), len(program.problem.gpu_types)
    return Market(program, np.ones(E, dtype=np.bool_), np.ones(K, dtype=np.bool_), np.ones(T), np.zeros(E))


def _nothing(program: Program) -> Filled:
    K = len(program.value)
    return Filled(np.zeros(len(program.entry_type)), np.zeros(K), (), np.full(K, ITS_OWN_BEST), ())


def _rises(rise: Rise) -> bool:
    return bool((rise.at(np.inf) > rise.at(rise.start)).any())


def _narrowed(
    market: Market, filled: Filled, rise: Rise, rate: Floats, price: Floats, free: Bools
) -> tuple[Market, Filled]:
    """The market without what these prices rule out or fix, and the shares that they fix.

    `rate` (K, T) is that of the market's open entries.
    """
    program, target = market.program, filled.rate
    cost = by_type(program, program.entry_load * price[program.entry_type])
    worth, budget = worths_of(rate, cost, target)
    dearer = cost + budget[:, None] - worth[:, None] * rate
    cancelled = _CANCELLED * worth * rate.max(axis=1)
    pays = dearer <= _TIED * (cost + budget[:, None]) + cancelled[:, None]
    pays &= (rate >= target[:, None] * (1 - AT_LIMIT)) | (target < rate.max(axis=1) * (1 - AT_LIMIT))[:, None]
    pays |= by_type(program, np.where(market.open, filled.share, 0.0)) * rate > _USED * target[:, None]
    possible = (rate > 0) & np.where(rise.saturated[:, None], pays, free)
    fixed = market.live & rise.saturated & (possible.sum(axis=1) <= 1)
    at = program.member_class, program.entry_type  # of each entry: jobs run alone
    fixed_here = fixed[at[0]] & possible[at]
    share = np.where(fixed_here, target[at[0]] / np.where(fixed_here, program.member_rate, 1.0), filled.share)
    taken = np.bincount(
        at[1], weights=np.where(fixed_here, program.entry_load * share, 0.0), minlength=len(market.left)
    )
    live = market.live & ~fixed
    share = np.where(possible[at] | ~market.open, share, 0.0)
    narrower = Market(program, possible[at] & live[at[0]], live, np.maximum(market.left - taken, 0.0), share)
    return narrower, replace(filled, share=share)


def by_type(program: Program, per_entry: Floats) -> Floats:
    """Figures of entries (E,) as (K, T), for jobs that run alone; zero where there is no entry."""
    table: Floats = np.zeros((len(program.value), len(program.problem.gpu_types)))
    table[program.member_class, program.entry_type] = per_entry
    return table

"""The certificate of a filling by class: by what part of its rate each class of equal jobs could still rise.

The prices of a level, with a multiple of those of the levels before, prove by weak duality at the final rates f that

    Σ worth_k Δf_k  ≤  Σ budgets + Σ prices - Σ worth_k f_k =: excess

for all feasible rates, where worth_k is the marginal value of class k's rate. So a class k that stopped at the level
can rise by the part  excess / (worth_k f_k)  at most, unless another class falls, and never above its best rate. Early
classes may have marginal values a billion times those of late ones: rounding in the rates of the former is then a
visible part of the rates of the latter, and the gap includes it. The multiples are chosen with the rounding of the
excess as a part of it, since large ones would hide any excess in rounding. With the chosen ones the excess is computed
in extended precision, less the value of the last digits of the shares at these prices: no shares in double precision
are better. If the gap is still above the promise, the duals and the shares themselves get more digits (resolved.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.certificate import GAP_MAX
from gavelpy.solve.filling.resolved import resolved
from gavelpy.solve.filling.saturation import Filled, by_type, worths_of
from gavelpy.solve.filling.water_level import Proof
from gavelpy.solve.program import Program

CLASSES_MAX = 600  # above, more digits of shares and proofs take longer than the filling
_MULTIPLES = 10.0 ** np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, -1])  # in the order in which they are tried
_LEAST_RATE = 1e-9  # of a job's best rate: a part of a rate is relative to at least this, 3 s in a century
_NO_RATE = 1e-12  # of a job's best rate: less is rounding, and parts are of the best rate
_CLOSE = 1e-10  # a gap that no other multiple need lower
_SMALL = 1e-6  # a gap that comes from rounding, if a larger multiple increases it: still larger ones do so too
_MOVED_MAX = 1e-12  # relative: rates that differ by less than this from those of reference shares are theirs, rounded
_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)  # of a sum of prices: rounding of the shares


def gaps_of_classes(
    program: Program, filled: Filled, share: Floats, *, by_prices: bool, blur: float
) -> tuple[Floats, float]:
    """By what part of its rate each class might rise, (K,): 0 = it cannot, infinite = nothing is proved.

    And the largest part by which all classes of a level might rise together: if that is small, and the part of some
    class is not, that part comes from rounding only.

    `share` (E,) are the shares of the entries. `by_prices`: jobs run alone, so prices determine the proof. `blur`: the
    relative difference between jobs of a class.
    """
    rate = rates_of(program, share)
    to_best = np.maximum(np.divide(limits(program), rate, where=rate > 0, out=np.full(len(rate), np.inf)) - 1.0, 0.0)
    gaps = np.maximum(filled.rate - rate, 0.0) / _units(rate)
    rising = filled.rising
    gaps[rising] = np.where(rate[rising] > 0, filled.limit[rising] / np.maximum(rate[rising], 1e-300) - 1.0, np.inf)
    together = float(gaps[rising].max(initial=0.0))
    before = np.zeros(len(program.problem.row_capacity))
    rates = by_type(program, program.member_rate) if by_prices else None
    for number, done in enumerate(filled.levels):
        held = np.flatnonzero(filled.level_of == number)
        tried: list[tuple[float, Proof, Floats, float]] = []
        for proof in _proofs(program, rates, done.proof, before, filled.rate):
            parts, whole = _parts(proof, _excess(proof, rate, blur), rate, held, to_best)
            tried.append((float(parts.max(initial=0.0)), proof, parts, whole))
            least = min(tried, key=itemgetter(0))[0]
            if least <= _CLOSE or (least <= _SMALL and tried[-1][0] > least):
                break
        most, proof, parts, whole = min(tried, key=itemgetter(0))
        if most > GAP_MAX:
            excess = _excess_resolved(program, proof, share, blur)
            exact = _parts(proof, excess, rate, held, to_best)
            parts, whole = np.minimum(parts, exact[0]), min(whole, exact[1])
            if not blur and len(program.value) <= CLASSES_MAX and parts.max(initial=0.0) > GAP_MAX:
                finer = resolved(program, proof, share)
                exact = _parts(finer.proof, finer.excess, rate, held, to_best)
                if finer.moved <= _MOVED_MAX:
                    parts, whole = np.minimum(parts, exact[0]), min(whole, exact[1])
        before = proof.price
        gaps[held], together = np.maximum(gaps[held], parts), max(together, whole)
    return np.minimum(gaps, to_best), together


def _proofs(program: Program, rates: Floats | None, given: Proof, before: Floats, need: Floats) -> Iterator[Proof]:
    """The proofs of a level: the given one, or, by prices, with several multiples of the prices of levels before."""
    if rates is None:
        yield given
        return
    unit = given.price.max() / before.max() if before.any() else 0.0
    for multiple in _MULTIPLES if before.any() else _MULTIPLES[:1]:
        yield proof_of_prices(program, rates, given.price + multiple * unit * before, need)


def rates_of(program: Program, share: Floats) -> Floats:
    """Rates of the classes, (K,), under shares of the entries, (E,), in units of their best rates."""
    weights = program.member_rate * share[program.member_entry]
    return np.bincount(program.member_class, weights=weights, minlength=len(program.value)).astype(np.float64)


def limits(program: Program) -> Floats:
    """The best rate of each class in any configuration, (K,): a class cannot rise above it."""
    limit: Floats = np.zeros(len(program.value))
    np.maximum.at(limit, program.member_class, program.member_rate)
    return limit


def proof_of_prices(program: Program, rates: Floats, price: Floats, need: Floats) -> Proof:
    """The proof from prices (R T,), at the rates `need` (K,); `rates` are (K, T)."""
    return Proof(*worths_of(rates, by_type(program, program.cost(price)), need), price)


def _excess(proof: Proof, rate: Floats, blur: float) -> float:
    """The excess of the proof at these rates, (K,), plus the largest effect of rounding."""
    total = float(proof.budget.sum() + proof.price.sum())
    return max(0.0, total - float(proof.worth @ rate)) + _ROUNDING * total + blur * float(proof.worth.sum())


def _excess_resolved(program: Program, proof: Proof, share: Floats, blur: float) -> float:
    """The excess at these shares, (E,), beyond their rounding; budgets are raised until the proof is valid."""
    worth, budget, price, shares = (_extended(a) for a in (proof.worth, proof.budget, proof.price, share))
    if program.problem.runs_alone:
        budget = np.zeros_like(budget)  # the least are computed here
    entry, at = program.member_entry, program.member_class
    rate, time = _extended(program.member_rate), _extended(program.member_time)
    earned, times, rates = _extended(np.zeros(len(share))), np.zeros(len(share)), _extended(np.zeros(len(worth)))
    np.add.at(earned, entry, worth[at] * rate - budget[at] * time)
    np.add.at(times, entry, program.member_time)
    np.add.at(rates, at, rate * shares[entry])
    missing = np.maximum(earned - program.cost(price), 0.0) / times
    extra = _extended(np.zeros(len(budget)))
    np.maximum.at(extra, at, missing[entry])
    total = budget.sum() + extra.sum() + price.sum()
    return max(0.0, float(total - worth @ rates - _ROUNDING * total)) + blur * float(proof.worth.sum())


def _extended(figures: Floats) -> Any:  # numpy has no type for such arrays
    return figures.astype(np.longdouble)


def _units(rate: Floats) -> Floats:
    """What parts of these rates are relative to, in units of the best rates."""
    return np.where(rate > _NO_RATE, np.maximum(rate, _LEAST_RATE), 1.0)


def _parts(proof: Proof, excess: float, rate: Floats, held: Ints, to_best: Floats) -> tuple[Floats, float]:
    """How far the classes `held` can rise, at most to their best rates, and all of them together."""
    worth = proof.worth[held] * _units(rate[held])
    unproved = np.full(len(held), np.inf if excess > 0 else 0.0)
    parts: Floats = np.divide(excess, worth, out=unproved, where=worth > 0)
    total_worth = float(worth.sum())
    together = excess / total_worth if total_worth > 0 else float(unproved.max(initial=0.0))
    return np.minimum(parts, to_best[held]), min(together, float(to_best[held].max(initial=0.0)))

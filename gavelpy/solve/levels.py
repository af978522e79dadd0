"""The proof of a filling, class by class: by what part of its rate each class of equal jobs could rise.

The prices of a round, with a multiple of those of the rounds before, prove by weak duality at the final rates f that

    Σ worth_k Δf_k  ≤  Σ budgets + Σ prices - Σ worth_k f_k =: excess

for all rates that can be had. So a class k that the round holds can rise by the part  excess / (worth_k f_k)  at most,
unless another class falls. Early classes have worths that may be a billion times those of late ones: rounding in the
rates of the former is then a visible part of the rates of the latter, and the gap says so.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.costs import worths_of
from gavelpy.solve.program import Program
from gavelpy.solve.raising import Proof
from gavelpy.solve.rounds import Filled, by_type

_MULTIPLES = 10.0 ** np.arange(-1, 10)


def gaps_of_classes(
    program: Program, filled: Filled, rate: Floats, *, by_prices: bool, blur: float
) -> tuple[Floats, float]:
    """By what part of its rate each class might rise, (K,): 0 = it cannot, infinite = nothing is proved.

    And the largest part by which all classes of a round might rise together: where that is small, and the part of some
    class is not, rounding alone decides about that class.

    `rate` (K,) is what the shares give, in units of the best rate. `by_prices`: where jobs run alone, prices say all
    there is to say. `blur`: the part by which jobs of a class may differ.
    """
    gaps = np.maximum(filled.rate - rate, 0.0) / np.where(rate > 0, rate, 1.0)
    rising = filled.rising
    gaps[rising] = np.where(rate[rising] > 0, filled.limit[rising] / np.maximum(rate[rising], 1e-300) - 1.0, np.inf)
    together = float(gaps[rising].max(initial=0.0))
    before, rates = (
        np.zeros(len(program.problem.gpu_types)),
        by_type(program, program.member_rate) if by_prices else None,
    )
    for number, done in enumerate(filled.rounds):
        held = np.flatnonzero(filled.round_of == number)
        if rates is None:
            parts, whole = _parts(done.proof, rate, held, blur)
            gaps[held], together = np.maximum(gaps[held], parts), max(together, whole)
            continue
        price = done.proof.price
        unit = price.max() / before.max() if before.any() else 0.0
        tried = [price + m * unit * before for m in (_MULTIPLES if number else _MULTIPLES[:1])]
        found = [_parts(proof_of_prices(program, rates, p, filled.rate), rate, held, blur) for p in tried]
        least = int(np.argmin([part.max(initial=0.0) for part, _ in found]))
        before = tried[least]
        gaps[held], together = np.maximum(gaps[held], found[least][0]), max(together, min(whole for _, whole in found))
    return np.asarray(gaps), together


def proof_of_prices(program: Program, rates: Floats, price: Floats, need: Floats) -> Proof:
    """What prices (T,) prove by themselves, at the rates `need` (K,)."""
    cost = by_type(program, program.entry_load * price[program.entry_type])
    return Proof(*worths_of(rates, cost, need), price)


def _parts(proof: Proof, rate: Floats, held: Ints, blur: float) -> tuple[Floats, float]:
    """Of the classes `held`, and of all of them together; of their best rates, where they have none."""
    total = float(proof.budget.sum() + proof.price.sum())
    excess = max(0.0, total - float(proof.worth @ rate)) + blur * float(proof.worth.sum())
    worth = proof.worth[held] * np.where(rate[held] > 0, rate[held], 1.0)
    unproved = np.full(len(held), np.inf if excess > 0 else 0.0)
    parts: Floats = np.divide(excess, worth, out=unproved, where=worth > 0)
    total_worth = float(worth.sum())
    return parts, excess / total_worth if total_worth > 0 else float(unproved.max(initial=0.0))

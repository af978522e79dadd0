"""The excess of a proof at reference shares, both with more digits than doubles have.

By complementary slackness an excess is zero if every configuration in use earns its cost, and every budget and resource
with a price is used up. Shares and duals in doubles satisfy these equations to the 16th digit. That is much where early
classes have marginal values a billion times those of late ones. Here the duals and the shares change by the smallest
relative amounts that satisfy the equations in extended precision (Newton's method by least squares, with residuals in
extended precision). The other duals remain zero. Budgets are then raised until the proof is valid, so a wrong guess of
the configurations in use costs digits, not correctness. Figures of the program are rounded themselves: configurations
that cost the same may differ in their last digits, so that one of them seems to earn more than its cost. Budgets do not
rise for that: the proof is one for figures that differ by the rounding.

The shares of the answer are the reference shares rounded to doubles: `moved` is by how much that changes a rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.filling.water_level import Proof
from gavelpy.solve.program import Program

_TIGHT = 1e-8  # relative: a budget or a resource with a dual and less left is used up
_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)  # one without a dual
_FIGURES = 2.0 * float(np.finfo(np.float64).eps)  # relative: figures of the program are rounded, by so much at most
_TIED = 1e-18  # of all prices: an excess below this is none
_FAR = 1e-3  # relative: duals that would change by more belong to other configurations in use
_ROUNDS, _STEPS = 4, 3


@dataclass(frozen=True, eq=False)
class Resolved:
    """A proof with its excess at the reference shares."""

    proof: Proof
    excess: float
    moved: float  # largest relative difference between the rates at these shares and at the reference shares


@dataclass(frozen=True, eq=False)
class _Duals:
    """Duals in extended precision; numpy has no type for such arrays."""

    worth: Any  # (K,)
    budget: Any  # (K,)
    price: Any  # (R T,)


def resolved(program: Program, proof: Proof, share: Floats) -> Resolved:
    """The proof and its excess, from shares of the entries (E,) that are right to rounding."""
    full = _full_rows(program, proof, share)
    reference = _reference(program, share, full)
    duals, extra = _duals(program, proof, share, full)
    at, entry = program.member_class, program.member_entry
    rates = np.zeros(len(program.value), dtype=np.longdouble)
    np.add.at(rates, at, program.member_rate * reference[entry])
    excess = float(duals.budget.sum() + extra.sum() + duals.price.sum() - duals.worth @ rates)
    before = np.bincount(at, weights=program.member_rate * share[entry], minlength=len(rates))
    moved = np.abs(rates - before) / np.where(before > 0, before, 1.0)
    found = Proof(*(each.astype(np.float64) for each in (duals.worth, duals.budget + extra, duals.price)))
    return Resolved(found, max(excess, 0.0), float(moved.max(initial=0.0)))


def filled_up(program: Program, proofs: Sequence[Proof], share: Floats) -> Floats:
    """Shares of the entries (E,) near `share` that use up all budgets and resources with a dual in one of `proofs`."""
    if not proofs:
        return share
    none = np.zeros(len(program.value))
    budget, price = sum(proof.budget for proof in proofs), sum(proof.price for proof in proofs)
    full = _full_rows(program, Proof(none, np.asarray(budget), np.asarray(price)), share)
    return np.asarray(_reference(program, share, full).astype(np.float64))


def _full_rows(program: Program, proof: Proof, share: Floats) -> Bools:
    """Budgets and resources that are used up, (K + R T,)."""
    K = len(program.value)
    time = np.bincount(program.member_class, weights=program.member_time * share[program.member_entry], minlength=K)
    left = 1.0 - np.concatenate([time, program.taken(share)])
    has_dual = np.concatenate([proof.budget, proof.price]) > 0
    return np.asarray(left <= np.where(has_dual, _TIGHT, _ROUNDING))


def _reference(program: Program, share: Floats, full: Bools) -> Any:
    """Shares near `share` that use up the rows `full` in extended precision, (E,)."""
    K, exact = len(program.value), share.astype(np.longdouble)
    load_row, load_entry, load = program.loads()
    row = np.concatenate([program.member_class, K + load_row])
    column, value = np.concatenate([program.member_entry, load_entry]), np.concatenate([program.member_time, load])
    some = full[row] & (share[column] > 0)
    row, column, value = row[some], column[some], value[some]
    if not len(row):
        return exact
    rows, columns = _numbered(row), _numbered(column)
    matrix = np.zeros((rows.max() + 1, columns.max() + 1))
    matrix[rows, columns] = value * share[column]
    for _ in range(_STEPS):
        used = np.zeros(len(matrix), dtype=np.longdouble)
        np.add.at(used, rows, value * exact[column])
        exact[np.unique(column)] *= 1.0 + _least_step(matrix, 1.0 - used).astype(np.longdouble)
    return exact


def _duals(program: Program, proof: Proof, share: Floats, full: Bools) -> tuple[_Duals, Any]:
    """Duals near those of `proof` at which entries in use earn their cost, and by how much budgets are raised, (K,)."""
    K, in_use = len(program.value), share > 0
    worth, budget, price = (each.astype(np.longdouble) for each in (proof.worth, proof.budget, proof.price))
    duals = _Duals(worth, np.where(full[:K], budget, 0.0), np.where(full[K:], price, 0.0))
    best: tuple[Any, _Duals, Any] | None = None
    for _ in range(_ROUNDS):
        duals = _balanced(program, duals, in_use)
        earned, terms = _earned(program, duals)
        extra = _raised(program, earned - _FIGURES * terms)
        total = duals.budget.sum() + duals.price.sum() + extra.sum()
        lost = extra.sum() - (np.minimum(earned, 0.0) * share).sum()
        if best is None or lost < best[0]:
            best = lost, duals, extra
        tied = ~in_use & (earned > _FIGURES * terms)
        if not tied.any() or lost <= _TIED * total:
            break
        in_use = in_use | tied
    assert best is not None, "at least one round"
    return best[1], best[2]


def _earned(program: Program, duals: _Duals) -> tuple[Any, Any]:
    """What each entry earns beyond its cost, (E,), and the sum of its terms."""
    at, entry, E = program.member_class, program.member_entry, len(program.entry_type)
    load_row, load_entry, load = program.loads()
    earned, cost = np.zeros(E, dtype=np.longdouble), np.zeros(E, dtype=np.longdouble)
    np.add.at(earned, entry, duals.worth[at] * program.member_rate)
    np.add.at(cost, entry, duals.budget[at] * program.member_time)
    np.add.at(cost, load_entry, duals.price[load_row] * load)
    return earned - cost, earned + cost


def _raised(program: Program, earned: Any) -> Any:
    """By how much budgets must rise so that no entry earns more than its cost, (K,)."""
    times = np.bincount(program.member_entry, weights=program.member_time, minlength=len(earned))
    missing = np.maximum(earned, 0.0) / times
    extra = np.zeros(len(program.value), dtype=np.longdouble)
    np.maximum.at(extra, program.member_class, missing[program.member_entry])
    return extra


def _balanced(program: Program, duals: _Duals, in_use: Bools) -> _Duals:
    """Duals at which the entries `in_use` earn their cost, by the smallest relative changes."""
    K, R = len(program.value), len(duals.price)
    load_row, load_entry, load = program.loads()
    at, entry = program.member_class, program.member_entry
    row = np.concatenate([entry, entry, load_entry])
    column = np.concatenate([at, K + at, 2 * K + load_row])
    value = np.concatenate([program.member_rate, -program.member_time, -load])
    figures = np.concatenate([duals.worth, duals.budget, duals.price])
    some = in_use[row] & (figures[column] > 0) & (value != 0)
    row, column, value = row[some], column[some], value[some]
    if not len(row):
        return duals
    rows, columns = _numbered(row), _numbered(column)
    size = np.bincount(rows, weights=np.abs(value * figures[column]).astype(np.float64))
    matrix = np.zeros((rows.max() + 1, columns.max() + 1))
    matrix[rows, columns] = value * figures[column] / size[rows]
    for _ in range(_STEPS):
        missing = np.zeros(len(matrix), dtype=np.longdouble)
        np.add.at(missing, rows, value * figures[column])
        step = _least_step(matrix, -missing / size)
        if np.abs(step).max() > _FAR:
            return duals
        figures[np.unique(column)] *= 1.0 + step.astype(np.longdouble)
    return _Duals(figures[:K], figures[K : 2 * K], figures[2 * K : 2 * K + R])


def _numbered(labels: Ints) -> Ints:
    """Labels, numbered from 0 in their order."""
    return np.asarray(np.unique(labels, return_inverse=True)[1].reshape(-1))


def _least_step(matrix: Floats, missing: Any) -> Floats:
    """The least step that makes up for `missing` in the rows of `matrix`, as well as possible."""
    from scipy.linalg import lstsq

    step, *_ = lstsq(matrix, missing.astype(np.float64), lapack_driver="gelsy", check_finite=False)
    return np.asarray(step)

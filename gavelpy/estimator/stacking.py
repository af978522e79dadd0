"""Combines the Gaussian process with simple estimates of rates, weighted by cross-validation (stacked generalisation).

The simple estimates complete the logarithms of the table: row plus column, and the same plus a factorisation of rank 1
or 2. The best estimate depends on the table and on how much of a row and a column is known. Cross-validation hides
rates as they are missing in practice (single rates, all rates of a row but one, all rates of a GPU type but three),
estimates them with every method, and derives weights and interval widths for each situation from the errors. The
widths make the intervals contain 90 % of the hidden rates (split conformal prediction).
Wolpert, 1992; Papadopoulos et al., 2002.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints

METHODS = ("Gaussian process", "row plus column", "rank 1", "rank 2")
SITUATIONS = ("well known", "one rate in the row", "few rates in the column")
RATES_MIN = 12  # least number of rates in a table for cross-validation
_COLUMN_FEW = 4  # most rates of a GPU type in the third situation
_COLUMN_KEPT, _COLUMN_MIN = 3, 6  # rates of a column that stay in a fold, and that a column needs for a fold
_CELL_PARTS, _FOLDS = 5, (3, 2, 3)  # a fifth of the rates is hidden at a time; folds of cells, rows and columns
_STEPS = 4  # weights are multiples of 1 / _STEPS
_POWER = 0.5  # errors of one fold are alike: they count half
_WORTH = 10.0  # weight of the errors of all situations, in errors of one situation
_ERROR_MIN = 1e-3
_WIDTH_MIN, _WIDTH_MAX = 0.4, 4.0
_NORMAL_90 = 1.6448536269514722
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Mixture:
    """Weights of the methods and widths of the intervals, by situation; the default is the Gaussian process alone."""

    weights: tuple[tuple[float, ...], ...] = ((1.0, 0.0, 0.0, 0.0),) * 3
    widths: tuple[float, ...] = (1.0, 1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of hidden rates, n of them."""

    error: Floats  # (n, methods) of the logarithm
    sd: Floats  # (n,) by the Gaussian process
    situation: Ints  # (n,)


def situations(known: Bools) -> Ints:
    """Situation of each entry of a table, (N, T); -1 where its row or its column has no known rate."""
    row, column = known.sum(axis=1)[:, None], known.sum(axis=0)[None, :]
    found = np.where(column <= _COLUMN_FEW, 2, np.where(row <= 1, 1, 0))
    return np.where((row > 0) & (column > 0), found, -1)


def simple_estimates(log_rate: Floats) -> Floats:
    """Estimates of the simple methods, (N, T, 3); unknown rates are NaN."""
    return np.stack([row_plus_column(log_rate), row_column_rank(log_rate, 1), row_column_rank(log_rate, 2)], axis=-1)


def row_plus_column(values: Floats) -> Floats:
    """Fits row effect plus column effect to the known values by least squares, (R, C).

    If the fit is not unique, takes the smallest column effects around the mean. Eliminates rows first, which leaves a
    system of C equations.
    """
    known = ~np.isnan(values)
    mean = float(values[known].mean()) if known.any() else 0.0
    rest, weight = np.where(known, values - mean, 0.0), known.astype(np.float64)
    count = np.maximum(weight.sum(axis=1, keepdims=True), 1.0)
    gram = np.diag(weight.sum(axis=0)) - weight.T @ (weight / count)
    right = (rest - weight * rest.sum(axis=1, keepdims=True) / count).sum(axis=0)
    column = (np.linalg.pinv(gram, rcond=1e-10, hermitian=True) @ right)[None, :]
    row = np.where(known, rest - column, 0.0).sum(axis=1, keepdims=True) / count
    return np.asarray(mean + row + column)


def row_column_rank(values: Floats, rank: int, ridge: float = 0.05) -> Floats:
    """Row plus column, plus a factorisation of the residual with this rank by alternating least squares."""
    base, known = row_plus_column(values), ~np.isnan(values)
    return np.asarray(base + low_rank(np.where(known, values - base, 0.0), known, rank, ridge))


def low_rank(rest: Floats, known: Bools, rank: int, ridge: float, sweeps: int = 30) -> Floats:
    """The product of rank `rank` nearest to the known entries of `rest`, (R, C), by alternating least squares."""
    left, right = _start(rest.shape[0], rank), _start(rest.shape[1], rank)
    for _ in range(sweeps):
        left = _solved(rest, known, right, ridge)
        right = _solved(rest.T, known.T, left, ridge)
    return np.asarray(left @ right.T)


def folds(known: Bools) -> Iterator[Bools]:
    """Masks of rates to hide, (N, T) each: single rates, rows except one rate, columns except three."""
    cells, rank = np.argwhere(known), _order(int(known.sum()))
    for fold in range(_FOLDS[0]):
        yield _mask(known, cells[rank % _CELL_PARTS == fold])
    order = _order(len(known))
    for fold in range(_FOLDS[1]):
        rows = np.flatnonzero(order % _FOLDS[1] == fold)
        yield _mask(known, np.array([cell for row in rows.tolist() for cell in _all_but_one(known, row, fold)]))
    wide = np.flatnonzero(known.sum(axis=0) >= _COLUMN_MIN)
    group = _order(len(wide)) // max(1, len(wide) // 4)
    for fold in range(min(_FOLDS[2], len(wide))):
        columns = wide[group == fold].tolist()
        yield _mask(known, np.array([cell for column in columns for cell in _all_but_three(known, column, fold)]))


def mixture(errors: Sequence[Errors]) -> Mixture:
    """Weights and widths that minimise the errors; the default without errors."""
    if not errors:
        return Mixture()
    error = np.concatenate([part.error for part in errors])
    sd = np.concatenate([part.sd for part in errors])
    situation = np.concatenate([part.situation for part in errors])
    grid = _grid(error.shape[1])
    mixed = error @ grid.T  # (n, candidates)
    weights, widths = [], []
    for number in range(len(SITUATIONS)):
        mine = situation == number
        share = np.where(mine, 1.0, _WORTH / max(len(error), 1))
        scale = max(float(np.median(np.abs(error[mine] if mine.any() else error).min(axis=1))), _ERROR_MIN)
        loss = share @ np.log1p(np.square(mixed / scale)) / share.sum()  # of a Cauchy distribution
        weight = np.exp(-_POWER * max(int(mine.sum()), 1) * (loss - loss.min()))
        chosen = weight @ grid / weight.sum()
        weights.append(tuple(chosen.tolist()))
        widths.append(_width(np.abs(error @ chosen) / sd, share))
    return Mixture(tuple(weights), tuple(widths))


def _width(distance: Floats, share: Floats) -> float:
    """Factor of intervals that contain 90 % of these distances, in standard deviations."""
    order = np.argsort(distance, kind="stable")
    total = np.cumsum(share[order])
    place = int(np.searchsorted(total, 0.9 * (total[-1] + 1.0)))
    found = float(distance[order[min(place, len(order) - 1)]]) / _NORMAL_90
    return min(max(found, _WIDTH_MIN), _WIDTH_MAX)


def _grid(methods: int) -> Floats:
    """All weights in multiples of a step, (candidates, methods)."""
    parts = [part for part in itertools.product(range(_STEPS + 1), repeat=methods) if sum(part) == _STEPS]
    return np.array(parts, dtype=np.float64) / _STEPS


def _all_but_one(known: Bools, row: int, fold: int) -> list[tuple[int, int]]:
    columns = np.flatnonzero(known[row]).tolist()
    kept = columns[(row * 7 + fold) % len(columns)] if columns else -1
    return [(row, column) for column in columns if column != kept]


def _all_but_three(known: Bools, column: int, fold: int) -> list[tuple[int, int]]:
    rows = np.flatnonzero(known[:, column])
    order = np.argsort((rows * _GOLDEN + fold * _GOLDEN**2) % 1.0, kind="stable")
    return [(row, column) for row in rows[order[_COLUMN_KEPT:]].tolist()]


def _mask(known: Bools, cells: Ints) -> Bools:
    hidden = np.zeros_like(known)
    if len(cells):
        hidden[cells[:, 0], cells[:, 1]] = True
    return hidden


def _order(count: int) -> Ints:
    """A fixed, evenly spread order: the rank of each number by multiples of the golden ratio."""
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort((np.arange(count) * _GOLDEN) % 1.0, kind="stable")] = np.arange(count)
    return rank


def _start(rows: int, rank: int) -> Floats:
    """A deterministic start without symmetry: cosines of increasing frequency."""
    angles = np.outer(np.arange(rows) + 0.5, np.arange(1, rank + 1)) * (np.pi / max(rows, 1))
    return np.asarray(0.1 * np.cos(angles))


def _solved(rest: Floats, known: Bools, other: Floats, ridge: float) -> Floats:
    rank = other.shape[1]
    products = np.einsum("cr,cs->crs", other, other).reshape(len(other), rank * rank)
    gram = (known.astype(np.float64) @ products).reshape(-1, rank, rank) + ridge * np.eye(rank)
    return np.asarray(np.linalg.solve(gram, (rest @ other)[:, :, None])[:, :, 0])

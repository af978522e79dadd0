"""Baselines of the estimator: matrix factorisation and the nearest reference job.

Source: Gavel (OSDI '20), section 6. Factorisation completes the few measurements of a new job, and the most similar
reference job then stands in for it. Rows of the matrices are jobs, columns are (partner, GPU type).
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Bools, Floats

_MEASURED_MIN = 2  # common measurements that two jobs need to be compared


def factorised(values: Floats, *, rank: int, ridge: float, sweeps: int = 30) -> Floats:
    """Fills the NaN of a matrix (R, C) by probabilistic matrix factorisation with alternating least squares.

    Subtracts the mean of the known values, then column and row means. Source: Salakhutdinov and Mnih, 2007.
    """
    known = ~np.isnan(values)
    mean = float(values[known].mean()) if known.any() else 0.0
    rest = np.where(known, values - mean, 0.0)
    column = rest.sum(axis=0) / (known.sum(axis=0) + 1.0)
    rest = np.where(known, rest - column, 0.0)
    row = rest.sum(axis=1) / (known.sum(axis=1) + 1.0)
    rest = np.where(known, rest - row[:, None], 0.0)
    left, right = _start(values.shape[0], rank), _start(values.shape[1], rank)
    for _ in range(sweeps):
        left = _solved(rest, known, right, ridge)
        right = _solved(rest.T, known.T, left, ridge)
    filled = mean + column[None, :] + row[:, None] + left @ right.T
    return np.where(known, values, filled)


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


def row_column_rank(values: Floats, rank: int, ridge: float = 0.05, sweeps: int = 30) -> Floats:
    """Row plus column, plus a factorisation of the residual with this rank by alternating least squares."""
    base, known = row_plus_column(values), ~np.isnan(values)
    rest = np.where(known, values - base, 0.0)
    left, right = _start(values.shape[0], rank), _start(values.shape[1], rank)
    for _ in range(sweeps):
        left = _solved(rest, known, right, ridge)
        right = _solved(rest.T, known.T, left, ridge)
    return np.asarray(base + left @ right.T)


def nearest_reference(values: Floats, job: int) -> Floats:
    """Row of the reference job nearest to `job`, (C,); NaN where that row is unknown.

    Distance is the mean squared difference over common measurements. If no job is comparable, returns column means.
    """
    mine = values[job]
    common = ~np.isnan(values) & ~np.isnan(mine)[None, :]
    common[job] = False
    count = common.sum(axis=1)
    squares = np.where(common, values - np.where(np.isnan(mine), 0.0, mine)[None, :], 0.0) ** 2
    distance = np.where(count >= _MEASURED_MIN, squares.sum(axis=1) / np.maximum(count, 1), np.inf)
    if not np.isfinite(distance).any():
        known = ~np.isnan(values)
        return np.asarray(np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))
    return np.asarray(values[int(np.argmin(distance))])


def _start(rows: int, rank: int) -> Floats:
    """A deterministic start without symmetry: cosines of increasing frequency."""
    angles = np.outer(np.arange(rows) + 0.5, np.arange(1, rank + 1)) * (np.pi / max(rows, 1))
    return np.asarray(0.1 * np.cos(angles))


def _solved(rest: Floats, known: Bools, other: Floats, ridge: float) -> Floats:
    rank = other.shape[1]
    products = np.einsum("cr,cs->crs", other, other).reshape(len(other), rank * rank)
    gram = (known.astype(np.float64) @ products).reshape(-1, rank, rank) + ridge * np.eye(rank)
    return np.asarray(np.linalg.solve(gram, (rest @ other)[:, :, None])[:, :, 0])

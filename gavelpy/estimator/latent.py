"""Free latent factors of jobs that share GPUs: what no family or batch size tells, learned from the measured pairs.

    log slowdown(i, j) = Gaussian process + u_i . v_j        u, v ~ N(0, scale^2 I)

u says to what i is sensitive, v what j uses. Their most probable values are found by alternating least squares against
the covariance of everything else; around them the product is linear, so the process goes on with exact algebra, with
the covariance of what u and v may still be (Laplace's approximation). Rank, scale, and how much each pair keeps to
itself are those of the largest evidence; without evidence there are no factors.
Salakhutdinov and Mnih, 2007; Rasmussen and Williams (2006), section 3.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.sparse import csr_array

from gavelpy.model.arrays import Floats, Ints

JOBS_MAX: Final = 32  # those with the most measured cells have factors of their own; others by the covariance only
CELLS_MAX: Final = 450  # that factors are learned from, evenly spread; the process then corrects them by all
_JOBS_MIN, _CELLS_MIN = 6, 6  # jobs, and measured cells of a job on the average: fewer have no factors
_MARGIN = 4.0  # by what log evidence factors must win
_RANK = 2  # more than the data have cost little: the prior keeps a superfluous factor near 0
_SCALES, _PAIRS_OWN = (0.5, 0.3), (0.3, 0.1, 0.6, 1.0)  # tried
_SWEEPS = 8
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class Factors:
    """Of N jobs, rank R, R = 0 where measurements do not support any."""

    sensitivity: Floats  # (N, R)
    pressure: Floats  # (N, R)
    scale: float = 0.0  # standard deviation of both before anything is measured
    pairs_own: float = 1.0  # times the scale of what a pair has to itself

    @property
    def prior_variance(self) -> float:
        """Of a product of which nothing is known."""
        return float(self.scale**4 * self.sensitivity.shape[1])

    def product(self, first: Ints, second: Ints) -> Floats:
        """(n,), at the most probable values."""
        return np.asarray((self.sensitivity[first] * self.pressure[second]).sum(axis=1))

    def covariance(self, first: Ints, second: Ints, other_first: Ints, other_second: Ints) -> Floats:
        """Of products in linear approximation, (n, m)."""
        u, v = self.scale * self.sensitivity, self.scale * self.pressure
        sensitive = np.where(first[:, None] == other_first, v[second] @ v[other_second].T, 0.0)
        pressing = np.where(second[:, None] == other_second, u[first] @ u[other_first].T, 0.0)
        return np.asarray(sensitive + pressing)

    def corrected(self, first: Ints, second: Ints, weight: Floats) -> tuple[Floats, Floats]:
        """Means of u and v, (N, R) each, given the weights of n observations."""
        u, v = np.zeros_like(self.sensitivity), np.zeros_like(self.pressure)
        np.add.at(u, first, weight[:, None] * self.pressure[second])
        np.add.at(v, second, weight[:, None] * self.sensitivity[first])
        return self.scale**2 * u, self.scale**2 * v

    def padded(self, more: int) -> Factors:
        """With that many jobs more, of which nothing is known."""
        rows = ((0, more), (0, 0))
        return replace(self, sensitivity=np.pad(self.sensitivity, rows), pressure=np.pad(self.pressure, rows))


@dataclass(frozen=True, eq=False)
class Cells:
    """What was measured of ordered pairs, over all GPU types: n of them."""

    first: Ints  # (n,)
    second: Ints  # (n,)
    residual: Floats  # (n,) mean over types, in units of their spread
    kinds: Floats  # (n, T) weights of types, their sum is 1

    @property
    def types(self) -> Floats:
        """How many types each was measured on, as far as noise is concerned, (n,)."""
        return np.asarray(1.0 / np.square(self.kinds).sum(axis=1))


def none(jobs: int) -> Factors:
    """No factors."""
    return Factors(np.zeros((jobs, 0)), np.zeros((jobs, 0)))


def cells(first: Ints, second: Ints, gpu_type: Ints, residual: Floats, jobs: int) -> Cells:
    """Measurements by ordered pair, of the jobs that were measured most."""
    order = np.argsort(-np.bincount(first, minlength=jobs), kind="stable")[:JOBS_MAX]
    mine = np.isin(first, order) & np.isin(second, order)
    first, second, gpu_type, residual = first[mine], second[mine], gpu_type[mine], residual[mine]
    number, cell = np.unique(first * jobs + second, return_inverse=True)
    kinds = np.zeros((len(number), int(gpu_type.max(initial=-1)) + 1))
    np.add.at(kinds, (cell, gpu_type), 1.0)
    count = kinds.sum(axis=1, keepdims=True)
    total = np.bincount(cell, residual, minlength=len(number))
    chosen = np.argsort((np.arange(len(number)) * _GOLDEN) % 1.0, kind="stable")[:CELLS_MAX]
    chosen.sort()
    number = number[chosen]
    return Cells(number // jobs, number % jobs, (total / count[:, 0])[chosen], (kinds / count)[chosen])


def learned(seen: Cells, jobs: int, covariance_of: Callable[[float], Floats]) -> Factors:
    """Those of the largest evidence; `covariance_of` everything else, given `pairs_own`, noise included."""
    active = len(np.unique(seen.first))
    if active < _JOBS_MIN or len(seen.first) < _CELLS_MIN * active:
        return none(jobs)
    search = _Search(seen, covariance_of, _start(seen, jobs), none(jobs))
    for scale in _SCALES:
        search.tried(scale, _PAIRS_OWN[0])
    for pairs_own in _PAIRS_OWN[1:]:
        search.tried(search.found.scale or _SCALES[0], pairs_own)
    return search.found if search.evidence > search.without + _MARGIN else search.plain


class _Search:
    """Over scales, one after the other, each from where the one before ended."""

    def __init__(self, seen: Cells, covariance_of: Callable[[float], Floats], start: Factors, found: Factors) -> None:
        self.seen, self.start, self.found, self.plain = seen, start, found, found
        self.evidence = self.without = -np.inf  # the largest with factors, and without any
        self._covariance_of = covariance_of
        self._factors: dict[float, tuple[Floats, Floats]] = {}  # Cholesky factors, and inverses

    def tried(self, scale: float, pairs_own: float) -> None:
        """Kept if it is the best so far."""
        seen, (factor, precision) = self.seen, self._everything_else(pairs_own)
        self.start = _fitted(seen, replace(self.start, scale=scale, pairs_own=pairs_own), precision)
        linear = self.start.covariance(seen.first, seen.second, seen.first, seen.second)
        whole = cholesky(factor @ factor.T + linear, lower=True, check_finite=False)
        evidence = _evidence(whole, seen.residual + self.start.product(seen.first, seen.second))
        if evidence > self.evidence:
            self.found, self.evidence = self.start, evidence

    def _everything_else(self, pairs_own: float) -> tuple[Floats, Floats]:
        if pairs_own not in self._factors:
            factor = cholesky(self._covariance_of(pairs_own), lower=True, check_finite=False)
            evidence = _evidence(factor, self.seen.residual)
            if evidence > self.without:
                self.plain, self.without = replace(self.plain, pairs_own=pairs_own), evidence
            precision = cho_solve((factor, True), np.eye(len(factor)), check_finite=False)
            self._factors[pairs_own] = factor, precision
        return self._factors[pairs_own]


def _fitted(seen: Cells, start: Factors, precision: Floats) -> Factors:
    """Alternating: given v, u is linear, and the other way round."""
    u, v = start.sensitivity, start.pressure
    for _ in range(_SWEEPS):
        u = _half(seen.first, v[seen.second], seen.residual, precision, start)
        v = _half(seen.second, u[seen.first], seen.residual, precision, start)
    return replace(start, sensitivity=u, pressure=v)


def _half(job: Ints, other: Floats, residual: Floats, precision: Floats, start: Factors) -> Floats:
    N, R = start.sensitivity.shape
    row, column = np.repeat(np.arange(len(job)), R), (job[:, None] * R + np.arange(R)).ravel()
    design = csr_array((other.ravel(), (row, column)), shape=(len(job), N * R))
    half = np.asarray(design.T @ precision)  # (N R, n)
    gram = np.asarray(design.T @ half.T) + np.eye(N * R) / start.scale**2
    return np.asarray(np.linalg.solve(gram, half @ residual).reshape(N, R))


def _start(seen: Cells, jobs: int) -> Factors:
    """The largest singular vectors of what rows and columns leave; unknown cells count as 0."""
    rest, known = np.zeros((jobs, jobs)), np.zeros((jobs, jobs))
    rest[seen.first, seen.second], known[seen.first, seen.second] = seen.residual, 1.0
    for axis in (1, 0, 1, 0):
        rest -= known * (rest.sum(axis=axis, keepdims=True) / (known.sum(axis=axis, keepdims=True) + 1.0))
    left, size, right = np.linalg.svd(rest)
    root = np.sqrt(size[:_RANK] + 1e-6)
    return Factors(left[:, :_RANK] * root, right[:_RANK].T * root)


def _evidence(factor: Floats, residual: Floats) -> float:
    """Logarithm, but for a constant."""
    whitened = solve_triangular(factor, residual, lower=True, check_finite=False)
    return -0.5 * float(whitened @ whitened) - float(np.log(np.diag(factor)).sum())

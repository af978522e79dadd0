"""Latent factors of co-located jobs, learned from measured pairs: effects that family and batch size do not explain.

    log slowdown(i, j) = Gaussian process + u_i . v_j        u, v ~ N(0, scale^2 I)

u is the sensitivity of job i, v the pressure of job j. Alternating least squares finds their most probable values
against the covariance of all other terms. The product is then linearised around these values, with the covariance of
u and v, so that the rest is exact algebra (Laplace's approximation). Scale and the pairs' own variance maximise the
evidence; without enough evidence there are no factors.
Salakhutdinov and Mnih, 2007; Rasmussen and Williams (2006), section 3.4.

`PairScales` are the hyper-parameters of pairs, and `likeness` is the similarity of jobs that they define.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gavelpy.estimator.kinds import Sides
from gavelpy.model.arrays import Floats, Ints

JOBS_MAX: Final = 32  # jobs with factors, those with the most measured cells; others use the covariance only
CELLS_MAX: Final = 450  # that factors are learned from, evenly spread; the process then corrects them with all cells
_JOBS_MIN, _CELLS_MIN = 6, 6  # least number of jobs, and of measured cells per job on average, for factors
_MARGIN = 4.0  # log evidence that factors must gain
_RANK = 2  # a superfluous factor costs little: the prior keeps it near 0
_SCALES, _PAIRS_OWN = (0.5, 0.3), (0.3, 0.1, 0.6, 1.0)  # tried
_SWEEPS = 8
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of N jobs with rank R; R = 0 if the measurements do not support any."""

    sensitivity: Floats  # (N, R)
    pressure: Floats  # (N, R)
    scale: float = 0.0  # prior standard deviation of both
    pairs_own: float = 1.0  # factor on the scale of a pair's own term

    @property
    def prior_variance(self) -> float:
        """Variance of a product without measurements."""
        return float(self.scale**4 * self.sensitivity.shape[1])

    def product(self, first: Ints, second: Ints) -> Floats:
        """Products at the most probable values, (n,)."""
        return np.asarray((self.sensitivity[first] * self.pressure[second]).sum(axis=1))

    def covariance(self, first: Ints, second: Ints, other_first: Ints, other_second: Ints) -> Floats:
        """Covariance of products in linear approximation, (n, m)."""
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
        """With that many more jobs, without factors."""
        rows = ((0, more), (0, 0))
        return replace(self, sensitivity=np.pad(self.sensitivity, rows), pressure=np.pad(self.pressure, rows))


@dataclass(frozen=True, eq=False)
class Cells:
    """Measurements of n ordered pairs, averaged over GPU types."""

    first: Ints  # (n,)
    second: Ints  # (n,)
    residual: Floats  # (n,) mean over types, in units of their spread
    kinds: Floats  # (n, T) weights of types, their sum is 1

    @property
    def types(self) -> Floats:
        """Effective number of types that each pair was measured on, (n,)."""
        return np.asarray(1.0 / np.square(self.kinds).sum(axis=1))


def none(jobs: int) -> Factors:
    """No factors."""
    return Factors(np.zeros((jobs, 0)), np.zeros((jobs, 0)))


def cells(first: Ints, second: Ints, gpu_type: Ints, residual: Floats, jobs: int) -> Cells:
    """Measurements by ordered pair, for the jobs with the most measurements."""
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
    """Factors with the largest evidence; `covariance_of` maps `pairs_own` to the covariance of all other terms."""
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
    """Tries scales in turn, each starting from the previous result."""

    def __init__(self, seen: Cells, covariance_of: Callable[[float], Floats], start: Factors, found: Factors) -> None:
        self.seen, self.start, self.found, self.plain = seen, start, found, found
        self.evidence = self.without = -np.inf  # the largest with factors, and without any
        self._covariance_of = covariance_of
        self._factors: dict[float, tuple[Floats, Floats]] = {}  # Cholesky factors, and inverses

    def tried(self, scale: float, pairs_own: float) -> None:
        """Fits this scale and records it if it is the best so far."""
        from scipy.linalg import cholesky

        seen, (factor, precision) = self.seen, self._everything_else(pairs_own)
        self.start = _fitted(seen, replace(self.start, scale=scale, pairs_own=pairs_own), precision)
        linear = self.start.covariance(seen.first, seen.second, seen.first, seen.second)
        whole = cholesky(factor @ factor.T + linear, lower=True, check_finite=False)
        evidence = _evidence(whole, seen.residual + self.start.product(seen.first, seen.second))
        if evidence > self.evidence:
            self.found, self.evidence = self.start, evidence

    def _everything_else(self, pairs_own: float) -> tuple[Floats, Floats]:
        from scipy.linalg import cho_solve, cholesky

        if pairs_own not in self._factors:
            factor = cholesky(self._covariance_of(pairs_own), lower=True, check_finite=False)
            evidence = _evidence(factor, self.seen.residual)
            if evidence > self.without:
                self.plain, self.without = replace(self.plain, pairs_own=pairs_own), evidence
            precision = cho_solve((factor, True), np.eye(len(factor)), check_finite=False)
            self._factors[pairs_own] = factor, precision
        return self._factors[pairs_own]


def _fitted(seen: Cells, start: Factors, precision: Floats) -> Factors:
    """Alternating least squares: the problem is linear in u for given v, and the reverse."""
    u, v = start.sensitivity, start.pressure
    for _ in range(_SWEEPS):
        u = _half(seen.first, v[seen.second], seen.residual, precision, start)
        v = _half(seen.second, u[seen.first], seen.residual, precision, start)
    return replace(start, sensitivity=u, pressure=v)


def _half(job: Ints, other: Floats, residual: Floats, precision: Floats, start: Factors) -> Floats:
    from scipy.sparse import csr_array

    N, R = start.sensitivity.shape
    row, column = np.repeat(np.arange(len(job)), R), (job[:, None] * R + np.arange(R)).ravel()
    design = csr_array((other.ravel(), (row, column)), shape=(len(job), N * R))
    half = np.asarray(design.T @ precision)  # (N R, n)
    gram = np.asarray(design.T @ half.T) + np.eye(N * R) / start.scale**2
    return np.asarray(np.linalg.solve(gram, half @ residual).reshape(N, R))


def _start(seen: Cells, jobs: int) -> Factors:
    """Leading singular vectors of the residual after row and column means; unknown cells count as 0."""
    rest, known = np.zeros((jobs, jobs)), np.zeros((jobs, jobs))
    rest[seen.first, seen.second], known[seen.first, seen.second] = seen.residual, 1.0
    for axis in (1, 0, 1, 0):
        rest -= known * (rest.sum(axis=axis, keepdims=True) / (known.sum(axis=axis, keepdims=True) + 1.0))
    left, size, right = np.linalg.svd(rest)
    root = np.sqrt(size[:_RANK] + 1e-6)
    return Factors(left[:, :_RANK] * root, right[:_RANK].T * root)


def _evidence(factor: Floats, residual: Floats) -> float:
    """Log evidence up to a constant."""
    from scipy.linalg import solve_triangular

    whitened = solve_triangular(factor, residual, lower=True, check_finite=False)
    return -0.5 * float(whitened @ whitened) - float(np.log(np.diag(factor)).sum())


@dataclass(frozen=True)
class PairScales:
    """Hyper-parameters; standard deviations are relative to one another. Defaults: fitted to Gavel's table."""

    all_jobs: float = 0.1
    family: float = 0.4
    near: float = 0.6
    batch_length: float = 1.9
    own: float = 0.08
    all_types: float = 0.8
    first: float = 0.25
    second: float = 0.2
    both: float = 0.23
    noise: float = 0.05


def likeness(k: PairScales, s: Sides, row: Ints, other: Ints) -> Floats:
    """Likeness of jobs, (n, m)."""
    family = s.family[row][:, None] == s.family[other][None, :]
    job_type = s.job_type[row][:, None] == s.job_type[other][None, :]
    gpus = np.square(s.log2_gpus[row][:, None] - s.log2_gpus[other][None, :])
    batch = np.square((s.log2_batch[row][:, None] - s.log2_batch[other][None, :]) / k.batch_length)
    alike = k.family**2 + k.near**2 * np.exp(-0.5 * batch) + k.own**2 * job_type
    return np.asarray(k.all_jobs**2 + family * alike * np.exp(-0.5 * gpus))


def prior_variance(k: PairScales) -> float:
    """Prior variance of a slowdown, in units of its type's spread."""
    own = own_variance(k)
    return (k.all_types**2 + 1.0) * (k.first**2 * own + k.second**2 * own + k.both**2 * own**2)


def own_variance(k: PairScales) -> float:
    """Likeness of a job to itself."""
    return k.all_jobs**2 + k.family**2 + k.near**2 + k.own**2

"""Fits of curves to the losses that jobs reported, and the losses that they predict.

    reciprocal   l(k) = 1 / (a k² + b k + c) + d      a, b >= 0, c > 0: sublinear convergence, as of SGD
    geometric    l(k) = A μ^k + d                     0 < μ <= 1: linear convergence, as of gradient descent

SLAQ (Zhang et al., SoCC '17), section 4.2, fits both families by weighted least squares, newer reports counting more.
Optimus (Peng et al., EuroSys '18), section 3.1, fits the first one with a = 0. For a given floor d, a reciprocal curve
is linear in a, b, c for 1 / (l - d), and a geometric one for log (l - d), with weights that turn errors of these into
errors of l to first order. So a fit is a search over d, on a grid that is refined three times, for all jobs at once.

Losses are scaled by their range so far, and steps by those between the first and the last report, so neither unit
matters. Of each job, the family with the smaller weighted squared error is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.loss_reports import report_counts

FEW = 4  # reports; with fewer, the floor is assumed
_ASSUMED = 1.0  # distance of the floor below the least loss, of few reports, in ranges so far
_NEAREST, _FURTHEST, _GRID = 1e-5, 1e2, 22  # distances of floors that are tried
_REFINED, _TIMES = 9, 3
_RIDGE = 1e-12


@dataclass(frozen=True, eq=False)
class LossCurves:
    """The fitted curves of J jobs; a job with fewer than two reports, or of equal losses, has a flat one."""

    reports: Ints  # (J,) how many
    first_step: Floats  # (J,) of the reports
    span: Floats  # (J,) steps from the first report to the last, > 0
    least: Floats  # (J,) loss
    range: Floats  # (J,) the largest loss less the least one
    floor: Floats  # (J,) d, in ranges below the least loss; >= 0
    coefficients: Floats  # (J, 3) of 1, u and u², u = (k - first_step) / span
    is_geometric: Bools  # (J,) then the coefficients are those of log (l - d)

    def at(self, jobs: Ints, steps: Floats) -> Floats:
        """The losses that are predicted for these jobs (K,) after so many steps (K,)."""
        above = self._above(jobs, steps) - self.floor[jobs]
        return np.asarray(self.least[jobs] + self.range[jobs] * np.where(self.range[jobs] > 0, above, 0.0))

    def _above(self, jobs: Ints, steps: Floats) -> Floats:
        """Scaled losses above the floor."""
        u = np.maximum(steps - self.first_step[jobs], 0.0) / self.span[jobs]
        return _curve(self.coefficients[jobs], u, self.is_geometric[jobs])

    def fall(self, jobs: Ints, start: Floats, end: Floats) -> Floats:
        """How far losses fall between two steps, in ranges so far, (K,); 0 where the curve is flat."""
        return np.where(self.range[jobs] > 0, self._above(jobs, start) - self._above(jobs, end), 0.0)


def fit(losses: Floats, decay: float = 1.0, *, quadratic: bool = True, geometric: bool = True) -> LossCurves:
    """The curves of reports (J, K, 2), as in `AllocationProblem.losses`; each report weighs `decay` of the next one.

    >>> steps = np.arange(1.0, 9.0)
    >>> curves = fit(np.stack([steps, 3.0 + 4.0 / (1.0 + 0.5 * steps)], axis=1)[None])
    >>> curves.at(np.array([0]), np.array([18.0])).round(2).tolist()
    [3.4]
    """
    counts = report_counts(losses)
    jobs = np.flatnonzero(counts >= 2)
    J = len(counts)
    first, span, least, size, floor = np.zeros(J), np.ones(J), np.zeros(J), np.zeros(J), np.zeros(J)
    coefficients, is_geometric = np.tile([1.0, 0.0, 0.0], (J, 1)), np.zeros(J, dtype=np.bool_)
    if len(jobs):
        k, loss, n = losses[jobs, :, 0], losses[jobs, :, 1], counts[jobs]
        first[jobs], span[jobs] = k[:, 0], k[np.arange(len(jobs)), n - 1] - k[:, 0]
        least[jobs] = np.nanmin(loss, axis=1)
        size[jobs] = np.nanmax(loss, axis=1) - least[jobs]
        is_report = np.arange(k.shape[1]) < n[:, None]
        weight = np.where(is_report, decay ** (n[:, None] - 1.0 - np.arange(k.shape[1])), 0.0)
        u = np.where(is_report, (k - first[jobs, None]) / span[jobs, None], 0.0)
        z = np.where(is_report, (loss - least[jobs, None]) / np.where(size[jobs] > 0, size[jobs], 1.0)[:, None], 0.0)
        found = _best_family(_Points(u, z, weight, n >= FEW), quadratic=quadratic, geometric=geometric)
        floor[jobs], coefficients[jobs], is_geometric[jobs] = found
    return LossCurves(counts, first, span, least, size, floor, coefficients, is_geometric)


@dataclass(frozen=True, eq=False)
class _Points:
    """Scaled reports of jobs, (J, K) each; `enough`: whether a job has so many that its floor can be fitted, (J,)."""

    u: Floats
    z: Floats
    weight: Floats
    enough: Bools


def _best_family(p: _Points, *, quadratic: bool, geometric: bool) -> tuple[Floats, Floats, Bools]:
    """Floor (J,), coefficients (J, 3) and family (J,) of the least error."""
    floor, coefficients, error = _searched(p, geometric=False, quadratic=quadratic)
    is_better = np.zeros(len(floor), dtype=np.bool_)
    if geometric:
        other_floor, other, other_error = _searched(p, geometric=True, quadratic=False)
        is_better = (other_error < error) & p.enough
        floor = np.where(is_better, other_floor, floor)
        coefficients = np.where(is_better[:, None], other, coefficients)
    return floor, coefficients, is_better


def _searched(p: _Points, *, geometric: bool, quadratic: bool) -> tuple[Floats, Floats, Floats]:
    """The best floor of each job, on finer and finer grids, with its coefficients and its error."""
    J = len(p.u)
    low, high = np.full(J, _NEAREST), np.full(J, _FURTHEST)
    low, high = np.where(p.enough, low, _ASSUMED), np.where(p.enough, high, _ASSUMED)
    best, coefficients, error = np.full(J, _ASSUMED), np.zeros((J, 3)), np.full(J, np.inf)
    for time in range(_TIMES + 1):
        points = _REFINED if time else _GRID
        part = np.arange(points) / (points - 1)
        floors = low[:, None] * (high / low)[:, None] ** part  # (J, G)
        found, errors = _fitted(p, floors, geometric=geometric, quadratic=quadratic)
        at = errors.argmin(axis=1)
        rows = np.arange(J)
        is_better = errors[rows, at] < error
        best = np.where(is_better, floors[rows, at], best)
        coefficients = np.where(is_better[:, None], found[rows, at], coefficients)
        error = np.minimum(errors[rows, at], error)
        low, high = floors[rows, np.maximum(at - 1, 0)], floors[rows, np.minimum(at + 1, points - 1)]
    return best, coefficients, error


def _fitted(p: _Points, floors: Floats, *, geometric: bool, quadratic: bool) -> tuple[Floats, Floats]:
    """Coefficients (J, G, 3) and weighted squared errors (J, G) for floors (J, G)."""
    above = p.z[:, None, :] + floors[:, :, None]  # (J, G, K) > 0
    target = np.log(above) if geometric else 1.0 / above
    weight = p.weight[:, None, :] * (above**2 if geometric else above**4)
    powers = [weight @ (p.u[:, :, None] ** e) for e in range(5)]  # each (J, G, 1)
    moments = np.concatenate(powers, axis=2)  # (J, G, 5)
    sides = np.concatenate([(weight * target) @ (p.u[:, :, None] ** e) for e in range(3)], axis=2)  # (J, G, 3)
    best, error = np.zeros((*floors.shape, 3)), np.full(floors.shape, np.inf)
    for terms in ((0,), (0, 1), (0, 2), (0, 1, 2)) if quadratic and p.enough.any() else ((0,), (0, 1)):
        found = _solved(moments, sides, terms)
        allowed = (found[..., 1] <= 0) if geometric else (found >= 0).all(axis=2) & (found[..., 0] > 0)
        if 2 in terms:
            allowed &= p.enough[:, None]
        curve = _curve(found[:, :, None, :], p.u[:, None, :], np.array(geometric))
        errors = np.where(allowed, (p.weight[:, None, :] * (curve - above) ** 2).sum(axis=2), np.inf)
        is_better = errors < error
        best, error = np.where(is_better[..., None], found, best), np.minimum(errors, error)
    return best, error


def _solved(moments: Floats, sides: Floats, terms: Sequence[int]) -> Floats:
    """Weighted least squares with these powers of u: coefficients (J, G, 3), 0 of other powers."""
    n = len(terms)
    matrix = np.stack([np.stack([moments[..., i + j] for j in terms], axis=-1) for i in terms], axis=-2)
    matrix = matrix + _RIDGE * moments[..., :1, None] * np.eye(n)
    found = np.zeros(sides.shape)
    found[..., list(terms)] = np.linalg.solve(matrix, sides[..., list(terms), None])[..., 0]
    return found


def _curve(coefficients: Floats, u: Floats, is_geometric: Bools) -> Floats:
    """The scaled loss above the floor at u, for coefficients (..., 3)."""
    a, b, c = coefficients[..., 2], coefficients[..., 1], coefficients[..., 0]
    line = a * u**2 + b * u + c
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(
            np.where(is_geometric, np.exp(np.minimum(line, 50.0)), 1.0 / np.where(line > 0, line, np.inf))
        )

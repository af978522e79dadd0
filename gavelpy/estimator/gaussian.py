"""Gaussian processes as linear algebra: conditioning, prediction, and hyper-parameters by evidence.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1 and section 5.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from gavelpy.model.arrays import Floats

UNKNOWN_VARIANCE = 1e12  # of an observation that says nothing
_REFUSED = 1e12  # cost of hyper-parameters whose matrix has no factor
_PULL = 0.02  # weight of squared steps away from the start: a prior with sd 5 on logarithms


@dataclass(frozen=True, eq=False)
class Posterior:
    """What n observations say."""

    factor: Floats  # (n, n) lower Cholesky factor of the observations' covariance
    weight: Floats  # (n,)

    def mean(self, cross: Floats) -> Floats:
        """Of points whose covariances with the observations are `cross`, (n, m)."""
        return np.asarray(cross.T @ self.weight)

    def explained(self, cross: Floats) -> Floats:
        """(n, m): what the observations explain of the covariance of points p and q is the product of columns."""
        return np.asarray(solve_triangular(self.factor, cross, lower=True, check_finite=False))


def conditioned(covariance: Floats, noise_variance: Floats, residual: Floats) -> Posterior:
    """The posterior after observing `residual`, (n,)."""
    factor = cholesky(covariance + np.diag(noise_variance), lower=True, check_finite=False)
    return Posterior(np.asarray(factor), np.asarray(cho_solve((factor, True), residual, check_finite=False)))


def by_evidence(start: Floats, model: Callable[[Floats], tuple[Floats, Floats]], residual: Floats) -> Floats:
    """Logarithms of hyper-parameters of the largest evidence; `model` gives covariance and noise variance for some."""

    def cost(x: Floats) -> float:
        covariance, noise = model(np.exp(x))
        try:
            posterior = conditioned(covariance, noise, residual)
        except LinAlgError:
            return _REFUSED
        fit = 0.5 * float(residual @ posterior.weight) + float(np.log(np.diag(posterior.factor)).sum())
        return fit + _PULL * float(np.sum((x - start) ** 2))

    bounds = [(value - 4.0, value + 4.0) for value in start.tolist()]
    return np.asarray(minimize(cost, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 40}).x)


def updated(mean: Floats, covariance: Floats, seen: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """N small Gaussians, (N, T) and (N, T, T), after seeing `seen`, (N, T), with noise covariances (N, T, T).

    An entry that says nothing has UNKNOWN_VARIANCE; what stands in `seen` there must be finite.
    """
    gain = np.linalg.solve(covariance + noise, covariance)  # transposed: both are symmetric
    after = mean + np.einsum("nij,ni->nj", gain, seen - mean)
    rest = covariance - np.einsum("nki,nkj->nij", covariance, gain)
    return after, (rest + np.swapaxes(rest, 1, 2)) / 2.0

"""Gaussian processes as linear algebra: conditioning, prediction, hyper-parameters by evidence, and users' claims.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1 and section 5.4.

A claimed rate is a measurement with a large error, part of which is common to all GPU types. A claim far from the
estimate is likely a wrong unit or a typing error and gets little weight: its error is enlarged until the claim lies
within three standard deviations. A factor common to several types (samples instead of steps) counts as common error,
which preserves the ratios between types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError

from gavelpy.model.arrays import Floats

UNKNOWN_VARIANCE = 1e12  # of an observation without information
_REFUSED = 1e12  # cost of hyper-parameters with a matrix that is not positive definite
_PULL = 0.02  # weight of squared distance from the start: a prior with sd 5 on logarithms
CLAIM_SD, CLAIM_COMMON_SD = 0.6, 0.5  # of a claimed log rate: per type, and common to all types
_FAR_SD = 3.0  # largest distance of a claim from the estimate, in standard deviations


@dataclass(frozen=True, eq=False)
class Blocks:
    """Gaussians on the log rates of N keys on T types."""

    mean: Floats  # (N, T)
    covariance: Floats  # (N, T, T)

    @property
    def sd(self) -> Floats:
        """Standard deviation of each entry, (N, T)."""
        variance = np.diagonal(self.covariance, axis1=1, axis2=2)
        return np.sqrt(np.maximum(variance, 0.0))


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process conditioned on n observations."""

    factor: Floats  # (n, n) lower Cholesky factor of the observations' covariance
    weight: Floats  # (n,)

    def mean(self, cross: Floats) -> Floats:
        """Posterior mean of points, (m,); `cross` (n, m) are their covariances with the observations."""
        return np.asarray(cross.T @ self.weight)

    def explained(self, cross: Floats) -> Floats:
        """(n, m); the product of columns p and q is the covariance of points p and q that the observations explain."""
        from scipy.linalg import solve_triangular

        return np.asarray(solve_triangular(self.factor, cross, lower=True, check_finite=False))


def conditioned(covariance: Floats, noise_variance: Floats, residual: Floats) -> Posterior:
    """The posterior after observing `residual`, (n,)."""
    from scipy.linalg import cho_solve, cholesky

    factor = cholesky(covariance + np.diag(noise_variance), lower=True, check_finite=False)
    return Posterior(np.asarray(factor), np.asarray(cho_solve((factor, True), residual, check_finite=False)))


def by_evidence(start: Floats, model: Callable[[Floats], tuple[Floats, Floats]], residual: Floats) -> Floats:
    """Log hyper-parameters of the largest evidence; `model` maps hyper-parameters to covariance and noise variance."""

    from scipy.optimize import minimize

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
    """N Gaussians, (N, T) and (N, T, T), after observing `seen`, (N, T), with noise covariances (N, T, T).

    A missing observation has UNKNOWN_VARIANCE and any finite value in `seen`.
    """
    gain = np.linalg.solve(covariance + noise, covariance)  # transposed: both are symmetric
    after = mean + np.einsum("nij,ni->nj", gain, seen - mean)
    rest = covariance - np.einsum("nki,nkj->nij", covariance, gain)
    return after, (rest + np.swapaxes(rest, 1, 2)) / 2.0


def with_claims(known: Blocks, log_rate: Mapping[int, float]) -> Blocks:
    """One key's posterior, (1, T), after claims of log rates by column."""
    claimed, size = np.array(list(log_rate)), known.mean.shape[1]
    seen, noise = known.mean.copy(), np.eye(size) * UNKNOWN_VARIANCE
    seen[0, claimed] = list(log_rate.values())
    off, variance = (seen - known.mean)[0, claimed], np.square(known.sd[0, claimed])
    noise[np.ix_(claimed, claimed)] = _noise(off, variance)
    mean, covariance = updated(known.mean, known.covariance, seen, noise[None])
    return Blocks(mean, covariance)


def _noise(off: Floats, variance: Floats) -> Floats:
    """Covariance of claim errors, given the deviations `off` from estimates with this variance."""
    alike = float(np.median(off))
    common = (alike / _FAR_SD) ** 2 - float(np.median(variance))
    own = np.square((off - alike) / _FAR_SD) - variance
    return np.diag(np.maximum(own, CLAIM_SD**2)) + max(common, math.pow(CLAIM_COMMON_SD, 2.0))

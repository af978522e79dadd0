"""Rates that users claim: measurements with a large error, part of which is common to all GPU types.

A claim far from the estimate is likely a wrong unit or a typing error and gets little weight: its error is enlarged
until the claim lies within three standard deviations. A factor common to several types (samples instead of steps)
counts as common error, which preserves the ratios between types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gavelpy.estimator.gaussian import UNKNOWN_VARIANCE, updated
from gavelpy.estimator.isolated import Blocks
from gavelpy.model.arrays import Floats

CLAIM_SD, CLAIM_COMMON_SD = 0.6, 0.5  # of a claimed log rate: per type, and common to all types
_FAR_SD = 3.0  # largest distance of a claim from the estimate, in standard deviations


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

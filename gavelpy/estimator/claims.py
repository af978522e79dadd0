"""What users claim of their jobs' rates: measurements with a large error, part of it common to all GPU types.

A claim far from all that is known is an outlier, a wrong unit or a typing error, and is worth little: its error is
taken to be as large as brings it within three standard deviations. What several types are off by alike, as samples are
in place of steps, counts as common error, so that the ratios between types are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gavelpy.estimator.gaussian import UNKNOWN_VARIANCE, updated
from gavelpy.estimator.isolated import Blocks
from gavelpy.model.arrays import Floats

CLAIM_SD, CLAIM_COMMON_SD = 0.6, 0.5  # of a claimed log rate: each type's own, and all types' together
_FAR_SD = 3.0  # no claim is further from what is known


def with_claims(known: Blocks, log_rate: Mapping[int, float]) -> Blocks:
    """One key's belief, (1, T), after claims of log rates by column."""
    claimed, size = np.array(list(log_rate)), known.mean.shape[1]
    seen, noise = known.mean.copy(), np.eye(size) * UNKNOWN_VARIANCE
    seen[0, claimed] = list(log_rate.values())
    off, variance = (seen - known.mean)[0, claimed], np.square(known.sd[0, claimed])
    noise[np.ix_(claimed, claimed)] = _noise(off, variance)
    mean, covariance = updated(known.mean, known.covariance, seen, noise[None])
    return Blocks(mean, covariance)


def _noise(off: Floats, variance: Floats) -> Floats:
    """Covariance of the errors of claims that are off by `off` from beliefs of this variance."""
    alike = float(np.median(off))
    common = (alike / _FAR_SD) ** 2 - float(np.median(variance))
    own = np.square((off - alike) / _FAR_SD) - variance
    return np.diag(np.maximum(own, CLAIM_SD**2)) + max(common, math.pow(CLAIM_COMMON_SD, 2.0))

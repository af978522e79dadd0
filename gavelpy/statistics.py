"""Means over seeds with bootstrap intervals, and paired differences between runs of the same seeds.

The interval is the *expanded percentile* interval (Hesterberg, "What teachers should know about the bootstrap", 2015,
section 4.3.2): percentiles of the means of resamples, at levels for which the interval is as wide as Student's t would
make it. Of 5 values, the plain percentile interval contains the mean in 83 % of cases, and this one in 91 %; of 10
values, in 95 %. No resample is outside the range of the values, so 2 values give 50 % and 3 values give 75 % at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints

LEVEL = 0.95
RESAMPLES = 10_000
JOB_RESAMPLES = 2_000
ALL_MEANS_MAX = 4  # of up to so many values, all resamples are enumerated: 4^4


@dataclass(frozen=True)
class MeanInterval:
    """A mean and the interval that contains the true mean with probability `level`. NaN: unknown."""

    mean: float
    low: float  # NaN with fewer than two values
    high: float
    count: int  # of finite values
    level: float = LEVEL

    @property
    def excludes_zero(self) -> bool:
        """Whether the sign is known: zero is outside the interval."""
        return self.low > 0 or self.high < 0


def mean_interval(values: Sequence[float] | Floats, *, level: float = LEVEL, seed: int = 0) -> MeanInterval:
    """The mean of the finite values with its interval; equal arguments give equal intervals.

    >>> mean_interval([4.0, 5.0, 6.0])
    MeanInterval(mean=5.0, low=4.0, high=6.0, count=3, level=0.95)
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    mean = float(known.mean()) if len(known) else math.nan
    if len(known) < 2:
        return MeanInterval(mean, math.nan, math.nan, len(known), level)
    low, high = percentiles(resampled(known[:, None], seed)[:, 0], len(known), level)
    return MeanInterval(mean, low, high, len(known), level)


def paired_difference(
    before: Sequence[float] | Floats, after: Sequence[float] | Floats, *, level: float = LEVEL, seed: int = 0
) -> MeanInterval:
    """The mean of after minus before, with its interval; entry i of both is of the same seed.

    What both runs of a seed have in common cancels out, so the interval is narrower than those of the two means. Pairs
    in which a value is not finite are left out.
    """
    first, second = _paired(before, after)
    return mean_interval(second - first, level=level, seed=seed)


def paired_ratio(
    before: Sequence[float] | Floats, after: Sequence[float] | Floats, *, level: float = LEVEL, seed: int = 0
) -> MeanInterval:
    """The mean of after over the mean of before, with its interval; pairs are resampled together."""
    first, second = _paired(before, after)
    is_known = np.isfinite(first) & np.isfinite(second)
    pairs = np.column_stack([first, second])[is_known]
    if (pairs[:, 0] <= 0).any():
        raise InvalidInput(f"before must be > 0 for a ratio, got {float(pairs[:, 0].min())!r}")
    count = len(pairs)
    ratio = float(pairs[:, 1].mean() / pairs[:, 0].mean()) if count else math.nan
    if count < 2:
        return MeanInterval(ratio, math.nan, math.nan, count, level)
    means = resampled(pairs, seed)
    low, high = percentiles(means[:, 1] / means[:, 0], count, level)
    return MeanInterval(ratio, low, high, count, level)


def resampled(rows: Floats, seed: int = 0) -> Floats:
    """The means of resamples of the rows of (n, k): (m, k). Rows are drawn together; of few rows, all resamples."""
    count = len(rows)
    means: Floats = _times_drawn(count, seed) @ rows / count
    return means


@lru_cache(maxsize=4)  # a table of many means draws once
def _times_drawn(count: int, seed: int) -> Ints:
    """How often each of `count` rows is in each resample, (m, count)."""
    if count > ALL_MEANS_MAX:
        return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    drawn = np.indices((count,) * count).reshape(count, -1).T
    return np.stack([np.bincount(row, minlength=count) for row in drawn])


def percentiles(estimates: Floats, count: int, level: float = LEVEL) -> tuple[float, float]:
    """The expanded percentile interval of estimates from resamples of `count` values; NaN estimates are left out."""
    from scipy.special import ndtr, stdtrit

    if not 0 < level < 1:
        raise InvalidInput(f"level must be in (0, 1), got {level!r}")
    known = estimates[np.isfinite(estimates)]
    if not len(known) or count < 2:
        return math.nan, math.nan
    outside = float(ndtr(math.sqrt(count / (count - 1)) * stdtrit(count - 1, (1 - level) / 2)))
    low, high = np.quantile(known, [outside, 1 - outside], method="inverted_cdf").tolist()
    return low, high


def _paired(before: Sequence[float] | Floats, after: Sequence[float] | Floats) -> tuple[Floats, Floats]:
    first, second = (np.asarray(values, dtype=np.float64) for values in (before, after))
    if first.shape != second.shape or first.ndim != 1:
        raise InvalidInput(f"before and after must have a value for each seed, got {first.shape} and {second.shape}")
    return first, second


def paired_over_jobs(
    before: Floats, after: Floats, *, relative: bool = False, level: float = LEVEL, seed: int = 0
) -> MeanInterval:
    """The mean of after minus before (J, S), of J jobs under S seeds, with an interval over jobs and seeds.

    `relative`: as a share of the mean of before. Jobs and seeds are resampled independently, each with all of their
    values (the pigeonhole bootstrap: Owen, Annals of Applied Statistics, 2007): jobs of one seed, and seeds of one job,
    are not independent. That covers other jobs like these, and the noise of the seeds.
    """
    if before.shape != after.shape or before.ndim != 2:
        raise InvalidInput(f"before and after must be jobs by seeds, got {before.shape} and {after.shape}")
    jobs, seeds = before.shape
    if not before.size:
        return MeanInterval(math.nan, math.nan, math.nan, 0, level)
    difference, rng = after - before, np.random.default_rng(seed)
    mean = float(difference.mean()) / (float(before.mean()) if relative else 1.0)
    if jobs < 2:
        return MeanInterval(mean, math.nan, math.nan, jobs, level)
    estimates = []
    for _ in range(JOB_RESAMPLES):
        of_jobs = np.bincount(rng.integers(jobs, size=jobs), minlength=jobs)
        of_seeds = np.bincount(rng.integers(seeds, size=seeds), minlength=seeds)
        weight = of_jobs @ before @ of_seeds if relative else float(jobs * seeds)
        estimates.append(float(of_jobs @ difference @ of_seeds) / weight)
    low, high = percentiles(np.array(estimates), seeds if seeds > 1 else jobs, level)
    return MeanInterval(mean, low, high, jobs, level)

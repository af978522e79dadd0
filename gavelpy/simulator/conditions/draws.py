"""Random numbers by cause and subject, and distributions of durations.

A number depends only on the seed, the cause (`node failure`), the subject (a job or a node) and the count of numbers
that the subject has drawn before for this cause. So a cause that is switched off, another policy or a further node
leave all other numbers as they are (common random numbers), and simulations can be compared pairwise.

The generator is SplitMix64 (Steele et al., Fast splittable pseudorandom number generators, OOPSLA 2014) as a hash.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints

SECONDS_MAX = 3.2e9  # a century
SIGMA_MAX = 5.0
FEW = 8  # numbers for which Python is faster than numpy
_GOLDEN, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # multipliers


def uniform(seed: int, cause: str, subject: Ints, count: Ints | int = 0) -> Floats:
    """Numbers in (0, 1), one for each subject, (K,); `count` of the numbers drawn before."""
    key = _key_of(seed, cause)
    if len(subject) <= FEW:
        counts = [count] * len(subject) if isinstance(count, int) else count.tolist()
        return np.array([_uniform_of(key, *each) for each in zip(subject.tolist(), counts, strict=True)])
    found = _mixed(_mixed(np.asarray(subject).astype(np.uint64)) ^ np.uint64(key))
    found = _mixed(found + np.asarray(count).astype(np.uint64) * np.uint64(_GOLDEN))
    return ((found >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normal(seed: int, cause: str, subject: Ints, count: Ints | int = 0) -> Floats:
    """As `uniform`, of the standard normal distribution."""
    return normal_quantile(uniform(seed, cause, subject, count))


def exponential(seed: int, cause: str, subject: Ints, count: Ints | int = 0) -> Floats:
    """As `uniform`, of the exponential distribution with mean 1."""
    return -np.log(uniform(seed, cause, subject, count))


def normal_quantile(share: Floats) -> Floats:
    """Quantiles of the standard normal distribution."""
    from scipy.special import ndtri

    return np.asarray(ndtri(share), dtype=np.float64)


def subject_of(name: str) -> int:
    """The subject of a name, such as a node's."""
    return zlib.crc32(name.encode()) + len(name) * 2**32


@cache
def _key_of(seed: int, cause: str) -> int:
    return _mixed_one((seed * _GOLDEN + zlib.crc32(cause.encode())) & _WORD)


def _uniform_of(key: int, subject: int, count: int) -> float:
    found = _mixed_one(_mixed_one(_mixed_one(subject & _WORD) ^ key) + count * _GOLDEN)
    return ((found >> 11) + 0.5) * 2.0**-53


def _mixed_one(word: int) -> int:
    word = (word + _GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = words + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True)
class Duration:
    """Seconds: the sum of a constant, a transfer, a lognormal and a uniform term; those that are 0 do not count.

    fixed_s + gib / gib_per_s + lognormal(median_s, sigma) + uniform(low_s, high_s)
    """

    fixed_s: float = 0.0
    gib: float = 0.0  # transferred, at `gib_per_s`
    gib_per_s: float = 0.0
    median_s: float = 0.0  # of the lognormal term
    sigma: float = 0.0  # standard deviation of its logarithm
    low_s: float = 0.0  # of the uniform term
    high_s: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value <= SECONDS_MAX:
                raise InvalidInput(f"{one.name} must be in [0, {SECONDS_MAX:g}], got {value!r}")
        if self.sigma > SIGMA_MAX:
            raise InvalidInput(f"sigma must be in [0, {SIGMA_MAX:g}], got {self.sigma!r}")
        if self.gib and not self.gib_per_s:
            raise InvalidInput(f"gib_per_s must be > 0 where gib is given, got {self.gib_per_s!r}")
        if self.high_s < self.low_s:
            raise InvalidInput(f"high_s must be >= low_s ({self.low_s:g}), got {self.high_s!r}")

    @property
    def is_random(self) -> bool:
        """Whether it varies."""
        return bool((self.median_s and self.sigma) or self.high_s > self.low_s)

    @property
    def constant_s(self) -> float:
        """Its constant part."""
        return self.fixed_s + (self.gib / self.gib_per_s if self.gib else 0.0)

    @property
    def mean_s(self) -> float:
        """Its mean."""
        return self.constant_s + self.median_s * math.exp(self.sigma**2 / 2) + (self.low_s + self.high_s) / 2

    def quantile_s(self, share: Floats) -> Floats:
        """Its quantiles: of each term, as the terms vary together."""
        if not (self.median_s or self.high_s):
            return np.full(len(share), self.constant_s)
        varying = self.median_s * np.exp(self.sigma * normal_quantile(share)) if self.median_s else np.zeros(len(share))
        return np.asarray(self.constant_s + varying + self.low_s + (self.high_s - self.low_s) * share)


def duration(value: float | Duration) -> Duration:
    """A duration from a number of seconds, or itself."""
    return value if isinstance(value, Duration) else Duration(fixed_s=float(value))


class DrawnDurations:
    """A duration for each job, of which several may have the same distribution. Rows of jobs are serials."""

    def __init__(self, seed: int, cause: str, kinds: tuple[Duration, ...], kind_of: Ints) -> None:
        self._seed, self._cause, self._kinds, self._kind_of = seed, cause, kinds, kind_of
        self._fixed_s = np.array([kind.constant_s for kind in kinds])[kind_of]
        self._is_random = any(kind.is_random or kind.median_s or kind.high_s for kind in kinds)

    @property
    def mean_s(self) -> Floats:
        """The mean of each job's, (J,)."""
        return np.array([kind.mean_s for kind in self._kinds])[self._kind_of]

    def draw(self, rows: Ints, count: Ints | int) -> Floats:
        """Durations of these jobs (K,); `count` of those that were drawn before."""
        if not self._is_random:
            return self._fixed_s[rows]
        share, kinds, found = uniform(self._seed, self._cause, rows, count), self._kind_of[rows], np.zeros(len(rows))
        if len(rows) == 1 or len(self._kinds) == 1:
            return self._kinds[kinds.item(0)].quantile_s(share) if len(rows) else found
        for kind in np.unique(kinds).tolist():
            here = kinds == kind
            found[here] = self._kinds[kind].quantile_s(share[here])
        return found

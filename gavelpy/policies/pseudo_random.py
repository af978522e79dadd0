"""Pseudo-random numbers for jobs by their properties, so that policies which draw stay pure and ignore names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats

SEED_MAX = 2**53  # largest whole number that a float from the command line holds exactly
_GOLDEN = 0x9E3779B97F4A7C15  # odd; the golden ratio in 64 bits


def whole_seed(seed: float) -> int:
    """The seed as a whole number; raises InvalidInput."""
    if not (0 <= seed <= SEED_MAX and seed == int(seed)):
        raise InvalidInput(f"seed must be a whole number in [0, 2^53], got {seed!r}")
    return int(seed)


def luck(seed: int, count: int, *columns: Floats) -> npt.NDArray[np.uint64]:
    """A number for each of `count` jobs, (J,), which depends on the seed and on the job's entries in columns (J,)."""
    found = mixed(np.full(count, seed, dtype=np.uint64))
    for column in columns:
        found = mixed(found ^ np.ascontiguousarray(column).view(np.uint64))
    return found


def mixed(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Deterministic pseudo-random bits: the finalizer of SplitMix64 (Steele et al., 2014)."""
    bits = bits + np.uint64(_GOLDEN)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))

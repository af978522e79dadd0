"""Aggregation: jobs that no objective can tell apart are solved for once.

Exchangeable jobs (same rates, GPUs, scale, floor) have an optimum in which they all get the same shares: average any
optimum over their permutations. So a class of n jobs is one row whose GPUs count n times; every member gets its row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gavelpy.model.arrays import Floats, Ints

MANTISSA_BITS = 40  # figures that agree to 2^-40 are equal; the certificate is computed from the figures themselves
_FEW = 256  # rows; up to here comparing them is quicker than sorting their hashes
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd; the golden ratio in 64 bits


@dataclass(frozen=True, eq=False)
class Classes:
    """A partition of J jobs into K classes, numbered by first appearance."""

    of_job: Ints  # (J,) class of each job
    representative: Ints  # (K,) row of each class's first job
    count: Ints  # (K,) jobs in each class


def classes_of(features: Floats) -> Classes:
    """The classes of jobs with equal rows of `features`, (J, F)."""
    return _classes(_rounded(features))


def classes_of_labels(labels: Ints) -> Classes:
    """The classes of rows with equal `labels`, (J, F)."""
    return _classes(labels)


def singletons(job_count: int) -> Classes:
    """Every job in a class of its own."""
    rows = np.arange(job_count)
    return Classes(rows, rows, np.ones(job_count, dtype=np.int64))


def mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Words that differ in many bits where `words` differ in one: sums of them tell sets apart."""
    spread = words * np.uint64(_MULTIPLIER)
    return spread ^ (spread >> np.uint64(29))


def _classes(rows: Floats | Ints) -> Classes:
    if len(rows) <= _FEW:
        return _classes_of_few(rows)
    keys = _hashes(rows)
    _, first, inverse, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    of_job, representative = rank[inverse], first[order]
    if not np.array_equal(rows[representative[of_job]], rows):  # two different rows with one hash: nobody is merged
        return singletons(len(rows))
    return Classes(of_job, representative, count[order])


def _classes_of_few(rows: Floats | Ints) -> Classes:
    """The same by comparing the bytes of rows."""
    keys = [row.tobytes() for row in np.ascontiguousarray(rows)]
    first: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    number = {key: k for k, key in enumerate(first)}
    of_job = np.array([number[key] for key in keys], dtype=np.int64)
    representative = np.array(list(first.values()), dtype=np.int64)
    return Classes(of_job, representative, np.bincount(of_job, minlength=len(first)))


def _rounded(features: Floats) -> Floats:
    mantissa, exponent = np.frexp(features)
    rounded: Floats = np.ldexp(np.rint(np.ldexp(mantissa, MANTISSA_BITS)), exponent - MANTISSA_BITS)
    return rounded + 0.0  # -0.0 and 0.0 are one figure


def _hashes(rows: Floats | Ints) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each row."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    hashes = np.zeros(len(rows), dtype=np.uint64)
    for column in range(bits.shape[1]):
        hashes = mixed(hashes ^ bits[:, column])
    return hashes

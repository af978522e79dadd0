"""Rates of co-located virtual jobs, relative to their rates alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.estimator.kinds import Key, key_of
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import JobSpec
from gavelpy.model.throughput import ThroughputTable

_UNKNOWN: Key = ("", 0)


@dataclass(frozen=True, eq=False)
class CoLocation:
    """Rows of jobs are serials."""

    key: Ints  # (J,) row of `factor`
    factor: Floats  # (K, K, T) co-located rate of the first with the second / its rate alone; 0 = it makes no step

    def rate_factors(self, first: int, second: int, gpu_type: int) -> Floats:
        """Co-located rate / rate alone of each of two jobs on a type, (2,)."""
        one, other = self.key[first], self.key[second]
        return np.array([self.factor[one, other, gpu_type], self.factor[other, one, gpu_type]])


def co_location_of(jobs: Sequence[JobSpec], table: ThroughputTable, gpu_types: tuple[str, ...]) -> CoLocation:
    """Factors by the table's pairs of job types; 0 for pairs that it does not have."""
    named = [key_of(row, job.job_type, job.gpus) for row, job in enumerate(jobs)]
    keys = [key if key in table else _UNKNOWN for key in named]  # one row for all: an array of K x K
    row = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    factor = np.nan_to_num(table.slowdowns(list(row), gpu_types), nan=0.0)
    fits = (factor > 0) & (factor.transpose(1, 0, 2) > 0)
    return CoLocation(np.array([row[key] for key in keys], dtype=np.int64), np.where(fits, factor, 0.0))

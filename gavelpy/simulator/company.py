"""What jobs of a trace truly keep of their rates beside each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.estimator.kinds import key_of
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import Trace
from gavelpy.model.throughput import ThroughputTable


@dataclass(frozen=True, eq=False)
class Company:
    """Rows of jobs are serials."""

    key: Ints  # (J,) row of `kept_of`
    kept_of: Floats  # (K, K, T) part of its rate alone that the first keeps beside the second; 0 = it makes no step

    def kept(self, first: int, second: int, gpu_type: int) -> Floats:
        """What each of two jobs keeps on a type, (2,)."""
        one, other = self.key[first], self.key[second]
        return np.array([self.kept_of[one, other, gpu_type], self.kept_of[other, one, gpu_type]])


def company_of(trace: Trace, table: ThroughputTable, gpu_types: tuple[str, ...]) -> Company:
    """By the table's pairs of job types; two that it has not measured together do not run together."""
    keys = [key_of(row, job.job_type, job.gpus) for row, job in enumerate(trace.jobs)]
    row = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    kept = np.nan_to_num(table.slowdowns(list(row), gpu_types), nan=0.0)
    fits = (kept > 0) & (kept.transpose(1, 0, 2) > 0)
    return Company(np.array([row[key] for key in keys], dtype=np.int64), np.where(fits, kept, 0.0))

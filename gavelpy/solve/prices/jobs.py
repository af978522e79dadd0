"""The jobs of a problem as rows of a table, and the table's answer as shares of the problem."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.classes import Classes, classes_of
from gavelpy.solve.prices.table import Table

_SAMPLE = 2048  # rows in which equal jobs are looked for before all are compared
_DISTINCT = 0.9  # part of a sample from which on jobs count as distinct: merging would gain little


@dataclass(frozen=True, eq=False)
class Jobs:
    """The jobs that can run, as K classes, and the types that somebody can use."""

    problem: AllocationProblem
    best_steps_per_s: Floats  # (J,) alone on the best type there is; 0 = can run nowhere
    rows: Ints | None  # (R,) rows of the jobs that can run; None = all
    classes: Classes | None  # of those R jobs; None = each its own
    types: Ints | None  # (T',) columns of the types with GPUs that somebody can use; None = all
    table: Table
    value: Floats  # (K,) objective units of one job at its best rate
    floor: Floats  # (K,) least rate, in units of the best

    def per_job(self, per_class: Floats) -> Floats:
        """Figures of jobs, (J,) or (J, T'), from those of their classes; zero for jobs that can run nowhere."""
        expanded = per_class if self.classes is None else per_class[self.classes.of_job]
        if self.rows is None:
            return expanded
        figures: Floats = np.zeros((self.problem.job_count, *per_class.shape[1:]))
        figures[self.rows] = expanded
        return figures

    def all_types(self, per_type: Floats) -> Floats:
        """Figures whose last axis is all T types, from those of the types in use; zero for the others."""
        if self.types is None:
            return per_type
        figures: Floats = np.zeros((*per_type.shape[:-1], len(self.problem.gpu_types)))
        figures[..., self.types] = per_type
        return figures


def jobs_of(problem: AllocationProblem, value_per_step_per_s: Floats, floor_steps_per_s: Floats) -> Jobs:
    """The table of a problem in which every job runs alone; both figures are (J,)."""
    rate, gpus, counts = problem.member_rate_steps_per_s, problem.gpus_occupied, problem.gpu_counts
    here = [t for t in range(len(counts)) if counts[t] > 0]
    best = reduce(np.maximum, (rate[:, t] for t in here), np.zeros(len(gpus)))
    rows = None if best.min(initial=1.0) > 0 else np.flatnonzero(best > 0)
    types = None
    used = [t for t in here if rate[:, t].any()]
    if len(used) < len(counts):
        types = np.array(used, dtype=np.int64)
        rate, counts = rate[:, types], counts[types]
    value, floor = (
        best * value_per_step_per_s,
        np.divide(floor_steps_per_s, best, where=best > 0, out=np.zeros(len(best))),
    )
    if rows is not None:
        rate, gpus, value, floor = rate[rows], gpus[rows], value[rows], floor[rows]
    rate = rate / (best if rows is None else best[rows])[:, None]
    classes = _classes(rate, gpus, value, floor)
    count = np.ones(len(gpus))
    if classes is not None:
        first, count = classes.representative, classes.count.astype(np.float64)
        rate, gpus, value, floor = rate[first], gpus[first], value[first], floor[first]
    table = Table(np.ascontiguousarray(rate), gpus, count, counts, gain=np.zeros((0, len(counts))))
    return Jobs(problem, best, rows, classes, types, table, value, floor)


def _classes(rate: Floats, gpus: Floats, value: Floats, floor: Floats) -> Classes | None:
    figures = (gpus, value, floor)
    if len(gpus) > _SAMPLE:
        step = len(gpus) // _SAMPLE
        sample = np.column_stack([rate[::step], *(f[::step] for f in figures)])
        if len(classes_of(sample).count) > _DISTINCT * len(sample):
            return None
    classes = classes_of(np.column_stack([rate, *figures]))
    return classes if len(classes.count) < len(gpus) else None

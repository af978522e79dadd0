"""Jobs as the price engine sees them: K rows that want GPUs, T types that sell them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.program import Classes, classes_of

IDLE = -1  # a mode of running: not at all

Modes = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Table:
    """K classes of equal jobs that run alone, in equilibrated numbers."""

    rate: Floats  # (K, T) in units of the job's best rate; 0 = cannot run there
    gpus: Floats  # (K,) GPUs of one job
    count: Floats  # (K,) jobs in the class
    gpu_counts: Floats  # (T,)
    gain: Floats  # (K, T) worth of one job's time there, beyond its need; (0, T) = none

    @property
    def load(self) -> Floats:
        """GPUs of a class, (K,)."""
        return self.gpus * self.count

    def some(self, rows: Ints) -> Table:
        """The table of some rows."""
        return replace(
            self,
            rate=self.rate[rows],
            gpus=self.gpus[rows],
            count=self.count[rows],
            gain=self.gain[rows] if len(self.gain) else self.gain,
        )


@dataclass(frozen=True, eq=False)
class Sweep:
    """Each job's cheapest mix of at most two modes that reaches its need within its time: low, and high for the rest.

    A job that needs less than its cheapest mode gives has low == high.
    """

    low: Modes  # (K,) GPU type or IDLE
    high: Modes  # (K,)
    margin: Floats  # (K,) how far, relatively, prices and level may move until another mix may be cheaper
    used: Floats  # (T,) GPUs
    drift: Floats  # (T,) GPUs more for each unit of level
    curvature: Floats  # (T, T) GPUs fewer for each unit of price, smoothed
    reward: float  # of all jobs
    short: int  # classes that need more than their best rate


@dataclass(frozen=True, eq=False)
class Tally:
    """What shares and duals come to, by the arithmetic of the problem itself: see `proof`."""

    least: float  # of scale x rate, over the jobs with a scale
    total: float  # of gains
    used: Floats  # (T,) GPUs
    budgets: float  # least that the jobs' time can be worth under these duals
    floors: float  # worth of the floors
    weights: float  # of the duals in units of 1 / scale
    worst_sign: float  # largest share below zero
    worst_time: float  # largest time above 1
    worst_floor: float  # largest relative lack of a floor


class Needs(Protocol):
    """Least rates in units of each job's best rate; a job that would need more than that runs at its best."""

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Needs at a level, (K,) <= 1, and how fast they rise with it, (K,) >= 0."""
        ...  # a protocol's body

    def some(self, rows: Ints) -> Needs:
        """The needs of some of the jobs."""
        ...  # a protocol's body


@dataclass(frozen=True, eq=False)
class Proportional:
    """Each job's value at least the level."""

    per_level: Floats  # (K,) > 0

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Rates that have the value `level`."""
        need = level * self.per_level
        if need.max(initial=0.0) <= 1.0:
            return need, self.per_level
        return np.minimum(need, 1.0), np.where(need < 1.0, self.per_level, 0.0)

    def some(self, rows: Ints) -> Proportional:
        """The needs of some of the jobs."""
        return Proportional(self.per_level[rows])


@dataclass(frozen=True, eq=False)
class Fixed:
    """Floors that no level moves."""

    floor: Floats  # (K,) in 0..1

    def at(self, level: float) -> tuple[Floats, Floats]:  # noqa: ARG002 the protocol's
        """The floors."""
        return self.floor, np.zeros(len(self.floor))

    def some(self, rows: Ints) -> Fixed:
        """The floors of some of the jobs."""
        return Fixed(self.floor[rows])


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

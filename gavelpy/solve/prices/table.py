"""Jobs and their needs as arrays for the price engine: K classes of jobs demand GPUs, T types supply them.

Also the conversion between an allocation problem and these arrays, and the choice between the numpy and numba kernels.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.program import MANTISSA_BITS, Classes, are_distinct, classes_of
from gavelpy.solve.solver import NUMPY_ROWS_MAX

IDLE = -1  # the mode of a job that does not run

Modes = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Table:
    """K classes of equal jobs that run alone, in scaled numbers."""

    rate: Floats  # (K, T) in units of the job's best rate; 0 = cannot run there
    gpus: Floats  # (K,) GPUs of one job
    count: Floats  # (K,) jobs in the class
    gpu_counts: Floats  # (T,)
    gain: Floats  # (K, T) value of one job's time there, beyond its need; (0, T) = none

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
    """Each job's cheapest mix of at most two modes, low and high, that reaches its need within its time.

    A job that needs less than its cheapest mode gives has low == high.
    """

    low: Modes  # (K,) GPU type or IDLE
    high: Modes  # (K,)
    margin: Floats  # (K,) relative change of prices and level below which no other mix is cheaper
    used: Floats  # (T,) GPUs
    drift: Floats  # (T,) additional GPUs per unit of level
    curvature: Floats  # (T, T) decrease of the GPUs used per unit of price, smoothed
    reward: float  # of all jobs
    short: int  # classes that need more than their best rate


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over shares and duals, in the problem's own units, for a certificate (engine.py)."""

    least: float  # of scale x rate, over the jobs with a scale
    total: float  # of gains
    used: Floats  # (T,) GPUs
    budgets: float  # least value of the jobs' time under these duals
    floors: float  # value of the floors
    weights: float  # of the duals in units of 1 / scale
    worst_sign: float  # largest share below zero
    worst_time: float  # largest time above 1
    worst_floor: float  # largest relative lack of a floor


class Needs(Protocol):
    """Least rates in units of each job's best rate, as functions of a level; at most the best rate."""

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Needs at a level, (K,) <= 1, and how fast they rise with it, (K,) >= 0."""
        ...  # a protocol's body

    def some(self, rows: Ints) -> Needs:
        """The needs of some of the jobs."""
        ...  # a protocol's body


@dataclass(frozen=True, eq=False)
class Proportional:
    """Needs at which every job's value is the level."""

    per_level: Floats  # (K,) > 0

    def at(self, level: float) -> tuple[Floats, Floats]:
        """See Needs."""
        need = level * self.per_level
        if need.max(initial=0.0) <= 1.0:
            return need, self.per_level
        return np.minimum(need, 1.0), np.where(need < 1.0, self.per_level, 0.0)

    def some(self, rows: Ints) -> Proportional:
        """The needs of some of the jobs."""
        return Proportional(self.per_level[rows])


@dataclass(frozen=True, eq=False)
class Fixed:
    """Needs that do not depend on the level."""

    floor: Floats  # (K,) in 0..1

    def at(self, level: float) -> tuple[Floats, Floats]:  # noqa: ARG002 the protocol's
        """See Needs."""
        return self.floor, np.zeros(len(self.floor))

    def some(self, rows: Ints) -> Fixed:
        """See Needs."""
        return Fixed(self.floor[rows])


class Bends(NamedTuple):
    """Needs that bend: those for a finish-time ratio, which is minus the level (finish_time_search.py)."""

    isolated: Floats  # (K,)
    age: Floats  # (K,)
    cap: Floats  # (K,) highest need


class Lines(NamedTuple):
    """Needs base + speed x level, up to a limit."""

    base: Floats  # (K,)
    speed: Floats  # (K,)
    limit: Floats  # (K,)


_FLOAT_BITS = 53  # of a mantissa
SAMPLE = 2048  # rows that are compared first
_DISTINCT = 0.9  # part of the sample above which jobs count as distinct: merging would gain little


@dataclass(frozen=True, eq=False)
class Jobs:
    """The jobs that can run, as K classes, and the types that some job can use."""

    problem: AllocationProblem
    best_steps_per_s: Floats  # (J,) alone on its best type; 0 = it can run nowhere
    rows: Ints | None  # (R,) rows of the jobs that can run; None = all
    classes: Classes | None  # of those R jobs; None = one for each job
    types: Ints | None  # (T',) columns of the types with GPUs that some job can use; None = all
    table: Table
    value: Floats  # (K,) objective units of one job at its best rate
    floor: Floats  # (K,) least rate, in units of the best

    def per_job(self, per_class: Floats) -> Floats:
        """Values by job, (J,) or (J, T'), from values by class; zero for jobs that can run nowhere."""
        expanded = per_class if self.classes is None else per_class[self.classes.of_job]
        if self.rows is None:
            return expanded
        figures: Floats = np.zeros((self.problem.job_count, *per_class.shape[1:]))
        figures[self.rows] = expanded
        return figures

    def all_types(self, per_type: Floats) -> Floats:
        """Values for all T types (last axis), from those of the types in use; zero for the others."""
        if self.types is None:
            return per_type
        figures: Floats = np.zeros((*per_type.shape[:-1], len(self.problem.gpu_types)))
        figures[..., self.types] = per_type
        return figures


def jobs_of(
    problem: AllocationProblem, value_per_step_per_s: Floats, floor_steps_per_s: Floats, count: Floats | None = None
) -> Jobs:
    """The table of a problem in which every job runs alone; values and floors are (J,).

    If a row stands for several equal jobs, `count` (J,) has their numbers, and no other rows are equal.
    """
    rate, gpus, counts = problem.member_rate_steps_per_s, problem.gpus_occupied, problem.gpu_counts
    gpus = gpus if count is None else gpus / count
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
    classes = _classes(rate, gpus, value, floor) if count is None else None
    if count is None:
        count = np.ones(len(gpus))
    elif rows is not None:
        count = count[rows]
    if classes is not None:
        first, count = classes.representative, classes.count.astype(np.float64)
        rate, gpus, value, floor = rate[first], gpus[first], value[first], floor[first]
    table = Table(np.ascontiguousarray(rate), gpus, count, counts, gain=np.zeros((0, len(counts))))
    return Jobs(problem, best, rows, classes, types, table, value, floor)


def _classes(rate: Floats, gpus: Floats, value: Floats, floor: Floats) -> Classes | None:
    """The classes of equal jobs; None if all jobs are distinct, or nearly all of many."""
    figures, step = (gpus, value, floor), max(len(gpus) // SAMPLE, 1)
    if search_kernels() is not None and len(gpus) <= SAMPLE:
        classes = compiled_classes_of(np.column_stack([rate, *figures]))
        return classes if len(classes.count) < len(gpus) else None
    if are_distinct(*rate[::step].T, gpus[::step], np.abs(value[::step]), floor[::step]):
        return None
    if len(gpus) > SAMPLE:
        sample = np.column_stack([rate[::step], *(f[::step] for f in figures)])
        if len(classes_of(sample).count) > _DISTINCT * len(sample):
            return None
    classes = any_classes_of(np.column_stack([rate, *figures]))
    return classes if len(classes.count) < len(gpus) else None


def any_classes_of(rows: Floats) -> Classes:
    """As `classes_of`, compiled where that is loaded; may round `rows`."""
    return classes_of(rows) if search_kernels() is None else compiled_classes_of(rows)


def compiled_classes_of(rows: Floats) -> Classes:
    """As `classes_of`, and numbers below 1e-307 are rounded to fewer bits; rounds `rows`."""
    from gavelpy.solve.prices import problem_kernels

    of_job, representative, count = np.empty((3, len(rows)), dtype=np.int64)
    words, dropped = rows.view(np.int64), _FLOAT_BITS - MANTISSA_BITS
    classes = problem_kernels.classes_of(words, dropped, of_job, representative, count)
    return Classes(of_job, representative[:classes], count[:classes])


def kernels(jobs: int) -> ModuleType:
    """The loops over this many jobs: in numpy, or in numba, which takes a second to load."""
    if jobs <= NUMPY_ROWS_MAX:
        from gavelpy.solve.prices import numpy_kernels

        return numpy_kernels
    from gavelpy.solve.prices import numba_kernels

    return numba_kernels


def fixed(given: Floats) -> Floats:
    """A read-only view of an array: numba compiles a kernel once for it, whether or not the array is writable."""
    view = given.view()
    view.flags.writeable = False
    return view


def compiled(_: int) -> ModuleType:
    """The loops in numba, for any number of jobs: where they are loaded, and rounding is in no answer."""
    return kernels(NUMPY_ROWS_MAX + 1)


_COMPILED = Path(__file__).with_name("__pycache__")
_KERNELS = ("gavelpy.solve.prices.numba_kernels", "gavelpy.solve.prices.event_kernels")
_LOADING_S, _COMPILING_S = 2.0, 20.0  # of CPU time: what the kernels cost if they are cached, and if they are not


@dataclass
class _Interpreted:
    """CPU time that this process has spent in searches in numpy."""

    seconds: float = 0.0

    @contextmanager
    def search(self) -> Iterator[None]:
        """Adds the time of a search, once with that of any searches within."""
        before_s, started_s = self.seconds, time.process_time()
        try:
            yield
        finally:
            self.seconds = before_s + time.process_time() - started_s


INTERPRETED = _Interpreted()


def search_kernels() -> ModuleType | None:
    """The compiled searches (numba_search.py) once they are worth it, else None: answers are the same.

    That is where numba kernels are loaded already, for a large problem; and where searches in numpy have taken as long
    in this process as loading the kernels takes, as in a scheduler, a long simulation or a notebook.
    """
    if not any(kernel in sys.modules for kernel in _KERNELS):  # `isdisjoint` would look at all modules
        if INTERPRETED.seconds <= (_LOADING_S if _is_cached() else _COMPILING_S):
            return None
        importlib.import_module("gavelpy.solve.prices.numba_kernels")  # marks them as loaded
    from gavelpy.solve.prices import numba_search

    return numba_search


@cache
def _is_cached() -> bool:
    """Whether some process has compiled the searches before: numba stores them in one of three places."""
    variables = os.environ
    user = Path(variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME", ""), ".cache"), "numba")
    shared = Path(variables.get("NUMBA_CACHE_DIR") or user)
    return any(chain(_COMPILED.glob("numba_search.*.nbi"), shared.glob("*/numba_search.*.nbi")))

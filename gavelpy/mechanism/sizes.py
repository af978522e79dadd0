"""Jobs with several sizes: their rates on each number of GPUs, and what of it the table of jobs shows.

While such a job has a lease, `jobs.gpus` is the size of that lease, else its smallest size. `jobs.rate` is the highest
rate of any of its sizes on each type, so that it is positive where the job can run on some number of GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.job import JobSpec

if TYPE_CHECKING:
    from gavelpy.mechanism.jobs import JobTable


class JobSizes(NamedTuple):
    """The sizes of one job; never changed in place, as copies of a core share it."""

    gpus: Ints  # (S,) ascending
    rate: Floats  # (S, T) steps/s; NaN = unknown

    @property
    def best(self) -> Floats:
        """The highest known rate on each type, NaN where none is known, (T,)."""
        return np.asarray(np.fmax.reduce(self.rate, axis=0))

    def fits(self, most: Ints) -> Bools:
        """Whether some size with a rate needs no more than this many GPUs of each type (T,), (T,)."""
        return np.asarray(((self.rate > 0) & (self.gpus[:, None] <= most)).any(axis=0))

    def at(self, gpus: int) -> Floats:
        """Rates on this many GPUs, (T,)."""
        return np.asarray(self.rate[int(np.searchsorted(self.gpus, gpus))])

    def by_speed(self, held: tuple[int, int], gain: float = 1.0) -> Iterator[tuple[int, int]]:
        """(type, GPUs) in which the job runs, the fastest first; of equals, as `held`, then fewer GPUs.

        `held` comes after those that are faster by more than the factor `gain`.
        """
        size, gpu_type = np.nonzero(self.rate > 0)
        gpus, rate = self.gpus[size], self.rate[size, gpu_type]
        is_elsewhere = (gpu_type != held[0]) | (gpus != held[1])
        order = np.lexsort((gpu_type, gpus, is_elsewhere, -np.where(is_elsewhere, rate, rate * gain)))
        yield from zip(gpu_type[order].tolist(), gpus[order].tolist(), strict=True)


def sizes_of(spec: JobSpec, gpu_types: tuple[str, ...]) -> JobSizes:
    """The sizes of a job as it was submitted."""
    rate = [[_rate(spec.rates_on(size), spec, gpu_type) for gpu_type in gpu_types] for size in spec.sizes]
    return JobSizes(np.array(spec.sizes, dtype=np.int64), np.array(rate, dtype=np.float64).reshape(len(rate), -1))


def _rate(rates: Mapping[str, float], spec: JobSpec, gpu_type: str) -> float:
    unknown = 0.0 if rates else math.nan
    return rates.get(gpu_type, unknown) if spec.may_run_on(gpu_type) else 0.0


def add(jobs: JobTable, row: int, gpu_types: tuple[str, ...]) -> None:
    """Adds the sizes of a new job to the table."""
    put(jobs, row, sizes_of(jobs.specs[row], gpu_types))
    jobs.gpus[row] = jobs.smallest[row]


def add_type(jobs: JobTable, gpu_type: str) -> None:
    """Adds a column for a new GPU type, the last one."""
    for row, sizes in jobs.sizes.items():
        more = sizes_of(jobs.specs[row], (gpu_type,)).rate
        put(jobs, row, JobSizes(sizes.gpus, np.column_stack([sizes.rate, more])))


def put(jobs: JobTable, row: int, sizes: JobSizes) -> None:
    """Replaces the sizes of a job."""
    jobs.sizes[row] = sizes
    jobs.rate[row] = sizes.best


def learn(jobs: JobTable, row: int, gpus: int, rates: Floats) -> None:
    """Stores estimated rates (T',) of a job on this many GPUs; types that its owner does not allow stay at 0."""
    sizes = jobs.sizes[row]
    rate, k = sizes.rate.copy(), int(np.searchsorted(sizes.gpus, gpus))
    if k == len(sizes.gpus) or sizes.gpus[k] != gpus:
        return
    before = rate[k, : len(rates)]
    is_new = ~np.isnan(rates)
    if jobs.specs[row].gpu_types:
        is_new &= before != 0.0
    rate[k, : len(rates)] = np.where(is_new, rates, before)
    put(jobs, row, JobSizes(sizes.gpus, rate))


def any_unknown(jobs: JobTable, row: int) -> bool:
    """Whether a rate of a job is unknown, on any of its sizes."""
    rates = jobs.sizes[row].rate if row in jobs.sizes else jobs.rate[row]
    return bool(np.isnan(rates).any())


def unknown(jobs: JobTable, row: int) -> list[int]:
    """The sizes of a job that need estimates, the requested one last; of a job with one size, that size."""
    if row not in jobs.sizes:
        return [int(jobs.gpus[row])]
    own, requested = jobs.sizes[row], jobs.specs[row].gpus
    return sorted(own.gpus[np.isnan(own.rate).any(axis=1)].tolist(), key=lambda size: size == requested)


def every(jobs: JobTable, rows: Ints) -> tuple[Ints, Ints]:
    """Each of these jobs, (K,), with each of its sizes: positions in `rows`, and GPUs, (S,)."""
    if not len(several(jobs, rows)):
        return np.arange(len(rows)), jobs.gpus[rows]
    own = [jobs.sizes[row].gpus if row in jobs.sizes else jobs.gpus[[row]] for row in rows.tolist()]
    return np.repeat(np.arange(len(rows)), [len(gpus) for gpus in own]), np.concatenate(own)


def rates_at(jobs: JobTable, rows: Ints, gpus: Ints) -> Floats:
    """Steps/s of these jobs on this many GPUs of each type, (K, T); NaN = unknown. Others than sizes do not count."""
    rate = jobs.rate.take(rows, axis=0)
    for k in several(jobs, rows).tolist():
        rate[k] = jobs.sizes[int(rows[k])].at(int(gpus[k]))
    return rate


def rate_at(jobs: JobTable, row: int, gpus: int, gpu_type: int) -> float:
    """Steps/s of a job on this many GPUs of a type; 0 = unknown."""
    rates = jobs.sizes[row].at(gpus) if row in jobs.sizes else jobs.rate[row]
    return 0.0 if math.isnan(rates[gpu_type]) else float(rates[gpu_type])


def requested(jobs: JobTable, rows: Ints) -> tuple[Ints, Floats]:
    """GPUs that these jobs request, (K,), and their rates there, (K, T)."""
    gpus = jobs.gpus[rows]
    for k in several(jobs, rows).tolist():
        gpus[k] = jobs.specs[int(rows[k])].gpus
    return gpus, rates_at(jobs, rows, gpus)


def several(jobs: JobTable, rows: Ints) -> Ints:
    """Positions of jobs with several sizes."""
    return jobs.smallest[rows].nonzero()[0] if jobs.sizes else rows[:0]


def fits(jobs: JobTable, rows: Ints, most: Ints) -> Bools:
    """Whether each job runs on each type with at most this many GPUs (T,) or (K, T), on some of its sizes, (K, T).

    False where the rate is unknown (NaN).
    """
    found: Bools = (jobs.rate.take(rows, axis=0) > 0) & (jobs.gpus[rows][:, None] <= most)
    for k in several(jobs, rows).tolist():
        found[k] = jobs.sizes[int(rows[k])].fits(most if most.ndim == 1 else most[k])
    return found


def smallest(jobs: JobTable, rows: Ints) -> Ints:
    """The smallest size of each job, (K,)."""
    return np.where(jobs.smallest[rows] > 0, jobs.smallest[rows], jobs.gpus[rows])


def largest(jobs: JobTable, rows: Ints) -> Ints:
    """The largest size of each job, (K,)."""
    gpus = jobs.gpus[rows]
    for k in several(jobs, rows).tolist():
        gpus[k] = jobs.sizes[int(rows[k])].gpus[-1]
    return gpus

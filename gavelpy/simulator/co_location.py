"""Co-located virtual jobs: which jobs share GPUs, from when until when, and their rates relative to those alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.estimator.kinds import Key, key_of
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.job import JobSpec
from gavelpy.model.throughput import ThroughputTable
from gavelpy.simulator.timeline import CoLocated, Timeline

NONE = -1
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


class SharedGpus:
    """The part of a virtual cluster for jobs on the same GPUs. Rows of jobs are serials."""

    co_location: CoLocation | None
    true_rate: Floats  # (J, T)
    factor: Floats  # (J,) that conditions put on rates
    lease: Ints  # (J,)
    lease_type: Ints  # (J,)
    began_s: Floats  # (J,)
    gpu_job: Ints  # (G,) job with a lease there
    gpu_second: Ints  # (G,) a second, co-located job
    partner: Ints  # (J,) job with a lease on the same GPUs
    co_located: Ints  # (J,) the partner, while both make steps
    _is_leased: Bools  # (J,)
    _any_moved: bool  # whether jobs have got GPUs, or lost them, since rates were last compared
    _any_second: bool  # whether two jobs ever had leases on the same GPUs
    _timeline: Timeline

    def rate_factors(self, first: int, second: int, gpu_type: int) -> Floats:
        """Co-located rate / rate alone of each of two jobs on a type, (2,)."""
        assert self.co_location is not None, "a plan co-locates jobs, and the cluster has no co-located rates"
        return self.co_location.rate_factors(first, second, gpu_type)

    def _expect_co_location(self, seconds: Ints, now_s: float) -> None:
        """Puts the time when these jobs and their partners both make steps on the timeline."""
        for row in seconds.tolist():
            both = int(self.partner[row]), row
            both_s = max(now_s, float(self.began_s[both[0]]), float(self.began_s[row]))
            self._timeline.push(both_s, CoLocated(both, (int(self.lease[both[0]]), int(self.lease[row]))))

    def _place(self, rows: Ints, gpus: Ints, offsets: Ints) -> Bools:
        """Records which jobs hold which GPUs; returns which of the jobs (K,) join a partner."""
        self._any_moved = True
        if self.co_location is None:
            self.gpu_job[gpus] = rows.repeat(offsets[1:] - offsets[:-1])
            return np.zeros(len(rows), dtype=np.bool_)
        first_gpu = gpus[offsets[:-1]]
        _, comes_first = np.unique(first_gpu, return_index=True)
        second = np.ones(len(rows), dtype=np.bool_)
        second[comes_first] = False
        second |= self.gpu_job[first_gpu] != NONE
        holders, shared = np.repeat(rows, np.diff(offsets)), np.repeat(second, np.diff(offsets))
        self.gpu_job[gpus[~shared]] = holders[~shared]
        if second.any():
            self._any_second = True
            assert (self.gpu_second[gpus[shared]] == NONE).all(), "a plan grants GPUs that are under two leases"
            self.gpu_second[gpus[shared]] = holders[shared]
            self.partner[rows[second]] = self.gpu_job[first_gpu[second]]
            self.partner[self.partner[rows[second]]] = rows[second]
        return second

    def _run_co_located(self, due: CoLocated, now_s: float) -> None:
        pair = np.array(due.jobs)
        if (self.lease[pair] == due.leases).all() and (self.partner[pair] == pair[::-1]).all():
            self.co_located[pair] = pair[::-1]
            gpu_type = int(self.lease_type[due.jobs[0]])
            factors = self.rate_factors(*due.jobs, gpu_type)
            self._change_rate(pair, self.true_rate[pair, gpu_type] * factors * self.factor[pair], now_s)

    def _separate(self, rows: Ints, partners: Ints, now_s: float) -> None:
        """These jobs left the GPUs they shared; partners that stay run alone."""
        were_co_located = self.co_located[partners] != NONE
        self.partner[rows] = self.partner[partners] = self.co_located[rows] = self.co_located[partners] = NONE
        stays = self._is_leased[partners]
        moved = (self.gpu_job == NONE) & (self.gpu_second != NONE)
        self.gpu_job[moved] = self.gpu_second[moved]
        self.gpu_second[moved] = NONE
        alone = partners[stays & were_co_located]
        if len(alone):
            self._change_rate(alone, self.true_rate[alone, self.lease_type[alone]] * self.factor[alone], now_s)

    def _change_rate(self, rows: Ints, rate: Floats, now_s: float, factor: Floats | None = None) -> None:
        raise NotImplementedError

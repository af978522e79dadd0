"""Jobs and their modes as arrays for the prices of rows: K classes of jobs, M modes, P rows (a resource of a type).

Rates are in units of a job's best rate, and loads in parts of a row, so that prices are those of whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.program import Classes, classes_of, singletons
from gavelpy.solve.sizes.hull_kernels import IDLE, least_loads
from gavelpy.solve.sizes.problem_kernels import NONE, members_of_jobs, modes_of_jobs, shares_of

_DISTINCT, _COMPARED = 0.9, 1024  # part of the rows compared first that must differ, so that no classes are looked for


@dataclass(frozen=True, eq=False)
class Modes:
    """K classes of jobs with M modes, in scaled numbers: rates in units of the best, loads in parts of a row."""

    rate: Floats  # (K, M) 0 = no such mode
    load: Floats  # (K, M, R)
    rows: Ints  # (M, R) of P rows
    count: Floats  # (K,) jobs in the class
    row_count: int  # P

    @cached_property
    def least_load(self) -> Floats:
        """Least part of a row that a job's best rate takes in a mode, (K,): of the row that it uses most."""
        least: Floats = np.empty(len(self.rate))
        least_loads(self.rate, self.load, least)
        return least

    def some(self, classes: Ints) -> Modes:
        """The modes of some classes."""
        return replace(self, rate=self.rate[classes], load=self.load[classes], count=self.count[classes])


@dataclass(frozen=True, eq=False)
class ModeGoal:
    """The highest level with rates `rise` x level, up to `limit`; or the highest sum of `money` x rate above `need`."""

    need: Floats  # (K,) of a sum
    rise: Floats  # (K,) of a level; 0 for a sum
    money: Floats  # (K,) of a sum; 0 for a level
    limit: float = 0.0  # 0 = it is a sum

    @property
    def is_level(self) -> bool:
        """Whether it is a level."""
        return self.limit > 0

    def some(self, classes: Ints) -> ModeGoal:
        """The goal of some classes."""
        return replace(self, need=self.need[classes], rise=self.rise[classes], money=self.money[classes])

    def needs(self, level: float) -> Floats:
        """Least rates (K,)."""
        return np.minimum(level * self.rise, 1.0) if self.is_level else self.need


@dataclass(frozen=True, eq=False)
class ModeTimes:
    """Times in the modes: most classes are in one or two modes."""

    low: Ints  # (K,) IDLE = none
    high: Ints  # (K,)
    part: Floats  # (K,) time in `high`; the rest is in `low`
    rows: Ints  # (B,) classes for which that does not hold
    of_rows: Floats  # (B, M) their times

    @classmethod
    def of(cls, time: Floats) -> ModeTimes:
        """Any times, (K, M)."""
        K = len(time)
        return cls(np.full(K, IDLE), np.full(K, IDLE), np.zeros(K), np.arange(K), time)

    @property
    def whole(self) -> Floats:
        """All times, (K, M)."""
        K, M = len(self.part), self.of_rows.shape[1]
        time: Floats = np.zeros((K, M))
        time[np.arange(K), self.high] = self.part
        runs = np.flatnonzero(self.low != IDLE)
        time[runs, self.low[runs]] = 1.0 - self.part[runs]
        time[self.rows] = self.of_rows
        return time

    @property
    def row_of(self) -> Ints:
        """Place of each class in `rows`, (K,); NONE = it has none."""
        row = np.full(len(self.part), NONE)
        row[self.rows] = np.arange(len(self.rows))
        return row


@dataclass(frozen=True, eq=False)
class Best:
    """The best mix."""

    times: ModeTimes
    price: Floats  # (P,) of a whole row
    level: float
    steepness: Floats  # (K,) marginal cost of a rate


@dataclass(frozen=True, eq=False)
class ModeTable:
    """A problem in which every configuration is of one job."""

    problem: AllocationProblem
    best_steps_per_s: Floats  # (J,)
    jobs: Ints  # rows of those that can run
    classes: Classes  # of those
    member: Ints  # (J, S) membership of each size; NONE = none
    modes: Modes
    value: Floats  # (K,) objective units of a job at its best rate
    floor: Floats  # (K,) least rates

    def per_job(self, per_class: Floats) -> Floats:
        """Values of all jobs, (J,), from those of classes; zero for jobs that can run nowhere."""
        figures: Floats = np.zeros(self.problem.job_count)
        figures[self.jobs] = per_class[self.classes.of_job]
        return figures

    def shares(self, times: ModeTimes, noise: float) -> Floats:
        """Shares (C, T) from times; those up to `noise` are none."""
        p = self.problem
        of_class: Ints = np.full(p.job_count, NONE)
        of_class[self.jobs] = self.classes.of_job
        share: Floats = np.empty((p.configuration_count, len(p.gpu_types)))
        shares_of(
            self.member, p.member_configuration, p.occupied, p.row_capacity, of_class, times.low, times.high,
            times.part, times.row_of, times.of_rows, noise, share,
        )  # fmt: skip
        return share


def mode_table(problem: AllocationProblem, per_step_per_s: Floats, floor_steps_per_s: Floats) -> ModeTable:
    """The table; values and floors are (J,)."""
    J, T, R = problem.job_count, len(problem.gpu_types), len(problem.resources)
    S = int(np.bincount(problem.member_job, minlength=1).max())
    member: Ints = np.empty((J, S), dtype=np.int64)
    members_of_jobs(problem.member_job, J, member)
    rate, load, best = np.empty((J, S * T)), np.empty((J, S * T, R)), np.empty(J)
    modes_of_jobs(
        member, problem.member_configuration, problem.member_rate_steps_per_s, problem.fits, problem.occupied,
        problem.row_capacity, rate, load, best,
    )  # fmt: skip
    jobs = np.flatnonzero(best > 0)
    value, floor = best[jobs] * per_step_per_s[jobs], floor_steps_per_s[jobs] / best[jobs]
    classes = _classes(problem, member, rate, jobs, value, floor)
    k = classes.representative
    rows = np.arange(R) * T + np.tile(np.arange(T), S)[:, None]
    modes = Modes(_rows(rate, jobs[k]), _rows(load, jobs[k]), rows, classes.count.astype(np.float64), R * T)
    return ModeTable(problem, best, jobs, classes, member, modes, value[k], floor[k])


def _rows(figures: Floats, rows: Ints) -> Floats:
    """These rows, in ascending order; all of them without a copy."""
    return figures if len(rows) == len(figures) else figures[rows]


def _classes(
    problem: AllocationProblem, member: Ints, rate: Floats, jobs: Ints, value: Floats, floor: Floats
) -> Classes:
    def features(rows: Ints) -> Floats:
        of = member[jobs[rows]]
        need = np.where((of == NONE)[:, :, None], 0.0, problem.occupied[problem.member_configuration[of]])
        return np.column_stack([rate[jobs[rows]], need.reshape(len(of), -1), value[rows], floor[rows]])

    step = max(1, len(jobs) // _COMPARED)
    some = features(np.arange(0, len(jobs), step))
    if step > 1 and len(classes_of(some).count) > _DISTINCT * len(some):
        return singletons(len(jobs))
    return classes_of(features(np.arange(len(jobs))))


def is_free(modes: Modes, price: Floats) -> Bools:
    """Whether every row that a mode uses has no price, (K, M)."""
    free: Bools = (modes.rate > 0) & ~((modes.load > 0) & (price > 0)[modes.rows]).any(axis=2)
    return free


def used_by(modes: Modes, time: Floats) -> Floats:
    """Part of each row that these times use, (P,)."""
    used: Floats = np.zeros(modes.row_count)
    np.add.at(used, modes.rows, np.einsum("k,km,kmr->mr", modes.count, time, modes.load))
    return used

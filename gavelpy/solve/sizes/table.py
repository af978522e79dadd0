"""Jobs and their modes as arrays for the prices of rows: K classes of jobs, M modes, P rows (a resource of a type).

Rates are in units of a job's best rate, and loads in parts of a row, so that prices are those of whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.program import Classes, classes_of, singletons

_DISTINCT, _COMPARED = 0.9, 1024  # part of the rows compared first that must differ, so that no classes are looked for


@dataclass(frozen=True, eq=False)
class Modes:
    """K classes of jobs with M modes, in scaled numbers: rates in units of the best, loads in parts of a row."""

    rate: Floats  # (K, M) 0 = no such mode
    load: Floats  # (K, M, R)
    rows: Ints  # (M, R) of P rows
    count: Floats  # (K,) jobs in the class
    row_count: int  # P

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
class Best:
    """The best mix."""

    time: Floats  # (K, M)
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
    configuration: Ints  # (J, S) row of each size; -1 = none
    modes: Modes
    value: Floats  # (K,) objective units of a job at its best rate
    floor: Floats  # (K,) least rates

    def per_job(self, per_class: Floats) -> Floats:
        """Values of all jobs, (J,), from those of classes; zero for jobs that can run nowhere."""
        figures: Floats = np.zeros(self.problem.job_count)
        figures[self.jobs] = per_class[self.classes.of_job]
        return figures

    def shares(self, time: Floats) -> Floats:
        """Shares (C, T) from times (K, M)."""
        S, T = self.configuration.shape[1], len(self.problem.gpu_types)
        share: Floats = np.zeros((self.problem.configuration_count, T))
        of_job = time.reshape(-1, S, T)
        if len(of_job) < len(self.jobs):
            of_job = of_job[self.classes.of_job]
        rows = self.configuration if len(self.jobs) == len(self.configuration) else self.configuration[self.jobs]
        if rows.min(initial=0) >= 0:
            share[rows] = of_job
        else:
            share[rows[rows >= 0]] = of_job[rows >= 0]
        return share


def mode_table(problem: AllocationProblem, per_step_per_s: Floats, floor_steps_per_s: Floats) -> ModeTable:
    """The table; values and floors are (J,)."""
    J, T, R = problem.job_count, len(problem.gpu_types), len(problem.resources)
    order = np.argsort(problem.member_job, kind="stable")
    sorted_jobs = problem.member_job[order]
    first = np.searchsorted(sorted_jobs, np.arange(J))
    slot = np.arange(J and len(order)) - first[sorted_jobs]
    S = int(slot.max(initial=0)) + 1
    configuration = np.full((J, S), -1)
    configuration[sorted_jobs, slot] = problem.member_configuration[order]
    rate: Floats = np.zeros((J, S, T))
    rate[problem.member_job[order], slot] = np.where(problem.fits, problem.member_rate_steps_per_s, 0.0)[order]
    rate = rate.reshape(J, S * T)
    best = reduce(np.maximum, rate.T, np.zeros(J))
    jobs = np.flatnonzero(best > 0)
    need = problem.occupied[configuration]
    need[configuration < 0] = 0.0
    rate, need = _rows(rate, jobs) / best[jobs, None], _rows(need, jobs)
    value, floor = best[jobs] * per_step_per_s[jobs], floor_steps_per_s[jobs] / best[jobs]
    classes = _classes(rate, need.reshape(len(jobs), S * R), value, floor)
    k = classes.representative
    amount = np.where(problem.row_capacity > 0, problem.row_capacity, 1.0).reshape(R, T)
    load = (_rows(need, k)[:, :, None, :] / amount.T).reshape(len(k), S * T, R)
    rows = np.arange(R) * T + np.tile(np.arange(T), S)[:, None]
    modes = Modes(_rows(rate, k), load, rows, classes.count.astype(np.float64), R * T)
    return ModeTable(problem, best, jobs, classes, configuration, modes, value[k], floor[k])


def _rows(figures: Floats, rows: Ints) -> Floats:
    """These rows, in ascending order; all of them without a copy."""
    return figures if len(rows) == len(figures) else figures[rows]


def _classes(*figures: Floats) -> Classes:
    step = max(1, len(figures[0]) // _COMPARED)
    some = np.column_stack([each[::step] for each in figures])
    if step > 1 and len(classes_of(some).count) > _DISTINCT * len(some):
        return singletons(len(figures[0]))
    return classes_of(np.column_stack(figures))


def is_free(modes: Modes, price: Floats) -> Bools:
    """Whether every row that a mode uses has no price, (K, M)."""
    free: Bools = (modes.rate > 0) & ~((modes.load > 0) & (price > 0)[modes.rows]).any(axis=2)
    return free


def used_by(modes: Modes, time: Floats) -> Floats:
    """Part of each row that these times use, (P,)."""
    used: Floats = np.zeros(modes.row_count)
    np.add.at(used, modes.rows, np.einsum("k,km,kmr->mr", modes.count, time, modes.load))
    return used

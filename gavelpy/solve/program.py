"""A problem in scaled numbers with classes of equal jobs, as all rungs of the ladder solve it.

Rates are in units of the job's best rate, so they are in 0..1 whatever a step is, and capacity is in units of the
type's GPUs. Only entries (configuration, GPU type) that can be positive are included.

Exchangeable jobs (same rates, GPUs, scale, floor) have an optimum in which they all get the same shares: average any
optimum over their permutations. So a class of n jobs is one row whose GPUs count n times; every member gets its shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem

MANTISSA_BITS = 40  # numbers that agree to 2^-40 are equal; the certificate uses the exact numbers
APART = 1e-11  # relative: sums of figures that agree to so many bits differ by less
_FEW = 256  # rows; for so few, comparing is faster than sorting hashes
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd; the golden ratio in 64 bits


@dataclass(frozen=True, eq=False)
class Classes:
    """A partition of J jobs into K classes, numbered by first appearance."""

    of_job: Ints  # (J,) class of each job
    representative: Ints  # (K,) row of each class's first job
    count: Ints  # (K,) jobs in each class


def classes_of(features: Floats) -> Classes:
    """The classes of jobs with equal rows of `features`, (J, F)."""
    if features.size and are_distinct(*np.abs(features.T)):
        return singletons(len(features))
    return _classes(_rounded(features))


def are_distinct(*figures: Floats) -> bool:
    """Whether one sum over the figures of each job, (J,), shows that no two jobs are equal; False proves nothing.

    No figure may be negative.
    """
    total = np.zeros(len(figures[0]))
    for square, figure in enumerate(figures, 2):
        total += math.sqrt(square) * figure
    total.sort()
    return bool((total[1:] - total[:-1] > APART * total[1:]).all())


def classes_of_labels(labels: Ints) -> Classes:
    """The classes of rows with equal `labels`, (J, F)."""
    return _classes(labels)


def singletons(job_count: int) -> Classes:
    """One class for each job."""
    rows = np.arange(job_count)
    return Classes(rows, rows, np.ones(job_count, dtype=np.int64))


def mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Words that differ in many bits if `words` differ in one, so that sums of them distinguish sets."""
    spread = words * np.uint64(_MULTIPLIER)
    return spread ^ (spread >> np.uint64(29))


def _classes(rows: Floats | Ints) -> Classes:
    if len(rows) <= _FEW:
        return _classes_of_few(rows)
    keys = _hashes(rows)
    if (np.diff(np.sort(keys)) > 0).all():
        return singletons(len(rows))
    _, first, inverse, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    of_job, representative = rank[inverse], first[order]
    if not np.array_equal(rows[representative[of_job]], rows):  # two different rows have the same hash: merge none
        return singletons(len(rows))
    return Classes(of_job, representative, count[order])


def _classes_of_few(rows: Floats | Ints) -> Classes:
    """The classes, by comparing the bytes of rows."""
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
    return rounded + 0.0  # -0.0 and 0.0 are equal


def _hashes(rows: Floats | Ints) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each row."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    hashes = np.zeros(len(rows), dtype=np.uint64)
    for column in range(bits.shape[1]):
        hashes = mixed(hashes ^ bits[:, column])
    return hashes


@dataclass(frozen=True, eq=False)
class Partition:
    """Classes of the R jobs that can run, and Q classes of the configurations that contain only such jobs."""

    classes: Classes
    of_configuration: Ints  # (C,) class; -1 = a member can run nowhere
    representative: Ints  # (Q,) row of each class's first configuration
    part: Floats  # (C,) share of a configuration for each unit of its class
    reach: Floats  # (Q,) total share of its configurations for one unit, which fills the time of some member


def of_singles(classes: Classes, jobs: Ints, job_count: int) -> Partition:
    """The partition where configuration c is job c by itself; `jobs` are the R that can run."""
    of_configuration = np.full(job_count, -1)
    of_configuration[jobs] = classes.of_job
    part: Floats = np.zeros(job_count)
    part[jobs] = 1.0
    return Partition(
        classes, of_configuration, jobs[classes.representative], part, reach=classes.count.astype(np.float64)
    )


@dataclass(frozen=True, eq=False)
class Columns:
    """Q classes of configurations, with members in D places: at most D jobs share GPUs."""

    fits: Bools  # (Q, T) whether it may have a share
    gpus: Floats  # (Q,) taken at share 1, over all its configurations
    others: Floats  # (R - 1, Q) the same of each other resource
    is_alone: Bools  # (Q,) whether one job has the GPUs to itself
    member_class: Ints  # (D, Q) -1 = no member; a class of jobs appears once, also if two of its jobs share GPUs
    member_time: Floats  # (D, Q) part of each job's time at share 1
    member_rate: Floats  # (D, Q, T) of each job at share 1, in units of its best rate


def columns_of(problem: AllocationProblem, partition: Partition, jobs: Ints, best_rate_steps_per_s: Floats) -> Columns:
    """The columns of `partition`; `jobs` are the R rows that can run."""
    rows = partition.representative
    gpus = problem.gpus_occupied[rows] * partition.reach
    others: Floats = (problem.demand[rows, 1:] / THOUSANDTHS * partition.reach[:, None]).T
    class_of = np.full(problem.job_count, -1)
    class_of[jobs] = partition.classes.of_job
    best = np.where(best_rate_steps_per_s > 0, best_rate_steps_per_s, 1.0)
    if problem.runs_alone:
        rates = problem.member_rate_steps_per_s[rows] / best[rows, None]
        ones, everyone = np.ones((1, len(rows))), np.ones(len(rows), dtype=np.bool_)
        return Columns(problem.fits[rows], gpus, others, everyone, class_of[rows][None], ones, rates[None])
    count = problem.member_count[rows]
    first = (np.cumsum(problem.member_count) - problem.member_count)[rows]
    place = np.arange(count.max(initial=1))[:, None]
    taken = place < count
    member = np.where(taken, first + place, 0)
    job = problem.member_job[member]
    member_class = np.where(taken, class_of[job], -1)
    time = np.where(taken, partition.reach / partition.classes.count[member_class], 0.0)
    rate = problem.member_rate_steps_per_s[member] * (time / best[job])[:, :, None]
    for later in range(1, len(place)):
        for earlier in range(later):
            same = np.flatnonzero((member_class[later] == member_class[earlier]) & taken[later])
            time[earlier, same] += time[later, same]
            rate[earlier, same] += rate[later, same]
            member_class[later, same], time[later, same], rate[later, same] = -1, 0.0, 0.0
    return Columns(problem.fits[rows], gpus, others, count == 1, member_class, time, rate)


@dataclass(frozen=True, eq=False)
class Program:
    """K classes of equal jobs, E entries that may have a share, N memberships of a class in an entry."""

    problem: AllocationProblem
    admissible: Bools  # (C, T) fits, and every member can run by itself somewhere
    jobs: Ints  # (R,) rows of the jobs that can run
    classes: Classes  # of those R jobs
    best_rate_steps_per_s: Floats  # (J,) alone on its best type; 0 = it can run nowhere
    value: (
        Floats  # (K,) objective units of one job at its best rate all the time; 0 = it does not count in the objective
    )
    type_worth: Floats  # (T,) factor on the value of jobs on this type
    floor: Floats  # (K,) least rate, in units of the best rate
    base: Floats  # (K,) rate that is subtracted for a level, in units of the best rate
    weight: Floats  # (K,) of a job's value in a sum: the number of equal jobs for which its row stands
    partition: Partition  # of configurations into Q classes
    columns: Columns  # rates, time and GPUs of each class of configurations
    entry_group: Ints  # (E,) class of configurations
    entry_type: Ints  # (E,)
    entry_load: (
        Floats  # (R, E) part of each resource of the type taken at share 1, over all configurations of the class
    )
    member_entry: Ints  # (N,) a class of jobs appears once in an entry, also if two of its jobs share GPUs
    member_class: Ints  # (N,)
    member_rate: Floats  # (N,) of each job of the class at share 1, in units of the best rate
    member_time: Floats  # (N,) part of the time of each job of the class at share 1; 1 if it is alone
    member_alone: Bools  # (N,) whether the entry has one job only

    def shares(self, entry_share: Floats) -> Floats:
        """Shares (C, T) of the whole problem from those of the entries, (E,)."""
        of_group: Floats = np.zeros((len(self.partition.reach) + 1, len(self.problem.gpu_types)))
        of_group[self.entry_group, self.entry_type] = entry_share  # the last row, zero, is for group -1
        share: Floats = of_group[self.partition.of_configuration]
        return share if self.problem.runs_alone else share * self.partition.part[:, None]

    def entry_shares(self, share: Floats) -> Floats:
        """Shares of the entries, (E,), from those of the whole problem, (C, T), that are equal within classes."""
        part = self.partition.part
        largest = np.zeros(len(self.partition.reach), dtype=np.int64)
        order = np.argsort(part, kind="stable")
        order = order[self.partition.of_configuration[order] >= 0]
        largest[self.partition.of_configuration[order]] = (
            order  # the last one of each class, which has the largest part
        )
        of_group = largest[self.entry_group]
        shares: Floats = share[of_group, self.entry_type] / part[of_group]
        return shares

    def only(self, group: Ints, gpu_type: Ints) -> Program:
        """The program with only these entries, in this order."""
        return replace(self, **_entries(self.problem, self.columns, group, gpu_type))

    def whole(self) -> Program:
        """The program with all its entries."""
        return self if self.problem.runs_alone else self.only(*np.nonzero(self.columns.fits))

    def row(self, resource: int) -> Ints:
        """Row of each entry's constraint on a resource, (E,): one for each resource and type, GPUs first."""
        rows: Ints = self.entry_type + resource * len(self.problem.gpu_types) if resource else self.entry_type
        return rows

    def loads(self) -> tuple[Ints, Ints, Floats]:
        """The constraints on resources as a matrix over the entries: rows, columns, values."""
        entries = np.arange(len(self.entry_type))
        if len(self.entry_load) == 1:
            return self.entry_type, entries, self.entry_load[0]
        row, column, value = [self.entry_type], [entries], [self.entry_load[0]]
        for resource in range(1, len(self.entry_load)):
            some = np.flatnonzero(self.entry_load[resource])
            row.append(self.row(resource)[some])
            column.append(some)
            value.append(self.entry_load[resource, some])
        return np.concatenate(row), np.concatenate(column), np.concatenate(value)

    def cost(self, price: Floats) -> Floats:
        """Cost of each entry at share 1, (E,), at prices (R T,) of all of a resource of a type."""
        cost: Floats = self.entry_load[0] * price[self.entry_type]
        for resource in range(1, len(self.entry_load)):
            cost = cost + self.entry_load[resource] * price[self.row(resource)]
        return cost

    def taken(self, share: Floats) -> Floats:
        """Part of each resource of each type that these shares of the entries, (E,), take, (R T,)."""
        T = len(self.problem.gpu_types)
        of_each = [np.bincount(self.entry_type, weights=load * share, minlength=T) for load in self.entry_load]
        return np.concatenate(of_each)

    def per_job(self, per_class: Floats) -> Floats:
        """Values by job, (J,), from values by class, (K,); zero for jobs that can run nowhere."""
        figures: Floats = np.zeros(self.problem.job_count)
        figures[self.jobs] = per_class[self.classes.of_job]
        return figures

    @cached_property
    def even_level(self) -> float:
        """The least value over jobs if the GPUs of each type are shared evenly: a level that is feasible.

        Over jobs that count in the objective; 0 if there is none. It ignores bases, so it is a unit for differences.
        """
        p = self.problem
        if p.has_sizes or len(p.resources) > 1:
            part = self._part_of_all_sizes
        else:
            gpus_asked = float(p.gpus_asked[self.jobs].sum())
            part = (p.gpu_counts / max(gpus_asked, float(p.gpu_counts.sum())))[self.entry_type]
        weights = self.member_rate * part[self.member_entry] * self.member_alone
        levels = self.value * np.bincount(self.member_class, weights=weights, minlength=len(self.value))
        return float(levels[self.value > 0].min(initial=np.inf)) if self.value.any() else 0.0

    @property
    def _part_of_all_sizes(self) -> Floats:
        """Part of a type's time that every size of every job can have, (E,)."""
        p = self.problem
        lone = p.member_count[p.member_configuration] == 1
        counts = p.row_capacity.reshape(len(p.resources), -1)
        whole = np.maximum(p.occupied[p.member_configuration[lone]].sum(axis=0), counts.sum(axis=1))[:, None]
        parts = (counts / np.where(whole > 0, whole, 1.0))[:, self.entry_type]
        part: Floats = parts[0]
        for of_resource, load in zip(parts[1:], self.entry_load[1:], strict=True):
            part = np.where(load > 0, np.minimum(part, of_resource), part)
        return part


def best_rate_steps_per_s(problem: AllocationProblem) -> Floats:
    """Rate of each job alone on the best type that has enough GPUs, (J,); 0 = it can run nowhere."""
    if problem.runs_alone:
        rates = np.where(problem.fits, problem.member_rate_steps_per_s, 0.0)
        return reduce(np.maximum, rates.T, np.zeros(len(rates)))  # faster than `max`
    alone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)
    fits = problem.fits[problem.member_configuration[alone]]
    best_of_member = np.where(fits, problem.member_rate_steps_per_s[alone], 0.0).max(axis=1, initial=0.0)
    best: Floats = np.zeros(problem.job_count)
    np.maximum.at(best, problem.member_job[alone], best_of_member)
    return best


def program_of(
    problem: AllocationProblem,
    value_per_step_per_s: Floats,  # (J,)
    floor_steps_per_s: Floats,  # (J,)
    *,
    base_steps_per_s: Floats | None = None,  # (J,); 0 for all if not given
    type_worth: Floats | None = None,  # (T,); 1 for all if not given
    weight: Floats | None = None,  # (J,); 1 for all if not given
    aggregate: bool = True,
    together: bool = True,
) -> Program:
    """The program of the jobs that can run; without `together`, only with the entries of one job."""
    best = best_rate_steps_per_s(problem)
    base = np.zeros(problem.job_count) if base_steps_per_s is None else base_steps_per_s
    jobs = np.flatnonzero(best > 0)
    figures = (best[jobs] * value_per_step_per_s[jobs], floor_steps_per_s[jobs] / best[jobs], base[jobs] / best[jobs])
    partition = _partition(problem, jobs, best, figures, aggregate=aggregate)
    columns = columns_of(problem, partition, jobs, best)
    rows = jobs[partition.classes.representative]
    return Program(
        problem=problem,
        admissible=problem.fits if problem.runs_alone else problem.fits & (partition.of_configuration >= 0)[:, None],
        jobs=jobs,
        classes=partition.classes,
        best_rate_steps_per_s=best,
        value=best[rows] * value_per_step_per_s[rows],
        type_worth=np.ones(len(problem.gpu_types)) if type_worth is None else type_worth,
        floor=floor_steps_per_s[rows] / best[rows],
        base=base[rows] / best[rows],
        weight=np.ones(len(rows)) if weight is None else weight[rows],
        partition=partition,
        columns=columns,
        **_entries(problem, columns, *np.nonzero(columns.fits & (columns.is_alone | together)[:, None])),
    )


def _partition(
    problem: AllocationProblem, jobs: Ints, best: Floats, figures: tuple[Floats, ...], *, aggregate: bool
) -> Partition:
    rates = problem.rate_alone_steps_per_s if not problem.runs_alone else problem.member_rate_steps_per_s
    gpus = problem.gpus_asked[:, None] if not problem.runs_alone else problem.occupied
    features = np.column_stack((rates[jobs] / best[jobs, None], gpus[jobs], *figures))
    if problem.runs_alone:
        from gavelpy.solve.prices.table import any_classes_of

        return of_singles(any_classes_of(features) if aggregate else singletons(len(jobs)), jobs, problem.job_count)
    from gavelpy.solve.packing.partition import of_pairs

    return of_pairs(problem, jobs, best, features, aggregate=aggregate)


def _entries(problem: AllocationProblem, columns: Columns, group: Ints, gpu_type: Ints) -> dict[str, Any]:
    """Fields of a program with these entries."""
    gpus = problem.gpu_counts[gpu_type]
    load: Floats = (columns.gpus[group] / np.where(gpus > 0, gpus, 1.0))[None]
    if len(columns.others):
        amount = problem.row_capacity.reshape(len(problem.resources), -1)[1:, gpu_type]
        load = np.vstack([load, columns.others[:, group] / np.where(amount > 0, amount, 1.0)])
    place, entry = np.nonzero(columns.member_class[:, group] >= 0)
    at = (place, group[entry])
    return {
        "entry_group": group,
        "entry_type": gpu_type,
        "entry_load": load,
        "member_entry": entry,
        "member_class": columns.member_class[at],
        "member_rate": columns.member_rate[(*at, gpu_type[entry])],
        "member_time": columns.member_time[at],
        "member_alone": columns.is_alone[group[entry]],
    }

"""A problem in equilibrated numbers: what every rung of the ladder solves.

Rates are in units of the job's best rate, so that they lie in 0..1 whatever the job counts as a step, and capacity in
units of the type's GPUs. Only entries (configuration, GPU type) that can be positive are there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.classes import Classes, classes_of, singletons
from gavelpy.solve.packing.entries import Columns, columns_of
from gavelpy.solve.packing.partition import Partition, of_pairs, of_singles


@dataclass(frozen=True, eq=False)
class Program:
    """K classes of equal jobs, E entries that may have a share, N memberships of a class in an entry."""

    problem: AllocationProblem
    admissible: Bools  # (C, T) fits, and every member can run by itself somewhere
    jobs: Ints  # (R,) rows of the jobs that can run
    classes: Classes  # of those R jobs
    best_rate_steps_per_s: Floats  # (J,) alone on the best type there is; 0 = can run nowhere
    value: Floats  # (K,) objective units of one job at its best rate all the time; 0 = no part in the objective
    type_worth: Floats  # (T,) factor on the value of what runs there
    floor: Floats  # (K,) least rate, in units of the best rate
    base: Floats  # (K,) rate from which a level counts, in units of the best rate
    partition: Partition  # of configurations into Q classes, each configuration alone where jobs are
    columns: Columns  # what each class of configurations is to its members
    entry_group: Ints  # (E,) class of configurations
    entry_type: Ints  # (E,)
    entry_load: Floats  # (E,) part of the type's GPUs taken at share 1, over all configurations of the class
    member_entry: Ints  # (N,) a class of jobs stands once in an entry, also where two of its jobs share GPUs
    member_class: Ints  # (N,)
    member_rate: Floats  # (N,) of each job of the class at share 1, in units of the best rate
    member_time: Floats  # (N,) part of its time that each job of the class is in it at share 1; 1 where it is alone
    member_alone: Bools  # (N,) whether the entry holds one job only

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
        largest[self.partition.of_configuration[order]] = order  # the last one of each class, which has the most
        of_group = largest[self.entry_group]
        shares: Floats = share[of_group, self.entry_type] / part[of_group]
        return shares

    def only(self, group: Ints, gpu_type: Ints) -> Program:
        """The program with only these entries, in this order."""
        return replace(self, **_entries(self.problem, self.columns, group, gpu_type))

    def whole(self) -> Program:
        """The program with all its entries."""
        return self if self.problem.runs_alone else self.only(*np.nonzero(self.columns.fits))

    def per_job(self, per_class: Floats) -> Floats:
        """A figure of each job, (J,), from that of its class, (K,); zero for jobs that can run nowhere."""
        figures: Floats = np.zeros(self.problem.job_count)
        figures[self.jobs] = per_class[self.classes.of_job]
        return figures

    @cached_property
    def even_level(self) -> float:
        """The least value over jobs when the GPUs of each type are shared out evenly: a level that can be had.

        Of jobs with a part in the objective; 0 if there is none. Bases are left out, so it is a unit for differences.
        """
        p = self.problem
        gpus_asked = float(p.gpus_asked[self.jobs].sum())
        part = p.gpu_counts / max(gpus_asked, float(p.gpu_counts.sum()))  # of each type's time for each GPU asked for
        weights = self.member_rate * part[self.entry_type[self.member_entry]] * self.member_alone
        levels = self.value * np.bincount(self.member_class, weights=weights, minlength=len(self.value))
        return float(levels[self.value > 0].min(initial=np.inf)) if self.value.any() else 0.0


def best_rate_steps_per_s(problem: AllocationProblem) -> Floats:
    """Rate of each job alone on the best type that has enough GPUs, (J,); 0 = it can run nowhere."""
    if problem.runs_alone:
        runs: Floats = np.where(problem.fits, problem.member_rate_steps_per_s, 0.0).max(axis=1, initial=0.0)
        return runs
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
    aggregate: bool = True,
    together: bool = True,
) -> Program:
    """The program of the jobs that can run; without `together`, only with the entries that hold one job each."""
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
        partition=partition,
        columns=columns,
        **_entries(problem, columns, *np.nonzero(columns.fits & (columns.is_alone | together)[:, None])),
    )


def _partition(
    problem: AllocationProblem, jobs: Ints, best: Floats, figures: tuple[Floats, ...], *, aggregate: bool
) -> Partition:
    rates = problem.rate_alone_steps_per_s if not problem.runs_alone else problem.member_rate_steps_per_s
    gpus = problem.gpus_asked if not problem.runs_alone else problem.gpus_occupied
    features = np.column_stack((rates[jobs] / best[jobs, None], gpus[jobs], *figures))
    if problem.runs_alone:
        return of_singles(classes_of(features) if aggregate else singletons(len(jobs)), jobs, problem.job_count)
    return of_pairs(problem, jobs, best, features, aggregate=aggregate)


def _entries(problem: AllocationProblem, columns: Columns, group: Ints, gpu_type: Ints) -> dict[str, Any]:
    """Fields of a program with these entries."""
    gpus = problem.gpu_counts[gpu_type]
    place, entry = np.nonzero(columns.member_class[:, group] >= 0)
    at = (place, group[entry])
    return {
        "entry_group": group,
        "entry_type": gpu_type,
        "entry_load": columns.gpus[group] / np.where(gpus > 0, gpus, 1.0),
        "member_entry": entry,
        "member_class": columns.member_class[at],
        "member_rate": columns.member_rate[(*at, gpu_type[entry])],
        "member_time": columns.member_time[at],
        "member_alone": columns.is_alone[group[entry]],
    }

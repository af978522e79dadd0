"""A problem in equilibrated numbers: what every rung of the ladder solves.

Rates are in units of the job's best rate, so that they lie in 0..1 whatever the job counts as a step, and capacity in
units of the type's GPUs. Only entries (configuration, GPU type) that can be positive are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.classes import Classes, classes_of, singletons


@dataclass(frozen=True, eq=False)
class Program:
    """K classes of equal jobs, E entries that may have a share, N memberships of a class in an entry."""

    problem: AllocationProblem
    admissible: Bools  # (C, T) fits, and every member can run by itself somewhere
    jobs: Ints  # (R,) rows of the jobs that can run
    classes: Classes  # of those R jobs
    best_rate_steps_per_s: Floats  # (J,) alone on the best type there is; 0 = can run nowhere
    value: Floats  # (K,) objective units of one job at its best rate all the time
    floor: Floats  # (K,) least rate, in units of the best rate
    entry_configuration: Ints  # (E,) row of the problem's configurations
    entry_type: Ints  # (E,)
    entry_load: Floats  # (E,) part of the type's GPUs taken at share 1, over all members of the class
    member_entry: Ints  # (N,)
    member_class: Ints  # (N,)
    member_rate: Floats  # (N,) in units of the best rate
    member_alone: Bools  # (N,) whether the entry holds that job only

    def shares(self, entry_share: Floats) -> Floats:
        """Shares (C, T) of the whole problem from those of the entries, (E,)."""
        share: Floats = np.zeros(self.problem.fits.shape)
        share[self.entry_configuration, self.entry_type] = entry_share
        if self.problem.runs_alone:  # configuration c is job c: members take the row of their representative
            share[self.jobs] = share[self.jobs[self.classes.representative]][self.classes.of_job]
        return share

    def per_job(self, per_class: Floats) -> Floats:
        """A figure of each job, (J,), from that of its class, (K,); zero for jobs that can run nowhere."""
        figures: Floats = np.zeros(self.problem.job_count)
        figures[self.jobs] = per_class[self.classes.of_job]
        return figures

    @cached_property
    def even_level(self) -> float:
        """The least value over jobs when the GPUs of each type are shared out evenly: a level that can be had."""
        p = self.problem
        gpus_asked = float(p.gpus_asked[self.jobs].sum())
        part = p.gpu_counts / max(gpus_asked, float(p.gpu_counts.sum()))  # of each type's time for each GPU asked for
        weights = self.member_rate * part[self.entry_type[self.member_entry]] * self.member_alone
        levels = self.value * np.bincount(self.member_class, weights=weights, minlength=len(self.value))
        return float(levels.min())


def best_rate_steps_per_s(problem: AllocationProblem) -> Floats:
    """Rate of each job alone on the best type that has enough GPUs, (J,); 0 = it can run nowhere."""
    fits = problem.fits[problem.member_configuration]
    best_of_member: Floats = np.where(fits, problem.member_rate_steps_per_s, 0.0).max(axis=1, initial=0.0)
    if problem.runs_alone:
        return best_of_member
    best: Floats = np.zeros(problem.job_count)
    alone = problem.member_count[problem.member_configuration] == 1
    np.maximum.at(best, problem.member_job[alone], best_of_member[alone])
    return best


def program_of(
    problem: AllocationProblem, value_per_step_per_s: Floats, floor_steps_per_s: Floats, *, aggregate: bool = True
) -> Program:
    """The program of the jobs that can run; `value_per_step_per_s` and `floor_steps_per_s` are (J,)."""
    best = best_rate_steps_per_s(problem)
    jobs = np.flatnonzero(best > 0)
    admissible = problem.fits
    if problem.runs_alone:
        figures = (
            problem.gpus_occupied[jobs],
            best[jobs] * value_per_step_per_s[jobs],
            floor_steps_per_s[jobs] / best[jobs],
        )
        features = np.column_stack((problem.member_rate_steps_per_s[jobs] / best[jobs, None], *figures))
        classes = classes_of(features) if aggregate else singletons(len(jobs))
        configurations = members = jobs[classes.representative]
        member_row = member_class = np.arange(len(configurations))
    else:
        classes = singletons(len(jobs))
        possible = np.ones(problem.configuration_count, dtype=np.bool_)  # nobody in it is left out of the objective
        np.logical_and.at(possible, problem.member_configuration, best[problem.member_job] > 0)
        admissible = problem.fits & possible[:, None]
        configurations = np.flatnonzero(possible)
        members = np.flatnonzero(possible[problem.member_configuration])
        member_row = np.searchsorted(configurations, problem.member_configuration[members])
        member_class = np.searchsorted(jobs, problem.member_job[members])
    rows = jobs[classes.representative]
    entries = problem.fits[configurations]
    entry_row, entry_type = np.nonzero(entries)
    entry_index = np.cumsum(entries).reshape(entries.shape) - 1
    membership, member_type = np.nonzero(entries[member_row])
    count = classes.count[entry_row] if problem.runs_alone else 1
    entry_configuration = configurations[entry_row]
    gpus = problem.gpu_counts[entry_type]
    return Program(
        problem=problem,
        admissible=admissible,
        jobs=jobs,
        classes=classes,
        best_rate_steps_per_s=best,
        value=best[rows] * value_per_step_per_s[rows],
        floor=floor_steps_per_s[rows] / best[rows],
        entry_configuration=entry_configuration,
        entry_type=entry_type,
        entry_load=problem.gpus_occupied[entry_configuration] * count / np.where(gpus > 0, gpus, 1.0),
        member_entry=entry_index[member_row[membership], member_type],
        member_class=member_class[membership],
        member_rate=problem.member_rate_steps_per_s[members[membership], member_type]
        / best[rows[member_class[membership]]],
        member_alone=problem.member_count[configurations[member_row[membership]]] == 1,
    )

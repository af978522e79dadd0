"""What a class of configurations is to its members: rates, time and GPUs for each unit of its share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.packing.partition import Partition


@dataclass(frozen=True, eq=False)
class Columns:
    """Q classes of configurations, with members in D places: D is the most that share GPUs."""

    fits: Bools  # (Q, T) whether it may have a share
    gpus: Floats  # (Q,) taken at share 1, over all its configurations
    is_alone: Bools  # (Q,) whether one job has the GPUs to itself
    member_class: Ints  # (D, Q) -1 = no member; a class of jobs stands once, also where two of its jobs share GPUs
    member_time: Floats  # (D, Q) part of each job's time at share 1
    member_rate: Floats  # (D, Q, T) of each job at share 1, in units of its best rate


def columns_of(problem: AllocationProblem, partition: Partition, jobs: Ints, best_rate_steps_per_s: Floats) -> Columns:
    """The columns of `partition`; `jobs` are the R rows that can run."""
    rows = partition.representative
    gpus = problem.gpus_occupied[rows] * partition.reach
    class_of = np.full(problem.job_count, -1)
    class_of[jobs] = partition.classes.of_job
    best = np.where(best_rate_steps_per_s > 0, best_rate_steps_per_s, 1.0)
    if problem.runs_alone:
        rates = problem.member_rate_steps_per_s[rows] / best[rows, None]
        ones, everyone = np.ones((1, len(rows))), np.ones(len(rows), dtype=np.bool_)
        return Columns(problem.fits[rows], gpus, everyone, class_of[rows][None], ones, rates[None])
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
    return Columns(problem.fits[rows], gpus, count == 1, member_class, time, rate)

"""The problem of some of a problem's jobs, on a part of its capacity."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavelpy.model.arrays import Ints
from gavelpy.model.problem import AllocationProblem

OF_JOBS = (
    "gpus_asked", "weight", "steps_remaining", "steps_total", "age_s", "isolated_s", "deadline_s", "attained_gpu_s",
    "entity", "gpu_type_held", "gpus_held", "job_type", "owner", "restart_s", "completion_value", "losses", "app",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ProblemPart:
    """A part, and which configurations of the whole problem it has."""

    problem: AllocationProblem
    rows: Ints  # (C',) of the whole problem


def part_of(problem: AllocationProblem, jobs: Ints, capacity: Ints) -> ProblemPart:
    """The problem of these jobs (rows, ascending) with this capacity (T, R), without memory.

    A configuration of several jobs belongs to it if all of them do.

    >>> p = AllocationProblem.of("abc", ["v100"], [2], [[1.0], [2.0], [3.0]])
    >>> part = part_of(p, np.array([0, 2]), p.capacity // 2)
    >>> part.problem.job_ids, part.problem.gpu_counts.tolist(), part.rows.tolist()
    (('a', 'c'), [1.0], [0, 2])
    """
    new_job = np.full(problem.job_count, -1)
    new_job[jobs] = np.arange(len(jobs))
    is_here = np.ones(problem.configuration_count, dtype=np.bool_)
    np.logical_and.at(is_here, problem.member_configuration, new_job[problem.member_job] >= 0)
    rows, members = np.flatnonzero(is_here), np.flatnonzero(is_here[problem.member_configuration])
    new_row = np.cumsum(is_here) - 1
    part = replace(
        problem,
        job_ids=tuple(problem.job_ids[row] for row in jobs.tolist()),
        capacity=capacity,
        demand=problem.demand[rows],
        plan=tuple(problem.plan[row] for row in rows.tolist()) if problem.plan else (),
        member_configuration=new_row[problem.member_configuration[members]],
        member_job=new_job[problem.member_job[members]],
        member_rate_steps_per_s=problem.member_rate_steps_per_s[members],
        memory=b"",
        **{name: getattr(problem, name)[jobs] for name in OF_JOBS},
    )
    return ProblemPart(part, rows)

"""How each job runs best by itself, for policies that hand out whole GPUs."""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Ints
from gavelpy.model.problem import AllocationProblem


def fastest_alone(problem: AllocationProblem) -> Ints:
    """Row of the configuration in which each job runs fastest by itself on each type, (J, T); -1 = it cannot run there.

    Equally fast: the first. GPUs are not counted: a type may have too few.
    """
    lone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)[::-1]  # so that the first comes last
    jobs, rates = problem.member_job[lone], problem.member_rate_steps_per_s[lone]
    best = (rates > 0) & (rates == problem.rate_alone_steps_per_s[jobs])
    fastest = np.full((problem.job_count, len(problem.gpu_types)), -1)
    member, gpu_type = np.nonzero(best)
    fastest[jobs[member], gpu_type] = problem.member_configuration[lone[member]]
    return fastest

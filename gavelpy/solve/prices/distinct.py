"""Linear objectives of jobs that are all distinct, by kernels from the problem's arrays to the certificate.

Most problems are of this kind. Others take the road of ladder.py, which merges equal jobs, nearly equal ones and equal
GPU types, and leaves out jobs that can run nowhere. Both find the same answer, to the last byte. For some hundred jobs
to look for all that takes longer than the search.
"""

from __future__ import annotations

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import ladder, near_numbers
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX, Answer
from gavelpy.solve.objective import LinearObjective, MaxMin
from gavelpy.solve.prices.engine import answers, best_of
from gavelpy.solve.prices.table import SAMPLE, Jobs, Table, fixed
from gavelpy.solve.program import APART
from gavelpy.solve.solver import Solver


def best_of_distinct(problem: AllocationProblem, objective: LinearObjective, solver: Solver) -> Answer | None:
    """The best certified shares; None if jobs are equal, nearly equal or cannot run, or if there is no certificate."""
    if not answers(problem, objective) or objective.rate_floor_steps_per_s.any():
        return None
    values = objective.scale if isinstance(objective, MaxMin) else objective.gain
    jobs = _distinct_jobs(problem, values)
    if jobs is None:
        return None
    figures = (problem.member_rate_steps_per_s, values)
    if ladder.asks_for_nearly_equal(problem, objective) and not all(map(few_are_near, figures)):
        return None
    try:
        answer = best_of(jobs, objective, solver)
    except SolverFailed:  # the other road counts failures
        return None
    is_certified = answer and answer.certificate.gap <= GAP_MAX and answer.certificate.violation <= VIOLATION_MAX
    return answer if is_certified else None


def few_are_near(figures: Floats) -> bool:
    """Whether ladder.py would merge none of these numbers."""
    from gavelpy.solve.prices.problem_kernels import few_are_near

    ordered = np.sort(figures, axis=None)
    return bool(few_are_near(ordered, near_numbers.EQUAL, near_numbers.STEP, near_numbers.WORTHWHILE))


def _distinct_jobs(problem: AllocationProblem, value_per_step_per_s: Floats) -> Jobs | None:
    """What `jobs_of` returns; None unless all jobs can run and are distinct, and every type has GPUs and is of use."""
    from gavelpy.solve.prices.problem_kernels import are_apart, tabled

    rate, gpus, counts = problem.member_rate_steps_per_s, problem.gpus_occupied, problem.gpu_counts
    (J, T), step = rate.shape, max(len(gpus) // SAMPLE, 1)
    if not (J and counts.min() > 0 and rate.flags.c_contiguous):
        return None
    figures, scaled, total = np.empty((2, J)), np.empty((J, T)), np.empty(-(-J // step))
    best, value = figures
    if not tabled(*map(fixed, (rate, gpus, value_per_step_per_s)), step, best, scaled, value, total):
        return None
    total.sort()
    if not are_apart(total, APART):
        return None
    none = np.zeros(J)
    table = Table(scaled, gpus, np.ones(J), counts, gain=np.zeros((0, T)))
    return Jobs(problem, best, None, None, None, table, value, none)

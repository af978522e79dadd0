"""Which algorithm answers: rungs from quick to sure, and nothing that is not certified.

    types       GPU types that are equal for every job become one (types.py); always
    classes     equal jobs become one (program.py, packing/partition.py); always. So do nearly equal ones (near.py),
                where the answer is as good as promised for the true jobs
    prices      jobs that run alone (prices/). Up to 63 classes: pivots, where there is no level or the slowest job
                limits it. More: an exact step from the last prices of a kept `Solver` where the optimum is the only
                one, from those of HiGHS up to 255 classes, or from those that Newton's method finds
    interior    more than 512 classes that run alone: the exact step from a block interior point (interior/); it also
                answers sums of logarithms
    columns     many configurations of pairs: the program grows by those that pay (packing/)
    highs       HiGHS on the whole LP, on equilibrated numbers
    careful     HiGHS again with its own scaling, presolve and tightest tolerances
    cvxpy       any other concave objective

A rung's answer is accepted when its certificate, from our own arithmetic, says gap <= 1e-8 (of logarithms by cvxpy and
of fillings 1e-6) and violation <= 1e-9. Otherwise the next rung is asked: the fall is counted in `Solver.falls` and the
certificate's path says "highs after prices". After the last one the best feasible answer is given, an even split if
there is no other (even.py), with the gap that is proved and a warning. SolverFailed is raised where no shares are known
that keep the floors: at once, without a fall, where a rung has a Farkas ray as proof that there are none (farkas.py).

Fillings (filling.py) and finish times (finish_time.py) are sequences of such levels, each with its own proof.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import Answer
from gavelpy.solve.certificate import failed, floors_of
from gavelpy.solve.linear import best_linear
from gavelpy.solve.near import BLUR, carried_over, nearly_equal
from gavelpy.solve.objective import (
    MaxConcave,
    MaxMin,
    MaxMinLexicographic,
    MaxSum,
    MaxSumLog,
    MinMaxFinishTime,
    Objective,
    ProgressiveFilling,
)
from gavelpy.solve.solver import Solver
from gavelpy.solve.types import divided, groups_of_types, merged, objective_of_merged


def solve(problem: AllocationProblem, objective: Objective, solver: Solver | None = None) -> Allocation:
    """The best shares for `objective`, certified. `solver` keeps warm state between calls and changes no answer.

    Jobs that can run nowhere get no share and have no part in the objective. Where no rung's answer can be certified,
    the best feasible one is given, and its certificate has a warning. Raises SolverFailed when no shares are known that
    keep the rate floors, with status "infeasible" when none do.
    """
    started_s = time.perf_counter()
    solver = Solver() if solver is None else solver
    _check(problem, objective)
    group = groups_of_types(problem, getattr(objective, "gpu_type_worth", np.zeros(0)))
    if group.max(initial=0) + 1 < len(group):
        return divided(solve(merged(problem, group), objective_of_merged(objective, group), solver), problem, group)
    answer = _best_of_near(problem, objective, solver) or _best(problem, objective, solver)
    certificate = replace(answer.certificate, solve_s=time.perf_counter() - started_s)
    solver.answers[certificate.path] += 1
    floors = getattr(objective, "rate_floor_steps_per_s", np.zeros(0))
    return Allocation(problem, answer.share, answer.prices, certificate, floors)


def _best_of_near(problem: AllocationProblem, objective: Objective, solver: Solver) -> Answer | None:
    """The answer with nearly equal jobs taken for equal; None where that does not help."""
    near = nearly_equal(problem, objective) if problem.can_run.any() else None
    if near is None:
        return None
    return carried_over(problem, objective, _best(near.problem, near.objective, solver, blur=BLUR))


def _best(problem: AllocationProblem, objective: Objective, solver: Solver, *, blur: float = 0.0) -> Answer:
    if not problem.can_run.any():
        return _nothing_runs(problem)
    match objective:
        case MaxMin() | MaxSum():
            return best_linear(problem, objective, solver)
        case MaxMinLexicographic() | ProgressiveFilling():
            from gavelpy.solve.filling import best_filling

            return best_filling(problem, objective, solver, blur)
        case MinMaxFinishTime():
            from gavelpy.solve.finish_time import best_finish_time

            return best_finish_time(problem, objective, solver)
        case MaxSumLog() | MaxConcave():
            from gavelpy.solve.concave import best_concave

            return best_concave(problem, objective, solver)


def _nothing_runs(problem: AllocationProblem) -> Answer:
    zero = Certificate(objective=0.0, bound=0.0, gap=0.0, violation=0.0, path="nothing runs", solve_s=0.0)
    return Answer(np.zeros(problem.fits.shape), np.zeros(len(problem.gpu_types)), zero)


def _check(problem: AllocationProblem, objective: Objective) -> None:
    """Raises for an objective of other jobs, and where a job that can run nowhere is promised a rate."""
    J = problem.job_count
    for name in ("scale", "gain", "weight", "rate_floor_steps_per_s", "alike"):
        values = getattr(objective, name, None)
        optional = name in ("rate_floor_steps_per_s", "alike")
        if values is not None and len(values) != J and not (optional and not len(values)):
            raise InvalidInput(f"{name} must have one entry for each of {J} jobs, got {len(values)}")
    worth = getattr(objective, "gpu_type_worth", np.zeros(0))
    if len(worth) not in (0, len(problem.gpu_types)):
        T = len(problem.gpu_types)
        raise InvalidInput(f"gpu_type_worth must be empty or have one entry for each of {T} types, got {len(worth)}")
    promised = (floors_of(objective, J) > 0) & ~problem.can_run
    if promised.any():
        job = problem.job_ids[int(np.argmax(promised))]
        raise failed(problem, "infeasible", f"job {job!r} can run nowhere and has a rate floor")

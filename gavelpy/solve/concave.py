"""Concave objectives: cvxpy, and a proof by an LP over the gradient."""

from __future__ import annotations

import numpy as np

from gavelpy.model.allocation import Certificate
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import GAP_MAX_CONCAVE, VIOLATION_MAX, Answer
from gavelpy.solve.certificate import failed, floors_of, rate_steps_per_s, violation_of
from gavelpy.solve.linear import best_linear
from gavelpy.solve.objective import ConcaveObjective, MaxSum
from gavelpy.solve.repair import repaired
from gavelpy.solve.solver import Solver


def best_concave(problem: AllocationProblem, objective: ConcaveObjective, solver: Solver) -> Answer:
    """The best shares for a concave objective. Raises SolverFailed when they cannot be certified.

    The proof: f(y) <= intercept + slope·y for every y, and the most that slope·y can be is an LP.
    """
    from gavelpy.solve import convex  # loads cvxpy

    program = convex.program_for(problem, objective)
    raw, slope = convex.optimum(program, objective)
    floors = floors_of(objective, problem.job_count)
    share = repaired(program, raw, floors)
    rates = rate_steps_per_s(problem, share)
    value = convex.value_at(program, objective, rates)
    above = convex.tangent(program, objective, rates, slope)
    gain = np.maximum(above.slope, 0.0)  # rates are >= 0, so this bounds from above, too
    most = best_linear(problem, MaxSum(gain, objective.rate_floor_steps_per_s), solver)
    bound = above.intercept + most.certificate.bound
    gap = abs(bound - value) / max(1.0, abs(value))
    violation = violation_of(program, floors, share)
    if not (gap <= GAP_MAX_CONCAVE and violation <= VIOLATION_MAX):
        solver.falls["cvxpy"] += 1
        raise failed(problem, "not certified", f"cvxpy: gap {gap:.1e}, violation {violation:.1e}")
    return Answer(share, most.prices, Certificate(value, bound, gap, violation, "cvxpy", solve_s=0.0))

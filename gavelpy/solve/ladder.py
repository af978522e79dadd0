"""Which algorithm answers: rungs from quick to sure, and nothing that is not certified.

    types      GPU types that are equal for every job become one (types.py); always
    classes    equal jobs become one (program.py); always
    ...        the price engine, for many distinct jobs, comes here: above HiGHS, with its warm state in `Solver`
    highs      HiGHS on the whole LP, on equilibrated numbers
    careful    HiGHS again with its own scaling, presolve and tightest tolerances
    cvxpy      concave objectives, proved by an LP over their gradient

A rung's answer is accepted when its certificate says gap <= 1e-8 (cvxpy: 1e-6) and violation <= 1e-9. Otherwise the
next rung is asked; after the last one SolverFailed is raised.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import certified, failed, floors_of, rate_steps_per_s, violation_of
from gavelpy.solve.objective import MaxConcave, MaxMin, MaxSum, MaxSumLog, Objective
from gavelpy.solve.program import program_of
from gavelpy.solve.repair import repaired
from gavelpy.solve.solver import Solver
from gavelpy.solve.types import divided, groups_of_types, merged

GAP_MAX = 1e-8
GAP_MAX_CONCAVE = 1e-6
VIOLATION_MAX = 1e-9


def solve(problem: AllocationProblem, objective: Objective, solver: Solver | None = None) -> Allocation:
    """The best shares for `objective`, certified. `solver` keeps warm state between calls and changes no answer.

    Jobs that can run nowhere get no share and have no part in the objective. Raises SolverFailed when no rung's answer
    can be certified, and with status "infeasible" when the rate floors cannot be kept.
    """
    started_s = time.perf_counter()
    solver = Solver() if solver is None else solver
    _check(problem, objective)
    group = groups_of_types(problem)
    if group.max(initial=0) + 1 < len(group):
        return divided(solve(merged(problem, group), objective, solver), problem, group)
    if not problem.can_run.any():
        share, prices, certificate = _nothing_runs(problem)
    elif isinstance(objective, MaxMin | MaxSum):
        share, prices, certificate = _linear(problem, objective, solver)
    else:
        share, prices, certificate = _concave(problem, objective, solver)
    solver.answers[certificate.path] += 1
    certificate = replace(certificate, solve_s=time.perf_counter() - started_s)
    return Allocation(problem, share, prices, certificate)


def _linear(
    problem: AllocationProblem, objective: MaxMin | MaxSum, solver: Solver
) -> tuple[Floats, Floats, Certificate]:
    """Shares (C, T), prices (T,) and certificate for an objective that is an LP."""
    from gavelpy.solve import highs, lp

    values = objective.scale if isinstance(objective, MaxMin) else objective.gain
    floors = floors_of(objective, problem.job_count)
    program = program_of(problem, values, floors)
    prefix = "classes+" if len(program.value) < len(program.jobs) else ""
    answer = lp.max_min if isinstance(objective, MaxMin) else lp.max_sum
    reasons = []
    for effort in (highs.QUICK, highs.CAREFUL):
        try:
            candidate = answer(program, solver, effort)
        except SolverFailed as failure:
            reasons.append(f"{effort.name}: {failure.status}")
        else:
            least = floors if isinstance(objective, MaxSum) else np.maximum(floors, candidate.level / values)
            share = repaired(program, candidate.share, least)
            certificate, prices = certified(program, objective, share, candidate.duals, prefix + effort.name)
            if certificate.gap <= GAP_MAX and certificate.violation <= VIOLATION_MAX:
                return share, prices, certificate
            reasons.append(f"{effort.name}: gap {certificate.gap:.1e}, violation {certificate.violation:.1e}")
        solver.falls[effort.name] += 1
    status = "infeasible" if all("infeasible" in reason for reason in reasons) else "not certified"
    raise failed(problem, status, "; ".join(reasons))


def _concave(
    problem: AllocationProblem, objective: MaxSumLog | MaxConcave, solver: Solver
) -> tuple[Floats, Floats, Certificate]:
    """Shares, prices and certificate for a concave objective.

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
    _, prices, most = _linear(problem, MaxSum(gain, objective.rate_floor_steps_per_s), solver)
    bound = above.intercept + most.bound
    gap = abs(bound - value) / max(1.0, abs(value))
    violation = violation_of(program, floors, share)
    if not (gap <= GAP_MAX_CONCAVE and violation <= VIOLATION_MAX):
        solver.falls["cvxpy"] += 1
        raise failed(problem, "not certified", f"cvxpy: gap {gap:.1e}, violation {violation:.1e}")
    return share, prices, Certificate(value, bound, gap, violation, "cvxpy", solve_s=0.0)


def _nothing_runs(problem: AllocationProblem) -> tuple[Floats, Floats, Certificate]:
    zero = Certificate(objective=0.0, bound=0.0, gap=0.0, violation=0.0, path="nothing runs", solve_s=0.0)
    return np.zeros(problem.fits.shape), np.zeros(len(problem.gpu_types)), zero


def _check(problem: AllocationProblem, objective: Objective) -> None:
    """Raises for an objective of other jobs, and where a job that can run nowhere is promised a rate."""
    J = problem.job_count
    for name in ("scale", "gain", "weight", "rate_floor_steps_per_s"):
        values = getattr(objective, name, None)
        if values is not None and len(values) != J and not (name == "rate_floor_steps_per_s" and not len(values)):
            raise InvalidInput(f"{name} must have one entry for each of {J} jobs, got {len(values)}")
    promised = (floors_of(objective, J) > 0) & ~problem.can_run
    if promised.any():
        job = problem.job_ids[int(np.argmax(promised))]
        raise failed(problem, "infeasible", f"job {job!r} can run nowhere and has a rate floor")

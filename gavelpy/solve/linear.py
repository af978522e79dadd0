"""Objectives that are linear programs: rung after rung until one is certified."""

from __future__ import annotations

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import GAP_MAX, VIOLATION_MAX, Answer
from gavelpy.solve.certificate import certified, failed, floors_of
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.program import program_of
from gavelpy.solve.repair import repaired
from gavelpy.solve.solver import Solver


def best_linear(problem: AllocationProblem, objective: LinearObjective, solver: Solver) -> Answer:
    """The best shares for an objective that is an LP. Raises SolverFailed when no rung's answer can be certified."""
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
                return Answer(share, prices, certificate)
            reasons.append(f"{effort.name}: gap {certificate.gap:.1e}, violation {certificate.violation:.1e}")
        solver.falls[effort.name] += 1
    status = "infeasible" if all("infeasible" in reason for reason in reasons) else "not certified"
    raise failed(problem, status, "; ".join(reasons))

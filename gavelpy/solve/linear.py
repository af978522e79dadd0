"""Objectives that are linear programs: rung after rung until one is certified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import GAP_MAX, VIOLATION_MAX, Answer, best_of
from gavelpy.solve.certificate import certified, failed, floors_of
from gavelpy.solve.even import PATH, even_duals, even_shares
from gavelpy.solve.farkas import MARGIN, FloorsRefused, contradiction
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.program import Program, program_of
from gavelpy.solve.repair import repaired
from gavelpy.solve.solver import Solver

if TYPE_CHECKING:
    from gavelpy.solve.highs import Effort


def best_linear(problem: AllocationProblem, objective: LinearObjective, solver: Solver) -> Answer:
    """The best shares for an objective that is an LP.

    Where no rung's answer can be certified, the best feasible one has a warning. Raises SolverFailed where none is
    feasible, with status "infeasible" where the floors cannot be kept. The first rung with a Farkas ray that proves so
    is the last one, and no fall is counted: there was nothing to certify.
    """
    if isinstance(objective, MaxMin) and not objective.scale[problem.can_run].any():  # nobody has a part in it
        objective = MaxSum(objective.scale, objective.rate_floor_steps_per_s)
    fallen: dict[str, str] = {}  # rung -> why it did not answer
    feasible: list[Answer] = []
    for name, rung in _rungs(problem, objective):
        try:
            answer = rung(solver)
        except FloorsRefused as refusal:
            excess = contradiction(problem, floors_of(objective, problem.job_count), refusal.ray)
            if excess > MARGIN:
                raise failed(problem, "infeasible", _refuted(name, excess)) from None
            fallen[name] = refusal.status
        except SolverFailed as failure:
            fallen[name] = failure.status
        else:
            if answer is None:
                continue
            certificate = answer.certificate
            path = " after ".join([certificate.path, *reversed(fallen)])
            answer = replace(answer, certificate=replace(certificate, path=path))
            if certificate.violation <= VIOLATION_MAX:
                if certificate.gap <= GAP_MAX:
                    solver.falls.update(fallen.keys())
                    return answer
                feasible.append(answer)
            fallen[name] = f"gap {certificate.gap:.1e}, violation {certificate.violation:.1e}"
    solver.falls.update(fallen.keys())
    if not feasible and fallen.get("careful") != "infeasible":
        feasible = [a for a in [_evenly(problem, objective)] if a.certificate.violation <= VIOLATION_MAX]
    if feasible:
        return best_of(feasible, fallen, GAP_MAX)
    status = "infeasible" if fallen.get("careful") == "infeasible" else "not certified"
    raise failed(problem, status, "; ".join(f"{rung}: {reason}" for rung, reason in fallen.items()))


def _refuted(rung: str, excess: float) -> str:
    return f"no shares give every job its least rate; a Farkas ray of {rung} proves it, by {excess:.1e}"


def _evenly(problem: AllocationProblem, objective: LinearObjective) -> Answer:
    program = _program(problem, objective, floors_of(objective, problem.job_count)).whole()
    share, duals = even_shares(program), even_duals(program)
    if isinstance(objective, MaxSum):
        duals = replace(duals, price=np.zeros(len(duals.price)))
    certificate, prices = certified(program, objective, share, duals, PATH)
    return Answer(share, prices, certificate)


Rung = Callable[[Solver], Answer | None]  # None: it is not for this problem


def _rungs(problem: AllocationProblem, objective: LinearObjective) -> Iterator[tuple[str, Rung]]:
    """The ways to an answer, from quick to sure."""
    from gavelpy.solve import highs
    from gavelpy.solve.packing.master import has_many
    from gavelpy.solve.prices import engine

    if engine.answers(problem, objective):
        yield "prices", lambda solver: engine.best_by_prices(problem, objective, solver)
        yield "interior", lambda solver: engine.best_by_prices(problem, objective, solver, inside=True)
    floors = floors_of(objective, problem.job_count)
    program = _program(problem, objective, floors)
    if has_many(program):
        yield highs.GROWING.name, partial(_by_highs, program, objective, floors, highs.GROWING)
    whole = program.whole()
    for effort in (highs.QUICK, highs.CAREFUL):
        yield effort.name, partial(_by_highs, whole, objective, floors, effort)


def _by_highs(program: Program, objective: LinearObjective, floors: Floats, effort: Effort, solver: Solver) -> Answer:
    from gavelpy.solve import highs, lp
    from gavelpy.solve.packing import master

    method = master if effort is highs.GROWING else lp
    answer = method.max_min if isinstance(objective, MaxMin) else method.max_sum
    candidate = answer(program, solver, effort)
    base = objective.base_steps_per_s if isinstance(objective, MaxMin) and len(objective.base_steps_per_s) else None
    share = repaired(program, candidate.share, np.maximum(floors, _held(objective, candidate.level)), base)
    prefix = "classes+" if len(program.value) < len(program.jobs) else ""
    certificate, prices = certified(program, objective, share, candidate.duals, prefix + effort.name)
    return Answer(share, prices, certificate)


def _program(problem: AllocationProblem, objective: LinearObjective, floors: Floats) -> Program:
    match objective:
        case MaxMin(scale=scale, base_steps_per_s=base):
            return program_of(problem, scale, floors, base_steps_per_s=base if len(base) else None, together=False)
        case MaxSum(gain=gain, gpu_type_worth=worth):
            return program_of(problem, gain, floors, type_worth=worth if len(worth) else None, together=False)


def _held(objective: LinearObjective, level: float) -> Floats:
    """The rate that each job's level stands for, (J,); 0 for a job that has none."""
    if isinstance(objective, MaxSum):
        return np.zeros(len(objective.gain))
    scale, base = objective.scale, objective.base_steps_per_s
    held: Floats = np.where(scale > 0, level / np.where(scale > 0, scale, 1.0) + (base if len(base) else 0.0), 0.0)
    return held

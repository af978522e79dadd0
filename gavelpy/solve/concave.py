"""Concave objectives: prices or the interior point for logarithms of jobs that run alone, else cvxpy.

Answers are certified by a tangent. Prices (prices/welfare.py) find the optimum of more than 512 classes from rough
prices, or from those that the `Solver` keeps, if it is unique; else the interior point continues to the end.

The certificate: f(y) <= intercept + slope·y for all rates y, and the maximum of slope·y is a linear program. At the
interior point's prices weak duality alone bounds it; after cvxpy it is solved.

*Prices at a kink.* If all users of a type run all the time, its price may be anything between what the last GPU earns
and what the next one would earn: the users' budgets absorb the difference. An interior point ends between the two.
`lowered` reduces such prices as far as the answer stays optimal: until another job would use the type, or the price is
zero. A price is fixed by a job on that type that also idles, or that also runs on a type whose price is fixed. Types
that share users that run all the time move together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import (
    EVEN_SPLIT,
    GAP_MAX,
    GAP_MAX_CONCAVE,
    VIOLATION_MAX,
    Answer,
    Duals,
    best_of,
    certified,
    even_shares,
    failed,
    floors_of,
    rate_steps_per_s,
    repaired,
    violation_of,
)
from gavelpy.solve.interior import Form, SumLog
from gavelpy.solve.interior import optimum as interior_optimum
from gavelpy.solve.linear import best_linear
from gavelpy.solve.objective import ConcaveObjective, MaxConcave, MaxSum, MaxSumLog
from gavelpy.solve.program import Program, best_rate_steps_per_s, program_of
from gavelpy.solve.solver import Solver

_TOLERANCE = 1e-12  # gap of the interior point, relative to Σ weight; an iteration near the optimum gains two digits
_USES = 1e-6  # of a job's time: an interior point leaves small shares everywhere
_FREE = 1e-9  # of the highest value per GPU: prices below are zero


@dataclass(frozen=True, eq=False)
class Tangent:
    """An affine bound on the objective: f(y) <= intercept + slope·y for all rates y (J,) in steps/s."""

    slope: Floats  # (J,) zero for jobs that can run nowhere
    intercept: float


def best_concave(problem: AllocationProblem, objective: ConcaveObjective, solver: Solver) -> Answer:
    """The best shares for a concave objective.

    If no rung's answer can be certified, the best feasible one has a warning. Raises SolverFailed if none is feasible.
    """
    if isinstance(objective, MaxSumLog):
        from gavelpy.solve.prices.welfare import most_welfare

        found = most_welfare(problem, objective, solver)
        if found is not None and found.certificate.gap <= GAP_MAX and found.certificate.violation <= VIOLATION_MAX:
            return found
    program = _program(problem, objective)
    fallen: dict[str, str] = {}  # rung -> reason of its failure
    feasible: list[Answer] = []
    for rung in _rungs(program, objective):
        try:
            answer = rung.answer(solver)
        except SolverFailed as failure:
            fallen[rung.name] = failure.status
        else:
            certificate = answer.certificate
            if certificate.violation <= VIOLATION_MAX:
                if certificate.gap <= rung.gap_max:
                    return answer
                feasible.append(answer)
            fallen[rung.name] = f"gap {certificate.gap:.1e}, violation {certificate.violation:.1e}"
        solver.falls[rung.name] += 1
    feasible = [answer for answer in feasible if np.isfinite(answer.certificate.gap)]
    if not feasible:
        even = _by_tangent(program, objective, even_shares(program), EVEN_SPLIT, solver)
        feasible = [even] if even.certificate.violation <= VIOLATION_MAX else []
    if feasible:
        return best_of(feasible, fallen, GAP_MAX_CONCAVE)
    status = "infeasible" if "infeasible" in fallen.values() else "not certified"
    raise failed(problem, status, "; ".join(f"{rung}: {reason}" for rung, reason in fallen.items()))


@dataclass(frozen=True)
class _Rung:
    name: str
    gap_max: float
    answer: Callable[[Solver], Answer]


def _rungs(program: Program, objective: ConcaveObjective) -> list[_Rung]:
    cvxpy = _Rung("cvxpy", GAP_MAX_CONCAVE, partial(_by_cvxpy, program, objective))
    if isinstance(objective, MaxSumLog) and program.problem.is_plain and not program.floor.any():
        return [_Rung("interior", GAP_MAX, partial(_by_interior_point, program, objective)), cvxpy]
    return [cvxpy]


def _program(problem: AllocationProblem, objective: ConcaveObjective) -> Program:
    """The program of the jobs that can run; equal jobs are one class only if the objective is symmetric in them."""
    floors = floors_of(objective, problem.job_count)
    match objective:
        case MaxSumLog(weight=weight):
            best = best_rate_steps_per_s(problem)
            return program_of(problem, weight / np.where(best > 0, best, 1.0), floors)  # so that value = weight
        case MaxConcave():
            return program_of(problem, np.ones(problem.job_count), floors, aggregate=False)


def _by_interior_point(program: Program, objective: MaxSumLog, solver: Solver) -> Answer:  # noqa: ARG001 as _by_cvxpy
    problem, best = program.problem, program.best_rate_steps_per_s
    rows = program.jobs[program.classes.representative]
    form = Form(
        rate=np.where(problem.fits[rows], problem.member_rate_steps_per_s[rows], 0.0) / best[rows, None],
        gpus=problem.gpus_occupied[rows],
        count=program.classes.count.astype(np.float64),
        capacity=problem.gpu_counts,
        goal=SumLog(program.value),
    )
    point = interior_optimum(form, _TOLERANCE)
    raw = np.zeros(problem.fits.shape)
    raw[program.jobs] = point.share[program.classes.of_job]
    share = repaired(program, raw, np.zeros(problem.job_count))
    slope = program.per_job(point.rate_duals)
    slope[program.jobs] /= best[program.jobs]
    zero = np.zeros(problem.job_count)
    price = lowered(point.prices, point.rate_duals[:, None] * form.rate, form.gpus, point.share)
    duals = Duals(level=zero, floor=zero, budget=program.per_job(point.budget_duals), price=price)
    prefix = "classes+" if len(program.value) < len(program.jobs) else ""
    most, prices = certified(program, MaxSum(slope), share, duals, prefix + "interior")
    value = _sum_log(program, objective, rate_steps_per_s(problem, share))
    bound = _tangent_of_logarithms(program, objective, slope).intercept + most.bound
    return Answer(share, prices, Certificate(value, bound, _gap(value, bound), most.violation, most.path, solve_s=0.0))


def _by_cvxpy(program: Program, objective: ConcaveObjective, solver: Solver) -> Answer:
    from gavelpy.solve import concave_cvxpy  # loads cvxpy

    raw, slope = concave_cvxpy.optimum(program, objective)
    share = repaired(program, raw, floors_of(objective, program.problem.job_count))
    return _by_tangent(program, objective, share, "cvxpy", solver, slope)


def _by_tangent(
    program: Program,
    objective: ConcaveObjective,
    share: Floats,
    path: str,
    solver: Solver,
    slope: Floats | None = None,  # (J,) of a sum of logarithms; default: that at `share`
) -> Answer:
    """The answer with the bound of a tangent, whose maximum is a linear program."""
    problem, floors = program.problem, floors_of(objective, program.problem.job_count)
    rates = rate_steps_per_s(problem, share)
    match objective:
        case MaxSumLog(weight=weight):
            here = np.divide(weight, rates, out=np.zeros(len(rates)), where=rates > 0)
            value = _sum_log(program, objective, rates)
            above = _tangent_of_logarithms(program, objective, here if slope is None else slope)
        case MaxConcave():
            from gavelpy.solve import concave_cvxpy  # loads cvxpy

            value, gradient = concave_cvxpy.value_and_gradient(program, objective, rates)
            above = Tangent(gradient, value - float(gradient @ rates))
    gain = np.maximum(above.slope, 0.0)  # rates are >= 0, so this is an upper bound, too
    most = best_linear(problem, MaxSum(gain, objective.rate_floor_steps_per_s), solver)
    bound, violation = above.intercept + most.certificate.bound, violation_of(program, floors, share)
    return Answer(share, most.prices, Certificate(value, bound, _gap(value, bound), violation, path, solve_s=0.0))


def _sum_log(program: Program, objective: MaxSumLog, rates: Floats) -> float:
    runs = program.jobs
    if not (rates[runs] > 0).all():
        return -np.inf
    return float((objective.weight[runs] * np.log(rates[runs])).sum())


def _tangent_of_logarithms(program: Program, objective: MaxSumLog, slope: Floats) -> Tangent:
    """The bound of the conjugate at `slope`: its error is of second order in that of the slope."""
    w, η = objective.weight[program.jobs], slope[program.jobs]
    return Tangent(slope, float((w * (np.log(w / η) - 1.0)).sum()))


def _gap(value: float, bound: float) -> float:
    return abs(bound - value) / max(1.0, abs(value))


def lowered(price: Floats, worth: Floats, gpus: Floats, share: Floats) -> Floats:
    """The least prices (T,) at which `share` (K, T) is as optimal as at `price` (T,).

    `worth` (K, T) is the value of a job's time on each type, without the cost of its `gpus` (K,); 0 = it cannot run.
    """
    most = float((worth / gpus[:, None]).max(initial=0.0))
    uses = share > _USES
    idles = share.sum(axis=1) < 1.0 - _USES
    price = np.where(price > _FREE * most, price, 0.0)
    fixed = np.asarray(price <= 0)
    for _ in price:  # each step fixes at least one type
        fixed = _fixed(fixed, uses, idles)
        if fixed.all():
            break
        steps = _steps(price, worth, gpus, uses, fixed)
        step = max(float(steps.min()), 0.0)
        price = np.where(fixed, price, np.maximum(price - step, 0.0))
        fixed = np.asarray(fixed | (steps <= step))
    return price


def _fixed(fixed: Bools, uses: Bools, idles: Bools) -> Bools:
    """Types whose price is zero, reached its limit, or is fixed by a user, (T,)."""
    fixed = np.asarray(fixed | (uses & idles[:, None]).any(axis=0))
    while True:
        linked: Bools = np.asarray(fixed | (uses & np.any(uses & fixed, axis=1, keepdims=True)).any(axis=0))
        if np.array_equal(linked, fixed):
            return fixed
        fixed = linked


def _steps(price: Floats, worth: Floats, gpus: Floats, uses: Bools, fixed: Bools) -> Floats:
    """How far each price may fall until it is zero or another job would use the type, (T,); infinite if fixed."""
    gain = worth - gpus[:, None] * price
    reward = np.where(worth > 0, gain, 0.0).max(axis=1, initial=0.0)
    comes = (worth > 0) & ~np.any(uses & ~fixed, axis=1, keepdims=True)
    room = np.where(comes, (reward[:, None] - gain) / gpus[:, None], np.inf)
    return np.where(fixed, np.inf, np.minimum(price, room.min(axis=0, initial=np.inf)))

"""The proof of an answer, from our own arrays: nothing that a solver says about itself is believed.

Objective and violation come from the shares. The bound comes from weak duality and holds for any duals: with weights
λ_j >= 0 on the rates (the objective's), φ_j >= 0 (for the floors f_j), budgets μ_j >= 0 and prices p_t >= 0 such that

    Σ_{j in c} (λ_j + φ_j) rate_cjt  ≤  g_c p_t + Σ_{j in c} μ_j      for every configuration c and type t it fits on,

no shares make Σ_j λ_j r_j more than  Σ μ_j + Σ p_t W_t - Σ φ_j f_j.  Where a solver's duals break an inequality, the
budgets are raised until they do not. A level above the bases b_j is at most that, less Σ λ_j b_j, over Σ λ_j / scale_j.
Where types have worths, λ_j worth_t stands for λ_j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.objective import MaxMin, MaxSum, Objective
from gavelpy.solve.program import Program

LEAST_PROMISE = 1e-6  # of a job's best rate: a missed floor is relative to no less
_DIGITS = 1e-7  # of what a difference is taken from: a gap of 1e-8 of that is the rounding of doubles


@dataclass(frozen=True, eq=False)
class Duals:
    """What a solver believes constraints are worth. For MaxMin all may share one unknown positive factor."""

    level: Floats  # (J,) per step/s of a job, because it is among the worst; unused by MaxSum
    floor: Floats  # (J,) per step/s of a job's floor
    budget: Floats  # (J,) per unit of a job's time
    price: Floats  # (T,) per GPU


@dataclass(frozen=True, eq=False)
class Candidate:
    """A solver's answer before anyone has checked it."""

    share: Floats  # (C, T)
    duals: Duals
    level: float  # the least scaled rate that the solver claims; 0 where the objective is no level


def certified(
    program: Program, objective: MaxMin | MaxSum, share: Floats, duals: Duals, path: str
) -> tuple[Certificate, Floats]:
    """Certificate of `share`, and prices (T,): objective gained by one more GPU of each type.

    The gap is relative to the objective itself: a makespan's level of 1e-6 is proved to as many digits as one of 1.
    Where rate floors leave less than an even split would give, it is relative to the level of an even split. A level
    above bases is a difference of rates, and known to no more digits than they leave.
    """
    problem = program.problem
    rates = rate_steps_per_s(problem, share)
    weight, unit = _weights(objective, duals)
    worth = weight[:, None] * program.type_worth + duals.floor[:, None]
    budget = raised_budgets(problem, program.admissible, worth, duals.price, duals.budget)
    promised = duals.floor @ floors_of(objective, problem.job_count)
    least_unit = program.even_level
    if isinstance(objective, MaxMin) and len(objective.base_steps_per_s):
        promised += weight @ objective.base_steps_per_s
        least_unit = max(least_unit, _DIGITS * float((objective.scale * objective.base_steps_per_s).max()))
    bound = float(budget.sum() + duals.price @ problem.gpu_counts - promised) / unit if unit > 0 else math.inf
    value = _value(program, objective, share, rates)
    violation = violation_of(program, floors_of(objective, problem.job_count), share)
    prices = prices_of(program, worth, duals.price, budget) / (unit if unit > 0 else math.inf)
    gap = _relative_gap(value, bound, least_unit=least_unit)
    return Certificate(value, bound, gap, violation, path, solve_s=0.0), prices


def failed(problem: AllocationProblem, status: str, detail: str) -> SolverFailed:
    """The exception for an answer that nobody found or nobody can prove."""
    return SolverFailed(status, jobs=problem.job_count, gpu_types=len(problem.gpu_types), detail=detail)


def rate_steps_per_s(problem: AllocationProblem, share: Floats) -> Floats:
    """Effective rate of each job under `share`, (J,)."""
    if problem.runs_alone:
        alone: Floats = np.einsum("mt,mt->m", problem.member_rate_steps_per_s, share[problem.member_configuration])
        return alone
    runs = np.flatnonzero(np.einsum("ct->c", np.abs(share))[problem.member_configuration])  # of many pairs, few do
    per_member = np.einsum("mt,mt->m", problem.member_rate_steps_per_s[runs], share[problem.member_configuration[runs]])
    total = np.bincount(problem.member_job[runs], weights=per_member, minlength=problem.job_count)
    return total.astype(np.float64)


def time_of_jobs(problem: AllocationProblem, share: Floats) -> Floats:
    """Share of its time that each job runs in any configuration on any type, (J,)."""
    per_member: Floats = np.einsum("ct->c", share)[problem.member_configuration]
    if problem.runs_alone:
        return per_member
    total: Floats = np.bincount(problem.member_job, weights=per_member, minlength=problem.job_count).astype(np.float64)
    return total


def floors_of(objective: Objective, job_count: int) -> Floats:
    """Least rate of each job, (J,); zero where none is asked for."""
    floors: Floats = getattr(objective, "rate_floor_steps_per_s", np.zeros(0))
    return floors if len(floors) else np.zeros(job_count)


def violation_of(program: Program, floors: Floats, share: Floats) -> float:
    """Largest break of a sign, a time budget, a capacity (relative), a floor or of what can run, >= 0.

    Floors: relative to the floor, or to a millionth of the job's best rate.
    """
    problem = program.problem
    used, gpus, rates = problem.gpus_occupied @ share, problem.gpu_counts, rate_steps_per_s(problem, share)
    promised = np.maximum(floors, LEAST_PROMISE * program.best_rate_steps_per_s)
    excess = (
        (-share).max(initial=0.0),
        (time_of_jobs(problem, share) - 1.0).max(initial=0.0),
        ((used - gpus) / np.where(gpus > 0, gpus, 1.0)).max(initial=0.0),
        ((floors - rates) / np.where(promised > 0, promised, 1.0)).max(initial=0.0),
        share[~program.admissible].max(initial=0.0),
    )
    return max(0.0, *map(float, excess))


def _value(program: Program, objective: MaxMin | MaxSum, share: Floats, rates: Floats) -> float:
    match objective:
        case MaxMin(scale=scale, base_steps_per_s=base):
            above = rates - base if len(base) else rates
            return float((scale * above)[program.jobs][scale[program.jobs] > 0].min())
        case MaxSum(gain=gain, gpu_type_worth=worth):
            return float(gain @ (rate_steps_per_s(program.problem, share * worth) if len(worth) else rates))


def _relative_gap(value: float, bound: float, *, least_unit: float) -> float:
    return 0.0 if bound == value else abs(bound - value) / max(abs(value), least_unit)


def _weights(objective: MaxMin | MaxSum, duals: Duals) -> tuple[Floats, float]:
    """λ (J,) per step/s, and the factor that makes a bound on Σ λ r one on the objective."""
    match objective:
        case MaxMin(scale=scale):
            level = np.where(scale > 0, duals.level, 0.0)
            return level, float((level / np.where(scale > 0, scale, 1.0)).sum())
        case MaxSum(gain=gain):
            return gain, 1.0


def raised_budgets(
    problem: AllocationProblem, admissible: Bools, worth: Floats, price: Floats, budget: Floats
) -> Floats:
    """The least budgets that satisfy the inequality above: exact for jobs alone, raised from `budget` for others.

    `worth` is (J, T) per step/s; only entries of `admissible`, (C, T), may have a share.
    """
    start = np.zeros(problem.job_count) if problem.runs_alone else budget
    excess = _worth(problem, worth, start) - problem.gpus_occupied[:, None] * price
    most = reduce(np.maximum, np.where(admissible, excess, 0.0).T, np.zeros(len(excess)))
    missing: Floats = most / problem.member_count
    if problem.runs_alone:
        return missing
    extra: Floats = np.zeros(problem.job_count)
    np.maximum.at(extra, problem.member_job, missing[problem.member_configuration])
    return start + extra


def _worth(problem: AllocationProblem, worth: Floats, budget: Floats) -> Floats:
    """What a configuration is worth on a type beyond its members' time, (C, T); `worth` is (J, T) per step/s."""
    per_member: Floats = worth[problem.member_job] * problem.member_rate_steps_per_s
    per_member -= budget[problem.member_job, None]
    if problem.runs_alone:
        return per_member
    C, at = problem.configuration_count, problem.member_configuration
    total: Floats = np.stack([np.bincount(at, weights=of_type, minlength=C) for of_type in per_member.T], axis=1)
    return total


def prices_of(program: Program, worth: Floats, price: Floats, budget: Floats) -> Floats:
    """`price`, and for a type without GPUs what the first one would be worth to a job that needs but one."""
    problem = program.problem
    empty = problem.gpu_counts == 0
    if not empty.any():
        return price
    gpus = problem.gpus_occupied[:, None]
    first = np.where(gpus <= 1, _worth(problem, worth, budget) / np.where(gpus > 0, gpus, 1.0), 0.0)
    return np.where(empty, first.max(axis=0, initial=0.0), price)

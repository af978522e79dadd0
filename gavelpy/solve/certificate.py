"""Repairs a solver's shares, proves how good they are, and proves that rate floors are infeasible; the even split.

All figures are computed from the problem's own arrays; what a solver reports about itself is not used.

*The bound.* Objective and violation follow from the shares. The bound follows from weak duality and holds for all
duals: with weights λ_j >= 0 on the rates (the objective's), φ_j >= 0 (for the floors f_j), budgets μ_j >= 0 and prices
p_t >= 0 such that

    Σ_{j in c} (λ_j + φ_j) rate_cjt  ≤  g_c p_t + Σ_{j in c} μ_j      for every configuration c and type t it fits on,

no shares make Σ_j λ_j r_j more than  Σ μ_j + Σ p_t W_t - Σ φ_j f_j. With several resources, each has prices p_rt, a
configuration costs Σ_r d_cr p_rt, and all that exists Σ p_rt W_rt.  If a solver's duals violate an inequality, the
budgets are raised until they satisfy it. A level above the bases b_j is at most that, less Σ λ_j b_j, over
Σ λ_j / scale_j. If types have factors (`gpu_type_worth`), λ_j worth_t replaces λ_j.

*Infeasible floors.* With λ = 0, no shares make Σ φ_j r_j more than Σ μ_j + Σ p_t W_t. So floors f with

    Σ φ_j f_j  >  Σ μ_j + Σ p_t W_t

are infeasible (a Farkas ray). A solver supplies φ and p; signs are clipped and budgets raised until the inequality
holds for every configuration and type. A contradiction counts only above MARGIN: shares that a certificate accepts may
violate a floor, a budget and a capacity by 1e-9 each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Bools, Floats, dot
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem
from gavelpy.solve.objective import MaxMin, MaxSum, Objective
from gavelpy.solve.program import Program, best_rate_steps_per_s

LEAST_PROMISE = 1e-6  # of a job's best rate: missing a floor is relative to at least this
MARGIN = 1e-8  # relative to both sides of a contradiction; ten times the violation that certificates allow
NOISE = 1e-13  # shares below are set to zero: a hundred thousandth of a second per year
DUST = 1e-10  # of a job's rate: shares that add less are rounding, and the mechanism would treat them as targets
DEFICIT = 5e-10  # relative: jobs whose rate is lower than this below the least rate get the missing time
_ROUNDING = 4 * np.finfo(np.float64).eps
_DIGITS = 1e-7  # of the minuend of a difference: a gap of 1e-8 of that is the rounding of doubles


@dataclass(frozen=True, eq=False)
class Duals:
    """Duals of the constraints, as a solver reports them. For MaxMin up to one common positive factor."""

    level: Floats  # (J,) per step/s of a job, for the level; unused by MaxSum
    floor: Floats  # (J,) per step/s of a job's floor
    budget: Floats  # (J,) per unit of a job's time
    price: Floats  # (R T,) per unit of each resource: GPUs of all types, then the others


@dataclass(frozen=True, eq=False)
class Candidate:
    """A solver's answer before it is certified."""

    share: Floats  # (C, T)
    duals: Duals
    level: float  # the least scaled rate, as the solver reports it; 0 if the objective is not a level


def certified(
    program: Program, objective: MaxMin | MaxSum, share: Floats, duals: Duals, path: str
) -> tuple[Certificate, Floats]:
    """Certificate of `share`, and prices (R T,): objective gained by one more of each resource of each type.

    The gap is relative to the objective: a makespan's level of 1e-6 is proved to as many digits as one of 1. If rate
    floors leave less than an even split would give, it is relative to the level of an even split. A level above bases
    is a difference of rates, so fewer of its digits are known.
    """
    problem = program.problem
    rates = rate_steps_per_s(problem, share)
    weight, unit = _weights(objective, duals)
    worth = weight[:, None] * program.type_worth + duals.floor[:, None]
    budget = raised_budgets(problem, program.admissible, worth, duals.price, duals.budget)
    promised = dot(duals.floor, floors_of(objective, problem.job_count))
    least_unit = program.even_level
    if isinstance(objective, MaxMin) and len(objective.base_steps_per_s):
        promised += dot(weight, objective.base_steps_per_s)
        least_unit = max(least_unit, _DIGITS * float((objective.scale * objective.base_steps_per_s).max()))
    bound = float(budget.sum() + duals.price @ problem.row_capacity - promised) / unit if unit > 0 else math.inf
    value = _value(program, objective, share, rates)
    violation = violation_of(program, floors_of(objective, problem.job_count), share)
    prices = prices_of(problem, worth, duals.price, budget) / (unit if unit > 0 else math.inf)
    gap = _relative_gap(value, bound, least_unit=least_unit)
    return Certificate(value, bound, gap, violation, path, solve_s=0.0), prices


def failed(problem: AllocationProblem, status: str, detail: str) -> SolverFailed:
    """The exception for an answer that was not found or not certified."""
    return SolverFailed(status, jobs=problem.job_count, gpu_types=len(problem.gpu_types), detail=detail)


def rate_steps_per_s(problem: AllocationProblem, share: Floats) -> Floats:
    """Effective rate of each job under `share`, (J,)."""
    if problem.runs_alone:
        alone: Floats = np.einsum("mt,mt->m", problem.member_rate_steps_per_s, share[problem.member_configuration])
        return alone
    runs = np.flatnonzero(np.einsum("ct->c", np.abs(share))[problem.member_configuration])  # few of many pairs do
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
    """Least rate of each job, (J,); zero without a floor."""
    floors: Floats = getattr(objective, "rate_floor_steps_per_s", np.zeros(0))
    return floors if len(floors) else np.zeros(job_count)


def violation_of(program: Program, floors: Floats, share: Floats) -> float:
    """Largest violation of a sign, a time budget, a capacity (relative), a floor or of what can run, >= 0.

    Floors: relative to the floor, or to a millionth of the job's best rate.
    """
    problem = program.problem
    used, amount, rates = problem.used(share), problem.row_capacity, rate_steps_per_s(problem, share)
    promised = np.maximum(floors, LEAST_PROMISE * program.best_rate_steps_per_s)
    excess = (
        (-share).max(initial=0.0),
        (time_of_jobs(problem, share) - 1.0).max(initial=0.0),
        ((used - amount) / np.where(amount > 0, amount, 1.0)).max(initial=0.0),
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
            return dot(gain, rate_steps_per_s(program.problem, share * worth) if len(worth) else rates)


def _relative_gap(value: float, bound: float, *, least_unit: float) -> float:
    return 0.0 if bound == value else abs(bound - value) / max(abs(value), least_unit)


def _weights(objective: MaxMin | MaxSum, duals: Duals) -> tuple[Floats, float]:
    """λ (J,) per step/s, and the divisor that converts a bound on Σ λ r into one on the objective."""
    match objective:
        case MaxMin(scale=scale):
            level = np.where(scale > 0, duals.level, 0.0)
            return level, float((level / np.where(scale > 0, scale, 1.0)).sum())
        case MaxSum(gain=gain):
            return gain, 1.0


def raised_budgets(
    problem: AllocationProblem, admissible: Bools, worth: Floats, price: Floats, budget: Floats
) -> Floats:
    """The least budgets that satisfy the inequality: exact for jobs alone, raised from `budget` for others.

    `worth` (J, T) is the marginal value per step/s; only entries of `admissible`, (C, T), may have a share.
    """
    start = np.zeros(problem.job_count) if problem.runs_alone else budget
    excess = _worth(problem, worth, start) - problem.cost(price)
    most = reduce(np.maximum, np.where(admissible, excess, 0.0).T, np.zeros(len(excess)))
    missing: Floats = most / problem.member_count
    if problem.runs_alone:
        return missing
    extra: Floats = np.zeros(problem.job_count)
    raises = np.flatnonzero((missing > 0)[problem.member_configuration])
    np.maximum.at(extra, problem.member_job[raises], missing[problem.member_configuration[raises]])
    return start + extra


def _worth(problem: AllocationProblem, worth: Floats, budget: Floats) -> Floats:
    """Value of a configuration on a type beyond its members' time, (C, T); `worth` is (J, T) per step/s."""
    per_member: Floats = worth[problem.member_job] * problem.member_rate_steps_per_s
    per_member -= budget[problem.member_job, None]
    if problem.runs_alone:
        return per_member
    C, at = problem.configuration_count, problem.member_configuration
    total: Floats = np.stack([np.bincount(at, weights=of_type, minlength=C) for of_type in per_member.T], axis=1)
    return total


def prices_of(problem: AllocationProblem, worth: Floats, price: Floats, budget: Floats) -> Floats:
    """`price`, and for a type without GPUs the value of a first GPU to a job that needs only one, and nothing else."""
    empty = problem.gpu_counts == 0
    if not empty.any() or len(problem.resources) > 1:
        return price
    gpus = problem.gpus_occupied[:, None]
    first = np.where(gpus <= 1, _worth(problem, worth, budget) / np.where(gpus > 0, gpus, 1.0), 0.0)
    return np.where(empty, first.max(axis=0, initial=0.0), price)


def repaired(
    program: Program,
    share: Floats,
    least_steps_per_s: Floats,
    base_steps_per_s: Floats | None = None,
    *,
    dust: float = DUST,
) -> Floats:
    """Shares (C, T) without negative entries, lifted to the least rates (J,), scaled into time budgets and capacities.

    A job that is far faster than the others needs so little time for its rate that a solver's absolute tolerance hides
    it: it gets that time here, and the scaling takes it from all jobs, at most the tolerance. Rates count above the
    base (J,), zero if not given: a level between nearly equal rates needs more of their digits. Shares that add less
    than the part `dust` to the rates of all members are dropped.
    """
    clean: Floats = np.where((share > NOISE) & program.admissible, share, 0.0)
    clean *= _matters(program, clean, dust)
    if base_steps_per_s is None:
        _lift(program, clean, least_steps_per_s, DEFICIT * least_steps_per_s)
    else:
        allowed = DEFICIT * np.abs(least_steps_per_s - base_steps_per_s)
        _lift(program, clean, least_steps_per_s * (1 + _ROUNDING), allowed)
    return _scaled_back(program, clean)


def _matters(program: Program, share: Floats, dust: float) -> Bools:
    """Whether a share adds to the rate of some member of its configuration, (C, T)."""
    p = program.problem
    rates = rate_steps_per_s(p, share)
    if p.runs_alone:
        alone: Bools = p.member_rate_steps_per_s * share > dust * rates[:, None]
        return alone
    matters: Bools = np.zeros(share.shape, dtype=np.bool_)
    runs = np.flatnonzero(np.einsum("ct->c", share)[p.member_configuration])  # few of many pairs do
    at = p.member_configuration[runs]
    adds = p.member_rate_steps_per_s[runs] * share[at] > dust * rates[p.member_job[runs], None]
    np.logical_or.at(matters, at, adds)
    return matters


def _lift(program: Program, share: Floats, least_steps_per_s: Floats, allowed_steps_per_s: Floats) -> None:
    """Adds to `share` the time on its best type that a job lacks for its least rate, if that is more than allowed."""
    problem = program.problem
    lacking_steps_per_s = least_steps_per_s - rate_steps_per_s(problem, share)
    short = (lacking_steps_per_s > allowed_steps_per_s) & (program.best_rate_steps_per_s > 0)
    if not short.any():
        return
    members = np.flatnonzero(short[problem.member_job] & (problem.member_count[problem.member_configuration] == 1))
    possible = program.admissible[problem.member_configuration[members]]
    rates = np.where(possible, problem.member_rate_steps_per_s[members], 0.0)
    gpu_types, best = rates.argmax(axis=1), rates.max(axis=1)
    jobs = problem.member_job[members]
    order = np.lexsort((-best, jobs))  # the best configuration of each job first
    _, first = np.unique(jobs[order], return_index=True)
    chosen = order[first]
    lacking = np.minimum(lacking_steps_per_s[jobs[chosen]] / best[chosen], 1.0)
    share[problem.member_configuration[members[chosen]], gpu_types[chosen]] += lacking


def _scaled_back(program: Program, share: Floats) -> Floats:
    problem = program.problem
    over = np.maximum(time_of_jobs(problem, share), 1.0)
    if problem.runs_alone:
        share = share / over[:, None]
    else:
        worst: Floats = np.ones(problem.configuration_count)
        late = np.flatnonzero((over > 1.0)[problem.member_job])
        np.maximum.at(worst, problem.member_configuration[late], over[problem.member_job[late]])
        share = share / worst[:, None]
    used, amount = problem.used(share), problem.row_capacity
    part = np.where(used > amount, amount / np.where(used > 0, used, 1.0), 1.0)
    return share * (part if len(part) == share.shape[1] else part.reshape(-1, share.shape[1]).min(axis=0))


class FloorsRefused(SolverFailed):
    """A rung has a ray that may prove the floors infeasible."""

    def __init__(self, problem: AllocationProblem, status: str, ray: Duals) -> None:
        super().__init__(status, jobs=problem.job_count, gpu_types=len(problem.gpu_types))
        self.ray = ray


def contradiction(problem: AllocationProblem, floor_steps_per_s: Floats, ray: Duals) -> float:
    """By how much floors, (J,), exceed what any shares achieve, relative to both; a proof if it is above MARGIN.

    0 or less if the ray proves nothing.
    """
    if not all(np.isfinite(figures).all() for figures in (ray.floor, ray.budget, ray.price)):
        return 0.0
    ray = replace(ray, floor=np.maximum(ray.floor, 0.0), budget=np.maximum(ray.budget, 0.0))
    price, best = np.maximum(ray.price, 0.0), best_rate_steps_per_s(problem)
    worth = np.broadcast_to(ray.floor[:, None], (problem.job_count, len(problem.gpu_types)))
    budget = raised_budgets(problem, _admissible(problem, best), worth, price, ray.budget)
    available = float(budget.sum() + price @ problem.row_capacity)
    promised = dot(ray.floor, floor_steps_per_s)
    unit = available + dot(ray.floor, np.maximum(floor_steps_per_s, LEAST_PROMISE * best))
    return (promised - available) / unit if unit > 0 else 0.0


def _admissible(problem: AllocationProblem, best: Floats) -> Bools:
    """Configurations on types, (C, T), that may have a share: they fit, and every member can run by itself."""
    if problem.runs_alone:
        return problem.fits
    cannot = np.bincount(
        problem.member_configuration, weights=best[problem.member_job] <= 0, minlength=problem.configuration_count
    )
    admissible: Bools = problem.fits & (cannot == 0)[:, None]
    return admissible


GAP_MAX = 1e-8
GAP_MAX_CONCAVE = 1e-6
VIOLATION_MAX = 1e-9
EVEN_SPLIT = "even split"  # path of its certificate


@dataclass(frozen=True, eq=False)
class Answer:
    """Shares with their certificate."""

    share: Floats  # (C, T)
    prices: Floats  # (R T,) objective gained by one more of each resource of each type: GPUs first
    certificate: Certificate
    unproved: int = 0  # jobs whose own gap is above the limit, if gaps are computed by job


def best_of(answers: Sequence[Answer], fallen: Mapping[str, str], gap_max: float) -> Answer:
    """The answer with the least gap, and a warning with the reason why each rung (name -> reason) was rejected."""
    best = min(answers, key=lambda answer: answer.certificate.gap)
    c = best.certificate
    reasons = "; ".join(f"{rung}: {reason}" for rung, reason in fallen.items())
    jobs = f", for {best.unproved} jobs" if best.unproved else ""
    warning = f"feasible, but proved to a gap of {c.gap:.1e} only, not to {gap_max:.0e}{jobs} ({reasons})"
    return replace(best, certificate=replace(c, warning=warning))


def even_shares(program: Program) -> Floats:
    """Shares (C, T): the first configuration of each of n jobs alone has W_t / (n g) of each type on which it runs.

    Less where that would be more than an n-th of another resource.
    """
    problem, share = program.problem, np.zeros(program.problem.fits.shape)
    lone = problem.member_count[problem.member_configuration] == 1
    members = np.flatnonzero(lone & program.admissible[problem.member_configuration].any(axis=1))
    jobs, first = np.unique(problem.member_job[members], return_index=True)
    rows = problem.member_configuration[members[first]]
    part = problem.gpu_counts / max(1, len(jobs)) / problem.gpus_occupied[rows, None]
    for r in range(1, len(problem.resources)):
        need, amount = problem.occupied[rows, r, None], problem.capacity[:, r] / THOUSANDTHS
        part = np.minimum(part, np.where(need > 0, amount / max(1, len(jobs)) / np.where(need > 0, need, 1.0), np.inf))
    part = np.where(program.admissible[rows], part, 0.0)
    share[rows] = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return share


def even_duals(program: Program) -> Duals:
    """Duals that prove a bound on any level: GPUs of all types have the same price."""
    problem = program.problem
    gpus = problem.gpu_counts
    price = np.full(len(gpus), 1.0 / max(float(gpus.sum()), 1.0))
    cost = problem.gpus_occupied[problem.member_configuration] / problem.member_count[problem.member_configuration]
    cost = cost[:, None] * price
    rate = np.where(program.admissible[problem.member_configuration], problem.member_rate_steps_per_s, 0.0)
    least = np.divide(cost, rate, out=np.full(rate.shape, np.inf), where=rate > 0).min(axis=1, initial=np.inf)
    worth = np.full(problem.job_count, np.inf)
    np.minimum.at(worth, problem.member_job, least)
    none = np.zeros(problem.job_count)
    price = np.append(price, np.zeros(len(problem.row_capacity) - len(price)))
    return Duals(level=np.where(np.isfinite(worth), worth, 0.0), floor=none, budget=none, price=price)

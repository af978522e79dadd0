"""The formulation of each policy as a user of a generic solver would write it.

A formulation is solved by any engine that can (engines.py), and defines the values in which two optima must agree.
Policies without one here (rules, and plug-ins) are measured alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.engines import Cvxpy, Engine, PeerFailed, Rows
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem, EntityPolicy
from gavelpy.policies.base import Policy, equal_share_rate
from gavelpy.policies.finish_time_fairness import isolated_s

NOTHING = 1e-4  # of the largest figure: smaller ones are compared as if they were that large
BOTTLENECK = 1e-6  # of the sum of duals: a job's row has a larger dual if no optimum lifts it above the level

Scale = Callable[[AllocationProblem], Floats]  # a figure of each job, (J,), that depends on no other job


def formulation_of(policy: Policy) -> Formulation | None:
    """The peers' formulation of `policy`; None if we know none."""
    match policy.name:
        case "max_min_fairness":
            return max_min(equal_levels)
        case "min_makespan":
            return max_min(lambda problem: 1.0 / problem.steps_remaining)
        case "max_min_fairness_water_filling":
            return filling(lambda problem, _stuck: 1.0 / equal_levels(problem))
        case "max_sum_throughput" if getattr(policy, "normalised", False):
            return max_sum(lambda problem: problem.weight / equal_share_rate(problem))
        case "max_sum_throughput":
            return max_sum(_ones)
        case "min_cost" if not getattr(policy, "deadlines", False):
            return max_sum(_ones, worth=_per_dollar)
        case "finish_time_fairness":
            return Formulation(_finish_time, _finish_time_ratio, is_linear=False)
        case "hierarchical":
            return filling(_speed_in_entities)
        case "nash_welfare":
            return Formulation(_nash, _nash_welfare, is_linear=False)
        case "strategy_proof":
            return Formulation(_partial_allocation, _rates, is_linear=False, tolerance=1e-4)
    return None


@dataclass(frozen=True)
class Warm:
    """A program in which only the jobs' own rows change as jobs arrive and leave."""

    is_level: bool
    figures: Callable[[AllocationProblem, Rows], Floats]  # scales (J,) of a level, or gains (E,) of a sum


@dataclass(frozen=True)
class Formulation:
    """The solution and comparison of a policy's optimum by peers."""

    solve: Callable[[AllocationProblem, Engine], Floats]  # shares (C, T)
    figures: Callable[[Allocation], Floats]  # the values that are equal in all optima
    is_linear: bool = True  # HiGHS can solve it
    tolerance: float = 1e-5  # relative, between figures
    warm: Warm | None = None  # the parts needed for a warm basis


def max_min(scale: Scale) -> Formulation:
    """Maximise  min_j scale_j r_j(x)."""

    def solve(problem: AllocationProblem, engine: Engine) -> Floats:
        rows = Rows.of(problem)
        return rows.shares(engine.level(rows, np.zeros(problem.job_count), 1.0 / scale(problem))[0])

    def figures(answer: Allocation) -> Floats:
        return np.atleast_1d((scale(answer.problem) * answer.rate_steps_per_s).min())

    return Formulation(solve, figures, warm=Warm(True, lambda problem, _rows: scale(problem)))


def max_sum(gain: Scale, worth: Callable[[AllocationProblem], Floats] | None = None) -> Formulation:
    """Maximise  Σ_j gain_j Σ_t worth_t r_jt(x)."""

    def of_entries(problem: AllocationProblem, rows: Rows) -> Floats:
        gains: Floats = rows.rate.T @ gain(problem)
        return gains * worth(problem)[rows.entry_type] if worth else gains

    def solve(problem: AllocationProblem, engine: Engine) -> Floats:
        rows = Rows.of(problem)
        return rows.shares(engine.total(rows, of_entries(problem, rows), np.zeros(problem.job_count)))

    def figures(answer: Allocation) -> Floats:
        rows = Rows.of(answer.problem)
        entries = answer.share[rows.entry_configuration, rows.entry_type]
        return np.atleast_1d(of_entries(answer.problem, rows) @ entries)

    return Formulation(solve, figures, warm=Warm(False, of_entries))


def filling(speed: Callable[[AllocationProblem, Bools], Floats]) -> Formulation:
    """Raise all rates at their speeds until none can rise: one linear program per level, as in Gavel (OSDI '20).

    The original finds the saturated jobs by a mixed integer program; the duals of the linear program identify them at
    no extra cost.
    """

    def solve(problem: AllocationProblem, engine: Engine) -> Floats:
        rows = Rows.of(problem)
        base, stuck = np.zeros(problem.job_count), np.zeros(problem.job_count, dtype=np.bool_)
        x = np.zeros(len(rows.entry_type))
        while not stuck.all():
            rises = np.where(stuck, 0.0, speed(problem, stuck))
            x, level, dual = engine.level(rows, base * (1 - 1e-9), rises)
            base = base + max(level, 0.0) * rises
            found = (rises > 0) & (np.abs(dual) > BOTTLENECK * np.abs(dual).sum())
            if not found.any():
                raise PeerFailed(f"{engine.name}: no job is stuck at level {level:g}")
            stuck = stuck | found
        return rows.shares(x)

    def figures(answer: Allocation) -> Floats:
        return np.sort(equal_levels(answer.problem) * answer.rate_steps_per_s)

    return Formulation(solve, figures, tolerance=1e-4)


def _ones(problem: AllocationProblem) -> Floats:
    return np.ones(problem.job_count)


def equal_levels(problem: AllocationProblem) -> Floats:
    """The scale of max-min fairness."""
    return problem.gpus_asked / (problem.weight * equal_share_rate(problem))


def _finish_time(problem: AllocationProblem, engine: Engine) -> Floats:
    assert isinstance(engine, Cvxpy), "not linear"
    rows = Rows.of(problem)
    return rows.shares(engine.finish_time(rows, problem.steps_remaining, problem.age_s, isolated_s(problem)))


def _finish_time_ratio(answer: Allocation) -> Floats:
    p = answer.problem
    return np.atleast_1d(((p.age_s + p.steps_remaining / answer.rate_steps_per_s) / isolated_s(p)).max())


def _nash(problem: AllocationProblem, engine: Engine) -> Floats:
    assert isinstance(engine, Cvxpy), "not linear"
    rows = Rows.of(problem)
    return rows.shares(engine.sum_log(rows, problem.weight))


def _nash_welfare(answer: Allocation) -> Floats:
    best = answer.problem.rate_alone_steps_per_s.max(axis=1)
    return np.atleast_1d(answer.problem.weight @ np.log(answer.rate_steps_per_s / best))


def _partial_allocation(problem: AllocationProblem, engine: Engine) -> Floats:
    """The shares of maximum Nash welfare, each job's scaled down by the loss of welfare that it causes to the others.

    Cole, Gkatzelis, Goel (EC '13), and the original: one program more than there are jobs.
    """
    assert isinstance(engine, Cvxpy), "not linear"
    rows, weight = Rows.of(problem), problem.weight
    x = engine.sum_log(rows, weight)
    log_rate = np.log(rows.rate @ x)
    kept = np.ones(problem.job_count)
    for job in range(problem.job_count):
        others = np.arange(problem.job_count) != job
        without = rows.rate @ engine.sum_log(rows, np.where(others, weight, 0.0))
        lost = weight[others] @ (np.log(without[others]) - log_rate[others])
        kept[job] = np.exp(-lost / weight[job])
    return rows.shares(x) * kept[:, None]


def _rates(answer: Allocation) -> Floats:
    return equal_levels(answer.problem) * answer.rate_steps_per_s


def _speed_in_entities(problem: AllocationProblem, stuck: Bools) -> Floats:
    """Distributes an entity's weight over its jobs that can rise, by weight; with FIFO, to the first."""
    entity = problem.entity
    is_fifo = np.array([e.policy is EntityPolicy.FIFO for e in problem.entities])[entity]
    open_weight = np.where(stuck, 0.0, problem.weight)
    first = np.unique(np.where(stuck, -1, entity), return_index=True)[1]
    is_first = np.zeros(problem.job_count, dtype=np.bool_)
    is_first[first] = True
    part = np.where(is_fifo, is_first & ~stuck, open_weight / np.bincount(entity, open_weight)[entity].clip(1e-300))
    owed = np.array([e.weight for e in problem.entities])[entity]
    speed: Floats = part * owed * equal_share_rate(problem) / problem.gpus_asked
    return speed


def _per_dollar(problem: AllocationProblem) -> Floats:
    """GPU-hours per dollar, (T,)."""
    return 1.0 / problem.price_usd_per_gpu_h


def disagreement(formulation: Formulation, ours: Allocation, share: Floats) -> float:
    """Largest relative difference between the figures of our answer and those of a peer's shares."""
    theirs = Allocation(ours.problem, share, ours.shadow_prices, ours.certificate)
    a, b = formulation.figures(ours), formulation.figures(theirs)
    return float(
        (np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), NOTHING * np.abs(a).max() + 1e-300)).max()
    )

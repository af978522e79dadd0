"""Random problems for every registered policy, by number, and checks of its answers and certificates.

A verdict is wrong if the policy fails, if its shares violate a constraint, if its certificate has another objective
than its shares, or if an independent linear program finds more than the bound of the certificate (or, for levels, more
for a job than its gap) allows. A policy must report a lack of proof in a warning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem, Entity, EntityPolicy
from gavelpy.policies.base import equal_share_rate, policy_from, registered
from gavelpy.policies.finish_time_fairness import isolated_s
from gavelpy.solve.objective import MaxMin, MaxMinLexicographic, MaxSum, MaxSumLog, MinMaxFinishTime
from gavelpy.solve.solver import Solver
from tests.solve.many import DECADES, JOBS_MAX, random_problem
from tests.solve.plain import optimum
from tests.solve.recomputed import Known, value_of

PROBLEMS = 10_000
POLICIES = (*sorted(registered()), "max_sum_throughput:normalised=1", "min_cost:deadlines=1")
DEAR = {"strategy_proof": 12, "nash_welfare": 60}  # maximum number of jobs: one solves for each job, one may need cvxpy
PACKED = 0.4  # fraction of the problems
ATTEMPTS_MAX, STRIDE = 200, 1_000_003  # seeds tried for a problem of the right kind, and their distance
FEASIBLE = 1e-9
SURE = 2e-8  # relative; of HiGHS, and of our certificates
LEVEL = 1e-5  # relative; of the result of HiGHS for a late level
GAP_PROMISED = 1e-6
GAPS_PROMISED = {"shockwave": 1e-3}  # of policies that state a larger one
SLOWER_MAX = 20.0
SLOW_MIN_S = 1.0  # CPU time; anything faster is fine: compiled searches make medians fall, branch and bound stays
SLOW_MIN_S_OF = {"sia": 10.0}  # most integer programs end at their first node, a few after hundreds, at most 2,000


@dataclass(frozen=True)
class Verdict:
    """The result of one problem."""

    number: int
    policy: str
    jobs: int
    packed: bool
    path: str
    gap: float
    warned: bool
    cpu_s: float
    wrong: str  # "" = nothing is wrong


Case = Callable[[int], tuple[AllocationProblem, str]]


def judged(number: int, solver: Solver | None = None, case: Case | None = None) -> Verdict:
    """Runs a policy on problem `number` and reports what is wrong with the allocation."""
    problem, name = (case or random_case)(number)
    policy, began_s = policy_from(name), time.process_time()
    try:
        answer = policy.allocate(problem, solver or Solver())
    except SolverFailed as failure:
        path, gap, warned, wrong = "failed", np.inf, False, str(failure)
        took_s = time.process_time() - began_s
    except Exception as crash:
        crash.add_note(f"random problem number {number}, {name}")
        raise
    else:
        took_s, c = time.process_time() - began_s, answer.certificate
        path, gap, warned, wrong = c.path, c.gap, bool(c.warning), _wrong(answer, name)
    return Verdict(number, name, problem.job_count, not problem.runs_alone, path, gap, warned, took_s, wrong)


def random_case(number: int, policy: str = "") -> tuple[AllocationProblem, str]:
    """Problem `number`, and the name of the policy to run on it: the given one, or each in turn."""
    name = policy or POLICIES[number % len(POLICIES)]
    rng = np.random.default_rng((number, 7))
    jobs_max, packed = DEAR.get(name, JOBS_MAX), bool(rng.random() < PACKED)
    for attempt in range(ATTEMPTS_MAX):
        decades = rng.choice([0.5, 2.0, DECADES])
        problem = random_problem(number + attempt * STRIDE, decades_max=decades, pairs=packed)
        if problem.job_count <= jobs_max and problem.runs_alone != packed:
            break
    return with_columns(rng, problem), name


def with_columns(rng: np.random.Generator, problem: AllocationProblem) -> AllocationProblem:
    """The problem with teams, prices, deadlines and a history; in some, rates that are almost equal."""
    J, T = problem.job_count, len(problem.gpu_types)
    teams = tuple(
        Entity(f"e{i}", float(rng.choice([0.1, 1.0, 5.0])), rng.choice([EntityPolicy.FAIRNESS, EntityPolicy.FIFO]))
        for i in range(int(rng.integers(0, 5)))
    )
    even_s = problem.steps_remaining / equal_share_rate(problem)
    if not problem.runs_alone and rng.random() < 0.3:  # partners that make each other faster
        faster = np.where(np.arange(len(problem.member_job)) >= J, rng.uniform(1.0, 2.0), 1.0)
        problem = replace(problem, member_rate_steps_per_s=problem.member_rate_steps_per_s * faster[:, None])
    if rng.random() < 0.15:  # figures that differ in their tenth digit
        noise = 1.0 + 1e-9 * rng.uniform(-1.0, 1.0, problem.member_rate_steps_per_s.shape)
        problem = replace(problem, member_rate_steps_per_s=problem.member_rate_steps_per_s * noise)
    return replace(
        problem,
        entities=teams,
        entity=rng.integers(-1, len(teams), J),
        price_usd_per_gpu_h=rng.uniform(0.4, 4.0, T),
        deadline_s=np.where(rng.random(J) < 0.5, even_s * 10.0 ** rng.uniform(-1.0, 2.0, J), np.inf),
        isolated_s=even_s * rng.uniform(0.0, 1.0, J),
        attained_gpu_s=rng.uniform(0.0, 1e5, J),
    )


def _wrong(answer: Allocation, name: str) -> str:
    problem, c = answer.problem, answer.certificate
    share = answer.share
    used, amount = np.einsum("cr,ct->tr", problem.demand, share), problem.capacity  # thousandths of all resources
    broken = max(
        0.0,
        float((-share).max(initial=0.0)),
        float((answer.job_share.sum(axis=1) - 1.0).max(initial=0.0)),
        float(((used - amount) / np.maximum(amount, 1)).max(initial=0.0)),
    )
    if not (np.isfinite(share).all() and broken <= FEASIBLE):
        return f"shares break a constraint by {broken:.1e}"
    if c.violation > FEASIBLE:
        return f"violation {c.violation:.1e}"
    if not c.gap <= GAPS_PROMISED.get(name, GAP_PROMISED) and not c.warning:
        return f"gap {c.gap:.1e} without a warning"
    objective = OBJECTIVES[name](problem) if name in OBJECTIVES and problem.can_run.any() else None
    return "" if objective is None else _refuted(answer, objective)


def _refuted(answer: Allocation, objective: Known) -> str:
    """How an independent computation contradicts the certificate; "" = it does not."""
    problem, c = answer.problem, answer.certificate
    value = value_of(answer, objective)
    if not abs(value - c.objective) <= 1e-9 * max(abs(value), abs(c.objective), 1e-300):
        return f"objective {c.objective!r}, recomputed {value!r}"
    match objective:
        case MaxMin() | MaxSum():
            found = optimum(problem, objective)
            if found.status == "Optimal" and found.value > c.bound * (1 + SURE) + 1e-300:
                confirmed = value_of(replace(answer, share=found.share), objective)  # HiGHS drops tiny coefficients
                if confirmed > c.bound * (1 + SURE) + 1e-300:
                    return f"bound {c.bound!r}, plain HiGHS has {found.value!r}, confirmed {confirmed!r}"
        case MinMaxFinishTime(steps=steps, age_s=age_s, isolated_s=isolated):
            runs, best = problem.can_run, 1.0 / c.bound * (1 - 1e-6)  # a ratio that the bound rules out
            left_s = np.where(runs, best * isolated - age_s, 1.0)
            if (left_s > 0).all():
                needed = MaxMin(left_s / steps)
                found = optimum(problem, needed)
                if (
                    found.status == "Optimal"
                    and min(found.value, value_of(replace(answer, share=found.share), needed)) >= 1.0
                ):
                    return f"ratio {1 / c.bound!r} at least, and {best!r} can be had"
        case MaxMinLexicographic(scale=scale):
            return _refuted_level(answer, scale)
        case MaxSumLog(weight=weight):
            runs, rate = problem.can_run, answer.rate_steps_per_s
            if not (rate[runs] > 0).all():
                return ""
            gain = np.where(runs, weight / np.where(rate > 0, rate, 1.0), 0.0)
            found = optimum(problem, MaxSum(gain))
            better = found.value - float(weight[runs].sum())
            if found.status == "Optimal" and c.gap <= GAP_PROMISED and better > 1e-2 * float(weight[runs].sum()):
                return f"gap {c.gap:.1e}, and relative changes of {better!r} can be had"
    return ""


def _refuted_level(answer: Allocation, scale: np.ndarray) -> str:
    """Whether one of three jobs can gain more than the gap while no job at or below its level loses."""
    problem, rate = answer.problem, answer.rate_steps_per_s
    level = np.where(problem.can_run, scale * rate, np.inf)
    order = np.argsort(level)[: int(problem.can_run.sum())]
    for job in {int(order[0]), int(order[len(order) // 2]), int(order[-1])}:
        if rate[job] <= 0:
            continue
        near = max(1e-7, 10.0 * answer.certificate.gap)  # levels are that exact
        above = np.where(
            problem.can_run, np.minimum(rate, level[job] / scale), 0.0
        )  # others may fall to this level only
        floor = np.where(level <= level[job] * (1 + near), rate, above)
        found = optimum(problem, MaxSum(np.where(np.arange(len(rate)) == job, 1.0 / rate[job], 0.0), floor))
        if found.status != "Optimal":
            continue
        trace = 1e-10 * float(
            found.duals.floor @ floor + found.duals.budget.sum() + found.duals.price @ problem.row_capacity
        )
        gain = found.value - 1.0 - trace  # HiGHS's own tolerances
        if gain > answer.certificate.gap * (1 + 1e-6) + LEVEL:
            return f"gap {answer.certificate.gap:.1e}, and job {job} can gain {gain:.1e}"
    return ""


def _fair_scale(problem: AllocationProblem) -> np.ndarray:
    return np.asarray(problem.gpus_asked / (problem.weight * equal_share_rate(problem)))


OBJECTIVES: Mapping[str, Callable[[AllocationProblem], Known]] = {
    "max_min_fairness": lambda p: MaxMin(_fair_scale(p)),
    "max_min_fairness_water_filling": lambda p: MaxMinLexicographic(_fair_scale(p)),
    "min_makespan": lambda p: MaxMin(1.0 / p.steps_remaining),
    "max_sum_throughput": lambda p: MaxSum(np.ones(p.job_count)),
    "max_sum_throughput:normalised=1": lambda p: MaxSum(p.weight / equal_share_rate(p)),
    "min_cost": lambda p: MaxSum(np.ones(p.job_count), gpu_type_worth=1.0 / p.price_usd_per_gpu_h),
    "finish_time_fairness": lambda p: MinMaxFinishTime(p.steps_remaining, p.age_s, isolated_s(p)),
    "nash_welfare": lambda p: MaxSumLog(p.weight),
}


def slow_ones(verdicts: list[Verdict], judge: Callable[[int], Verdict]) -> list[Verdict]:
    """Verdicts that took more than 20 times the median of their policy, kind and size, also when repeated.

    The first problem that needs a module imports it, and the first one of a kind compiles kernels for it.
    """
    sizes: dict[tuple[str, bool, int], list[Verdict]] = {}
    for verdict in verdicts:
        sizes.setdefault((verdict.policy, verdict.packed, verdict.jobs.bit_length()), []).append(verdict)
    found = []
    for of_size in sizes.values():
        least_s = SLOW_MIN_S_OF.get(of_size[0].policy, SLOW_MIN_S)
        limit_s = max(SLOWER_MAX * float(np.median([v.cpu_s for v in of_size])), least_s)
        found += [v for v in of_size if v.cpu_s > limit_s and judge(v.number).cpu_s > limit_s]
    return found

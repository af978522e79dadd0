"""Random problems by seed, with every property that has ever broken a solver, and checks of our answers.

A linear answer is right if its objective is that of the whole LP in HiGHS, to SURE. If it is not, or HiGHS is not
certain itself, exact arithmetic decides: the answer is right if duals (HiGHS's, or those that follow from our prices)
prove in rationals that it is within GAP_MAX of the optimum, and it violates no constraint by more than VIOLATION_MAX.
Answers to objectives that are sequences or roots of linear programs are right if no linear program improves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import patch

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.solve import finish_time, linear
from gavelpy.solve.certificate import GAP_MAX, GAP_MAX_CONCAVE, VIOLATION_MAX
from gavelpy.solve.filling import water_level
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxMinLexicographic, MaxSum, MaxSumLog, MinMaxFinishTime
from gavelpy.solve.prices import engine, highest_level, starting_prices
from gavelpy.solve.solver import Solver
from tests.solve.exact import Duals, proof
from tests.solve.improvement import improvement
from tests.solve.plain import optimum
from tests.solve.price_duals import curved, duals_of_prices
from tests.solve.recomputed import Known, value_of, violation_of

PROBLEMS = 2000
SURE = 1e-8
ROUNDING = 1e-10  # relative
IMPROVABLE = 1e-5  # relative; levels of jobs that hardly need a GPU amplify differences that HiGHS cannot resolve
JOBS_MAX, TYPES_MAX, DECADES, PAIRED_JOBS_MAX = 300, 10, 6, 12

MILD_DECADES = 1.0  # for optima that have fewer known digits the more the rates differ
MILD_KINDS = ("levels", "logarithms")
KINDS = (
    "max-min, fair",
    "max-min, makespan",
    "max-min, raw",
    "max-min, floors",
    "max-min, bases",
    "max-sum, raw",
    "max-sum, normalised",
    "max-sum, floors",
    "max-sum, cost",
    "levels",
    "finish time",
    "logarithms",
)

# Changed size limits of the package: (module, name, value). Each way solves the same problems, so that small problems
# also reach the rungs that are meant for large ones.
WAYS: Mapping[str, tuple[tuple[ModuleType, str, int], ...]] = {
    "as it comes": (),
    "prices from HiGHS's": ((engine, "CLASSES_MIN", 1),),
    "compiled steps": (
        (engine, "CLASSES_MIN", 1),
        (engine, "NUMPY_ROWS_MAX", 0),
        (highest_level, "NUMPY_ROWS_MAX", 0),
        (water_level, "LATER_MIN", 1),
        *((module, "NEWTON_MIN", 1) for module in (finish_time, water_level)),
    ),
    "quick rungs always": (
        (engine, "CLASSES_MIN", 1),
        *((module, "NEWTON_MIN", 1) for module in (engine, starting_prices, finish_time, water_level)),
        (linear, "MANY", 0),
        (linear, "MANY_FOR_EACH", 0),
    ),
}


@dataclass(frozen=True)
class Verdict:
    """The result of one problem."""

    seed: int
    kind: str  # of objective
    path: str  # of our certificate
    by: str  # how we know that our answer is right; "" = it is wrong, or there is none
    gap: float
    detail: str = ""


@contextmanager
def sizes_of(way: str) -> Iterator[None]:
    """Applies the size limits of a way while the context is open."""
    with ExitStack() as patches:
        for module, name, value in WAYS[way]:
            patches.enter_context(patch.object(module, name, value))
        yield


def judged(seed: int, solver: Solver) -> Verdict:
    """Solves problem number `seed`, and checks the answer."""
    problem, kind, objective = random_case(seed)
    try:
        answer = solve(problem, objective, solver)
    except SolverFailed as failure:
        return Verdict(seed, kind, "failed", "", float("inf"), str(failure))
    except Exception as crash:
        crash.add_note(f"random problem number {seed}, {kind}")
        raise
    c = answer.certificate
    by = reason(answer, objective)
    return Verdict(seed, kind, c.path, by, c.gap, "" if by else f"{c.objective!r}, bound {c.bound!r}")


def random_case(seed: int) -> tuple[AllocationProblem, str, Known]:
    """Problem number `seed`, its objective and that objective's name."""
    kind = KINDS[seed % len(KINDS)]
    problem = random_problem(
        seed, decades_max=MILD_DECADES if kind in MILD_KINDS else DECADES, pairs=kind != "logarithms"
    )
    return problem, kind, random_objective(seed, problem, kind)


def random_problem(seed: int, *, decades_max: float, pairs: bool) -> AllocationProblem:
    """Problem number `seed`. Each difficulty is in some problems only, so that they occur in all combinations."""
    rng = np.random.default_rng(seed)
    J = int(rng.integers(1, JOBS_MAX + 1) if rng.random() < 0.5 else np.exp(rng.uniform(0.0, np.log(JOBS_MAX + 1))))
    T = int(rng.integers(1, TYPES_MAX + 1))
    kinds = J if rng.random() < 0.6 else max(1, J // int(rng.integers(2, 9)))
    kind = np.arange(J) if kinds == J else rng.integers(0, kinds, J)
    rates = _rates(rng, kinds, T, decades_max)[kind]
    rates[rng.random(J) < rng.choice([0.0, 0.0, 0.1])] = 0.0  # can run nowhere
    counts = rng.integers(0, max(2, int(J * rng.choice([0.05, 0.3, 2.0]))) + 1, T)
    counts[rng.random(T) < rng.choice([0.0, 0.0, 0.3])] = 0
    gpus = rng.choice([1, 1, 1, 1, 2, 4, 8], kinds)[kind]
    if rng.random() < 0.2:
        gpus[rng.integers(0, J)] = 3 * int(counts.max()) + 1  # a gang larger than any type
    weights = rng.choice([1.0, 5.0], kinds) if rng.random() < 0.5 else 10.0 ** rng.uniform(-3.0, 3.0, kinds)
    best = np.where(rates.max(axis=1) > 0, rates.max(axis=1), 1.0)
    steps = best * 10.0 ** rng.uniform(1.0, 6.0, kinds)[kind]
    problem = AllocationProblem.of(
        [f"job-{i}" for i in range(J)],
        [f"type-{i}" for i in range(T)],
        counts,
        rates,
        gpus=gpus,
        weight=weights[kind],
        steps_remaining=steps,
        age_s=rng.uniform(0.0, 1e5, kinds)[kind],
    )
    return _with_pairs(rng, problem) if pairs and J <= PAIRED_JOBS_MAX and rng.random() < 0.5 else problem


def random_objective(seed: int, problem: AllocationProblem, kind: str) -> Known:
    """An objective of that name; floors and bases are such that an even split reaches them."""
    rng = np.random.default_rng((seed, 1))
    best = problem.rate_alone_steps_per_s.max(axis=1)
    best = np.where(best > 0, best, 1.0)
    even = even_rate(problem)
    some = np.where(rng.random(problem.job_count) < 0.5, rng.random(), 0.0) * even
    fair = problem.gpus_asked / (problem.weight * equal_share_rate(problem))
    nobody_counts = problem.can_run & (rng.random(problem.job_count) < 0.3)
    nobody_counts[np.flatnonzero(problem.can_run)[:1]] = False  # at least one job counts
    isolated_s = problem.age_s * rng.uniform(0.2, 1.0) + problem.steps_remaining / np.where(even > 0, even, 1.0)
    match kind:
        case "max-min, fair":
            return MaxMin(fair)
        case "max-min, makespan":
            return MaxMin(1.0 / problem.steps_remaining)
        case "max-min, raw":
            return MaxMin(problem.weight)
        case "max-min, floors":
            return MaxMin(fair, some)
        case "max-min, bases":
            return MaxMin(np.where(nobody_counts, 0.0, fair), some, some * 0.5)
        case "max-sum, raw":
            return MaxSum(problem.weight)
        case "max-sum, normalised":
            return MaxSum(problem.weight / best)
        case "max-sum, floors":
            return MaxSum(problem.weight / best, some)
        case "max-sum, cost":
            return MaxSum(problem.weight / best, some, 10.0 ** rng.uniform(-2.0, 2.0, len(problem.gpu_types)))
        case "levels":
            return MaxMinLexicographic(fair)
        case "finish time":
            return MinMaxFinishTime(problem.steps_remaining, problem.age_s, isolated_s)
        case "logarithms":
            return MaxSumLog(problem.weight)
    raise AssertionError(kind)


def even_rate(problem: AllocationProblem) -> Floats:
    """Rate of each job if all jobs share each type in proportion to their gang sizes, (J,)."""
    gpus, asked = problem.gpu_counts, float(problem.gpus_asked.sum())
    part = gpus / max(asked, float(gpus.sum()), 1.0)
    return np.where(problem.can_run, problem.rate_alone_steps_per_s @ part, 0.0)


def reason(answer: Allocation, objective: Known) -> str:
    """How we know that an answer is right; "" if it is not. Its certificate has to be right, too."""
    c = answer.certificate
    gap_max = GAP_MAX_CONCAVE if isinstance(objective, MaxSumLog | MaxMinLexicographic) else GAP_MAX
    if isinstance(objective, MaxMinLexicographic) and c.warning:
        gap_max = c.gap  # late levels that doubles cannot resolve: the gap must cover the possible improvement
    if not (c.gap <= gap_max and c.violation <= VIOLATION_MAX and violation_of(answer, objective) <= VIOLATION_MAX):
        return ""
    if not answer.problem.can_run.any():
        return "nothing runs" if not answer.share.any() else ""
    value = value_of(answer, objective)
    if not abs(value - c.objective) <= ROUNDING * max(abs(value), abs(c.objective)):
        return ""
    match objective:
        case MaxMin() | MaxSum():
            return _reason_of_linear(answer, objective, value)
        case MaxMinLexicographic() | MinMaxFinishTime() | MaxSumLog():
            return "no improvement" if improvement(answer, objective) <= max(IMPROVABLE, c.gap) else ""


def _reason_of_linear(answer: Allocation, objective: MaxMin | MaxSum, value: float) -> str:
    problem = answer.problem
    plain = optimum(problem, objective)
    if plain.status == "Optimal" and abs(plain.value - value) <= SURE * abs(plain.value):
        return "plain HiGHS"
    if _proves(answer, objective, plain.duals):
        return "exact, HiGHS's duals"
    if curved(problem, objective) and _proves(
        answer, objective, duals_of_prices(problem, objective, answer.shadow_prices)
    ):
        return "exact, our prices"
    return ""


def _proves(answer: Allocation, objective: MaxMin | MaxSum, duals: Duals) -> bool:
    found = proof(answer.problem, objective, answer.share, duals)
    return found.gap <= GAP_MAX and found.violation <= VIOLATION_MAX


def _rates(rng: np.random.Generator, kinds: int, types: int, decades_max: float) -> Floats:
    """Steps/s of kinds of jobs: equal up to a factor, or as different as possible; some zero."""
    decades = min(decades_max, rng.choice([0.5, 2.0, DECADES]))
    if rng.random() < 0.5:
        rates = 10.0 ** rng.uniform(-decades, decades, (kinds, 1)) * rng.uniform(0.1, 1.0, (kinds, types))
    else:
        rates = 10.0 ** rng.uniform(-decades, decades, (kinds, types))
    rates[rng.random(rates.shape) < rng.choice([0.0, 0.0, 0.2, 0.7])] = 0.0
    return rates


def _with_pairs(rng: np.random.Generator, problem: AllocationProblem) -> AllocationProblem:
    """Every two jobs of equal gang size may be co-located, at 20 to 100 % of their rates alone."""
    gpus, jobs = problem.gpus_asked, range(problem.job_count)
    pairs = [(i, k) for i in jobs for k in jobs if i < k and gpus[i] == gpus[k]]
    rates = problem.member_rate_steps_per_s[np.array(pairs, dtype=np.int64).reshape(-1, 2)]
    return problem.with_pairs(pairs, rates * rng.uniform(0.2, 1.0, rates.shape))

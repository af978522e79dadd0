"""Random problems with sizes and further resources, by number: those of many.py, made wider.

R is 1 to 3, and a job has 1 to 5 sizes. CPU cores and memory are scarce in some problems and ample in others, and some
types have none. Every policy runs on them; one that does not use what a problem has must refuse it by name.

`together_case` is for the policies that optimise: each problem has all that its policy uses (several sizes, further
resources, pairs) at once, also where it has 300 jobs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import COUNTED, ProblemInput, policy_from, uses_of
from gavelpy.solve.solver import Solver
from tests.policies.many import ATTEMPTS_MAX, DEAR, OBJECTIVES, STRIDE, Verdict, judged, random_case, with_columns
from tests.solve.many import DECADES, JOBS_MAX, random_problem

PROBLEMS = 10_000
SIZES_MAX, SIZED_JOBS_MAX = 5, 120  # more jobs have fewer sizes, so that the oracle takes seconds at most


def wide_case(number: int) -> tuple[AllocationProblem, str]:
    """Problem `number`, and the name of the policy to run on it."""
    problem, name = random_case(number)
    rng = np.random.default_rng((number, 11))
    resources, sizes = int(rng.integers(1, 4)), int(rng.integers(1, SIZES_MAX + 1))
    if name in ("nash_welfare", "strategy_proof"):  # cvxpy
        sizes = min(sizes, 3)
    for resource in ("cpu", "memory_gib")[: resources - 1]:
        problem = _with_resource(rng, problem, resource)
    return _with_sizes(rng, problem, sizes if problem.job_count <= SIZED_JOBS_MAX else min(sizes, 2)), name


def judged_wide(number: int, solver: Solver | None = None) -> Verdict:
    """Runs a policy on problem `number` and reports what is wrong, also if it ignores sizes or resources."""
    problem, name = wide_case(number)
    policy = policy_from(name)
    unused = [each for each in COUNTED if each not in (uses_of(policy) or ()) and each.is_given(problem)]
    if not unused:
        return judged(number, solver, wide_case)
    refusal = ""
    try:
        policy.allocate(problem)
    except InvalidInput as error:
        refusal = str(error)
    wrong = "" if any(each.in_words in refusal for each in unused) else f"ignores {unused[0].in_words}: {refusal!r}"
    return Verdict(number, name, problem.job_count, not problem.runs_alone, "refused", 0.0, False, 0.0, wrong)


OPTIMISING = (*OBJECTIVES, "hierarchical", "min_cost:deadlines=1", "strategy_proof")
PAIRS_MAX = 200


def together_case(number: int) -> tuple[AllocationProblem, str]:
    """Problem `number` with all that its policy uses, and the name of the policy, which optimises."""
    name = OPTIMISING[number % len(OPTIMISING)]
    uses, rng = uses_of(policy_from(name)) or frozenset(), np.random.default_rng((number, 13))
    for attempt in range(ATTEMPTS_MAX):
        decades = rng.choice([0.5, 2.0, DECADES])
        problem = random_problem(number + attempt * STRIDE, decades_max=decades, pairs=False)
        if problem.runs_alone and problem.job_count <= DEAR.get(name, JOBS_MAX):
            break
    problem = with_columns(rng, problem)
    if ProblemInput.PAIRS in uses:
        problem = _with_some_pairs(rng, problem)
    if ProblemInput.RESOURCES in uses:
        for resource in ("cpu", "memory_gib")[: rng.integers(0, 3)]:
            problem = _with_resource(rng, problem, resource)
    if ProblemInput.SIZES in uses:
        problem = _with_sizes(rng, problem, int(rng.integers(1, 4 if name in DEAR else SIZES_MAX + 1)))
    return problem, name


def judged_together(number: int, solver: Solver | None = None) -> Verdict:
    """Runs an optimising policy on problem `number` and reports what is wrong."""
    return judged(number, solver, together_case)


def _with_some_pairs(rng: np.random.Generator, problem: AllocationProblem) -> AllocationProblem:
    """Some jobs of equal gang size may be co-located, mostly at 20 to 100 % of their rates alone."""
    J = problem.job_count
    drawn = np.unique(np.sort(rng.integers(0, J, (int(rng.integers(0, PAIRS_MAX + 1)), 2)), axis=1), axis=0)
    first, second = drawn.T
    pairs = drawn[(first != second) & (problem.gpus_asked[first] == problem.gpus_asked[second])]
    rates = problem.member_rate_steps_per_s[pairs] * rng.uniform(0.2, rng.choice([1.0, 1.0, 2.0]), (len(pairs), 2, 1))
    return problem.with_pairs([(int(one), int(other)) for one, other in pairs], rates) if len(pairs) else problem


def _with_resource(rng: np.random.Generator, problem: AllocationProblem, name: str) -> AllocationProblem:
    """The problem with one more resource, per GPU or per job, scarce or ample."""
    C, T = problem.configuration_count, len(problem.gpu_types)
    per_gpu = rng.random() < 0.5
    need = rng.choice([0.0, 1.0, 4.0, 12.0], C) * 10.0 ** rng.uniform(-1.0, 1.0)
    need *= problem.gpus_occupied if per_gpu else 1.0
    scarcity = 10.0 ** rng.uniform(-1.0, 1.5, T)
    amount = np.maximum(problem.gpu_counts, rng.integers(0, 3)) * scarcity * max(float(need.mean()), 0.1)
    amount[rng.random(T) < rng.choice([0.0, 0.0, 0.2])] = 0.0
    return replace(
        problem,
        resources=(*problem.resources, name),
        capacity=np.column_stack([problem.capacity, np.rint(1000 * amount)]),
        demand=np.column_stack([problem.demand, np.rint(1000 * need)]),
    )


def _with_sizes(rng: np.random.Generator, problem: AllocationProblem, sizes: int) -> AllocationProblem:
    """Some or all jobs with up to `sizes` sizes; their rates follow a curve, or are random."""
    curve = np.sort(rng.uniform(0.3, 1.05, SIZES_MAX))[::-1]
    given: dict[str, list[Size]] = {}
    part = rng.choice([0.3, 1.0])
    for row, job in enumerate(problem.job_ids):
        if sizes == 1 or rng.random() > part or not problem.rate_as_requested_steps_per_s[row].any():
            continue
        gpus = float(problem.gpus_asked[row])
        given[job] = [_size(rng, problem, row, gpus * 2.0**step, float(curve[step])) for step in range(1, sizes)]
    return problem.with_sizes(given) if given else problem


def _size(rng: np.random.Generator, problem: AllocationProblem, row: int, gpus: float, efficiency: float) -> Size:
    demand = {name: float(rng.uniform(0.0, 8.0)) for name in problem.resources[1:] if rng.random() < 0.2}
    if rng.random() < 0.7:
        return Size(gpus, efficiency=efficiency, demand=demand)
    asked = problem.rate_as_requested_steps_per_s[row] * rng.uniform(0.0, 3.0, len(problem.gpu_types))
    rates = np.where(rng.random(len(asked)) < 0.1, 0.0, asked)
    return Size(gpus, dict(zip(problem.gpu_types, rates.tolist(), strict=True)), plan="random", demand=demand)

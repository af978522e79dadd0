"""The inputs that policies declare: each declared one changes some answer, each other one none."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.problem import AllocationProblem, Entity
from gavelpy.policies.base import (
    COUNTED,
    REQUESTS,
    Policy,
    ProblemInput,
    policy_from,
    registered,
    uses_of,
)
from gavelpy.policies.contract import check_unused_inputs, with_other
from gavelpy.policies.refusals import not_used
from tests.conftest import PROJECT

VARIANTS = (
    *registered(),
    "allox:alpha=0.5",
    "drf:by=entity",
    "max_sum_throughput:normalised=1",
    "min_cost:deadlines=1",
    "pop:policy=min_cost+deadlines=1:jobs_min=1",
    "shortest_job_first:by=total",
)
WITH_SIZES = {"dorm"}  # with one size for each job, its weights and the GPUs held change no number of GPUs
WITH_MEMORY = {"gandiva_introspective"}  # it counts steps between answers, and jobs grow into what was idle before
SEEDS = range(320)  # the first that changes an answer ends the search


def random_problem(seed: int) -> AllocationProblem:
    """A problem of 3 to 8 jobs, every second one with gangs, in which all inputs are given."""
    rng = np.random.default_rng(seed)
    J = int(rng.integers(3, 9))
    steps = rng.uniform(1e3, 1e5, J)
    return AllocationProblem.of(
        [f"j{row}" for row in range(J)], ["v100", "p100", "k80"], rng.integers(1, J // 2 + 2, 3),
        rng.uniform(0.2, 8.0, (J, 3)), gpus=rng.choice([1, 2, 4], J) if seed % 2 else 1,
        weight=rng.uniform(0.5, 3.0, J), steps_remaining=steps, steps_total=steps * rng.uniform(1.0, 3.0, J),
        age_s=rng.uniform(0.0, 1e5, J), isolated_s=rng.uniform(0.0, 1e5, J), deadline_s=rng.uniform(1e3, 1e5, J),
        attained_gpu_s=rng.uniform(0.0, 1e5, J), price_usd_per_gpu_h=rng.uniform(0.5, 4.0, 3),
        entities=(Entity("x"), Entity("y", 2.0)), entity=rng.integers(-1, 2, J),
        gpu_type_held=rng.integers(-1, 3, J) if seed % 3 else -1, restart_s=10.0 ** rng.uniform(1.0, 5.0, J),
        completion_value=[f"linear:worth={1 + row}:time_s=9000" for row in range(J)],
        losses=[[(x * steps[row] / 900, 1.0 / (1 + 0.2 * (row + 1) * x)) for x in range(1, 8)] for row in range(J)],
        app=[("search", "")[row % 2] for row in range(J)],
        owner=[("ann", "bob", "")[row % 3] for row in range(J)],
    )  # fmt: skip


def with_pairs(problem: AllocationProblem) -> AllocationProblem:
    """Neighbours of one size may be co-located, almost without a slowdown."""
    rows = range(problem.job_count - 1)
    pairs = [(row, row + 1) for row in rows if problem.gpus_asked[row] == problem.gpus_asked[row + 1]]
    rates = 0.95 * problem.member_rate_steps_per_s[np.array(pairs, dtype=np.int64).reshape(-1, 2)]
    return problem.with_pairs(pairs, rates)


def with_memory(policy: Policy, problem: AllocationProblem) -> AllocationProblem:
    """The problem after an hour in which all jobs ran on the first type, in the middle of trials."""
    for _ in range(2):
        problem = replace(
            problem, memory=policy.allocate(problem).memory, attained_gpu_s=problem.attained_gpu_s + 3600.0,
            steps_remaining=0.9 * problem.steps_remaining, gpu_type_held=np.zeros(problem.job_count, dtype=np.int64),
        )  # fmt: skip
    return problem


def problem_for(name: str, given: ProblemInput, seed: int) -> AllocationProblem:
    """A random problem, with sizes or a memory for those policies to which other inputs matter only then."""
    if name in WITH_MEMORY and given not in (ProblemInput.PAIRS, ProblemInput.RESOURCES):
        problem = random_problem(seed)
        return with_memory(policy_from(name), problem if given is ProblemInput.SIZES else with_pairs(problem))
    problem, sized = random_problem(seed), name in WITH_SIZES and given is not ProblemInput.SIZES
    return with_other(problem, ProblemInput.SIZES, seed) if sized else problem


def shares(policy: Policy, problem: AllocationProblem) -> bytes:
    """The shares of jobs, and the GPUs that they use of each type."""
    answer = policy.allocate(problem)
    return answer.job_share.tobytes() + (problem.gpus_occupied @ answer.share).round(9).tobytes()


def changed(problem: AllocationProblem, given: ProblemInput, seed: int) -> AllocationProblem:
    return with_pairs(problem) if given is ProblemInput.PAIRS else with_other(problem, given, seed)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "oasis")) for name in VARIANTS],  # many seeds
)
def test_each_declared_input_changes_some_answer(name: str) -> None:
    policy = policy_from(name)

    for given in uses_of(policy) or ():
        differs = (
            shares(policy, changed(problem, given, seed)) != shares(policy, problem)
            for seed, problem in ((seed, problem_for(name, given, seed)) for seed in SEEDS)
        )
        assert any(differs), f"{given.in_words} changes nothing"


@pytest.mark.parametrize(
    ("seed", "name"),
    [
        # The second problem has gangs and GPUs held, too; `strategy_proof` solves one for each job and each input.
        pytest.param(seed, name, marks=[pytest.mark.slow] * (name == "strategy_proof" and seed == 0))
        for seed in SEEDS[:2]
        for name in VARIANTS
    ],
)
def test_inputs_that_are_not_declared_change_nothing(seed: int, name: str) -> None:
    policy, problem = policy_from(name), random_problem(seed)

    check_unused_inputs(policy, problem)
    if ProblemInput.PAIRS not in (uses_of(policy) or ()):
        assert shares(policy, with_pairs(problem)) == shares(policy, problem)


def test_requests_that_a_policy_does_not_use_are_named() -> None:
    problem = random_problem(0)
    bare = replace(
        problem,
        weight=np.ones(problem.job_count),
        entity=np.full(problem.job_count, -1),
        deadline_s=np.full(problem.job_count, np.inf),
        price_usd_per_gpu_h=np.zeros(3),
        completion_value=np.zeros((problem.job_count, 4)),
    )

    assert not_used(policy_from("fifo"), with_pairs(problem)) == [
        each for each in REQUESTS if each not in ("pairs", *COUNTED)
    ]
    assert not_used(policy_from("min_cost:deadlines=1"), problem) == [
        ProblemInput.WEIGHT, ProblemInput.ENTITY, ProblemInput.COMPLETION_VALUE,
    ]  # fmt: skip
    assert not_used(policy_from("isolated"), bare) == []


def test_page_lists_what_each_policy_uses() -> None:
    page = (PROJECT / "docs" / "policies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9_:=.+]+)` \| ([^|]*) \|$", page.partition("## Inputs")[2], re.MULTILINE)

    said = {name: {each.strip() for each in listed.split(",")} - {""} for name, listed in rows}

    assert said == {name: {each.in_words for each in uses_of(policy_from(name)) or ()} for name in VARIANTS}

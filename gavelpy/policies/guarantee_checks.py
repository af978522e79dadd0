"""Checks of the guarantees, for the tests of built-in and plug-in policies.

    from gavelpy.policies.base import guarantees_of
    from gavelpy.policies.guarantee_checks import CHECKS, peers

    @pytest.mark.parametrize("guarantee", guarantees_of(MyPolicy))
    @pytest.mark.parametrize("seed", range(20))
    def test_mine(guarantee, seed):
        CHECKS[guarantee](MyPolicy(), peers(seed))

A check raises AssertionError with what was expected and what it got. It needs no test framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Guarantee, Policy
from gavelpy.policies.isolated import Isolated
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum

TOLERANCE = 1e-6  # relative; answers are proved to 1e-8 or, by cvxpy, to 1e-6

Check = Callable[[Policy, AllocationProblem], None]


def check_sharing_incentive(policy: Policy, problem: AllocationProblem) -> None:
    """No job is slower than with an n-th of every GPU type."""
    rates, alone = (each.allocate(problem).rate_steps_per_s for each in (policy, Isolated()))
    short = rates < alone * (1 - TOLERANCE)

    assert not short.any(), _violation("slower than isolated", problem, short, rates, alone)


def check_pareto_efficient(policy: Policy, problem: AllocationProblem) -> None:
    """With all rates as floors, an LP cannot raise the sum of the rates, each relative to its best."""
    rates = policy.allocate(problem).rate_steps_per_s
    best = np.where(problem.gpu_counts > 0, problem.rate_alone_steps_per_s, 0.0).max(axis=1)
    unit = np.where(best > 0, best, 1.0)
    improved = solve(problem, MaxSum(1 / unit, rates * (1 - TOLERANCE / 100))).rate_steps_per_s
    gained = ((improved - rates) / unit).sum()

    assert gained <= TOLERANCE * problem.job_count, f"rates {rates} can be raised to {improved}"


def check_envy_free(policy: Policy, problem: AllocationProblem) -> None:
    """No job would be faster with the shares of another."""
    allocation = policy.allocate(problem)
    with_shares_of = problem.rate_alone_steps_per_s @ allocation.job_share.T  # (J, J): rate of a row with a column's
    rates, most = allocation.rate_steps_per_s, with_shares_of.max(axis=1, initial=0.0)
    envious = rates < most * (1 - TOLERANCE)

    assert not envious.any(), _violation("envious", problem, envious, rates, most)


def check_strategy_proof(policy: Policy, problem: AllocationProblem) -> None:
    """No job gains by false declarations: other rates, a type it denies, a scaled rate alone, equal rates."""
    rng = np.random.default_rng(problem.job_count)
    honest = policy.allocate(problem).rate_steps_per_s
    for job in range(problem.job_count):
        own = problem.member_job == job
        truth = problem.member_rate_steps_per_s[own]
        for lie in _lies(rng, truth):
            declared = problem.member_rate_steps_per_s.copy()
            declared[own] = lie
            answer = policy.allocate(replace(problem, member_rate_steps_per_s=declared))
            lying = answer.evaluated_on(problem).rate_steps_per_s[job]

            assert lying <= honest[job] * (1 + TOLERANCE), (
                f"job {problem.job_ids[job]!r} has {honest[job]:.6g} steps/s, and {lying:.6g} if it declares "
                f"{lie.tolist()} instead of {truth.tolist()}"
            )


CHECKS: Mapping[Guarantee, Check] = {
    Guarantee.SHARING_INCENTIVE: check_sharing_incentive,
    Guarantee.PARETO_EFFICIENT: check_pareto_efficient,
    Guarantee.ENVY_FREE: check_envy_free,
    Guarantee.STRATEGY_PROOF: check_strategy_proof,
}


def peers(seed: int) -> AllocationProblem:
    """A random problem to which the guarantees apply: up to 7 jobs, equal except for rates and work, on up to 4 types.

    Scarce or plentiful GPUs, gangs of 1 to 4, some zero rates, some jobs that cannot run, some types without GPUs.
    """
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(1, 8)), int(rng.integers(1, 5))
    rates = rng.uniform(1, 10, (jobs, 1)) * rng.uniform(0.1, 1.0, (jobs, types))
    steps = rng.uniform(10.0, 1e4, jobs)
    return AllocationProblem.of(
        [f"job-{row}" for row in range(jobs)],
        [f"type-{column}" for column in range(types)],
        rng.integers(0, 6, types),
        np.where(rng.random((jobs, types)) < 0.15, 0.0, rates),
        gpus=int(rng.choice([1, 1, 2, 4])),
        steps_remaining=steps,
        steps_total=steps,
        price_usd_per_gpu_h=rng.uniform(0.4, 4.0, types),
    )


def _lies(rng: np.random.Generator, truth: Floats) -> list[Floats]:
    """False rates of one job, each (members, T) as `truth` is; the first member is the job alone."""
    types, alone = truth.shape[1], (np.arange(len(truth)) == 0)[:, None]
    denied = truth * (np.arange(types) != rng.integers(types))
    level = np.repeat(truth.mean(axis=1, keepdims=True), types, axis=1)
    scaled = [truth * np.where(alone, factor, 1.0) for factor in (0.1, 10.0)]
    return [truth * rng.uniform(0.3, 3.0, truth.shape), denied, level, *scaled]


def _violation(what: str, problem: AllocationProblem, rows: np.ndarray, rates: Floats, expected: Floats) -> str:
    row = int(np.argmax(rows))
    return f"job {problem.job_ids[row]!r} is {what}: {rates[row]:.6g} steps/s, not {expected[row]:.6g}"

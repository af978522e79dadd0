"""Guarantees as properties, for the tests of ours and of anybody's policies.

    from gavelpy.policies.base import guarantees_of
    from gavelpy.policies.guarantee_checks import CHECKS, peers

    @pytest.mark.parametrize("guarantee", guarantees_of(MyPolicy))
    @pytest.mark.parametrize("seed", range(20))
    def test_mine(guarantee, seed):
        CHECKS[guarantee](MyPolicy(), peers(seed))

A check raises AssertionError with what was promised and what came. Needs no test framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Policy
from gavelpy.policies.guarantees import Guarantee
from gavelpy.policies.isolated import Isolated
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum

TOLERANCE = 1e-6  # relative; answers are proved to 1e-8 or, by cvxpy, to 1e-6

Check = Callable[[Policy, AllocationProblem], None]


def check_sharing_incentive(policy: Policy, problem: AllocationProblem) -> None:
    """Nobody is slower than with an n-th of every GPU type."""
    rates, alone = (each.allocate(problem).rate_steps_per_s for each in (policy, Isolated()))
    short = rates < alone * (1 - TOLERANCE)

    assert not short.any(), _told("slower than isolated", problem, short, rates, alone)


def check_pareto_efficient(policy: Policy, problem: AllocationProblem) -> None:
    """With everybody's rate as a floor, an LP finds nothing to add to the sum of rates, each relative to its best."""
    rates = policy.allocate(problem).rate_steps_per_s
    best = np.where(problem.gpu_counts > 0, problem.rate_alone_steps_per_s, 0.0).max(axis=1)
    unit = np.where(best > 0, best, 1.0)
    improved = solve(problem, MaxSum(1 / unit, rates * (1 - TOLERANCE / 100))).rate_steps_per_s
    gained = ((improved - rates) / unit).sum()

    assert gained <= TOLERANCE * problem.job_count, f"rates {rates} can all be had and {improved}, too"


def check_envy_free(policy: Policy, problem: AllocationProblem) -> None:
    """Nobody would be faster with another's shares."""
    allocation = policy.allocate(problem)
    with_shares_of = problem.rate_alone_steps_per_s @ allocation.job_share.T  # (J, J): rate of a row with a column's
    rates, most = allocation.rate_steps_per_s, with_shares_of.max(axis=1, initial=0.0)
    envious = rates < most * (1 - TOLERANCE)

    assert not envious.any(), _told("envious", problem, envious, rates, most)


def check_strategy_proof(policy: Policy, problem: AllocationProblem) -> None:
    """No job gains by lies: other rates, a type denied, its rate alone exaggerated, its preferences hidden."""
    rng = np.random.default_rng(problem.job_count)
    honest = policy.allocate(problem).rate_steps_per_s
    for job in range(problem.job_count):
        own = problem.member_job == job
        truth = problem.member_rate_steps_per_s[own]
        for lie in _lies(rng, truth):
            told = problem.member_rate_steps_per_s.copy()
            told[own] = lie
            answer = policy.allocate(replace(problem, member_rate_steps_per_s=told))
            lying = answer.evaluated_on(problem).rate_steps_per_s[job]

            assert lying <= honest[job] * (1 + TOLERANCE), (
                f"job {problem.job_ids[job]!r} has {honest[job]:.6g} steps/s, and {lying:.6g} when it tells "
                f"{lie.tolist()} instead of {truth.tolist()}"
            )


CHECKS: Mapping[Guarantee, Check] = {
    Guarantee.SHARING_INCENTIVE: check_sharing_incentive,
    Guarantee.PARETO_EFFICIENT: check_pareto_efficient,
    Guarantee.ENVY_FREE: check_envy_free,
    Guarantee.STRATEGY_PROOF: check_strategy_proof,
}


def peers(seed: int) -> AllocationProblem:
    """A random problem of the guarantees' kind: up to 7 jobs alone on up to 4 types, equal but for rates and work.

    Scarce or plentiful GPUs, gangs of 1 to 4, some rates zero, some jobs that can run nowhere, some types without GPUs.
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


def _told(what: str, problem: AllocationProblem, rows: np.ndarray, rates: Floats, wanted: Floats) -> str:
    row = int(np.argmax(rows))
    return f"job {problem.job_ids[row]!r} is {what}: {rates[row]:.6g} steps/s, not {wanted[row]:.6g}"

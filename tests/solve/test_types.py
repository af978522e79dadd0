"""GPU types with equal rates for every job are one type while solving."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.solve.ladder import groups_of_types, solve
from gavelpy.solve.objective import MaxSum
from tests.solve.oracle import best_level


def make_blind(seed: int) -> AllocationProblem:
    rng = np.random.default_rng(seed)
    rates = np.repeat(rng.uniform(1, 5, (6, 1)), 3, axis=1)
    return AllocationProblem.of(
        "abcdef", ["v100", "p100", "k80"], rng.integers(1, 5, 3), rates, gpus=[1, 1, 2, 2, 4, 1]
    )


def test_types_with_equal_rates_are_a_group_and_empty_types_are_not() -> None:
    rates = [[2.0, 1.0, 2.0, 2.0], [3.0, 1.0, 3.0, 3.0]]
    problem = AllocationProblem.of("ab", ["v", "k", "w", "x"], [1, 1, 1, 0], rates)

    assert groups_of_types(problem, np.zeros(0)).tolist() == [0, 1, 0, 2]


def test_types_of_other_worth_are_told_apart_and_those_of_equal_worth_are_not() -> None:
    problem = AllocationProblem.of("ab", ["v", "k", "w"], [1, 1, 1], np.ones((2, 3)))

    allocation = solve(problem, MaxSum(np.ones(2), gpu_type_worth=np.array([1.0, 5.0, 1.0])))

    assert allocation.certificate.objective == pytest.approx(6)
    assert allocation.share[:, 0] == pytest.approx(allocation.share[:, 2])
    assert allocation.share.sum(axis=0) == pytest.approx([0.5, 1, 0.5])


@given(seed=st.integers(0, 10**6))
def test_time_is_divided_as_the_gpus_are_and_the_optimum_is_reached(seed: int) -> None:
    problem = make_blind(seed)

    allocation = MaxMinFairness().allocate(problem)

    part = problem.gpu_counts / problem.gpu_counts.sum()
    total = allocation.share.sum(axis=1, keepdims=True)
    assert allocation.share == pytest.approx(total * part)
    scale = problem.gpus_asked / problem.rate_alone_steps_per_s[:, 0]
    assert allocation.certificate.objective == pytest.approx(best_level(problem, scale), rel=1e-6)


def test_one_more_gpu_of_either_type_is_worth_the_same() -> None:
    prices = MaxMinFairness().allocate(make_blind(1)).shadow_prices

    assert prices == pytest.approx(np.full(3, prices[0]))

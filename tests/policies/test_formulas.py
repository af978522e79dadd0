"""Policies on problems small enough to solve by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.isolated import Isolated
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.min_makespan import MinMakespan


def test_equal_share_rate_weighs_types_by_their_gpus() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 3], [[4.0, 1.0], [0.0, 2.0]])

    assert equal_share_rate(problem).tolist() == [7 / 4, 6 / 4]


def test_equal_share_rate_is_one_where_there_is_nothing_to_share() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [0, 1], [[4.0, 0.0], [1.0, 3.0]])

    assert equal_share_rate(problem).tolist() == [1, 3]


def test_jobs_run_where_they_are_comparatively_fast() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[8.0, 1.0], [3.0, 3.0]])

    allocation = MaxMinFairness().allocate(problem)

    assert allocation.share == pytest.approx(np.eye(2))
    assert allocation.certificate.objective == pytest.approx(1)  # b reaches its own limit: 3 / 3


def test_twice_the_weight_is_twice_the_time() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[5.0], [1.0]], weight=[1.0, 2.0])

    assert MaxMinFairness().allocate(problem).share[:, 0] == pytest.approx([1 / 3, 2 / 3])


def test_a_gang_gets_as_much_gpu_time_as_a_single_job() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [4], [[5.0], [1.0]], gpus=[4, 1])

    share = MaxMinFairness().allocate(problem).share[:, 0]

    assert 4 * share[0] == pytest.approx(4 - share[1])
    assert share == pytest.approx([3 / 4, 1])  # the single job cannot use more; the gang gets the rest


def test_blind_max_min_fairness_shares_time_evenly() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[5.0], [1.0], [9.0]])

    assert MaxMinFairness().allocate(problem.blind_to_type()).share[:, 0] == pytest.approx([1 / 3] * 3)


def test_no_usable_gpu_is_idle() -> None:
    problem = AllocationProblem.of("abc", ["v100", "k80"], [1, 2], [[4.0, 0.1], [9.0, 5.0], [2.0, 1.0]])

    share = MaxMinFairness().allocate(problem).share

    assert share.sum(axis=0) == pytest.approx([1, 2])
    assert share.sum(axis=1) == pytest.approx([1, 1, 1])


def test_makespan_is_the_time_of_the_last_job() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]], steps_remaining=[300.0, 100.0])

    allocation = MinMakespan().allocate(problem)

    assert 1 / allocation.certificate.objective == pytest.approx(100)
    assert problem.steps_remaining / allocation.rate_steps_per_s == pytest.approx([100, 100])


def test_isolated_depends_on_the_number_of_jobs_only() -> None:
    rates = [[4.0, 1.0], [9.0, 9.0]]
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 3], rates, gpus=[1, 2])

    assert Isolated().allocate(problem).share.tolist() == [[1 / 4, 3 / 4], [1 / 4, 3 / 4]]


def test_isolated_ignores_jobs_that_can_run_nowhere() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [0.0], [2.0]])

    assert Isolated().allocate(problem).share.tolist() == [[1 / 2], [0], [1 / 2]]

"""Maximum total throughput, raw and normalised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.policies.max_sum_throughput import MaxSumThroughput
from tests.policies.golden import excess, read_case
from tests.policies.test_golden import SINGLE


def small_steps_and_large_ones() -> AllocationProblem:
    """One GPU for two jobs that need it equally; a step of the first is a hundredth of one of the second."""
    return AllocationProblem.of(["small", "large"], ["v100", "k80"], [1, 1], [[500.0, 100.0], [5.0, 1.0]])


@pytest.mark.reference
@pytest.mark.parametrize("case_name", SINGLE)
def test_raw_sum_reaches_the_independent_optimum(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    allocation = MaxSumThroughput().allocate(case.problem())

    optimum = case.result("max_sum_throughput_perf")["objective"]["optimum_by_HiGHS"]
    assert allocation.rate_steps_per_s.sum() == pytest.approx(optimum, rel=1e-6)
    assert allocation.certificate.objective == pytest.approx(optimum, rel=1e-6)
    assert excess(allocation) <= 1e-7


def test_raw_sum_starves_a_job_with_large_steps() -> None:
    problem = replace(small_steps_and_large_ones(), capacity=np.array([[1000], [0]]))

    share = MaxSumThroughput().allocate(problem).share

    assert share.tolist() == [[1, 0], [0, 0]]


def test_raw_sum_is_another_when_a_job_counts_its_steps_otherwise() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[3.0], [2.0]])
    finer = AllocationProblem.of("ab", ["v100"], [1], [[3.0], [200.0]])

    assert MaxSumThroughput().allocate(problem).share[:, 0].tolist() == [1, 0]
    assert MaxSumThroughput().allocate(finer).share[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_normalised_sum_does_not_mind_how_a_job_counts_its_steps(factor: float) -> None:
    rates = np.array([[8.0, 1.0], [3.0, 2.0], [5.0, 4.0]])
    problem = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], rates)
    finer = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], rates * [[1.0], [factor], [1.0]])

    allocation, again = (MaxSumThroughput(normalised=True).allocate(p) for p in (problem, finer))

    assert again.share == pytest.approx(allocation.share, abs=1e-9)
    assert again.certificate.objective == pytest.approx(allocation.certificate.objective)


def test_normalised_sum_counts_weights() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[3.0], [3.0]], weight=[1.0, 2.0])

    assert MaxSumThroughput(normalised=True).allocate(problem).share[:, 0].tolist() == [0, 1]


def test_normalised_objective_is_counted_in_equal_shares() -> None:
    allocation = MaxSumThroughput(normalised=True).allocate(small_steps_and_large_ones())

    assert allocation.certificate.objective == pytest.approx(2.0)  # 500 / 300 + 1 / 3, or the other way round


def test_packing_raises_the_sum() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[3.0], [2.0]])

    packed = MaxSumThroughput().allocate(problem.with_pairs([(0, 1)], [[[2.5], [1.5]]]))

    assert packed.share.tolist() == [[0], [0], [1]]
    assert packed.certificate.objective == pytest.approx(4.0)


@pytest.mark.parametrize("text", ["true", "1"])
def test_command_line_sets_normalised(text: str) -> None:
    assert policy_from(f"max_sum_throughput:normalised={text}") == MaxSumThroughput(normalised=True)


@pytest.mark.parametrize("value", ["yes", 2.0, [True]])
def test_neither_true_nor_false_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="normalised must be true"):
        MaxSumThroughput(normalised=value)

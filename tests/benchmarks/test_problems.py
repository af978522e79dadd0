"""Benchmark problems match their descriptions."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.problems import PAIRS, Case, Mix, draw


def kinds_among(mix: Mix) -> int:
    return len(np.unique(draw(2000, 3, mix).rate_steps_per_s, axis=0))


def test_distinct_jobs_are_distinct() -> None:
    assert kinds_among(Mix.DISTINCT) == 2000


def test_jobs_of_a_gavel_mix_are_of_few_kinds() -> None:
    assert 50 < kinds_among(Mix.GAVEL) <= 104


@pytest.mark.parametrize("types", [3, 8])
def test_a_cluster_is_overloaded_unless_its_load_says_otherwise(types: int) -> None:
    scarce = draw(2000, types, Mix.DISTINCT)
    plenty = draw(2000, types, Mix.DISTINCT, load=1.0)

    assert scarce.gpu_counts.sum() == pytest.approx(600, rel=0.02)
    assert scarce.gpu_counts.sum() < 0.2 * scarce.gpus.sum()
    assert plenty.gpu_counts.sum() > 1.2 * plenty.gpus.sum()


def test_types_differ_more_for_some_jobs_than_for_others() -> None:
    rates = draw(2000, 3, Mix.GAVEL).rate_steps_per_s

    gain = rates.max(axis=1) / rates.min(axis=1)

    assert gain.min() < 2
    assert gain.max() > 8


def test_a_problem_is_the_same_whenever_it_is_drawn() -> None:
    case = Case("max_min_fairness", Mix.DISTINCT, 3, 50, 0.1, 4)

    assert case.problem().member_rate_steps_per_s.tobytes() == case.problem().member_rate_steps_per_s.tobytes()


def test_spare_jobs_do_not_change_the_cluster() -> None:
    assert draw(1000, 3, Mix.GAVEL, spare=500).gpu_counts.tolist() == draw(1000, 3, Mix.GAVEL).gpu_counts.tolist()


def test_a_change_is_one_job_that_leaves_or_one_that_comes() -> None:
    before, left, came, left_again = draw(10, 3, Mix.GAVEL, spare=2).changes(10, 3)

    assert before.tolist() == list(range(10))
    assert set(before) - set(left) == {5}
    assert len(left) == 9
    assert came.tolist() == [*left.tolist(), 10]
    assert len(left_again) == 9


def test_two_jobs_of_equal_gangs_may_share() -> None:
    problem = Case(f"max_min_fairness{PAIRS}", Mix.GAVEL, 3, 12, 0.1, 0).problem()

    pairs = [members for members in problem.configuration_members() if len(members) == 2]
    equal = [(i, k) for i in range(12) for k in range(i + 1, 12) if problem.gpus_asked[i] == problem.gpus_asked[k]]
    assert pairs == equal
    first, second = (problem.member_rate_steps_per_s[12 + k] for k in (0, 1))
    assert (first < problem.member_rate_steps_per_s[pairs[0][0]]).all()
    assert (second < problem.member_rate_steps_per_s[pairs[0][1]]).all()


def test_a_case_knows_its_policy_and_whether_it_is_packed() -> None:
    plain = Case("max_sum_throughput:normalised=1", Mix.GAVEL, 3, 4, 0.1, 0)
    packed = Case(f"max_min_fairness{PAIRS}", Mix.GAVEL, 3, 4, 0.1, 0)

    assert (plain.policy_text, plain.is_packed) == ("max_sum_throughput:normalised=1", False)
    assert (packed.policy_text, packed.is_packed) == ("max_min_fairness", True)

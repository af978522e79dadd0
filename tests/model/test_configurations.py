"""Sizes of jobs and pairs as configurations, with their demand of every resource."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem, Size


def make_problem(**fields: Any) -> AllocationProblem:
    """Jobs a (1 GPU, 4 cores) and b (2 GPUs, 16 cores) on V100s and K80s."""
    given = {"gpus": [1, 2], "resources": {"cpu": [64, 32]}, "demand": {"cpu": [4, 16]}}
    return AllocationProblem.of(["a", "b"], ["v100", "k80"], [8, 8], [[4.0, 1.0], [6.0, 0.0]], **(given | fields))


def test_size_by_efficiency_has_so_much_of_a_linear_speed_up_and_resources_in_proportion() -> None:
    problem = make_problem().with_sizes({"b": [Size(8, efficiency=0.5)]})

    assert problem.member_rate_steps_per_s[2].tolist() == [6.0 * 4 * 0.5, 0.0]
    assert problem.demand[2].tolist() == [8_000, 64_000]
    assert problem.member_job.tolist() == [0, 1, 1]
    assert problem.plan == ()


def test_size_with_rates_demand_and_plan_keeps_them() -> None:
    size = Size(4, {"k80": 3.5}, plan="dp2tp2", demand={"cpu": 6})

    problem = make_problem().with_sizes({"a": [size]})

    assert problem.member_rate_steps_per_s[2].tolist() == [0.0, 3.5]
    assert problem.demand[2].tolist() == [4_000, 6_000]
    assert problem.plan == ("", "", "dp2tp2")


def test_pair_shares_gpus_and_needs_the_cores_of_both() -> None:
    problem = make_problem(gpus=2).with_pairs([(0, 1)], np.ones((1, 2, 2)))

    assert problem.demand[2].tolist() == [2_000, 20_000]


def test_rates_as_requested_ignore_other_sizes_unless_a_job_lacks_the_one_it_asked_for() -> None:
    problem = make_problem().with_sizes({"a": [Size(2, {"v100": 7.0})], "b": [Size(4, {"v100": 9.0})]})

    assert problem.rate_as_requested_steps_per_s.tolist() == [[4.0, 1.0], [6.0, 0.0]]
    assert problem.rate_alone_steps_per_s.tolist() == [[7.0, 1.0], [9.0, 0.0]]
    assert problem.has_sizes


def test_plain_problem_has_no_sizes() -> None:
    assert not make_problem().has_sizes
    assert not make_problem().is_plain
    assert make_problem(resources={}, demand={}).is_plain


def test_type_without_a_resource_fits_only_jobs_that_do_not_need_it() -> None:
    problem = make_problem(resources={"cpu": [64, 0]}, demand={"cpu": [4, 0]})

    assert problem.fits.tolist() == [[True, False], [True, False]]  # b does not run on the K80


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"c": [Size(2, efficiency=0.9)]}, "sizes must name jobs of the problem, got 'c'"),
        (
            {"a": [Size(1, efficiency=0.9)]},
            "sizes of job 'a' must differ from each other and from the GPUs it requested",
        ),
        ({"a": [Size(2, efficiency=1.0), Size(2, efficiency=0.9)]}, "got 2 twice"),
        ({"a": [Size(2, {"p100": 1.0})]}, "rates of a size must be of v100, k80, got 'p100'"),
        ({"a": [Size(2, {"v100": -1.0})]}, "must be in [0, 1e+18], got -1.0"),
        (
            {"a": [Size(2, efficiency=0.9, demand={"disk": 1.0})]},
            "demand of a size must be >= 0 of cpu, got 'disk': 1.0",
        ),
        ({"a": [Size(2, efficiency=0.9, demand={"gpu": 1.0})]}, "demand of a size must be >= 0 of cpu, got 'gpu': 1.0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes: Mapping[str, Sequence[Size]], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        make_problem().with_sizes(sizes)


@pytest.mark.parametrize(
    "fields", [{"gpus": 0, "efficiency": 1.0}, {"gpus": 2}, {"gpus": 2, "efficiency": float("nan")},
               {"gpus": 2, "efficiency": 0.9, "rates_steps_per_s": {"v100": 1.0}}],
)  # fmt: skip
def test_size_with_neither_or_both_of_rates_and_efficiency_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="size"):
        Size(**fields)


def test_same_gpus_with_another_plan_are_another_size() -> None:
    problem = make_problem().with_sizes({"a": [Size(2, efficiency=0.9), Size(2, efficiency=0.8, plan="tp2")]})

    assert problem.configuration_count == 4

"""Allocations: effective rates and shares by job against plain Python, other views of the same jobs, and JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.problem import AllocationProblem
from tests.solve.problems import allocation_problems

PROOF = Certificate(objective=0.5, bound=0.5, gap=0.0, violation=0.0, path="rule", solve_s=0.25)


def make_problem(**fields: Any) -> AllocationProblem:
    return AllocationProblem.of(["a", "b"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0]], **fields)


def make_allocation(problem: AllocationProblem, share: Any) -> Allocation:
    return Allocation(problem, share, np.zeros(len(problem.gpu_types)), PROOF)


@given(problem=allocation_problems(), data=st.data())
def test_rates_and_shares_of_jobs_are_sums_over_their_configurations(
    problem: AllocationProblem, data: st.DataObject
) -> None:
    shape = (problem.configuration_count, len(problem.gpu_types))
    size = shape[0] * shape[1]
    share = np.reshape(data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)), shape)
    rates, shares = np.zeros(problem.job_count), np.zeros((problem.job_count, shape[1]))
    members = zip(problem.member_configuration, problem.member_job, problem.member_rate_steps_per_s, strict=True)
    for configuration, job, rate in members:
        rates[job] += sum(x * r for x, r in zip(share[configuration], rate, strict=True))
        shares[job] += share[configuration]

    allocation = make_allocation(problem, share)

    assert np.allclose(allocation.rate_steps_per_s, rates)
    assert np.allclose(allocation.job_share, shares)


def test_a_blind_answer_is_worth_its_true_rates() -> None:
    problem = make_problem()
    blind = make_allocation(problem.blind_to_type(), [[0.5, 0.5], [0.5, 0.5]])

    true = blind.evaluated_on(problem)

    assert blind.rate_steps_per_s.tolist() == [2.5, 2.5]
    assert true.rate_steps_per_s.tolist() == [2.5, 2.5]
    assert true.problem is problem
    assert true.evaluated_on(blind.problem).share.tolist() == blind.share.tolist()


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (
            AllocationProblem.of(["a", "z"], ["v100", "k80"], [1, 1], np.ones((2, 2))),
            "job_ids of the other problem must",
        ),
        (
            AllocationProblem.of(["a", "b"], ["v100", "p4"], [1, 1], np.ones((2, 2))),
            "gpu_types of the other problem must",
        ),
        (
            make_problem().with_pairs([(0, 1)], np.ones((1, 2, 2))),
            "configurations of the other problem must be the same",
        ),
    ],
    ids=["jobs", "types", "pairs"],
)
def test_an_answer_is_not_evaluated_on_other_jobs(other: AllocationProblem, complaint: str) -> None:
    allocation = make_allocation(make_problem(), np.zeros((2, 2)))

    with pytest.raises(InvalidInput, match=complaint):
        allocation.evaluated_on(other)


@pytest.mark.parametrize(
    ("share", "prices", "complaint"),
    [
        (np.zeros((2, 1)), np.zeros(2), "share must have shape (2, 2), got (2, 1)"),
        (np.zeros((2, 2)), np.zeros(3), "shadow_prices must have shape (2,), got (3,)"),
    ],
)
def test_shapes_that_do_not_fit_the_problem_are_refused(share: Any, prices: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        Allocation(make_problem(), share, prices, PROOF)


def test_table_has_a_row_a_job() -> None:
    frame = make_allocation(make_problem(), [[1.0, 0.0], [0.0, 0.5]]).by_job()

    assert frame.index.tolist() == ["a", "b"]
    assert frame.to_dict("list") == {"v100": [1.0, 0.0], "k80": [0.0, 0.5], "rate_steps_per_s": [4.0, 1.0]}


def test_json_names_pairs_by_both_jobs_and_unknown_marginal_values_null() -> None:
    problem = make_problem().with_pairs([(0, 1)], [[[2.0, 0.0], [1.0, 0.0]]])
    share = [[0.5, 0.0], [0.0, 1.0], [0.5, 0.0]]
    allocation = Allocation(problem, share, [1.5, float("nan")], PROOF)  # type: ignore[arg-type]  # lists do

    answer = json.loads(json.dumps(allocation.to_json("mine"), allow_nan=False))

    assert answer == {
        "policy": "mine",
        "shares": {"a": {"v100": 0.5, "k80": 0.0}, "b": {"v100": 0.0, "k80": 1.0}, "a,b": {"v100": 0.5, "k80": 0.0}},
        "rates_steps_per_s": {"a": 3.0, "b": 2.5},
        "marginal_values": {"v100": 1.5, "k80": None},
        "prices": {"v100": 1.5, "k80": None},
        "certificate": asdict(PROOF),
    }


def test_prices_is_a_deprecated_alias_of_shadow_prices() -> None:
    allocation = make_allocation(make_problem(), np.zeros((2, 2)))

    with pytest.deprecated_call(match="use Allocation.shadow_prices"):
        prices = allocation.prices

    assert prices is allocation.shadow_prices

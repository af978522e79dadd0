"""Policies are found by name through entry points."""

from __future__ import annotations

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.registry import aliases, policy_named, registered
from gavelpy.policies.shortest_job_first import ShortestJobFirst


def test_every_first_policy_is_registered_under_its_own_name() -> None:
    names = {"fifo", "isolated", "max_min_fairness", "min_makespan", "shortest_job_first"}

    assert names <= registered().keys()
    assert all(policy.name == name for name, policy in registered().items())


def test_alias_names_the_policy_it_stands_for() -> None:
    assert isinstance(policy_named("las"), MaxMinFairness)
    assert aliases()["las"] == "max_min_fairness"
    assert "las" not in registered()


def test_hyper_parameters_are_passed_on() -> None:
    assert policy_named("shortest_job_first", by="total") == ShortestJobFirst(by="total")


def test_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"policy must be one of .*fifo.*max_min_fairness.*, got 'lifo'"):
        policy_named("lifo")


def test_unknown_parameter_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"parameters of policy 'fifo' .* 'depth'"):
        policy_named("fifo", depth=3)


def test_value_that_a_parameter_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="by must be 'remaining' or 'total', got 'weight'"):
        policy_named("shortest_job_first", by="weight")


@pytest.mark.parametrize("policy_name", registered())
def test_policy_says_in_a_sentence_what_it_does(policy_name: str) -> None:
    policy = registered()[policy_name]

    assert policy.summary[0].isupper()
    assert policy.summary.endswith(".")
    assert policy.fills_leftover == (policy_name != "fifo")

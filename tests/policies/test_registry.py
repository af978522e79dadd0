"""Policies are found by name through entry points."""

from __future__ import annotations

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.policies import base
from gavelpy.policies.base import aliases, policy_from, policy_named, registered
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.shortest_job_first import ShortestJobFirst

CLASSES = registered()
WAITING = {  # jobs start by answers only
    "gandiva_introspective", "hadar", "lucid", "slaq", "optimus",
    "allox", "conservative_backfilling", "easy_backfilling", "elasticflow", "fifo", "gandiva_fair",
    "least_attained_service", "pollux", "shockwave", "sia", "srsf", "srtf", "strategy_proof", "themis", "tiresias",
    "drf", "mesos", "tetris", "dorm",
    "capacity", "oasis",
}  # fmt: skip


def test_every_first_policy_is_registered_under_its_own_name() -> None:
    names = {"fifo", "isolated", "max_min_fairness", "min_makespan", "shortest_job_first"}

    assert names <= registered().keys()
    assert all(policy.name == name for name, policy in registered().items())


def test_alias_names_the_policy_it_stands_for() -> None:
    assert isinstance(policy_named("las"), MaxMinFairness)
    assert aliases()["las"] == "max_min_fairness"
    assert "las" not in registered()


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_policy_of_the_package_is_found_without_entry_points(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_entry_points", dict)

    assert type(policy_named(name)) is CLASSES[name]


def test_hyper_parameters_are_passed_on() -> None:
    assert policy_named("shortest_job_first", by="total") == ShortestJobFirst(by="total")


def test_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"policy must be one of .*fifo.*max_min_fairness.*, got 'lifo'"):
        policy_named("lifo")


def test_unknown_parameter_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"policy 'fifo' has no parameter 'depth'"):
        policy_named("fifo", depth=3)


def test_value_that_a_parameter_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="by must be 'remaining' or 'total', got 'weight'"):
        policy_named("shortest_job_first", by="weight")


@pytest.mark.parametrize("policy_name", registered())
def test_policy_has_a_summary(policy_name: str) -> None:
    policy = registered()[policy_name]

    assert policy.summary[0].isupper()
    assert policy.summary.endswith(".")
    assert policy.fills_leftover == (policy_name not in WAITING)


def test_parameters_follow_the_name() -> None:
    assert policy_from("shortest_job_first:by=total") == ShortestJobFirst(by="total")
    assert policy_from("fifo") == policy_named("fifo")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("fifo:", "name:parameter=value"),
        ("fifo:speed", "name:parameter=value"),
        ("fifo:speed=9", "speed"),
        ("shortest_job_first:by=luck", "luck"),
        ("shortest_job_first:by=total:by=total", "each parameter once"),
        ("lottery:by=total", "lottery"),
    ],
)
def test_parameters_that_are_none_are_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        policy_from(text)

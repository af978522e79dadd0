"""Problem files with other resources than GPUs, and with several sizes of a job."""

from __future__ import annotations

import json
import re
from math import inf
from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.problem_json import parse_limited_problem, parse_problem


def document(*, resources: Any = None, **job: Any) -> str:
    """A file with one job of 2 GPUs on V100s and K80s, with 64 and 32 cores."""
    given = {"id": "a", "gpus": 2, "rates_steps_per_s": {"v100": 4.0, "k80": 1.0}} | job
    known = {"cpu": {"v100": 64, "k80": 32}, "memory_gib": {"v100": 256.5}} if resources is None else resources
    return json.dumps({"cluster": {"v100": 4, "k80": 8}, "resources": known, "jobs": [given]})


def test_resources_are_rows_and_demand_adds_up() -> None:
    problem = parse_problem(document(demand={"cpu": 3, "memory_gib": 10}, demand_per_gpu={"cpu": 4}))

    assert problem.resources == ("gpu", "cpu", "memory_gib")
    assert problem.capacity.tolist() == [[4_000, 64_000, 256_500], [8_000, 32_000, 0]]
    assert problem.demand.tolist() == [[2_000, 11_000, 10_000]]


def test_sizes_have_rates_or_an_efficiency_and_demand_in_proportion() -> None:
    problem = parse_problem(
        document(
            demand={"cpu": 8},
            sizes=[
                {"gpus": 1, "rates_steps_per_s": {"v100": 2.5}},
                {"gpus": 4, "efficiency": 0.75, "plan": "dp4", "demand": {"memory_gib": 9}},
            ],
        )
    )

    assert problem.member_rate_steps_per_s.tolist() == [[4.0, 1.0], [2.5, 0.0], [6.0, 1.5]]
    assert problem.demand.tolist() == [[2_000, 8_000, 0], [1_000, 4_000, 0], [4_000, 16_000, 9_000]]
    assert problem.plan == ("", "", "dp4")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            document(resources={"cpu": {"h100": 1}}),
            "resources.cpu.h100 must be of a GPU type of the cluster (v100, k80)",
        ),
        (document(resources={"gpu": {"v100": 1}}), "resources.gpu must be a resource other than gpu"),
        (document(resources={"cpu": {"v100": -1}}), "resources.cpu.v100 must be a number in [0, 1e+15], got -1"),
        (document(demand={"disk": 1}), "demand.disk must be of a resource (cpu, memory_gib), got 'disk'"),
        (document(resources={}, demand={"cpu": 1}), "must be of a resource (the file has none), got 'cpu'"),
        (document(demand_per_gpu={"cpu": "4"}), "demand_per_gpu.cpu must be a number in [0, 1e+15], got '4'"),
        (document(resources={"cpu": 3}), "resources.cpu must be an object with an amount for each GPU type, got 3"),
        (
            document(demand={"cpu": 9e14}, demand_per_gpu={"cpu": 9e14}),
            "jobs[0].demand_per_gpu.cpu must be at most 1e+15 for the whole job, got 900000000000000.0",
        ),
        (document(sizes=[{"gpus": 4}]), "sizes[0].rates_steps_per_s must be of at least one GPU type without an eff"),
        (
            document(sizes=[{"gpus": 4, "rates_steps_per_s": {}}]),
            "sizes[0].rates_steps_per_s must be of at least one GPU type without an efficiency, "
            "or else left out with one, got {}",
        ),
        (
            document(sizes=[{"gpus": 4, "rates_steps_per_s": {"v100": 2}, "efficiency": 0.5}]),
            "or else left out with one, got {'v100': 2}",
        ),
        (document(sizes=[{"gpus": 2, "efficiency": 1}]), "must differ from each other and from the GPUs it requested"),
        (document(sizes=[{"gpus": 4, "rates_steps_per_s": {"h100": 1}}]), "must be of a type of v100, k80, got 'h100'"),
        (
            document(sizes=[{"gpus": 4, "rates_steps_per_s": {"v100": None}}]),
            "must be a number in [0, 1e+15], got None",
        ),
        (
            document(sizes=[{"gpus": 4, "efficient": 1}]),
            "no fields but gpus, rates_steps_per_s, efficiency, plan, demand",
        ),
    ],
)
def test_mistakes_are_named(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        parse_problem(text, "problem.json")


def limited(**entity: Any) -> str:
    """A file with a job of two GPUs of the team `b`, below `a`, and one of no team."""
    types: dict[str, Any] = {"rates_steps_per_s": {"v100": 4.0}}
    jobs = [{"id": "x", "gpus": 2, "entity": "b", **types}, {"id": "y", **types, "gpu_type_held": "v100"}]
    teams = [{"id": "a"}, {"id": "b", "parent": "a"} | entity]
    return json.dumps({"cluster": {"v100": 4, "k80": 8}, "jobs": jobs, "entities": teams})


def test_limits_of_teams_are_read_as_far_as_jobs_can_use_them() -> None:
    problem, limits = parse_limited_problem(limited(quota={"v100": 3}, guaranteed={"v100": 3, "k80": 1}))

    assert limits is not None
    assert limits.quota.tolist() == [[inf, inf], [3, inf]]
    assert limits.guaranteed.tolist() == [[0, 0], [2, 0]], "its job uses two v100, and no k80"
    assert (limits.team.tolist(), limits.parent.tolist()) == ([1, -1], [-1, 0])
    assert problem.gpu_type_held.tolist() == [-1, 0]


def test_a_reader_that_would_ignore_limits_refuses_them() -> None:
    with pytest.raises(InvalidInput, match="entities must have no quota and nothing guaranteed here"):
        parse_problem(limited(quota={"v100": 3}))

    assert parse_problem(limited()).entities[1].parent == "a"


@pytest.mark.parametrize(
    ("entity", "complaint"),
    [
        ({"quota": {"h100": 1}}, "entities[1].quota.h100 must be of a GPU type of the cluster (v100, k80), got 'h100'"),
        ({"guaranteed": {"v100": -1}}, "entities[1].guaranteed.v100 must be a number in [0, 1e+15], got -1"),
        (
            {"quota": {"v100": 1}, "guaranteed": {"v100": 2}},
            "entities[1].quota must be at least the 2 guaranteed, got 1.0",
        ),
    ],
)
def test_limits_that_cannot_be_are_named(entity: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        parse_limited_problem(limited(**entity), "problem.json")

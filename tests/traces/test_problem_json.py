"""The problem file is read as an AllocationProblem."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem, Entity, EntityPolicy
from gavelpy.traces.problem_json import parse_problem
from tests.traces.samples import make_problem

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "traces.md"


def read(**changes: Any) -> AllocationProblem:
    return parse_problem(json.dumps(make_problem(**changes)))


def test_rows_keep_the_order_of_the_file() -> None:
    problem = read()

    assert problem.job_ids == ("a", "b")
    assert problem.gpu_types == ("v100", "k80")
    np.testing.assert_array_equal(problem.gpu_counts, [4, 8])


def test_type_that_a_job_does_not_name_is_zero() -> None:
    np.testing.assert_array_equal(read().member_rate_steps_per_s, [[4.0, 1.0], [3.0, 0.0]])


def test_optional_fields_have_defaults() -> None:
    problem = read()

    np.testing.assert_array_equal(problem.gpus_asked, [1, 2])
    np.testing.assert_array_equal(problem.weight, [1, 1])
    np.testing.assert_array_equal(problem.steps_total, [1, 1])
    np.testing.assert_array_equal(problem.age_s, [0, 0])
    np.testing.assert_array_equal(problem.deadline_s, [math.inf, math.inf])
    np.testing.assert_array_equal(problem.entity, [-1, -1])
    np.testing.assert_array_equal(problem.price_usd_per_gpu_h, [0, 0])


def test_null_deadline_is_none_and_a_missed_one_is_negative() -> None:
    jobs = [{"id": name, "rates_steps_per_s": {}, "deadline_s": at} for name, at in (("a", None), ("b", -3))]

    np.testing.assert_array_equal(read(jobs=jobs).deadline_s, [math.inf, -3.0])


def test_total_work_is_the_remaining_work_unless_given() -> None:
    jobs = [
        {"id": "a", "rates_steps_per_s": {}, "steps_remaining": 5},
        {"id": "b", "rates_steps_per_s": {}, "steps_remaining": 5, "steps_total": 50},
    ]

    np.testing.assert_array_equal(read(jobs=jobs).steps_total, [5, 50])


def test_pair_is_one_more_configuration() -> None:
    jobs = [{"id": name, "rates_steps_per_s": {"v100": 4}} for name in "abc"]

    problem = read(jobs=jobs, pairs=[{"jobs": ["c", "a"], "rates_steps_per_s": {"v100": [1, 2]}}])

    assert problem.configuration_members() == [(0,), (1,), (2,), (2, 0)]
    np.testing.assert_array_equal(problem.member_rate_steps_per_s[3:], [[1, 0], [2, 0]])


def test_entities_keep_weight_and_policy() -> None:
    jobs = [{"id": "a", "rates_steps_per_s": {}, "entity": "y"}]

    problem = read(jobs=jobs, entities=[{"id": "x"}, {"id": "y", "weight": 2, "policy": "fifo"}])

    assert problem.entities == (Entity("x"), Entity("y", 2.0, EntityPolicy.FIFO))
    np.testing.assert_array_equal(problem.entity, [1])


def test_entities_keep_their_parents() -> None:
    problem = read(jobs=[], entities=[{"id": "x", "parent": "y"}, {"id": "y", "parent": None}])

    assert problem.entities == (Entity("x", parent="y"), Entity("y"))


def test_entities_that_only_jobs_name_have_weight_one() -> None:
    jobs = [{"id": name, "rates_steps_per_s": {}, "entity": team} for name, team in (("a", "x"), ("b", None))]

    problem = read(jobs=jobs)

    assert problem.entities == (Entity("x"),)
    np.testing.assert_array_equal(problem.entity, [0, -1])


def test_prices_follow_the_types() -> None:
    np.testing.assert_array_equal(read(prices_usd_per_gpu_h={"k80": 0.45}).price_usd_per_gpu_h, [0, 0.45])


def test_job_that_can_run_nowhere_is_no_error() -> None:
    problem = read(jobs=[{"id": "big", "gpus": 64, "rates_steps_per_s": {"v100": 1}}])

    assert problem.is_oversized.all()
    assert not problem.with_whole_gangs().can_run.any()


def test_file_without_jobs_is_a_problem_without_rows() -> None:
    assert read(jobs=[]).job_count == 0


def test_documented_example_is_valid() -> None:
    match = re.search(r'    \{\n      "cluster".*?\n    \}\n', DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None

    problem = parse_problem(match[0])

    assert problem.configuration_members() == [(0,), (1,), (0, 1)]


@pytest.mark.parametrize("row", [0, 1, 7])
def test_complaint_stands_at_the_line_of_the_value(row: int) -> None:
    jobs = [{"id": f"}}]{i}", "rates_steps_per_s": {"v100": [1, {"x": 2}] if i == row else 1.5}} for i in range(8)]
    text = json.dumps(make_problem(jobs=jobs), indent=1)
    line = next(i for i, found in enumerate(text.splitlines(), 1) if found.endswith('"v100": ['))

    with pytest.raises(InvalidInput) as caught:
        parse_problem(text, "p.json")

    assert str(caught.value).startswith(f"p.json:{line}: jobs[{row}].rates_steps_per_s.v100 must be")

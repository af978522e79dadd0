"""Conversions from and to pandas frames."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.problem import Entity
from gavelpy.traces.csv_format import parse_csv_throughputs, parse_csv_trace
from gavelpy.traces.frames import problem_from_frame, table_from_frame, trace_from_frame, trace_to_frame
from tests.traces.samples import CSV_TABLE, CSV_TRACE, traces

CLUSTER = Cluster.of({"v100": 4, "k80": 8}, price_usd_per_gpu_h={"v100": 2.5})


@given(traces())
def test_trace_survives_a_frame(trace: Trace) -> None:
    again = trace_from_frame(trace_to_frame(trace))

    assert again.jobs == trace.jobs
    np.testing.assert_array_equal(again.arrival_s, trace.arrival_s)


def test_frame_has_numbers_where_there_are_numbers() -> None:
    frame = trace_to_frame(parse_csv_trace(CSV_TRACE))

    assert frame["gpus"].dtype == np.int64
    assert frame["deadline_s"].tolist()[1] == 900.0
    assert math.isnan(frame["deadline_s"].tolist()[0])
    assert math.isnan(frame["rate_k80"].tolist()[1])
    assert frame["id"].tolist() == ["a", "b"]


def test_frame_of_plain_values_becomes_a_trace() -> None:
    frame = pd.DataFrame({"id": [7, 8], "arrival_s": [0, 1], "steps_total": [1e6, 2], "gpus": [1, None]})

    trace = trace_from_frame(frame)

    assert [(job.id, job.steps_total, job.gpus) for job in trace.jobs] == [("7", 1e6, 1), ("8", 2.0, 1)]


def test_table_survives_a_frame() -> None:
    table = parse_csv_throughputs(CSV_TABLE)

    again = table_from_frame(table.to_frame())

    assert (again.keys, again.gpu_types) == (table.keys, table.gpu_types)
    np.testing.assert_array_equal(again.rate_steps_per_s, table.rate_steps_per_s)


def test_complaint_about_a_frame_names_the_row() -> None:
    frame = pd.DataFrame({"id": ["a", "b"], "arrival_s": [0, 1], "steps_total": [1.0, -2.0]})

    with pytest.raises(InvalidInput, match=r"^frame:2: steps_total must be .*, got '-2.0'"):
        trace_from_frame(frame)


def test_problem_has_a_row_for_each_row_of_the_frame() -> None:
    frame = pd.DataFrame(
        {
            "id": ["a", "b"],
            "gpus": [1, 2],
            "weight": [1.0, 3.0],
            "steps_remaining": [10.0, 20.0],
            "deadline_s": [math.nan, -5.0],
            "entity": ["x", None],
            "rate_v100": [4.0, 3.0],
            "rate_k80": [1.0, math.nan],
        }
    )

    problem = problem_from_frame(frame, CLUSTER, entities=[Entity("y"), Entity("x", 2.0)])

    assert problem.job_ids == ("a", "b")
    np.testing.assert_array_equal(problem.member_rate_steps_per_s, [[4.0, 1.0], [3.0, 0.0]])
    np.testing.assert_array_equal(problem.gpus_asked, [1, 2])
    np.testing.assert_array_equal(problem.weight, [1.0, 3.0])
    np.testing.assert_array_equal(problem.steps_total, [10.0, 20.0])
    np.testing.assert_array_equal(problem.deadline_s, [math.inf, -5.0])
    np.testing.assert_array_equal(problem.entity, [1, -1])
    np.testing.assert_array_equal(problem.price_usd_per_gpu_h, [2.5, 0.0])


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("rate_t4", 1.0, "frame:1: rate_t4 must be of a GPU type of the cluster"),
        ("rate_v100", -1.0, "frame:1: rate_v100 must be a finite number >= 0"),
        ("weight", 0.0, "frame:1: weight must be > 0 and at most"),
        ("steps_total", 0.0, "frame:1: steps_total must be > 0 and at most"),
        ("gpus", 0, "frame:1: gpus must be a whole number"),
        ("id", "a,b", "frame:1: id must be a non-empty name"),
        ("size", 1, "frame:1: column must be one of id, gpus"),
    ],
)
def test_bad_frame_is_refused_by_row_and_column(column: str, value: object, complaint: str) -> None:
    frame = pd.DataFrame({"id": ["a"]}).assign(**{column: [value]})

    with pytest.raises(InvalidInput, match=f"^{complaint}"):
        problem_from_frame(frame, CLUSTER)


def test_problem_from_a_frame_has_the_given_resources() -> None:
    frame = pd.DataFrame({"id": ["a", "b"], "rate_v100": [4.0, 3.0], "demand_cpu": [6.0, math.nan]})

    problem = problem_from_frame(frame, Cluster.of({"v100": 2}), resources={"cpu": {"v100": 64}})

    assert problem.resources == ("gpu", "cpu")
    assert problem.capacity.tolist() == [[2_000, 64_000]]
    assert problem.demand.tolist() == [[1_000, 6_000], [1_000, 0]]

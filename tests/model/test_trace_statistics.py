"""Summary figures of a trace, compared with counts by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gavelpy.model.job import Trace, statistics_of
from gavelpy.traces.csv_format import parse_csv_trace

TRACE = parse_csv_trace(
    "id,arrival_s,steps_total,gpus,weight,job_type,deadline_s,entity,rate_k80,rate_v100\n"
    "a,0,3600,1,1,ResNet,,,0.5,1\n"
    "b,1800,7200,4,2,ResNet,9000,x,2,\n"
    "c,7200,100,64,1,BERT,,x,,\n"
)


def test_figures_of_a_small_trace() -> None:
    found = statistics_of(TRACE)

    assert found["jobs"] == 3
    assert found["span_s"] == 7200.0
    assert found["arrival_rate_jobs_per_h"] == pytest.approx(1.0)  # two gaps in two hours
    assert found["gpus"] == {1: 1, 4: 1, 64: 1}
    assert found["job_types"] == {"ResNet": 2, "BERT": 1}
    assert found["steps"]["p50"] == 3600.0
    assert found["duration_s"]["p100"] == 3600.0  # 3600 steps at 1/s, 7200 at 2/s
    assert found["load_gpu_h"] == pytest.approx(1.0 + 4.0)
    assert found["weighted_share"] == pytest.approx(1 / 3)
    assert found["deadline_share"] == pytest.approx(1 / 3)
    assert found["entities"] == 1
    assert found["jobs_without_rates"] == 1


def test_figures_are_ready_for_json() -> None:
    assert json.loads(json.dumps(statistics_of(TRACE)))["jobs"] == 3


def test_jobs_that_arrive_at_once_have_no_rate() -> None:
    assert statistics_of(parse_csv_trace("id,arrival_s,steps_total\na,5,1\nb,5,1\n"))["arrival_rate_jobs_per_h"] is None


def test_trace_without_jobs_has_figures() -> None:
    found = statistics_of(Trace((), np.zeros(0)))

    assert (found["jobs"], found["span_s"], found["steps"], found["weighted_share"]) == (0, 0.0, {}, 0.0)

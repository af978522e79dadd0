"""Our CSV formats: every trace and table is unchanged after writing and reading."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given

from gavelpy.model.job import Trace
from gavelpy.model.throughput import Provenance, ThroughputTable
from gavelpy.traces.csv_format import parse_csv_throughputs, parse_csv_trace, throughput_cells, trace_cells
from gavelpy.traces.fields import csv_text
from tests.traces.samples import CSV_TABLE, CSV_TRACE, tables, traces


@given(traces())
def test_trace_survives_writing_and_reading(trace: Trace) -> None:
    again = parse_csv_trace(csv_text(*trace_cells(trace)))

    assert again.jobs == trace.jobs
    np.testing.assert_array_equal(again.arrival_s, trace.arrival_s)


@given(tables())
def test_table_survives_writing_and_reading(table: ThroughputTable) -> None:
    again = parse_csv_throughputs(csv_text(*throughput_cells(table)))

    assert (again.keys, again.gpu_types, again.source) == (table.keys, table.gpu_types, table.source)
    np.testing.assert_array_equal(again.rate_steps_per_s, table.rate_steps_per_s)
    np.testing.assert_array_equal(again.provenance, table.provenance)
    np.testing.assert_array_equal(again.pair_rows, table.pair_rows)
    np.testing.assert_array_equal(again.pair_rate_steps_per_s, table.pair_rate_steps_per_s)


def test_written_text_is_the_documented_one() -> None:
    assert csv_text(*trace_cells(parse_csv_trace(CSV_TRACE))) == CSV_TRACE


def test_optional_columns_have_defaults() -> None:
    trace = parse_csv_trace("steps_total,id,arrival_s\n5,a,0\n")

    job = trace.jobs[0]
    assert (job.gpus, job.weight, job.deadline_s, job.job_type, job.entity) == (1, 1.0, math.inf, "", "")
    assert job.rates_steps_per_s == {}


def test_empty_rate_is_unknown_and_zero_is_zero() -> None:
    trace = parse_csv_trace("id,arrival_s,steps_total,rate_k80,rate_v100\na,0,5,0,\n")

    assert trace.jobs[0].rates_steps_per_s == {"k80": 0.0}


def test_spreadsheet_habits_are_forgiven() -> None:
    trace = parse_csv_trace(" id ,arrival_s,steps_total,gpus\r\n\r\na, 0 ,5e3,4.0\r\n")

    assert (trace.jobs[0].steps_total, trace.jobs[0].gpus) == (5000.0, 4)


def test_table_without_optional_columns_is_measured() -> None:
    table = parse_csv_throughputs(CSV_TABLE)

    assert table.rates("ResNet", 1) == {"k80": 0.5, "v100": 4.0}
    assert table.rates("LSTM", 2) == {"v100": 3.0}
    assert (table.provenance == Provenance.MEASURED).all()


def test_sources_of_one_key_are_joined_once_each() -> None:
    header = "job_type,gpus,gpu_type,rate_steps_per_s,provenance,source\n"

    table = parse_csv_throughputs(header + "A,1,k80,1,prior,x\nA,1,v100,2,published,y\nA,1,a100,3,,x\n")

    assert table.source == ("x; y",)
    assert table.provenance.tolist() == [[Provenance.PRIOR, Provenance.PUBLISHED, Provenance.MEASURED]]

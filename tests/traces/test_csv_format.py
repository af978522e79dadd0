"""Our CSV formats: every trace and table is unchanged after writing and reading."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from gavelpy.errors import InvalidInput
from gavelpy.model.job import Trace
from gavelpy.model.throughput import Provenance, ThroughputTable
from gavelpy.traces.csv_format import parse_csv_throughputs, parse_csv_trace, throughput_cells, trace_cells
from gavelpy.traces.fields import csv_text
from gavelpy.traces.gavel import write_gavel_trace
from gavelpy.traces.reader import attach_rates
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


SIZED = (
    "id,arrival_s,steps_total,gpus,weight,job_type,deadline_s,entity,sizes,rate_v100,rate_v100@1,rate_v100@4\n"
    'a,0.0,100.0,2,1.0,LSTM,,,"1,2,4",5.0,3.0,8.0\n'
    "b,0.0,100.0,2,1.0,LSTM,,,,5.0,,\n"
)


def test_sizes_and_their_rates_survive_writing_and_reading() -> None:
    trace = parse_csv_trace(SIZED)

    assert [job.sizes for job in trace.jobs] == [(1, 2, 4), ()]
    assert trace.jobs[0].rates_by_size == {1: {"v100": 3.0}, 4: {"v100": 8.0}}
    assert csv_text(*trace_cells(trace)) == SIZED


def test_a_range_of_sizes_is_all_between() -> None:
    trace = parse_csv_trace("id,arrival_s,steps_total,gpus,sizes\na,0,5,2,1..4\n")

    assert trace.jobs[0].sizes == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('a,0,5,2,"1,4",', "2 among them, got 1, 4"),
        ("a,0,5,2,1-4,", "sizes must be a number, numbers such as"),
        ("a,0,5,2,,3", "of a size other than the requested one"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_with_their_line(row: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=f"t.csv:2: .*{said}"):
        parse_csv_trace(f"id,arrival_s,steps_total,gpus,sizes,rate_v100@4\n{row}\n", "t.csv")


def test_a_table_has_the_rates_of_sizes_that_a_job_lacks() -> None:
    table = parse_csv_throughputs("job_type,gpus,gpu_type,rate_steps_per_s\nLSTM,1,v100,3\nLSTM,4,v100,9\n")
    trace = parse_csv_trace("id,arrival_s,steps_total,gpus,sizes,job_type\na,0,5,1,1..4,LSTM\n")

    (job,) = attach_rates(trace, table).jobs

    assert (job.rates_steps_per_s, job.rates_by_size) == ({"v100": 3.0}, {4: {"v100": 9.0}})


def test_the_columns_of_gavel_have_no_sizes(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="sizes"):
        write_gavel_trace(parse_csv_trace(SIZED), tmp_path / "t.trace")


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

"""The reader detects the format of a trace file and attaches rates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gavelpy.traces.reader import TraceFormat, read_throughputs, read_trace, write_trace
from tests.traces.samples import CSV_TABLE, CSV_TRACE, GAVEL_JSON, gavel_line, make_table

TABLE = make_table({("ResNet", 1): [0.5, 4.0], ("ResNet", 2): [0.9, 7.0]})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "input.any"


def test_tabs_mean_gavels_columns(file: Path) -> None:
    file.write_text(gavel_line())

    assert read_trace(file).jobs[0].working_directory == "images"


def test_anything_else_is_csv(file: Path) -> None:
    file.write_text(CSV_TRACE)

    assert [job.id for job in read_trace(file).jobs] == ["a", "b"]


def test_byte_order_mark_is_no_part_of_the_header(file: Path) -> None:
    file.write_text(CSV_TRACE, encoding="utf-8-sig")

    assert len(read_trace(file)) == 2


def test_jobs_get_the_rates_of_their_type_and_gpus(file: Path) -> None:
    file.write_text(f"{gavel_line()}\n{gavel_line(scale_factor='2')}\n")

    trace = read_trace(file, throughputs=TABLE)

    assert [job.rates_steps_per_s for job in trace.jobs] == [{"k80": 0.5, "v100": 4.0}, {"k80": 0.9, "v100": 7.0}]


def test_job_that_is_not_in_the_table_has_no_rates(file: Path) -> None:
    file.write_text(gavel_line(scale_factor="64"))

    assert read_trace(file, throughputs=TABLE).jobs[0].rates_steps_per_s == {}


def test_rates_of_the_trace_stand(file: Path) -> None:
    file.write_text("id,arrival_s,steps_total,job_type,rate_a100\na,0,1,ResNet,9\nb,0,1,ResNet,\n")

    trace = read_trace(file, throughputs=TABLE)

    assert [job.rates_steps_per_s for job in trace.jobs] == [{"a100": 9.0}, {"k80": 0.5, "v100": 4.0}]


@pytest.mark.parametrize("format", list(TraceFormat))
def test_trace_is_converted_and_read_again(tmp_path: Path, file: Path, format: TraceFormat) -> None:
    file.write_text(f"{gavel_line()}\n{gavel_line(scale_factor='2', arrival_time='0.1')}\n")
    trace = read_trace(file)

    write_trace(trace, tmp_path / "out", format)

    again = read_trace(tmp_path / "out")
    assert again.jobs == trace.jobs
    np.testing.assert_array_equal(again.arrival_s, [0.0, 0.1])


@pytest.mark.parametrize("text", [CSV_TABLE, json.dumps(GAVEL_JSON)], ids=["csv", "json"])
def test_table_is_read_from_either_format(file: Path, text: str) -> None:
    file.write_text(text)

    assert read_throughputs(file).rates("ResNet", 1) == {"k80": 0.5, "v100": 4.0}

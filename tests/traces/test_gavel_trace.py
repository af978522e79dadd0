"""Gavel's trace columns: how each is read, and what is written back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.traces.gavel import gavel_text, parse_gavel_trace, write_gavel_trace
from tests.traces.samples import gavel_line, make_table

TABLE = make_table({("ResNet", 1): [0.5, 4.0], ("LSTM", 1): [2.0, math.nan], ("A3C", 1): [0.0, 0.0]})


def one_job(**changes: object) -> Trace:
    """A trace with one job that runs at 4 steps/s on a V100."""
    fields = {"id": JobId("0"), "steps_total": 100.0, "rates_steps_per_s": {"v100": 4.0}} | changes
    return Trace((JobSpec(**fields),), np.zeros(1))  # fields chosen by the test


def test_ten_columns_become_a_job() -> None:
    text = gavel_line(scale_factor="4", priority_weight="5", arrival_time="7.25") + "\n"

    trace = parse_gavel_trace(text, "some/small.trace")

    assert trace.name == "small"
    assert trace.arrival_s.tolist() == [7.25]
    assert trace.jobs == (
        JobSpec(
            JobId("0"),
            100.0,
            gpus=4,
            weight=5.0,
            job_type="ResNet",
            command="python3 main.py --data %s/x --steps {steps}",
            working_directory="images",
        ),
    )


def test_ids_are_line_numbers() -> None:
    trace = parse_gavel_trace("\n".join([gavel_line()] * 3))

    assert [job.id for job in trace.jobs] == ["0", "1", "2"]


def test_windows_line_ends_are_read() -> None:
    trace = parse_gavel_trace(f"{gavel_line()}\r\n{gavel_line()}\r\n")

    assert trace.arrival_s.tolist() == [0.0, 0.0]


def test_seven_columns_are_recognised_by_their_number() -> None:
    line = "\t".join(["A3C", "cd %s/rl && python3 main.py", "--max-steps", "0", "50", "3.5", "12"])

    trace = parse_gavel_trace(line)

    expected = JobSpec(
        JobId("0"),
        50.0,
        gpus=12,
        job_type="A3C",
        command="python3 main.py --max-steps {steps}",
        working_directory="%s/rl",
    )
    assert trace.jobs == (expected,)
    assert trace.arrival_s.tolist() == [3.5]


def test_shockwave_columns_are_recognised() -> None:
    line = gavel_line(scale_factor="2\taccordion", SLO="1.5\t200", arrival_time="9")

    trace = parse_gavel_trace(line)

    assert (trace.jobs[0].gpus, trace.jobs[0].deadline_s, trace.arrival_s[0]) == (2, 300.0, 9.0)


@pytest.mark.parametrize(
    ("job_type", "deadline_s"),
    [
        ("ResNet", 2 * 100 / 4),  # rate on a V100
        ("LSTM", 2 * 100 / 2),  # no V100 known: the fastest type
        ("A3C", math.inf),  # runs nowhere
        ("BERT", math.inf),  # not in the table
    ],
)
def test_slo_is_a_multiple_of_the_duration(job_type: str, deadline_s: float) -> None:
    trace = parse_gavel_trace(gavel_line(job_type=job_type, SLO="2"), throughputs=TABLE)

    assert trace.jobs[0].deadline_s == deadline_s


def test_negative_slo_is_no_deadline() -> None:
    assert parse_gavel_trace(gavel_line(SLO="-1.000000"), throughputs=TABLE).jobs[0].deadline_s == math.inf


def test_ten_columns_survive_reading_and_writing() -> None:
    plain = gavel_line(priority_weight="1.0", SLO="-1.0", arrival_time="0.0")
    other = gavel_line(command="run", needs_data_dir="0", num_steps_arg="", priority_weight="5.0", SLO="-1.0")
    text = f"{plain}\n{other}\n"

    assert gavel_text(parse_gavel_trace(text)) == text


def test_deadline_survives_writing_and_reading() -> None:
    trace = one_job(job_type="ResNet", deadline_s=77.0)

    again = parse_gavel_trace(gavel_text(trace), throughputs=TABLE)

    assert again.jobs[0].deadline_s == pytest.approx(77.0, rel=1e-15)


def test_job_without_a_command_survives_writing_and_reading() -> None:
    again = parse_gavel_trace(gavel_text(one_job()))

    assert (again.jobs[0].command, again.jobs[0].job_type) == ("", "")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"entity": "vision"}, "entity"),
        ({"steps_total": 0.5}, "steps_total"),
        ({"steps_total": 1e17}, "steps_total"),
        ({"job_type": "a\tb"}, "job_type"),
        ({"command": "a\nb"}, "command"),
        ({"working_directory": "a\rb"}, "working_directory"),
        ({"deadline_s": 5.0, "rates_steps_per_s": {}}, "deadline_s"),
    ],
)
def test_what_the_columns_cannot_hold_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field} of job '0' must be .* Gavel's columns, got"):
        gavel_text(one_job(**changes))


def test_unwritable_file_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="file must be writable"):
        write_gavel_trace(one_job(), tmp_path / "no" / "such" / "folder")


def test_text_that_utf8_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"lone surrogates, got '\\ud800'"):
        write_gavel_trace(one_job(job_type="\ud800"), tmp_path / "out")

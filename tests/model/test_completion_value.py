"""Values of completion: functions as data, in jobs, problems, files, and what a policy of one's own computes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, encode
from gavelpy.mechanism.events import JobCancelled, JobsArchived, JobSubmitted
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.completion_value import CompletionValue, ValueShape, rows_of, text_of, values_at
from gavelpy.model.job import Trace
from gavelpy.model.problem import AllocationProblem
from gavelpy.traces.csv_format import read_csv_trace, write_csv_trace
from gavelpy.traces.problem_json import parse_problem
from gavelpy.traces.problem_writer import problem_text
from tests.mechanism.builders import make_core, make_spec, questions, tell, wake

TEXTS = ["linear:worth=5:time_s=600", "sigmoid:worth=8:time_s=100:decay_per_s=0.05", "step:worth=2:time_s=50", ""]


def by_hand(text: str, t: float) -> float:
    """The formulas, one by one."""
    match text.partition(":")[0]:
        case "linear":
            return max(5 * (1 - t / 600), 0.0)
        case "sigmoid":
            return 8 / (1 + math.exp(0.05 * (t - 100)))
        case "step":
            return 2.0 if t <= 50 else 0.0
    return 0.0


@given(t=st.floats(0, 1e4))
def test_values_are_those_of_the_formulas(t: float) -> None:
    found = values_at(rows_of(TEXTS), np.full(4, t))

    assert found.tolist() == pytest.approx([by_hand(text, t) for text in TEXTS], rel=1e-12, abs=1e-300)


def test_a_late_end_does_not_overflow() -> None:
    assert values_at(rows_of(TEXTS[1:2]), np.array([1e300])).tolist() == pytest.approx([0.0], abs=1e-290)


@given(st.sampled_from(ValueShape), st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_text_and_row_are_the_same_value(shape: ValueShape, worth: float, time_s: float, decay: float) -> None:
    value = CompletionValue(shape, worth, time_s, decay if shape is ValueShape.SIGMOID else 0.0)

    assert CompletionValue.parse(text_of(np.array(value.row))) == value


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cubic:worth=1:time_s=1", "must begin with one of linear, sigmoid, step, got 'cubic"),
        ("linear:worth=1", "time_s of a completion value must be > 0"),
        ("linear:worth=x:time_s=1", "worth of a completion value must be > 0 .* got nan"),
        ("linear:worth=1:worth=1:time_s=1", "must have worth, time_s and decay_per_s, each once"),
        ("step:worth=1:time_s=1:decay_per_s=1", "decay_per_s of a step completion value must be left out"),
        ("sigmoid:worth=1:time_s=1", "decay_per_s of a sigmoid completion value must be > 0"),
    ],
)
def test_a_job_with_another_value_is_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        make_spec("a", completion_value=text)


def test_problems_of_a_scheduler_have_the_values_of_their_jobs() -> None:
    specs = [make_spec("gone"), *(make_spec(f"j{k}", completion_value=text) for k, text in enumerate(TEXTS))]
    core = make_core(*specs, servers=[("v100", 9)])
    (first,) = questions(wake(core))
    restored = restore(snapshot(core))
    restored.question.forget()
    restored.disturb()
    (again,) = questions(wake(restored))
    tell(core, JobCancelled(0))
    tell(core, JobsArchived(np.array([0])))
    core.question.forget()
    core.disturb()
    (late,) = questions(wake(core, 1.0))

    assert first.problem.completion_value.tolist() == [[0.0] * 4, *rows_of(TEXTS).tolist()]
    assert again.problem.completion_value.tolist() == first.problem.completion_value.tolist()
    assert late.problem.completion_value.tolist() == rows_of(TEXTS).tolist()


def test_journal_trace_and_problem_file_keep_values(tmp_path: Path) -> None:
    spec = make_spec("a", completion_value=TEXTS[1])
    record = encode(JobSubmitted(spec), 1.0)
    trace = Trace((spec, make_spec("b")), np.zeros(2))
    problem = AllocationProblem.of("abcd", ["v100"], [1], np.ones((4, 1)), completion_value=TEXTS)

    assert (record[1], encode(JobSubmitted(make_spec("b")), 1.0)[1]) == (13, 2)
    assert decode(record)[1].spec == spec  # type: ignore[union-attr]
    write_csv_trace(trace, tmp_path / "trace.csv")
    assert [job.completion_value for job in read_csv_trace(tmp_path / "trace.csv").jobs] == [TEXTS[1], ""]
    assert parse_problem(problem_text(problem)).completion_value.tolist() == rows_of(TEXTS).tolist()

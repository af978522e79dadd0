"""Reported losses: in problems, in files, and as a scheduler fills them from the metrics of its jobs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import JobsArchived, MetricsReported, Outcome
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.apps import AppRole, Direction
from gavelpy.model.arrays import Floats
from gavelpy.model.loss_reports import REPORTS_MAX, losses_of, report_counts
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.problem_parts import part_of
from gavelpy.traces.problem_json import parse_problem
from gavelpy.traces.problem_writer import problem_text
from tests.mechanism.builders import end, make_spec, questions, running_core, tell, wake

REPORTS = [[(1.0, 3.0), (5.0, 2.0)], [], [(0.0, -1.0)]]


def problem_with(losses: object) -> AllocationProblem:
    return AllocationProblem.of("abc", ["v100"], [1], np.ones((3, 1)), losses=losses)  # type: ignore[arg-type]


def report(core: SchedulerCore, row: int, step: float, value: float, name: str = "loss") -> None:
    at = np.array([row]), core.jobs.lease[row : row + 1].copy(), np.array([0])
    tell(core, MetricsReported(*at, np.array([step]), np.array([value]), (name,)))


def asked(core: SchedulerCore) -> Floats:
    """The losses of the problem that the core sends now."""
    core.question.forget()
    core.disturb()
    (question,) = questions(wake(core, core.now_s + 400.0))
    return question.problem.losses


def test_rows_are_reports_in_order_and_nan_behind() -> None:
    losses = problem_with(REPORTS).losses

    assert report_counts(losses).tolist() == [2, 0, 1]
    assert losses[0].tolist() == [[1.0, 3.0], [5.0, 2.0]]
    assert losses[2, 0].tolist() == [0.0, -1.0]
    assert np.isnan(losses[2, 1]).all()
    assert np.isnan(losses[1]).all()


def test_of_too_many_reports_the_first_one_and_the_newest_stay() -> None:
    steps = losses_of([[(float(k), 1.0 / k) for k in range(1, 101)]])[0, :, 0].tolist()

    assert steps == [1.0, *map(float, range(102 - REPORTS_MAX, 101))]


@pytest.mark.parametrize(
    "reports", [[(2.0, 1.0), (2.0, 0.5)], [(5.0, 1.0), (2.0, 0.5)], [(-1.0, 1.0)], [(1.0, math.inf)], [(math.nan, 1.0)]]
)
def test_other_reports_are_refused_by_name(reports: list[tuple[float, float]]) -> None:
    with pytest.raises(InvalidInput, match=r"losses\[0.*finite, steps >= 0 in ascending order, each once"):
        problem_with([reports, [(1.0, 1.0), (2.0, 1.0)], []])


def test_a_problem_file_keeps_them_and_names_the_line_of_bad_ones() -> None:
    problem = problem_with(REPORTS)
    bad = '{"cluster": {"k": 1}, "jobs": [{"id": "a", "rates_steps_per_s": {"k": 1}, "losses": [[2, 1], [1, 1]]}]}'

    assert np.array_equal(parse_problem(problem_text(problem)).losses, problem.losses, equal_nan=True)
    with pytest.raises(InvalidInput, match=r"jobs\[0\].losses must be \[step, value\] of each report"):
        parse_problem(bad)


def test_a_part_of_a_problem_has_those_of_its_jobs() -> None:
    problem = problem_with(REPORTS)

    part = part_of(problem, np.array([2]), problem.capacity)

    assert part.problem.losses[0, 0].tolist() == [0.0, -1.0]


def test_a_scheduler_fills_them_with_the_metric_of_the_app_else_the_loss() -> None:
    role = AppRole("tune", 0, 1, metric="accuracy", direction=Direction.MAX)
    core = running_core(
        make_spec("gone"), make_spec("plain"), make_spec("tuned", app=role.text), servers=[("v100", 1)] * 3
    )
    for row, name, value in ((0, "loss", 9.0), (1, "loss", 2.0), (1, "accuracy", 0.4), (2, "accuracy", 0.7)):
        report(core, row, 10.0, value, name)
    report(core, 1, 20.0, 1.5)

    first = asked(core)
    restored = asked(restore(snapshot(core)))
    end(core, 0, int(core.jobs.lease[0]), Outcome.FINISHED, steps=1e9)
    tell(core, JobsArchived(np.array([0])))
    late = asked(core)

    assert first[0, 0].tolist() == [10.0, 9.0]
    assert first[1].tolist() == [[10.0, 2.0], [20.0, 1.5]]
    assert first[2, 0].tolist() == [10.0, -0.7]  # larger is better: the sign is the opposite
    assert np.array_equal(restored, first, equal_nan=True)
    assert np.array_equal(late, first[1:], equal_nan=True)


def test_without_reports_a_problem_has_an_empty_column() -> None:
    assert asked(running_core(make_spec("a"), servers=[("v100", 1)])).shape == (1, 0, 2)

"""GPU time by use in the HTML report: the parts are those of the metrics, and their costs add up."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gavelpy.report.html import render
from gavelpy.report.uses import by_use, legend
from tests.report.synthetic import SyntheticResult, make_result

HOURS = {"useful": 60.0, "start": 20.0, "lost_work": 0.0, "idle": 15.0, "closed": 5.0, "capacity": 100.0}


def result_of(label: str, hours: dict[str, float], cost_usd: float = 40.0) -> SyntheticResult:
    result = make_result(label)
    return replace(result, metrics=replace(result.metrics, gpu_hours=hours, cost_usd=cost_usd))


def test_a_bar_has_the_parts_of_its_run_with_their_costs() -> None:
    (bar,) = by_use([result_of("fifo", HOURS)])

    assert [segment.use for segment in bar.segments] == ["useful", "start", "idle", "closed"]
    assert [segment.length for segment in bar.segments] == pytest.approx([0.6, 0.2, 0.15, 0.05])
    assert bar.segments[0].text == "useful: 60.0 GPU-hours, 60.0 %, $30.00"
    assert bar.segments[2].text == "idle: 15.0 GPU-hours, 15.0 %"
    assert bar.text == "100.0 h, $40.00"


def test_lengths_of_runs_compare_in_gpu_hours() -> None:
    half = {name: hours / 2 for name, hours in HOURS.items()}

    first, second = by_use([result_of("fifo", HOURS), result_of("isolated", half)])

    assert sum(segment.length for segment in first.segments) == pytest.approx(1.0)
    assert sum(segment.length for segment in second.segments) == pytest.approx(0.5)
    assert [segment.use for segment in legend([first, second])] == ["useful", "start", "idle", "closed"]


def test_large_figures_have_no_digits_after_the_point() -> None:
    (bar,) = by_use([result_of("fifo", {"useful": 70_633.2, "capacity": 70_633.2}, cost_usd=30_579.4)])

    assert bar.text == "70,633 h, $30,579"


def test_the_page_shows_the_bars_only_where_uses_are_known() -> None:
    known, unknown = (
        render([result_of("fifo", hours)], title="t", parameters={}) for hours in (HOURS, dict[str, float]())
    )

    assert len(re.findall(r'<i title="[a-z ]+: [0-9.]+ GPU-hours', known)) == 4
    assert "Where the GPU time went" not in unknown

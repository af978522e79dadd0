"""SLAQ's claim, by direction: losses fall faster than under fair shares. The published values are the largest ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.metric_curve import MetricCurve
from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.slaq import (
    DEEPER,
    DELAY,
    LOSS,
    LOWEST,
    ROUND_S,
    SLAQ,
    SMALL,
    Setting,
    compared,
    lowest_ratio,
    trace_of,
)


@pytest.mark.slow
def test_socc17_section_6_losses_fall_faster_than_under_fair_shares() -> None:
    found = SLAQ.reproduce(FigureSize())

    ratios = {(row.at, row.quantity): row.ours for row in found.rows if row.run == "slaq / fair"}
    parts = sorted({at for at, _ in ratios})
    assert len(parts) == len(found.figures) == 1 + len(DEEPER)
    assert max(ratios[at, LOSS] for at in parts) < 0.7
    assert max(ratios[at, LOWEST] for at in parts) < 0.7
    assert max(ratios[at, DELAY.format(25.0)] for at in parts) < 0.6
    assert max(ratios[at, DELAY.format(90.0)] for at in parts) < 0.85
    assert all(len(figure.curves) == 2 for figure in found.figures)


@pytest.mark.slow
def test_no_job_waits_for_gpus_of_a_job_that_runs() -> None:
    """Each of two jobs has at least one of two GPUs from the second round on, whatever the other one holds."""
    setting = Setting(jobs=2, gpus=2, between_s=20.0, sizes=(1, 2))
    trace = trace_of(setting, 0)
    alone_s = [
        first_step_with_a_quarter(trace.curves[job.id], job.steps_total) / job.rates_steps_per_s["v100"]
        for job in trace.jobs
    ]

    rows, _ = compared(setting, 1, FigureSize())

    delay_s = [row.ours for row in rows if (row.run, row.quantity) == ("slaq", DELAY.format(25.0))]
    assert delay_s[0] <= np.mean(alone_s) + 2 * ROUND_S


def first_step_with_a_quarter(curve: MetricCurve, steps: float) -> float:
    """The steps after which a quarter of the whole fall is done, of 10,000 parts of all steps."""
    tried = np.linspace(0.0, steps, 10_001)
    fallen = [curve.at(0.0) - curve.at(step) for step in tried]
    return float(tried[np.argmax(np.array(fallen) >= 0.25 * fallen[-1])])


def test_the_lowest_ratio_is_that_of_a_window_before_the_last_arrival() -> None:
    """Windows of 2 rounds: the mean of 0.4 and 0.2 over that of 1 and 0.5; later rounds do not count."""
    fair = np.array([1.0, 1.0] * 4 + [1.0, 0.5] + [1.0, 1.0] * 5 + [1.0] * 5)
    slaq = np.array([1.0, 0.9] * 4 + [0.4, 0.2] + [0.8, 0.8] * 5 + [0.0] * 5)

    assert lowest_ratio(fair, slaq, 20) == pytest.approx(0.3 / 0.75)


@pytest.mark.parametrize(("least", "most"), [SMALL.left, *DEEPER])
def test_jobs_of_a_setting_have_its_part_of_their_fall_left_at_the_end(least: float, most: float) -> None:
    trace = trace_of(replace(SMALL, left=(least, most)), 0)

    left = []
    for job in trace.jobs:
        curve = trace.curves[job.id]
        left.append((curve.at(job.steps_total) - curve.floor) / (curve.start - curve.floor))

    assert 0.99 * least < np.min(left) < np.max(left) < 1.01 * most

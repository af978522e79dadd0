"""SLAQ's claim, by direction: losses fall faster than under fair shares. The published values are the largest ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.slaq import DEEPER, DELAY, LOSS, LOWEST, SLAQ, SMALL, lowest_ratio, trace_of


@pytest.mark.slow
def test_socc17_section_6_losses_fall_faster_than_under_fair_shares() -> None:
    found = SLAQ.reproduce(FigureSize())

    ratios = {(row.at, row.quantity): row.ours for row in found.rows if row.run == "slaq / fair"}
    parts = sorted({at for at, _ in ratios})
    assert len(parts) == len(found.figures) == 1 + len(DEEPER)
    assert max(ratios[at, LOSS] for at in parts) < 0.85
    assert max(ratios[at, LOWEST] for at in parts) < 0.7
    assert max(ratios[at, DELAY.format(90.0)] for at in parts) < 0.95
    assert all(len(figure.curves) == 2 for figure in found.figures)


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

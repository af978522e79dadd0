"""SLAQ's claim, by direction: losses fall faster than under fair shares. The published values are the largest ones."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.slaq import DELAY, LOSS, SLAQ, SMALL, trace_of


@pytest.mark.slow
def test_socc17_section_6_losses_fall_faster_than_under_fair_shares() -> None:
    found = SLAQ.reproduce(FigureSize())

    ratios = {row.quantity: row.ours for row in found.rows if row.run == "slaq / fair"}
    assert ratios[LOSS] < 0.85
    assert ratios[DELAY.format(90.0)] < 0.95
    assert len(found.figures[0].curves) == 2


def test_jobs_of_the_setting_have_a_tenth_to_a_hundredth_of_their_fall_left_at_the_end() -> None:
    trace = trace_of(SMALL, 0)

    left = []
    for job in trace.jobs:
        curve = trace.curves[job.id]
        left.append((curve.at(job.steps_total) - curve.floor) / (curve.start - curve.floor))

    assert 0.0099 < np.min(left) < np.max(left) < 0.101

"""SLAQ's claim, by direction: losses fall faster than under fair shares. The published values are the largest ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.slaq import DEEPER, DELAY, LOSS, SLAQ, SMALL, trace_of


@pytest.mark.slow
def test_socc17_section_6_losses_fall_faster_than_under_fair_shares() -> None:
    found = SLAQ.reproduce(FigureSize())

    ratios = {(row.at, row.quantity): row.ours for row in found.rows if row.run == "slaq / fair"}
    parts = sorted({at for at, _ in ratios})
    assert len(parts) == len(found.figures) == 1 + len(DEEPER)
    assert max(ratios[at, LOSS] for at in parts) < 0.85
    assert max(ratios[at, DELAY.format(90.0)] for at in parts) < 0.95
    assert all(len(figure.curves) == 2 for figure in found.figures)


@pytest.mark.parametrize(("least", "most"), [SMALL.left, *DEEPER])
def test_jobs_of_a_setting_have_its_part_of_their_fall_left_at_the_end(least: float, most: float) -> None:
    trace = trace_of(replace(SMALL, left=(least, most)), 0)

    left = []
    for job in trace.jobs:
        curve = trace.curves[job.id]
        left.append((curve.at(job.steps_total) - curve.floor) / (curve.start - curve.floor))

    assert 0.99 * least < np.min(left) < np.max(left) < 1.01 * most

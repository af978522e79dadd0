"""Forecasts of a journal: exact where nothing is uncertain, and with calibrated intervals where rates are noisy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.forecasts import is_inside, noisy_journal
from gavelpy.errors import InvalidInput
from gavelpy.journal.recording import Recording
from gavelpy.simulator.forecast import COSTS
from gavelpy.simulator.past.score import score_forecasts
from tests.simulator.builders import make_job, make_trace
from tests.simulator.past.builders import recorded


def test_forecasts_are_exact_where_nothing_is_uncertain() -> None:
    jobs = [make_job(f"j{k}", steps=1_000.0 + 100.0 * k) for k in range(12)]
    recording = recorded(make_trace(*jobs), "fifo", "v100:2", COSTS)

    scores = score_forecasts(recording, times=10)

    assert len(scores.forecasts) > 30
    assert [one for one in scores.forecasts if one.happened_s != pytest.approx(one.expected_s, abs=1.0)] == []


def test_intervals_use_only_what_was_known_at_the_time() -> None:
    recording = noisy_journal("fifo", 1, 3.0, 40)
    whole = score_forecasts(recording, times=20).forecasts
    cut = [(now_s, event) for now_s, event in recording.events if now_s <= whole[len(whole) // 2].at_s]

    at = {one.at_s for one in whole}
    half = score_forecasts(Recording("cut", cut, policy=recording.policy), times=20).forecasts

    assert all(math.isnan(one.low_s) or one.low_s <= one.high_s for one in whole)
    assert max(one.at_s for one in half) <= max(at)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_intervals_of_80_percent_hold_75_to_85_percent_of_the_time(seed: int) -> None:
    """Over at least 2,000 forecasts, of four policies and two loads."""
    inside: list[bool] = []
    for policy in ("fifo", "shortest_job_first", "max_min_fairness", "finish_time_fairness"):
        for jobs_per_h in (2.0, 3.0):
            found = score_forecasts(noisy_journal(policy, 1_000 * seed + int(jobs_per_h), jobs_per_h, 120), times=30)
            inside += is_inside(found.forecasts)

    assert len(inside) >= 2_000
    assert 0.75 <= float(np.mean(inside)) <= 0.85


def test_a_number_of_times_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="times must be in"):
        score_forecasts(Recording("none", []), times=0)

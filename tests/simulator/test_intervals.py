"""Intervals of forecasts: quantiles of censored data, and coverage where errors are alike, drift, or are known late."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.simulator.intervals import Interval, IntervalModel, kaplan_meier


def covered(model: IntervalModel, ratios: list[float], delay: int = 0) -> float:
    """The share of outcomes in their intervals; each is known after `delay` more forecasts."""
    rng, hits, waiting = np.random.default_rng(7), list[bool](), list[tuple[int, float]]()
    for k, ratio in enumerate(ratios):
        expected_s = float(rng.exponential(3_000.0)) + 60.0
        number = model.add(expected_s, k)
        waiting.append((number, expected_s * ratio))
        interval = model.made(number)
        hits += [] if interval is None else [interval.contains(expected_s * ratio)]
        if len(waiting) > delay:
            model.happen(*waiting.pop(0))
    return float(np.mean(hits))


def test_quantiles_of_known_values_are_those_of_conformal_prediction() -> None:
    values = np.arange(1.0, 10.0)

    found = kaplan_meier(values, np.ones(9, dtype=np.bool_), [0.1, 0.5, 0.9, 0.95])

    assert found == [1.0, 5.0, 9.0, math.inf]


def test_quantiles_of_censored_values_are_those_of_all() -> None:
    rng = np.random.default_rng(1)
    true, censored_at = rng.normal(0.0, 1.0, 20_000), rng.normal(0.5, 1.0, 20_000)

    low, middle, high = kaplan_meier(np.minimum(true, censored_at), true <= censored_at, [0.1, 0.5, 0.9])

    assert (low, middle, high) == pytest.approx(tuple(np.quantile(true, [0.1, 0.5, 0.9])), abs=0.05)


def test_groups_count_once() -> None:
    values, known = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 3.0]), np.ones(6, dtype=np.bool_)

    found = kaplan_meier(values, known, [0.5], np.array([0.25] * 4 + [1.0, 1.0]))

    assert found == [2.0]


@pytest.mark.parametrize("delay", [0, 100])
def test_intervals_of_errors_that_are_alike_have_their_coverage(delay: int) -> None:
    ratios = np.exp(np.random.default_rng(3).normal(0.3, 0.5, 2_000)).tolist()

    assert covered(IntervalModel(), ratios, delay) == pytest.approx(0.8, abs=0.025)


def test_intervals_follow_errors_that_drift() -> None:
    noise = np.random.default_rng(5).normal(0.0, 0.3, 2_000)
    ratios = np.exp(noise + np.linspace(0.0, 1.5, 2_000)).tolist()

    assert covered(IntervalModel(), ratios) == pytest.approx(0.8, abs=0.05)


def test_there_is_no_interval_before_enough_is_known() -> None:
    model = IntervalModel()

    for number in range(29):
        model.happen(model.add(100.0, number), 120.0)

    assert model.interval(100.0) is None
    model.happen(model.add(100.0, 29), 120.0)
    assert model.interval(100.0) == Interval(pytest.approx(120.0), pytest.approx(120.0))
    assert model.interval(math.inf) is None


def test_a_forecast_that_is_overdue_counts_as_a_miss_once() -> None:
    model = IntervalModel()
    for number in range(40):
        model.happen(model.add(100.0, number), 100.0)
    late, level = model.add(100.0, 40), model.level

    model.wait(late, 500.0)
    model.wait(late, 600.0)
    model.happen(late, 700.0)

    assert model.level == pytest.approx(level + 0.008)


def test_a_coverage_that_is_no_share_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"coverage must be in \(0, 1\), got 1.0"):
        IntervalModel(1.0)


def test_forgotten_forecasts_count_no_more_and_later_calls_for_them_have_no_effect() -> None:
    model, kept = IntervalModel(), IntervalModel()
    numbers = [model.add(100.0, k) for k in range(80)]
    for number in numbers[:40]:
        model.happen(number, 500.0)

    model.forget(40)
    for number in numbers[40:]:
        model.happen(number, 150.0)
    model.happen(numbers[0], 9.0)
    model.wait(numbers[1], 9.0)
    for k in range(40):
        kept.happen(kept.add(100.0, k), 150.0)

    assert len(model) == 40
    assert model.made(numbers[0]) is None
    assert model.interval(100.0) == kept.interval(100.0)

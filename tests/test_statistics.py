"""Intervals of means: against scipy's bootstrap, by their coverage, and the same for pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.statistics import mean_interval, paired_difference, paired_over_jobs, paired_ratio, percentiles, resampled


def test_interval_of_few_values_is_that_of_all_resamples() -> None:
    found = mean_interval([1.0, 2.0, 9.0])

    assert (found.mean, found.low, found.high) == (4.0, 1.0, 9.0)


def test_resampled_means_agree_with_scipys_bootstrap() -> None:
    from scipy import stats  # here, so that only the process of this test loads it

    values = np.random.default_rng(1).exponential(10.0, 12)

    ours = np.quantile(resampled(values[:, None])[:, 0], [0.025, 0.975])

    peer = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    assert ours == pytest.approx([peer.low, peer.high], rel=0.03)


@pytest.mark.parametrize(("count", "least"), [(5, 0.88), (10, 0.92), (20, 0.93)])
def test_interval_contains_the_mean_as_often_as_stated(count: int, least: float) -> None:
    samples = np.random.default_rng(3).standard_normal((count, 400))

    found = [percentiles(means, count) for means in resampled(samples, seed=7).T]

    assert least <= np.mean([low <= 0 <= high for low, high in found]) <= 0.985


def test_pairs_cancel_what_both_runs_have_in_common() -> None:
    rng = np.random.default_rng(4)
    load = rng.normal(100.0, 30.0, 8)
    before, after = load, load + rng.normal(-5.0, 1.0, 8)

    difference = paired_difference(before, after)

    assert difference.excludes_zero
    assert difference.high < 0
    assert difference.high - difference.low < 0.1 * (mean_interval(before).high - mean_interval(before).low)


def test_ratio_of_pairs_is_the_ratio_of_means() -> None:
    found = paired_ratio([1.0, 3.0], [2.0, 4.0])

    assert found.mean == 1.5
    assert (found.low, found.high) == (4 / 3, 2.0)


def test_unknown_values_are_left_out_and_one_value_has_no_interval() -> None:
    found = mean_interval([math.nan, 5.0, math.inf])

    assert (found.mean, found.count) == (5.0, 1)
    assert math.isnan(found.low)
    assert not found.excludes_zero
    assert mean_interval([]).count == 0


def test_pairs_must_match() -> None:
    with pytest.raises(InvalidInput, match=r"a value for each seed, got \(2,\) and \(3,\)"):
        paired_difference([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(InvalidInput, match="before must be > 0 for a ratio, got 0"):
        paired_ratio([0.0, 1.0], [1.0, 1.0])
    with pytest.raises(InvalidInput, match=r"level must be in \(0, 1\), got 95"):
        percentiles(np.zeros(3), 3, 95)


def test_interval_over_jobs_covers_the_mean_of_the_population() -> None:
    rng, hits = np.random.default_rng(4), 0
    for trial in range(60):
        before = rng.exponential(10.0, 30)[:, None] * np.exp(0.1 * rng.standard_normal((1, 6)))
        after = before - 1.0 + rng.normal(0.0, 2.0, (30, 1))
        found = paired_over_jobs(before, after, seed=trial)
        hits += found.low <= -1.0 <= found.high

    assert hits >= 53  # of 60, at 95 %


def test_interval_over_jobs_is_relative_to_what_was_before() -> None:
    before = np.array([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]])

    found = paired_over_jobs(before, 0.8 * before, relative=True)

    assert (found.mean, found.low, found.high) == pytest.approx((-0.2, -0.2, -0.2))

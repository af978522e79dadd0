"""Rates alone: one measurement fixes the level, similar jobs the rest, and error bars are calibrated."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.estimator.completion import Completion, with_estimates
from gavelpy.estimator.gaussian import Blocks
from gavelpy.estimator.isolated import IsolatedModel, IsolatedPosterior
from gavelpy.estimator.roofline import Roofline
from gavelpy.model.cluster import GpuSpecs, Precision, StepCost
from gavelpy.model.throughput import ThroughputTable
from tests.estimator.tables import BATCHES, FAMILY, TYPES, job_type, lawful_rates, make_table, true_rate

HIDDEN = (job_type("bee", 32), 1)


def table_without(*types: str) -> ThroughputTable:
    rates = lawful_rates()
    rates[HIDDEN] = {name: rate for name, rate in rates[HIDDEN].items() if name not in types}
    return make_table(rates)


def blocks_of(table: ThroughputTable, *keys: tuple[str, int]) -> Blocks:
    return IsolatedPosterior(IsolatedModel(), table).blocks(keys or (HIDDEN,), TYPES)


def test_a_single_measured_type_tells_the_others() -> None:
    found = blocks_of(table_without("middle", "new"))

    truth = [true_rate("bee", 32, name) for name in TYPES]
    np.testing.assert_allclose(np.exp(found.mean[0]), truth, rtol=0.1)


def test_error_bars_shrink_with_what_is_measured() -> None:
    nothing, one = lawful_rates(), lawful_rates()
    one["stranger", 1] = {"old": 2.0}

    before, after = (blocks_of(make_table(rates), ("stranger", 1)).sd[0, 2] for rates in (nothing, one))

    assert after < 0.5 * before


def test_a_stranger_without_measurements_has_a_wide_error_bar() -> None:
    found = blocks_of(table_without(), ("stranger", 1))

    assert found.sd.min() > 1.0


def test_a_type_that_nobody_has_run_on_has_a_wide_error_bar_but_a_known_level() -> None:
    found = IsolatedModel().given(table_without()).blocks([HIDDEN], ("brand-new",))

    assert 0.5 < found.sd[0, 0] < 2.0


def test_what_was_measured_is_believed() -> None:
    found = blocks_of(table_without())

    np.testing.assert_allclose(np.exp(found.mean[0]), [true_rate("bee", 32, name) for name in TYPES], rtol=0.05)


def test_estimates_follow_keys_and_types_by_name_and_not_by_place() -> None:
    table = table_without("new")
    other = job_type("ant", 8), 1

    one = IsolatedModel().given(table).blocks([HIDDEN, other], ("new", "old"))
    two = IsolatedModel().given(table).blocks([other, HIDDEN], ("old", "new"))

    np.testing.assert_allclose(one.mean, two.mean[::-1, ::-1], atol=1e-9)


def test_an_empty_table_gives_the_prior() -> None:
    found = IsolatedModel().given(make_table({}, ())).blocks([("x", 1)], ("a", "b"))

    assert np.isfinite(found.mean).all()
    assert found.sd.min() > 2.0


def test_one_job_on_one_type_is_estimated_on_it() -> None:
    found = IsolatedModel().given(make_table({("x", 1): {"a": 5.0}}, ("a",))).blocks([("x", 1)], ("a",))

    assert math.exp(found.mean[0, 0]) == pytest.approx(5.0, rel=0.02)


def test_entries_beyond_what_is_conditioned_on_together_still_count_for_their_own_row() -> None:
    rates = {(f"kind {n}", 1): dict.fromkeys(TYPES, 3.0) for n in range(500)}
    lone = ("kind 77", 1)
    rates[lone] = {"old": 50.0, "middle": 70.0, "new": 90.0}

    found = blocks_of(make_table(rates), lone)

    np.testing.assert_allclose(np.exp(found.mean[0]), [50.0, 70.0, 90.0], rtol=0.1)


def test_intervals_of_hidden_entries_hold_what_they_promise() -> None:
    table, rng = make_table(lawful_rates()), np.random.default_rng(0)
    noisy = table.rate_steps_per_s * np.exp(rng.normal(scale=0.07, size=table.rate_steps_per_s.shape))
    hidden = rng.random(noisy.shape) < 0.4
    left = replace(table, rate_steps_per_s=np.where(hidden, math.nan, noisy))

    found = IsolatedModel().given(left).blocks(table.keys, TYPES)

    score = np.abs(found.mean - np.log(noisy)) / np.hypot(found.sd, 0.07)
    assert (score[hidden] < 1.645).mean() >= 0.8


def test_fitting_recovers_that_rates_are_exact() -> None:
    model = IsolatedModel().fitted(make_table(lawful_rates()))

    assert model.scales.noise < IsolatedModel().scales.noise


def test_fitting_needs_data() -> None:
    model = IsolatedModel()

    assert model.fitted(make_table({("x", 1): {"a": 5.0}}, ("a",))) == model
    assert len(FAMILY) * len(BATCHES) == len(lawful_rates())


def test_gpus_of_near_figures_treat_jobs_alike() -> None:
    gpus = {
        "gpu": GpuSpecs(80.0, 3350.0, 67.0, 989.0),
        "its sister": GpuSpecs(141.0, 4000.0, 67.0, 989.0),
        "another": GpuSpecs(16.0, 300.0, 8.0, 65.0),
    }
    jobs = {"net": StepCost(10.0, 1e-3, 1e-3, 1.0, 0.1, Precision.HALF)}
    model = IsolatedModel(roofline=Roofline(jobs, gpus))
    key = ("net (batch size 8)", 1)
    table = make_table({key: {"gpu": 500.0}}, ("gpu",))

    found = model.given(table).blocks([key], ["gpu", "its sister", "another", "stranger"])

    assert found.sd[0, 0] < found.sd[0, 1] < 0.7 * found.sd[0, 2]
    assert found.sd[0, 2] <= found.sd[0, 3]
    assert found.covariance[0, 0, 1] == pytest.approx(found.covariance[0, 1, 0])


def test_types_without_figures_resemble_only_themselves() -> None:
    np.testing.assert_array_equal(IsolatedModel().alike(("a", "b", "c")), np.eye(3))


def test_a_table_is_filled_to_six_digits() -> None:
    table = make_table({("x", 1): {"a": 2.0 / 3.0}, ("x (batch size 2)", 1): {"b": 1e7 / 3.0}}, ("a", "b"))

    filled = with_estimates(table, Completion(table).estimates(table.keys, table.gpu_types))

    estimates = filled.rate_steps_per_s[np.isnan(table.rate_steps_per_s)].tolist()
    assert estimates == [float(f"{value:.6g}") for value in estimates]
    assert filled.rate_steps_per_s[0, 0] == 2.0 / 3.0

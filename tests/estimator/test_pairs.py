"""Slowdowns of pairs are learned from other pairs, and pairs that do not fit are recognised."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.estimator import pairs
from gavelpy.estimator.completion import MemoryModel
from gavelpy.estimator.pairs import PairModel, Slowdowns, slowdown_quantile
from gavelpy.model.throughput import ThroughputTable
from tests.estimator.tables import TYPES, lawful_pairs, lawful_rates, make_table, slowdown

TABLE = lawful_pairs()
JOB = 5  # a bee


def without_pairs_of(job: int, kept: int) -> ThroughputTable:
    """The table with only the first few pairs of a job."""
    rates = TABLE.pair_rate_steps_per_s.copy()
    rates[np.flatnonzero((TABLE.pair_rows == job).any(axis=1))[kept:]] = math.nan
    return replace(TABLE, pair_rate_steps_per_s=rates)


def truth() -> list[float]:
    return [slowdown(TABLE, JOB, other) for other in range(len(TABLE.keys))]


def test_a_new_job_is_known_from_a_few_pairs() -> None:
    found = PairModel().given(without_pairs_of(JOB, kept=2)).slowdowns(TABLE.keys, TYPES)

    np.testing.assert_allclose(np.exp(found.mean[JOB, :, 0]), truth(), rtol=0.1)


def test_nobody_gains_from_a_partner() -> None:
    found = PairModel().given(TABLE).slowdowns(TABLE.keys, TYPES)

    assert found.mean.max() <= 0.0


def test_without_pairs_two_jobs_get_about_half_each_and_nobody_is_sure() -> None:
    found = PairModel().given(make_table({("x", 1): {"a": 1.0}}, ("a",))).slowdowns([("x", 1)], ["a"])

    assert math.exp(found.mean[0, 0, 0]) == pytest.approx(0.58, abs=0.05)
    assert found.sd[0, 0, 0] > 0.1


def test_many_cells_share_error_bars_that_are_near_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    table = without_pairs_of(JOB, kept=2)
    exact = PairModel().given(table).slowdowns(TABLE.keys, TYPES)
    monkeypatch.setattr(pairs, "EXACT_MAX", 0)

    shared = PairModel().given(table).slowdowns(TABLE.keys, TYPES)

    np.testing.assert_allclose(shared.mean, exact.mean)
    assert shared.sd.mean() == pytest.approx(exact.sd.mean(), rel=0.3)


def test_measured_cells_count_even_when_too_many_to_condition_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "OBSERVATIONS_MAX", 40)

    found = PairModel().given(TABLE).slowdowns(TABLE.keys, TYPES)

    np.testing.assert_allclose(np.exp(found.mean[JOB, :, 1]), truth(), rtol=0.1)


def test_a_type_on_which_partners_matter_more_has_wider_error_bars() -> None:
    rates, alone = TABLE.pair_rate_steps_per_s.copy(), TABLE.rate_steps_per_s[TABLE.pair_rows]
    rates[:, :, 2] = alone[:, :, 2] * (rates / alone)[:, :, 2] ** 4
    is_known = np.arange(len(rates)) % 5 == 0
    table = replace(TABLE, pair_rate_steps_per_s=np.where(is_known[:, None, None], rates, math.nan))

    found = PairModel().given(table).slowdowns(TABLE.keys, [*TYPES, "stranger"])

    assert (found.sd[:, :, 2] > 1.5 * found.sd[:, :, 0]).all()
    assert found.noise_sd[2] > 1.5 * found.noise_sd[0]
    assert found.noise_sd[0] < found.noise_sd[3] < found.noise_sd[2]


def test_pairs_that_all_cost_the_same_have_the_spread_of_any() -> None:
    alone = TABLE.rate_steps_per_s[TABLE.pair_rows]
    table = replace(TABLE, pair_rate_steps_per_s=alone * math.exp(-0.55))

    found = PairModel().given(table).slowdowns(TABLE.keys, TYPES)

    np.testing.assert_allclose(found.mean, -0.55, atol=0.01)
    assert np.isfinite(found.sd).all()


def test_pairs_that_did_not_fit_are_not_taken_for_slow_ones() -> None:
    rates = TABLE.pair_rate_steps_per_s.copy()
    rates[TABLE.pair_rows[:, 0] == 0] = 0.0
    table = replace(TABLE, pair_rate_steps_per_s=rates)

    fits = MemoryModel(table).together(TABLE.keys, TYPES)

    assert fits[0, 3:].max() < 0.5 < fits[5:, 5:].min()
    assert MemoryModel(table).alone(TABLE.keys, TYPES).min() > 0.5


def test_a_larger_batch_of_a_family_that_did_not_fit_does_not_fit_either() -> None:
    rates = {(f"net (batch size {2**n})", 1): {"gpu": 0.0 if n > 5 else 1.0} for n in range(2, 8)}
    table = make_table(rates, ("gpu",))

    fits = MemoryModel(table).alone([("net (batch size 4)", 1), ("net (batch size 512)", 1)], ["gpu"])

    assert fits[1, 0] < 0.5 < fits[0, 0]


def test_an_empty_table_says_that_jobs_fit() -> None:
    memory = MemoryModel(make_table({}, ()))

    assert memory.alone([("x", 1)], ["a"])[0, 0] > 0.9
    assert memory.together([("x", 1)], ["a"])[0, 0, 0] > 0.9


def test_a_pair_that_ran_fits_and_one_that_did_not_does_not_whatever_others_tell() -> None:
    rates = TABLE.pair_rate_steps_per_s.copy()
    same = np.flatnonzero((TABLE.pair_rows == JOB).all(axis=1))[0]
    rates[same, :, 1], rates[same, 0, 2] = 0.0, math.nan
    table = replace(TABLE, pair_rate_steps_per_s=rates)

    fits = MemoryModel(table).together(TABLE.keys, [*TYPES, "stranger"])

    assert fits[JOB, JOB, :3].tolist() == [1.0, 0.0, 1.0]
    assert 0.5 < fits[JOB, JOB, 3] < 1.0
    assert set(fits[:JOB, :JOB, 0].ravel()) == {1.0}


def test_a_pair_that_fails_to_fit_as_likely_as_the_quantile_keeps_nothing() -> None:
    one = Slowdowns(np.full((1, 1, 3), -0.5), np.full((1, 1, 3), 0.01), np.ones(3), np.ones(3))

    found = slowdown_quantile(one, np.array([[[0.7, 0.81, 1.0]]]), 0.2)

    assert found[0, 0, 0] == 0.0
    assert found[0, 0, 1:] == pytest.approx(math.exp(-0.5), rel=0.05)


def test_caution_grows_with_what_measurements_explain() -> None:
    sd = np.array([[[0.4, 0.2, 0.1]]])
    some = Slowdowns(np.full((1, 1, 3), -0.5), sd, np.ones(3), np.full(3, 0.4))

    found = np.log(slowdown_quantile(some, np.ones((1, 1, 3)), 0.2)[0, 0])

    assert found[0] == pytest.approx(-0.5)  # nothing is explained: the median
    assert found[2] == pytest.approx(-0.5 - 0.842 * 0.1, abs=0.03)  # nearly everything is explained: the quantile
    assert found[1] < found[0]


def test_jobs_that_are_faster_together_are_believed() -> None:
    table = make_table(lawful_rates())
    alone = table.rate_steps_per_s
    rows = np.array([(a, b) for a in range(len(alone)) for b in range(a, len(alone))])
    table = replace(table, pair_rows=rows, pair_rate_steps_per_s=1.2 * alone[rows])

    found = PairModel().given(table).slowdowns(table.keys, table.gpu_types)

    np.testing.assert_allclose(np.exp(found.mean), 1.2, rtol=0.05)


def test_intervals_of_new_jobs_are_wider_where_left_out_pairs_say_so() -> None:
    rng = np.random.default_rng(0)
    table = make_table({(f"net {n}", 1): {"v100": 1.0} for n in range(24)}, ("v100",))
    rows = np.array([(a, b) for a in range(24) for b in range(a, 24)])
    wild = np.exp(rng.standard_t(2, size=(len(rows), 2, 1)) * 0.3 - 0.4)
    hidden = rng.random(len(rows)) < 0.5
    left = replace(table, pair_rows=rows[~hidden], pair_rate_steps_per_s=wild[~hidden])

    found = PairModel().given(left)

    assert found.widths[1] > 1.0
    believed = found.slowdowns([*left.keys, ("new", 1)], ("v100",))
    model_only = found.model.given(replace(left, pair_rows=rows[:0], pair_rate_steps_per_s=wild[:0]))
    assert model_only.widths == (1.0, 1.0)
    assert believed.sd[-1, 0, 0] >= believed.sd[1, 0, 0]

"""Latent factors of jobs: learned if pairs are measured densely, absent if measurements do not support them."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.estimator import latent
from gavelpy.estimator.evaluate import NORMAL_90
from gavelpy.estimator.pairs import PairModel, measured
from gavelpy.estimator.stacking import row_column_rank
from gavelpy.model.arrays import Floats
from gavelpy.model.throughput import ThroughputTable
from tests.estimator.tables import interfering_pairs

SEEDS = range(2)


def cells(table: ThroughputTable) -> Floats:
    """Logarithms of slowdowns, (N, N); NaN: unknown."""
    seen, N = measured(table), len(table.keys)
    values = np.full((N, N), np.nan)
    values[seen.first, seen.second] = seen.log_slowdown
    return values


def held_out(share: float, rank: int = 2, seeds: range = SEEDS) -> tuple[Floats, Floats, float]:
    """Errors in unmeasured cells: the estimator's, and those of a factorisation of rank 2; and the coverage."""
    ours, theirs, inside = [], [], []
    for seed in seeds:
        whole, part = interfering_pairs(seed, share, rank)
        truth, known = cells(whole), cells(part)
        found, asked = PairModel().given(part).slowdowns(part.keys, part.gpu_types), np.isnan(known)
        mean, sd = found.mean[:, :, 0], np.hypot(found.sd, found.noise_sd)[:, :, 0]
        ours.append(np.abs(np.expm1(mean - truth))[asked])
        theirs.append(np.abs(np.expm1(row_column_rank(known, 2) - truth))[asked])
        inside.append((np.abs(mean - truth) <= NORMAL_90 * sd)[asked])
    return np.concatenate(ours), np.concatenate(theirs), float(np.concatenate(inside).mean())


def test_dense_pairs_are_estimated_as_well_as_by_a_factorisation_of_rank_two() -> None:
    ours, factorised, inside = held_out(0.4)

    assert np.quantile(ours, 0.9) <= 1.05 * np.quantile(factorised, 0.9)
    assert np.median(ours) <= 1.05 * np.median(factorised)
    assert 0.85 <= inside <= 0.95


def test_dense_pairs_without_interference_have_no_factors() -> None:
    _, part = interfering_pairs(0, 0.4, rank=0)

    found = PairModel().given(part)

    assert found.factors.scale == 0.0
    ours, factorised, inside = held_out(0.4, rank=0, seeds=range(1))
    assert np.quantile(ours, 0.9) <= np.quantile(factorised, 0.9)
    assert 0.85 <= inside <= 0.95


def test_sparse_pairs_are_estimated_as_without_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    with_factors = held_out(0.12)
    monkeypatch.setattr(latent, "learned", lambda seen, jobs, covariance_of: latent.none(jobs))
    without = held_out(0.12)

    assert np.quantile(with_factors[0], 0.9) <= 1.02 * np.quantile(without[0], 0.9)
    assert np.quantile(with_factors[0], 0.9) < np.quantile(with_factors[1], 0.9)


def test_a_new_job_profits_from_the_factors_of_its_partners() -> None:
    whole, _ = interfering_pairs(1, 1.0)
    mine = np.flatnonzero((whole.pair_rows == 7).any(axis=1))
    rates = whole.pair_rate_steps_per_s.copy()
    rates[mine[8:]] = np.nan
    part = ThroughputTable(
        whole.keys, whole.gpu_types, whole.rate_steps_per_s, whole.provenance, whole.source, whole.pair_rows, rates
    )
    truth = cells(whole)[7]

    found = PairModel().given(part)
    estimated = found.slowdowns(part.keys, part.gpu_types).mean[7, :, 0]

    asked = np.isnan(cells(part)[7])
    assert found.factors.scale > 0.0
    assert np.sqrt(np.mean((estimated - truth)[asked] ** 2)) < 0.5 * np.std(truth[asked])


def test_keys_that_are_not_in_the_table_are_the_least_certain() -> None:
    _, part = interfering_pairs(0, 0.4)

    found = PairModel().given(part).slowdowns([*part.keys, ("new", 1), ("newer", 1)], part.gpu_types)

    assert found.sd[-1, -2, 0] > found.sd[-1, 0, 0] > np.median(found.sd[:-2, :-2, 0])
    assert found.sd[-1, -2, 0] <= found.prior_sd[0] * 1.6
    assert np.isfinite(found.mean).all()


def test_the_same_table_gives_the_same_factors() -> None:
    _, part = interfering_pairs(2, 0.4)

    first, second = PairModel().given(part).factors, PairModel().given(part).factors

    np.testing.assert_array_equal(first.sensitivity, second.sensitivity)
    np.testing.assert_array_equal(first.pressure, second.pressure)

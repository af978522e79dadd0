"""The mixture with simple estimates: cross-validated weights and widths, and where they apply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.estimator import stacking
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.stacking import Errors, Mixture, row_plus_column
from gavelpy.model.arrays import Floats
from gavelpy.model.throughput import ThroughputTable
from tests.estimator.test_hyperparameters import MODEL, TYPES, vendor_table

WELL, ROW, COLUMN = range(3)


def errors(sd: Floats, situation: int, seed: int = 0) -> Errors:
    """400 errors of each method with these standard deviations; the Gaussian process assumes 0.1."""
    error = np.random.default_rng(seed).normal(size=(400, 4)) * sd
    return Errors(error, np.full(400, 0.1), np.full(400, situation))


def without_most_of(table: ThroughputTable, column: int) -> ThroughputTable:
    rates = table.rate_steps_per_s.copy()
    rates[3:, column] = np.nan
    return replace(table, rate_steps_per_s=rates)


def test_each_situation_gets_the_method_with_the_smallest_errors() -> None:
    found = stacking.mixture(
        [errors(np.array([0.01, 0.5, 0.5, 0.5]), WELL), errors(np.array([0.5, 0.5, 0.01, 0.5]), COLUMN)]
    )

    assert found.weights[WELL][0] > 0.95
    assert found.weights[COLUMN][2] > 0.95


@pytest.mark.parametrize("sd", [0.05, 0.1, 0.3])
def test_the_width_brings_nine_in_ten_errors_inside(sd: float) -> None:
    found = stacking.mixture([errors(np.array([sd, 9.0, 9.0, 9.0]), WELL)])

    fresh = errors(np.array([sd, 9.0, 9.0, 9.0]), WELL, seed=1).error[:, 0]
    inside = np.abs(fresh) <= 1.645 * 0.1 * found.widths[WELL]
    assert 0.85 <= inside.mean() <= 0.95


def test_without_errors_the_gaussian_process_answers_alone() -> None:
    assert stacking.mixture([]) == Mixture()


def test_folds_hide_single_rates_rows_but_for_one_and_columns_but_for_three() -> None:
    known = np.ones((12, 4), dtype=np.bool_)

    masks = list(stacking.folds(known))

    left = [known & ~mask for mask in masks]
    assert {int(row.sum()) for mask in left[3:5] for row in mask} == {1, 4}
    assert sorted(int(column.sum()) for mask in left[5:] for column in mask.T) == [3] * 3 + [12] * 9
    assert all(mask.any() and not mask.all() for mask in masks)


def test_a_gpu_type_known_from_three_rates_is_estimated_as_well_as_by_row_plus_column() -> None:
    table = vendor_table(0.05)
    left = without_most_of(table, TYPES.index("rtx 8000"))
    hidden = np.isnan(left.rate_steps_per_s)

    mean = MODEL.fitted(left).given(left).blocks(left.keys, TYPES).mean

    truth = np.log(table.rate_steps_per_s[hidden])
    simple = np.median(np.abs(row_plus_column(np.log(left.rate_steps_per_s))[hidden] - truth))
    assert np.median(np.abs(mean[hidden] - truth)) <= 1.05 * simple


def test_the_mixture_moves_only_unknown_entries_of_the_table() -> None:
    table = without_most_of(vendor_table(0.05), 2)
    model = replace(MODEL, mixture=Mixture(((0.0, 1.0, 0.0, 0.0),) * 3, (2.0, 2.0, 2.0)))

    keys = [*table.keys, ("stranger", 1)]
    alone, mixed = (one.given(table).blocks(keys, [*TYPES, "new type"]) for one in (MODEL, model))

    moved = alone.mean != mixed.mean
    assert np.array_equal(np.argwhere(moved), [[row, 2] for row in range(3, len(table.keys))])
    np.testing.assert_allclose(
        mixed.mean[3 : len(table.keys), 2], row_plus_column(np.log(table.rate_steps_per_s))[3:, 2]
    )
    assert (mixed.sd[moved] > 1.9 * alone.sd[moved]).all()
    np.testing.assert_array_equal(mixed.sd[~moved], alone.sd[~moved])


def test_a_table_of_few_rates_has_no_mixture() -> None:
    few = vendor_table(0.05, jobs=1)

    assert IsolatedModel().fitted(few).mixture == Mixture()

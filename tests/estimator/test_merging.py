"""Merging tables: absurd rates are refused, both alone and co-located."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.estimator.sanity import merged
from tests.estimator.tables import TYPES, lawful_pairs, make_table

TABLE = lawful_pairs()
NOTHING = make_table({}, TYPES)


def test_a_pair_that_no_job_makes_is_refused_from_both_sides_with_a_reason() -> None:
    rates = TABLE.pair_rate_steps_per_s.copy()
    rates[4, 0, 1] = 1e12

    found = merged(NOTHING, replace(TABLE, pair_rate_steps_per_s=rates))

    assert np.isnan(found.table.pair_rate_steps_per_s[4, :, 1]).all()
    assert np.isnan(found.table.pair_rate_steps_per_s).sum() == 2
    (note,) = found.notes
    assert "1e+12 steps/s refused" in note
    assert " with " in note


def test_a_refused_pair_leaves_the_one_that_was_known() -> None:
    rates = TABLE.pair_rate_steps_per_s.copy()
    rates[4, 0, 1] = 1e12

    found = merged(TABLE, replace(TABLE, pair_rate_steps_per_s=rates))

    np.testing.assert_array_equal(found.table.pair_rate_steps_per_s, TABLE.pair_rate_steps_per_s)

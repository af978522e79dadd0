"""Hold-outs: hidden rates stay hidden, and every job is held out."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.estimator.evaluate import HELD_JOBS, isolated_from_one_type, pairs_of_a_new_job
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.kinds import kind_of
from gavelpy.estimator.pairs import PairModel
from tests.estimator.tables import TYPES, lawful_pairs

TABLE = lawful_pairs()


def test_every_job_has_its_turn() -> None:
    seeds = range(len(TABLE.keys) // HELD_JOBS)

    ours, *_ = pairs_of_a_new_job(TABLE, PairModel(), seeds, share=0.5)

    held = {family: ours.label.count(family) for family in ours.label}
    assert set(held) == {kind_of(job_type).family for job_type, _ in TABLE.keys}
    assert max(held.values()) <= 1.05 * min(held.values())  # a pair of a job with itself counts once


def test_the_estimator_and_the_baselines_are_asked_the_same() -> None:
    ours, *others = pairs_of_a_new_job(TABLE, PairModel(), range(1))

    assert [other.method for other in others] == [
        "factorisation",
        "factorisation of both sides at once",
        "nearest reference",
        "factorisation, then nearest reference",
    ]
    np.testing.assert_array_equal(np.array([other.truth for other in others]), np.tile(ours.truth, (4, 1)))
    assert ours.is_inside.mean() > 0.8


def test_a_hold_out_has_a_part_for_each_family_and_each_type() -> None:
    found = isolated_from_one_type(TABLE, IsolatedModel(), range(3))

    assert sum(len(found.of(family).error) for family in set(found.label)) == len(found.error)
    assert sum(len(found.on(gpu_type).error) for gpu_type in TYPES) == len(found.error)
    np.testing.assert_array_equal(found.on("new").truth, found.truth[np.array(found.gpu_type) == "new"])


def test_the_same_seeds_hide_the_same_and_no_truth_is_handed_on() -> None:
    found = isolated_from_one_type(TABLE, IsolatedModel(), range(1), whole_job_types=True)
    again = isolated_from_one_type(TABLE, IsolatedModel(), range(1), whole_job_types=True)

    np.testing.assert_array_equal(found.estimate, again.estimate)
    assert not np.isclose(found.estimate, found.truth, rtol=1e-9).any()


def test_no_seeds_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="seeds must be one at least"):
        isolated_from_one_type(TABLE, IsolatedModel(), ())

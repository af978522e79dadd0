"""Time for probes: other shares give way, and neither a job's time nor a type's GPUs are exceeded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.estimator.probes import Probe, Shares, with_probes


def make_shares(alone: Any, pairs: Any = (), gpu_type: Any = (), together: Any = ()) -> Shares:
    members = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    types = np.array(gpu_type, dtype=np.int64)
    return Shares(np.array(alone, dtype=np.float64), members, types, np.array(together, dtype=np.float64))


def test_probes_are_given_time_and_no_type_is_asked_for_more_than_it_has() -> None:
    found = with_probes(make_shares([[1.0, 0.0], [0.0, 1.0]]), np.ones(2), np.ones(2), [Probe(0, 1)], 0.25)

    np.testing.assert_allclose(found.alone, [[0.75, 0.25], [0.0, 0.75]])


def test_probes_that_do_not_fit_a_type_together_are_cut() -> None:
    found = with_probes(make_shares(np.zeros((3, 1))), np.ones(3), np.ones(1), [Probe(n, 0) for n in range(3)], 0.5)

    assert found.alone.sum() == pytest.approx(1.0)


def test_a_pair_is_given_time_beside_pairs_that_have_some_and_its_jobs_give_up_other_time() -> None:
    shares = make_shares([[0.5], [0.0], [0.0]], [(0, 1), (1, 2)], [0, 0], [0.5, 0.5])

    found = with_probes(shares, np.ones(3), np.array([2.0]), [Probe(2, 0, 0)], 0.25, 0.5)

    np.testing.assert_allclose(found.alone, [[0.25], [0.0], [0.0]])
    assert found.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]
    np.testing.assert_allclose(found.together, [0.25, 0.5, 0.25])


def test_a_probe_of_a_pair_that_has_a_share_adds_to_it() -> None:
    shares = make_shares(np.zeros((2, 1)), [(0, 1)], [0], [0.4])

    found = with_probes(shares, np.ones(2), np.ones(1), [Probe(1, 0, 0)], 0.25, 0.5)

    assert found.pairs.tolist() == [[0, 1]]
    np.testing.assert_allclose(found.together, [0.7])


def test_probes_of_one_job_alone_and_in_pairs_leave_it_its_time() -> None:
    probes = [Probe(0, 0), Probe(0, 1, 1), Probe(0, 1, 2)]

    found = with_probes(make_shares(np.zeros((3, 2))), np.ones(3), np.ones(2), probes, 0.5, 0.5)

    assert found.alone[0].sum() + found.together.sum() <= 1.0 + 1e-12
    assert (found.together > 0).all()


def test_gangs_are_counted_by_their_gpus() -> None:
    found = with_probes(make_shares(np.zeros((2, 1))), np.full(2, 4.0), np.ones(1), [Probe(0, 0, 1)], 0.25, 0.5)

    np.testing.assert_allclose(found.together, [0.25])


def test_no_probes_leave_the_shares_as_they_are() -> None:
    shares = make_shares([[0.5], [0.25]], [(0, 1)], [0], [0.25])

    found = with_probes(shares, np.ones(2), np.ones(1), [], 0.25, 0.5)

    np.testing.assert_array_equal(found.alone, shares.alone)
    np.testing.assert_array_equal(found.together, shares.together)


@pytest.mark.parametrize("fractions", [(-0.1, 0.0), (0.1, 1.5), (math.nan, 0.0)])
def test_a_fraction_that_is_none_is_refused(fractions: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match="must be in"):
        with_probes(make_shares([[0.0]]), np.ones(1), np.ones(1), [], *fractions)

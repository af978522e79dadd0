"""Which rates to measure next: the possible gain of a better decision, compared with the cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.estimator.gaussian import Blocks
from gavelpy.estimator.probes import Candidates, PairCandidates, Probe, plan


def make_jobs(mean: Any, sd: Any, **changes: Any) -> Candidates:
    """Jobs with independent estimates on types of equal cost, with one hour of GPU time left."""
    means, sds = np.array(mean, dtype=np.float64), np.array(sd, dtype=np.float64)
    jobs, types = means.shape
    given: dict[str, Any] = {
        "is_open": np.ones((jobs, types), dtype=np.bool_),
        "gpus": np.ones(jobs),
        "gpu_s_left": np.full(jobs, 3600.0),
        "prices": np.ones(types),
    }
    return Candidates(Blocks(means, np.square(sds)[:, :, None] * np.eye(types)), **(given | changes))


def make_pairs(rows: Any, kept: Any, sd: Any, **changes: Any) -> PairCandidates:
    """Pairs on the first type, of jobs that gain nothing elsewhere, with one hour of use; none is in the plan yet."""
    count = len(rows)
    given: dict[str, Any] = {
        "fits": np.ones(count),
        "value_alone": np.ones((count, 2)),
        "planned": np.zeros(count),
        "gpu_s_left": np.full(count, 3600.0),
    }
    return PairCandidates(
        np.array(rows), np.zeros(count, dtype=np.int64), np.log(kept), np.array(sd), **(given | changes)
    )


def measured(probes: list[Probe]) -> list[tuple[int, int]]:
    return [(probe.row, probe.gpu_type) for probe in probes]


def test_the_job_whose_best_type_is_open_is_measured_and_the_settled_one_is_not() -> None:
    jobs = make_jobs([[0.0, 0.0], [0.0, 3.0]], [[0.1, 0.5], [0.1, 0.5]])

    assert measured(plan(jobs, 60.0)) == [(0, 1)]


def test_nothing_is_measured_when_everything_is_known() -> None:
    assert plan(make_jobs([[0.0, 0.2]], [[0.0, 0.0]]), 1e6) == []


def test_the_gain_is_what_simulated_decisions_gain() -> None:
    jobs, rng = make_jobs([[0.0, -0.1]], [[0.0, 0.4]]), np.random.default_rng(0)

    found = plan(jobs, 60.0)[0].gain

    truth = np.exp(rng.normal(-0.1, 0.4, size=400_000))
    cost_before = min(1.0, float(np.mean(1.0 / truth)))
    cost_after = float(np.minimum(1.0, 1.0 / truth).mean())
    assert found == pytest.approx(3600.0 * (cost_before - cost_after) / cost_before, rel=0.03)


def test_longer_jobs_are_measured_first() -> None:
    jobs = make_jobs([[0.0, 0.0]] * 2, [[0.1, 0.5]] * 2, gpu_s_left=np.array([100.0, 1e6]))

    assert measured(plan(jobs, 60.0)) == [(1, 1)]


def test_the_budget_is_kept_and_gangs_cost_more() -> None:
    jobs = make_jobs([[0.0, 0.0]] * 3, [[0.1, 0.5]] * 3, gpus=np.array([1.0, 8.0, 1.0]))

    probes = plan(jobs, 130.0)

    assert sum(probe.gpu_s for probe in probes) <= 130.0
    assert {probe.row for probe in probes} == {0, 2}


def test_a_type_where_a_job_does_not_fit_is_not_tried() -> None:
    jobs = make_jobs([[0.0, 0.0, 0.0]], [[0.1, 0.5, 0.5]], is_open=np.array([[True, False, True]]))

    assert {probe.gpu_type for probe in plan(jobs, 1e4)} <= {0, 2}


def test_a_job_that_fits_nowhere_is_left_alone() -> None:
    assert plan(make_jobs([[0.0]], [[1.0]], is_open=np.array([[False]])), 1e4) == []


def test_a_probe_that_answers_a_question_is_not_made_twice() -> None:
    jobs = make_jobs([[0.0, 0.0]], [[0.0, 0.5]])

    assert measured(plan(jobs, 1e6)) == [(0, 1)]


def test_a_pair_that_may_be_worth_packing_is_measured_and_one_that_surely_is_not() -> None:
    jobs = make_jobs([[0.0]] * 4, [[0.0]] * 4)
    pairs = make_pairs([(0, 1), (2, 3)], [[0.5, 0.5], [0.2, 0.2]], [[0.3, 0.3], [0.01, 0.01]])

    probes = plan(jobs, 1e6, pairs=pairs)

    assert [(probe.row, probe.partner) for probe in probes] == [(0, 1)]


def test_no_jobs_no_probes() -> None:
    empty = Candidates(
        Blocks(np.zeros((0, 2)), np.zeros((0, 2, 2))),
        np.zeros((0, 2), dtype=np.bool_),
        np.zeros(0),
        np.zeros(0),
        np.ones(2),
    )

    assert plan(empty, 100.0) == []


def test_a_pair_that_the_policy_counts_on_already_is_not_measured() -> None:
    jobs = make_jobs([[0.0]] * 2, [[0.0]] * 2)

    assert plan(jobs, 1e6, pairs=make_pairs([(0, 1)], [[0.9, 0.9]], [[0.01, 0.01]], planned=np.array([1.81]))) == []


def test_a_pair_of_jobs_that_do_better_elsewhere_is_not_measured() -> None:
    jobs = make_jobs([[0.0]] * 2, [[0.0]] * 2)
    pairs = make_pairs([(0, 1)], [[0.6, 0.6]], [[0.1, 0.1]], value_alone=np.array([[0.5, 0.5]]))

    assert plan(jobs, 1e6, pairs=pairs) == []


def test_a_pair_that_may_not_fit_is_worth_less() -> None:
    jobs = make_jobs([[0.0]] * 4, [[0.0]] * 4)
    pairs = make_pairs([(0, 1), (2, 3)], [[0.5, 0.5]] * 2, [[0.3, 0.3]] * 2, fits=np.array([0.3, 0.9]))

    doubtful, likely = (next(probe for probe in plan(jobs, 1e6, pairs=pairs) if probe.row == row) for row in (0, 2))

    assert doubtful.gain == pytest.approx(likely.gain / 3.0)


def test_the_gain_of_a_pair_is_what_simulated_decisions_gain() -> None:
    jobs, rng = make_jobs([[0.0]] * 2, [[0.0]] * 2), np.random.default_rng(0)

    found = plan(jobs, 60.0, pairs=make_pairs([(0, 1)], [[0.5, 0.4]], [[0.1, 0.1]]))[0].gain

    kept = np.exp(rng.normal(np.log([0.5, 0.4]), 0.1, size=(400_000, 2))).sum(axis=1)
    assert found == pytest.approx(3600.0 * np.maximum(kept - 1.0, 0.0).mean(), rel=0.2)


def test_a_job_is_measured_beside_one_partner_at_a_time_and_the_budget_is_kept() -> None:
    jobs = make_jobs([[0.0]] * 4, [[0.0]] * 4)
    pairs = make_pairs([(0, 1), (0, 2), (2, 3)], [[0.5, 0.5]] * 3, [[0.3, 0.3]] * 3)

    assert [(probe.row, probe.partner) for probe in plan(jobs, 130.0, pairs=pairs)] == [(0, 1), (2, 3)]
    assert len(plan(jobs, 70.0, pairs=pairs)) == 1


@pytest.mark.parametrize("budget", [-1.0, math.nan, math.inf])
def test_a_budget_that_means_nothing_is_refused(budget: float) -> None:
    with pytest.raises(InvalidInput, match="budget_gpu_s must be"):
        plan(make_jobs([[0.0]], [[0.1]]), budget)

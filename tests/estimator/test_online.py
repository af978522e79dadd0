"""Readings of running jobs: they outweigh claims and follow phases; stragglers move little; nonsense is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, repeat

import numpy as np
import pytest

from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.estimator.rate_filter import Reading, Verdict
from gavelpy.model.throughput import Provenance
from tests.estimator.tables import TYPES, job_type, lawful_rates, make_table, true_rate

NEW = (job_type("bee", 128), 1)
WINDOW_S = 60.0


def estimator() -> ThroughputEstimator:
    return ThroughputEstimator(make_table(lawful_rates()))


def reading(rate: float, gpu_type: str = "old", key: tuple[str, int] = NEW, lease_age_s: float = math.inf) -> Reading:
    return Reading(*key, gpu_type, rate * WINDOW_S, WINDOW_S, lease_age_s)


def rate_of(known: ThroughputEstimator, gpu_type: str, key: tuple[str, int] = NEW) -> float:
    return float(known.estimates([key], [gpu_type]).rates()[0, 0])


def told(known: ThroughputEstimator, rates: Iterable[float], gpu_type: str = "old") -> list[Verdict]:
    return [known.observe(reading(rate, gpu_type)) for rate in rates]


def test_measurements_outvote_a_claim() -> None:
    known = estimator()
    known.claim(*NEW, {"old": 24.0, "new": 100.0})

    told(known, repeat(8.0, 5))

    assert rate_of(known, "old") == pytest.approx(8.0, rel=0.03)
    assert known.differences(*NEW) == ["claimed 24 steps/s on old; measured 8 ± 0.5"]


def test_a_claim_counts_until_something_is_measured() -> None:
    known = estimator()
    stranger = ("stranger", 1)
    known.claim(*stranger, {"old": 5.0})

    assert rate_of(known, "old", stranger) == pytest.approx(5.0, rel=0.3)


def test_a_measurement_on_one_type_tells_the_others() -> None:
    known = estimator()

    told(known, repeat(true_rate("bee", 128, "old"), 10))

    assert rate_of(known, "new") == pytest.approx(true_rate("bee", 128, "new"), rel=0.15)


def test_an_honest_claim_is_not_complained_of() -> None:
    known = estimator()
    known.claim(*NEW, {"old": 8.0})

    told(known, repeat(8.1, 5))

    assert known.differences(*NEW) == []


def test_a_straggler_moves_little() -> None:
    known = estimator()

    told(known, chain(repeat(8.0, 20), [1.0], repeat(8.0, 5)))

    assert rate_of(known, "old") == pytest.approx(8.0, rel=0.05)


def test_a_new_phase_is_seen_within_a_few_readings() -> None:
    known = estimator()
    told(known, repeat(8.0, 20))

    verdicts = told(known, repeat(16.0, 5))

    assert [verdict.is_new_phase for verdict in verdicts].count(True) == 1
    assert rate_of(known, "old") == pytest.approx(16.0, rel=0.05)


def test_a_new_phase_moves_what_was_measured_on_other_types() -> None:
    known = estimator()
    told(known, repeat(8.0, 10), "old")
    told(known, repeat(20.0, 10), "middle")

    told(known, repeat(16.0, 5), "old")

    assert rate_of(known, "middle") == pytest.approx(40.0, rel=0.2)


def test_the_beginning_of_a_lease_is_not_believed() -> None:
    known = estimator()

    verdict = known.observe(reading(0.1, lease_age_s=WINDOW_S))

    assert not verdict.accepted
    assert "warm-up" in verdict.reason


@pytest.mark.parametrize(
    ("steps", "seconds", "reason"),
    [
        (math.nan, 60.0, "steps must be finite and >= 0, got nan"),
        (-1.0, 60.0, "steps must be finite and >= 0, got -1.0"),
        (math.inf, 60.0, "steps must be finite"),
        (10.0, 0.0, "seconds must be finite and > 0, got 0.0"),
        (10.0, math.nan, "seconds must be finite and > 0, got nan"),
        (6e13, 60.0, "reported 1e+12 steps/s: more than 1e+09"),
    ],
)
def test_nonsense_is_refused_with_a_reason_and_changes_nothing(steps: float, seconds: float, reason: str) -> None:
    known = estimator()
    before = rate_of(known, "old")

    verdict = known.observe(Reading(*NEW, "old", steps, seconds))

    assert not verdict.accepted
    assert reason in verdict.reason
    assert rate_of(known, "old") == before


def test_a_rate_far_from_all_that_was_measured_is_refused() -> None:
    known = estimator()
    told(known, repeat(8.0, 10))

    verdict = known.observe(reading(8e5))

    assert not verdict.accepted
    assert "absurd" in verdict.reason


@pytest.mark.parametrize("claim", [1e8, 1e-6])
@pytest.mark.parametrize("knows", [True, False])
def test_an_absurd_claim_is_outvoted_by_what_runs(claim: float, knows: bool) -> None:
    known = estimator() if knows else ThroughputEstimator(make_table({}, ()), gpu_types=TYPES)
    known.claim(*NEW, {"old": claim})

    verdicts = told(known, repeat(10.0, 3))

    assert verdicts[-1].accepted
    assert rate_of(known, "old") == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize("factor", [1e6, 64.0, 3.0, 1 / 3.0, 1e-6])
def test_claims_that_are_all_wrong_by_one_factor_keep_their_ratios_once_one_type_is_measured(factor: float) -> None:
    known = ThroughputEstimator(make_table({}, ()), gpu_types=TYPES)
    known.claim(*NEW, {"old": 10.0 * factor, "middle": 30.0 * factor, "new": 90.0 * factor})

    told(known, repeat(10.0, 5))

    assert rate_of(known, "old") == pytest.approx(10.0, rel=0.1)
    assert 1.8 < rate_of(known, "new") / rate_of(known, "middle") < 3.3
    assert 1 / 4 < rate_of(known, "new") / 90.0 < 4.0


def test_one_absurd_claim_does_not_spoil_what_was_measured_elsewhere() -> None:
    known = estimator()
    known.claim(*NEW, {"old": 1e8, "new": 30.0})

    told(known, repeat(8.0, 3), "old")
    told(known, repeat(30.0, 3), "new")

    assert rate_of(known, "new") == pytest.approx(30.0, rel=0.1)


def test_far_readings_are_believed_once_three_in_a_row_agree() -> None:
    known = estimator()

    verdicts = told(known, [8e5, 7.0, 8e5, 3e6, 3.1e6, 3e6])

    assert [verdict.accepted for verdict in verdicts] == [False, True, False, False, False, True]
    assert "3 times in a row: accepted" in verdicts[-1].reason
    assert rate_of(known, "old") == pytest.approx(3e6, rel=0.1)


def test_contradictory_readings_are_outvoted_by_the_many() -> None:
    known = estimator()

    told(known, chain.from_iterable([8.0, 8.0, 8.0, 30.0] for _ in range(10)))

    assert 7.0 < rate_of(known, "old") < 14.0


@pytest.mark.parametrize("rate", [math.nan, -1.0, 1e12, math.inf])
def test_an_impossible_claim_is_refused(rate: float) -> None:
    known = estimator()
    before = rate_of(known, "old")

    verdicts = known.claim(*NEW, {"old": rate})

    assert [verdict.accepted for verdict in verdicts] == [False]
    assert rate_of(known, "old") == before


def test_a_job_that_makes_no_step_does_not_run_there() -> None:
    known = estimator()

    told(known, repeat(0.0, 10))

    assert rate_of(known, "old") == 0.0
    assert rate_of(known, "new") > 0.0


def test_a_claim_of_zero_says_that_it_does_not_fit() -> None:
    known = estimator()

    known.claim(*NEW, {"old": 0.0})

    assert rate_of(known, "old") == 0.0


def test_what_was_measured_helps_job_types_alike_once_absorbed() -> None:
    known, kin, rates = (
        ThroughputEstimator(make_table({}, ()), gpu_types=TYPES),
        ("bee (batch size 256)", 1),
        (4.0, 12.0),
    )
    before = known.estimates([kin], TYPES).blocks.sd[0, 0]
    told(known, repeat(rates[0], 10), "old")
    told(known, repeat(rates[1], 10), "new")

    known.absorb()

    assert known.estimates([kin], TYPES).blocks.sd[0, 0] < 0.6 * before
    assert rate_of(known, "new", kin) / rate_of(known, "old", kin) == pytest.approx(3.0, rel=0.2)
    assert known.table.rates(*NEW) == pytest.approx({"old": 4.0, "new": 12.0})


def test_a_type_that_joins_later_is_estimated_and_nothing_is_forgotten() -> None:
    known = estimator()
    told(known, repeat(8.0, 10))

    found = known.estimates([NEW], ["brand-new", "old"])

    assert found.rates()[0, 1] == pytest.approx(8.0, rel=0.03)
    assert found.blocks.sd[0, 0] > 0.3
    assert found.provenance.tolist() == [[Provenance.ESTIMATED, Provenance.MEASURED]]


def test_one_job_and_one_type_without_a_table_work() -> None:
    known = ThroughputEstimator(make_table({}, ()))

    known.observe(reading(3.0, "lone", ("x", 1)))

    assert rate_of(known, "lone", ("x", 1)) == pytest.approx(3.0, rel=0.1)


def test_same_calls_give_the_same_answers() -> None:
    one, two = estimator(), estimator()
    rates = np.exp(np.random.default_rng(1).normal(2.0, 0.2, size=30)).tolist()

    told(one, chain(rates))
    told(two, chain(rates))

    assert one.estimates([NEW], TYPES).rates().tolist() == two.estimates([NEW], TYPES).rates().tolist()

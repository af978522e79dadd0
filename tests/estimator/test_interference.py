"""Slowdowns of co-located jobs: they follow from readings once the rate alone is known, and similar jobs share them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.estimator.rate_filter import Reading
from tests.estimator.tables import TYPES, job_type, lawful_rates, make_table

ANT, BEE = (job_type("ant", 8), 1), (job_type("bee", 8), 1)
KEYS = [ANT, BEE]
OLD = TYPES.index("old")


def make_estimator(*, knows: bool = True) -> ThroughputEstimator:
    return ThroughputEstimator(make_table(lawful_rates() if knows else {}, TYPES))


def colocated(known: ThroughputEstimator, rate: float, times: int = 3) -> list[str]:
    """Sends readings of ant, co-located with bee on the old type for 60 s each; returns the reasons."""
    reading = Reading(*ANT, "old", rate * 60.0, 60.0)
    return [known.observe_colocated(reading, BEE).reason for _ in range(times)]


def test_before_any_reading_two_jobs_keep_what_the_model_expects() -> None:
    kept = make_estimator().pairs(KEYS, TYPES)

    assert kept.shape == (2, 2, len(TYPES))
    assert kept == pytest.approx(np.full(kept.shape, math.exp(-0.55)), rel=0.03)


def test_slowdown_is_the_colocated_rate_over_the_rate_alone() -> None:
    known = make_estimator()
    alone = known.rates([ANT], TYPES)[0, OLD]
    colocated(known, 0.8 * alone)

    kept = known.pairs(KEYS, TYPES)

    assert kept[0, 1, OLD] == pytest.approx(0.8, rel=0.02)
    assert known.rates([ANT], TYPES)[0, OLD] == alone


def test_what_is_absorbed_moves_pairs_that_nobody_has_seen() -> None:
    known = make_estimator()
    before = known.pairs(KEYS, TYPES)
    colocated(known, 0.95 * known.rates([ANT], TYPES)[0, OLD])

    known.absorb()

    rows = [known.table.keys.index(key) for key in KEYS]
    assert known.table.pair_rows.tolist() == [sorted(rows)]
    assert known.pairs(KEYS, TYPES)[1, 0, OLD] > before[1, 0, OLD] + 0.01


def test_a_pair_without_a_step_for_some_minutes_does_not_fit() -> None:
    known = make_estimator()

    reasons = colocated(known, 0.0, times=5)
    known.absorb()

    assert "do not fit" in reasons[-1]
    assert known.pairs(KEYS, TYPES)[:, :, OLD].tolist()[0][1] == 0.0
    assert known.pairs(KEYS, TYPES)[1, 0, OLD] == 0.0


def test_where_the_rate_alone_is_unknown_company_hints_at_it() -> None:
    known = make_estimator(knows=False)

    colocated(known, 58.0, times=8)

    assert known.rates([ANT], TYPES)[0, OLD] == pytest.approx(100.0, rel=0.35)
    assert known.pairs(KEYS, TYPES)[0, 1, OLD] == pytest.approx(0.58, rel=0.35)


def test_all_pairs_together_tell_rates_alone_and_each_other_although_none_was_measured_alone() -> None:
    known = make_estimator(knows=False)
    partners = [(job_type(family, 8), 1) for family in ("ant", "bee", "crab")]
    readings = [Reading(*ANT, "old", rate * 60.0, 60.0) for rate in (50.0, 55.0, 62.0)]
    known.claim(*ANT, {"old": 300.0})
    claimed = known.rates([ANT], TYPES)[0, OLD]

    assert all(
        known.observe_colocated(*seen).accepted for seen in zip(readings, partners, strict=True) for _ in range(3)
    )
    known.absorb()

    truth = 55.0 / math.exp(-0.55)
    told = known.estimates([ANT], TYPES)
    assert claimed > 2.0 * truth
    assert abs(told.rates()[0, OLD] / truth - 1.0) < 0.35
    assert told.blocks.sd[0, OLD] < 0.4


def test_hints_of_all_pairs_are_not_counted_again_when_the_same_is_read_again() -> None:
    known = make_estimator(knows=False)
    colocated(known, 50.0)
    known.absorb()
    before = known.estimates([ANT], TYPES).blocks.sd[0, OLD]

    colocated(known, 50.0, times=20)

    assert known.estimates([ANT], TYPES).blocks.sd[0, OLD] == before


def test_a_table_that_has_a_pair_but_no_rate_alone_tells_it_from_the_start() -> None:
    table = make_table(lawful_rates())
    row, other = table.keys.index(ANT), table.keys.index(BEE)
    rates = table.rate_steps_per_s.copy()
    rates[row] = math.nan
    pair = np.full((1, 2, len(TYPES)), math.nan)
    pair[0, :, OLD] = 4.0, 0.5 * rates[other, OLD]
    hidden = replace(table, rate_steps_per_s=rates, pair_rows=np.array([[row, other]]), pair_rate_steps_per_s=pair)

    with_pair, without = (
        ThroughputEstimator(one).estimates([ANT], TYPES).blocks.sd[0, OLD]
        for one in (hidden, replace(hidden, pair_rate_steps_per_s=np.full_like(pair, math.nan)))
    )

    assert with_pair < without


@pytest.mark.parametrize(
    ("steps", "seconds", "age_s", "complaint"),
    [
        (1.0, 0.0, math.inf, "seconds must be finite"),
        (math.nan, 60.0, math.inf, "steps must be finite"),
        (1e15, 60.0, math.inf, "which no job makes"),
        (60.0, 60.0, 61.0, "still warming up"),
    ],
)
def test_readings_that_are_none_are_refused(steps: float, seconds: float, age_s: float, complaint: str) -> None:
    known = make_estimator()

    verdict = known.observe_colocated(Reading(*ANT, "old", steps, seconds, age_s), BEE)

    assert complaint in verdict.reason
    assert not verdict.accepted


def test_what_is_not_kept_is_forgotten() -> None:
    known = make_estimator()
    colocated(known, 0.9 * known.rates([ANT], TYPES)[0, OLD])
    known.keep({BEE})

    assert known.pairs(KEYS, TYPES)[0, 1, OLD] == pytest.approx(math.exp(-0.55), rel=0.03)

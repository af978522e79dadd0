"""Absurd rates of a table are named and left out; legitimate extremes stay."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.estimator.completion import Completion, EstimatorModel
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.roofline import Roofline
from gavelpy.estimator.sanity import Absurd, believable, located
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.workloads import gpu_specs, job_types
from tests.estimator.tables import lawful_rates, make_table

ROOFLINE = Roofline(job_types(), gpu_specs())
JOB = ("bee (batch size 32)", 1)


def with_rate(rate: float, gpu_type: str = "old") -> ThroughputTable:
    rates = lawful_rates()
    rates[JOB] = {**rates[JOB], gpu_type: rate}
    return make_table(rates)


@pytest.mark.parametrize("rate", [1e300, 1e10, 1e8, 1e-5, 1e-300])
def test_an_absurd_rate_is_named_and_does_not_move_the_estimates(rate: float) -> None:
    found = believable(with_rate(rate), ROOFLINE)

    assert [(one.key, one.gpu_type, one.rate_steps_per_s) for one in found.absurd] == [(JOB, "old", rate)]
    assert f"{rate:g} steps/s is not believed" in str(found.absurd[0])
    model = EstimatorModel(IsolatedModel(roofline=ROOFLINE))
    estimate = Completion(found.table, model).estimates([JOB], ["old"]).rates()[0, 0]
    truth = lawful_rates()[JOB]["old"]
    assert truth / 1.5 < estimate < truth * 1.5


@pytest.mark.parametrize("rate", [1e8, 1e-6])
def test_an_absurd_rate_alone_in_its_row_is_outvoted_by_jobs_of_its_family(rate: float) -> None:
    rates = lawful_rates() | {("bee (batch size 128)", 1): {"old": rate}}

    found = believable(make_table(rates), ROOFLINE)

    assert [(one.key[0], one.rate_steps_per_s) for one in found.absurd] == [("bee (batch size 128)", rate)]


def test_a_rate_alone_in_its_row_stays_where_nothing_contradicts_it() -> None:
    table = make_table(lawful_rates() | {("stranger", 1): {"old": 1e5}})

    assert believable(table, ROOFLINE).table is table


def test_of_two_rates_that_contradict_each_other_both_are_named() -> None:
    table = make_table({("net", 1): {"k80": 1e7, "v100": 10.0}}, ("k80", "v100"))

    found = believable(table, ROOFLINE)

    assert sorted(one.gpu_type for one in found.absurd) == ["k80", "v100"]
    assert np.isnan(found.table.rate_steps_per_s).all()


@pytest.mark.parametrize("factor", [1e-2, 0.1, 10.0, 100.0])
def test_legitimate_extremes_stay(factor: float) -> None:
    table = with_rate(lawful_rates()[JOB]["new"] * factor, "new")

    found = believable(table, ROOFLINE)

    assert found.absurd == ()
    assert found.table is table


def test_a_pair_a_thousand_times_faster_than_alone_is_left_out() -> None:
    table = make_table(lawful_rates())
    alone = table.rate_steps_per_s
    pairs = np.stack([alone[0] * [1.2, 0.5, 2000.0], alone[1] * 0.5])[None]
    table = ThroughputTable(
        table.keys, table.gpu_types, alone, table.provenance, table.source, np.array([[0, 1]]), pairs
    )

    found = believable(table, ROOFLINE)

    assert [(one.gpu_type, one.partner) for one in found.absurd] == [("new", table.keys[1])]
    assert np.isnan(found.table.pair_rate_steps_per_s[0, :, 2]).all()
    assert (found.table.pair_rate_steps_per_s[0, :, :2] > 0).all()


def test_the_line_is_named_where_there_is_one() -> None:
    absurd = [Absurd(JOB, "old", 1e300, "too much")]

    assert located(absurd, "rates.csv", {(JOB, "old", ""): 7})[0].startswith("rates.csv:7: bee")
    assert located(absurd, "rates.json", {})[0].startswith("rates.json: bee")

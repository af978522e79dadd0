"""The roofline prior: formulas checked by hand, and calibration on rates of a known law."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.estimator.roofline import Calibration, Roofline
from gavelpy.model.cluster import GpuSpecs, Precision, StepCost
from gavelpy.model.throughput import Provenance
from tests.estimator.tables import make_table

JOB = StepCost(10.0, 0.1, 1.0, 2.0, 0.5, Precision.SINGLE)
GPU = GpuSpecs(memory_gb=16.0, bandwidth_gb_per_s=500.0, single_tflops=10.0, half_tflops=100.0)
KEY = ("net (batch size 16)", 1)


def roofline(calibration: Calibration, job: StepCost = JOB) -> Roofline:
    return Roofline({"net": job}, {"gpu": GPU}, calibration)


def test_a_step_bound_by_arithmetic_takes_its_operations_over_the_share_of_the_peak() -> None:
    prior = roofline(Calibration(0.5, 1.0, 0.008, 0.0))

    rate = math.exp(prior.log_rate([KEY], ["gpu"])[0, 0])

    assert rate == pytest.approx(1.0 / (160.0 / 5000.0 + 0.008))  # 160 GFLOP at 5 TFLOP/s, plus 8 ms


def test_a_step_bound_by_memory_takes_its_traffic_over_the_share_of_the_bandwidth() -> None:
    prior = roofline(Calibration(1.0, 0.1, 0.0, 0.0))

    rate = math.exp(prior.log_rate([KEY], ["gpu"])[0, 0])

    assert rate == pytest.approx(50.0 / 2.6)  # 2.6 GB at 50 GB/s


def test_half_precision_runs_at_the_peak_of_half_precision() -> None:
    half = StepCost(10.0, 1e-9, 1e-9, 2.0, 0.5, Precision.HALF)
    calibration = Calibration(1.0, 1.0, 0.0, 0.0)

    gain = roofline(calibration, half).log_rate([KEY], ["gpu"]) - roofline(calibration).log_rate([KEY], ["gpu"])

    assert math.exp(gain[0, 0]) == pytest.approx(10.0)


def test_gangs_lose_what_the_scaling_rule_says() -> None:
    prior = roofline(Calibration(1.0, 1.0, 0.0, 0.25))
    one, eight = KEY, (KEY[0], 8)

    log_rate = prior.log_rate([one, eight], ["gpu"])

    assert math.exp(log_rate[1, 0] - log_rate[0, 0]) == pytest.approx(8.0 / 1.75)


def test_memory_decides_what_fits() -> None:
    fits = roofline(Calibration()).fits([KEY, ("net (batch size 64)", 1), ("other", 1)], ["gpu", "unknown"])

    np.testing.assert_array_equal(fits, [[1.0, math.nan], [0.0, math.nan], [math.nan, math.nan]])  # 10 GB, 34 GB of 16


def test_calibration_finds_the_law_that_made_the_rates() -> None:
    law = roofline(Calibration(0.35, 0.5, 0.015, 0.1))
    keys = [(f"net (batch size {2**n})", gpus) for n in range(9) for gpus in (1, 4)]
    rates = np.exp(law.log_rate(keys, ["gpu"]))
    table = make_table({key: {"gpu": rate} for key, rate in zip(keys, rates[:, 0].tolist(), strict=True)}, ("gpu",))

    found = roofline(Calibration()).calibrated(table)

    np.testing.assert_allclose(np.exp(found.log_rate(keys, ["gpu"])), rates, rtol=0.03)
    assert found.calibration.sd == pytest.approx(0.7 / math.sqrt(2.0), abs=0.02)  # one family is weak evidence


def test_a_family_that_the_roofline_gets_wrong_widens_the_error_bar_however_small() -> None:
    prior = Roofline({"net": JOB, "odd": JOB}, {"gpu": GPU}, Calibration())
    keys = [(f"net (batch size {2**n})", 1) for n in range(9)]
    rates = {key: {"gpu": math.exp(prior.log_rate([key], ["gpu"])[0, 0])} for key in keys}

    found = prior.calibrated(make_table(rates | {("odd", 1): {"gpu": 1.0}}, ("gpu",)))

    assert prior.calibrated(make_table(rates, ("gpu",))).calibration.sd < 0.5
    assert found.calibration.sd > 1.0


def test_calibration_without_a_known_rate_changes_nothing() -> None:
    prior = roofline(Calibration())

    assert prior.calibrated(make_table({("other", 1): {"gpu": 3.0}}, ("gpu",))) == prior


def test_one_known_rate_leaves_the_error_bar_wide() -> None:
    found = roofline(Calibration()).calibrated(make_table({KEY: {"gpu": 3.0}}, ("gpu",)))

    assert found.calibration.sd >= 0.49


def test_estimates_calibrate_nothing() -> None:
    prior, measured = roofline(Calibration()), make_table({KEY: {"gpu": 3.0}}, ("gpu",))
    table = replace(measured, provenance=np.full((1, 1), int(Provenance.ESTIMATED)))

    assert prior.calibrated(table) == prior
    assert prior.calibrated(measured) != prior


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_figures_that_mean_nothing_are_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="memory_gb must be > 0"):
        GpuSpecs(value, 1.0, 1.0, 1.0)

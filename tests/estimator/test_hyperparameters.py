"""Hyper-parameters learned from a table: as good as row plus column where that holds, better where more is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.estimator.evaluate import half_full
from gavelpy.estimator.isolated import LEARN_MIN, IsolatedModel
from gavelpy.estimator.learning_loop import Learner
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.estimator.roofline import Roofline
from gavelpy.model.throughput import ThroughputTable
from gavelpy.runtime.daemon.engine.engine_worker import BackgroundFit
from gavelpy.traces.workloads import gpu_specs, job_types
from tests.estimator.tables import make_table

TYPES = ("v100", "a100", "rtx 3090", "rtx 8000", "1080 ti", "a6000", "h100", "a10")
SPEED = np.array([1.0, 2.1, 1.5, 0.95, 0.6, 1.6, 3.6, 1.2])
MODEL = IsolatedModel(roofline=Roofline(job_types(), gpu_specs()))


def vendor_table(noise: float, interaction: float = 0.0, jobs: int = 16) -> ThroughputTable:
    """Jobs without families on GPU types, most without figures: rates are row times column, a factor and noise."""
    rng = np.random.default_rng(7)
    log_rate = rng.normal(3.0, 2.0, size=(jobs, 1)) + np.log(SPEED)
    log_rate = log_rate + rng.normal(size=(jobs, 1)) * rng.normal(0.0, interaction, size=len(TYPES))
    rates = np.exp(log_rate + rng.normal(0.0, noise, size=log_rate.shape)).tolist()
    return make_table({(f"net {n}", 1): dict(zip(TYPES, row, strict=True)) for n, row in enumerate(rates)}, TYPES)


@pytest.mark.parametrize("noise", [0.03, 0.15])
def test_half_full_tables_are_estimated_as_well_as_by_row_plus_column(noise: float) -> None:
    found = {part.method: part for part in half_full(vendor_table(noise, jobs=12), MODEL, range(2))}

    best = min(found[name].quantile(0.5) for name in ("row plus column", "row plus column, and rank 1"))
    assert found["estimator"].quantile(0.5) <= 1.05 * best
    assert 0.82 <= found["estimator"].coverage <= 0.98  # 84 entries: 85 to 95 % give or take one standard error


def test_what_a_factorisation_finds_is_found() -> None:
    table = vendor_table(0.03, interaction=0.4)
    hidden = np.random.default_rng(1).random(table.rate_steps_per_s.shape) < 0.3
    left = replace(table, rate_steps_per_s=np.where(hidden, np.nan, table.rate_steps_per_s))

    errors = []
    for model in (MODEL.calibrated(left), MODEL.fitted(left)):
        mean = model.given(left).blocks(left.keys, TYPES).mean
        errors.append(float(np.median(np.abs(np.exp(mean[hidden]) / table.rate_steps_per_s[hidden] - 1.0))))

    assert errors[1] <= 0.6 * errors[0]


def test_a_small_table_leaves_the_shipped_scales() -> None:
    table = vendor_table(0.05, jobs=(LEARN_MIN - 1) // len(TYPES))

    assert MODEL.fitted(table).scales == MODEL.scales


def test_same_table_same_scales() -> None:
    table = vendor_table(0.1, jobs=6)

    assert MODEL.fitted(table) == MODEL.fitted(table)


def test_a_type_without_figures_is_anchored_on_those_of_the_table() -> None:
    old = {"k80": 1.0, "p100": 3.0, "v100": 5.0}
    table = make_table({("ResNet-50 (batch size 64)", 1): old}, tuple(old))

    found = MODEL.given(table).blocks([("ResNet-50 (batch size 64)", 1)], ("somebody's gpu",))

    assert 1.0 < np.exp(found.mean[0, 0]) < 6.0
    assert found.sd[0, 0] > 0.5


def test_the_model_is_fitted_in_the_background() -> None:
    table = vendor_table(0.05, jobs=6)
    learner = Learner(ThroughputEstimator(table, replace(ThroughputEstimator(table).model, isolated=MODEL)))
    fit = BackgroundFit(learner)

    fit.advance()
    before = learner.estimator.model.isolated.scales
    fit.wait()
    fit.advance()

    assert before == MODEL.scales
    assert learner.estimator.model.isolated.scales != MODEL.scales
    assert learner.estimator.rates([("net 0", 1)], TYPES)[0].tolist() == table.rate_steps_per_s[0].tolist()

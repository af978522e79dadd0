"""Guaranteed accuracy of estimates on Gavel's measured table; the whole curves: `python -m benchmarks estimator`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.packing_quality import packing_kept
from gavelpy.estimator.completion import Completion, with_estimates
from gavelpy.estimator.evaluate import isolated_from_one_type, pairs_of_a_new_job
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.pairs import PairModel
from gavelpy.estimator.roofline import Roofline
from gavelpy.model.throughput import Provenance, ThroughputTable
from gavelpy.traces.reader import read_throughputs
from gavelpy.traces.workloads import gpu_specs, job_types

pytestmark = pytest.mark.reference
SEEDS = range(20)


@pytest.fixture(scope="module")
def table(reference_directory: Path) -> ThroughputTable:
    return read_throughputs(reference_directory / "data" / "gavel" / "simulation_throughputs.json")


def test_a_row_is_known_from_one_gpu_type(table: ThroughputTable) -> None:
    found = isolated_from_one_type(table, IsolatedModel(), SEEDS)

    assert found.quantile(0.5) <= 0.15
    assert found.quantile(0.9) <= 0.35
    assert 0.85 <= found.coverage <= 0.95


def test_a_job_type_at_all_numbers_of_gpus_is_known_from_one_gpu_type(table: ThroughputTable) -> None:
    model = IsolatedModel(roofline=Roofline(job_types(), gpu_specs()))

    found = isolated_from_one_type(table, model, SEEDS, whole_job_types=True)

    assert found.quantile(0.5) <= 0.15
    assert found.quantile(0.9) <= 0.35
    assert 0.85 <= found.coverage <= 0.97  # 240 entries of 26 job types: 96 % is one standard error above 95 %


@pytest.mark.slow
def test_a_fifth_of_a_new_jobs_pairs_beats_both_baselines_by_thirty_percent(table: ThroughputTable) -> None:
    ours, *others = pairs_of_a_new_job(table, PairModel(), SEEDS)

    best = {share: min(other.quantile(share) for other in others) for share in (0.5, 0.9)}
    assert ours.quantile(0.5) <= 0.7 * best[0.5]
    assert ours.quantile(0.9) <= 0.7 * best[0.9]
    assert 0.85 <= ours.coverage <= 0.95
    assert min(ours.on(gpu_type).coverage for gpu_type in table.gpu_types) >= 0.82


def test_packed_max_min_keeps_the_effective_throughput_and_the_job_that_is_worst_off(table: ThroughputTable) -> None:
    draws = [packing_kept(table, seed) for seed in range(4)]

    assert min(draw.mean for draw in draws) >= 0.95
    assert np.mean([draw.worst for draw in draws]) >= 0.85
    assert min(draw.worst for draw in draws) >= 0.75


def test_filling_a_table_keeps_what_it_knows_and_says_what_is_estimated(table: ThroughputTable) -> None:
    rates = table.rate_steps_per_s.copy()
    rates[3, 1] = np.nan
    holey = replace(table, rate_steps_per_s=rates)

    filled = with_estimates(holey, Completion(holey).estimates(holey.keys, holey.gpu_types))

    known = ~np.isnan(rates)
    np.testing.assert_array_equal(filled.rate_steps_per_s[known], rates[known])
    assert filled.rate_steps_per_s[3, 1] == pytest.approx(table.rate_steps_per_s[3, 1], rel=0.5)
    assert filled.provenance[3, 1] == Provenance.ESTIMATED
    assert "estimated" in filled.source[3]
    np.testing.assert_array_equal(filled.pair_rows, table.pair_rows)

"""Tiresias' claim on Philly's jobs, by direction; how jobs are drawn, and what a trace must have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.reproduction.comparisons import DrawnSize
from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.tiresias import (
    GPU_TYPE,
    MEAN_S,
    MEDIAN_S,
    POLICIES,
    TIRESIAS_ON_PHILLY,
    compared,
    drawn,
    log_normal,
)
from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.reader import read_trace

_PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,100.0,1,100.0,7f04ca
2017-10-09 07:02:55,200.0,2,400.0,6214e9
2017-10-09 07:03:55,300.0,16,4800.0,7f04ca
"""


def _ratios(size: FigureSize) -> dict[tuple[str, str], float]:
    rows = TIRESIAS_ON_PHILLY.reproduce(size).rows
    return {(row.at, row.run): row.ours for row in rows if row.quantity == "ratio of average JCT"}


@pytest.mark.slow
def test_nsdi19_average_completion_times_are_shorter_than_under_fifo_and_close_to_perfect_knowledge() -> None:
    found = _ratios(FigureSize())

    at = "seed 0: 300 jobs"
    assert 2 < found[at, "fifo / tiresias"] < 5.5
    assert 1 < found[at, "capacity / tiresias"] < found[at, "fifo / tiresias"]
    assert 0.8 < found[at, "srsf / tiresias"] < 1


@pytest.mark.slow
def test_nsdi19_the_same_on_jobs_of_the_recorded_trace(reference_directory: Path) -> None:
    found = _ratios(FigureSize(trace=reference_directory / "data/philly/philly.csv"))

    assert found["seed 0: 300 jobs", "fifo / tiresias"] > 2
    assert 0.8 < found["seed 0: 300 jobs", "srsf / tiresias"] < 1


def test_all_policies_run_on_a_few_jobs_and_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "philly.csv").write_text(_PHILLY)
    philly = read_trace(tmp_path / "philly.csv", options=ReadOptions(durations=DurationRule.SECONDS))

    found = compared([drawn(DrawnSize(20, 4), 0, philly)], 4, FigureSize())

    average_h = {row.run: row.ours for row in found.rows if row.quantity == "average JCT h"}
    assert set(average_h) == set(POLICIES)
    ratios = {row.run: (row.published, row.ours) for row in found.rows if row.quantity == "ratio of average JCT"}
    assert ratios["fifo / tiresias"] == (5.5, average_h["fifo"] / average_h["tiresias"])
    assert [curve.label for curve in found.figures[0].curves] == list(POLICIES)
    assert all(curve.y[-1] == 1 and np.isfinite(curve.x).all() for curve in found.figures[0].curves)


def test_drawn_run_times_have_the_median_and_the_mean_of_philly() -> None:
    run_s, gpus = log_normal(400_000, np.random.default_rng(0))

    assert np.median(run_s) == pytest.approx(MEDIAN_S, rel=0.02)
    assert run_s.mean() == pytest.approx(MEAN_S, rel=0.05)
    assert set(gpus.tolist()) == {1, 2, 4, 8}


def test_jobs_drawn_from_a_trace_are_jobs_of_the_trace_at_a_load_of_one(tmp_path: Path) -> None:
    (tmp_path / "philly.csv").write_text(_PHILLY)
    philly = read_trace(tmp_path / "philly.csv", options=ReadOptions(durations=DurationRule.SECONDS))

    trace = drawn(DrawnSize(2000, 10), 0, philly)

    assert {(job.steps_total, job.gpus) for job in trace.jobs} == {(100.0, 1), (200.0, 2)}  # 16 GPUs are too many
    work_gpu_s = sum(job.steps_total / job.rates_steps_per_s[GPU_TYPE] * job.gpus for job in trace.jobs)
    assert work_gpu_s / (10 * trace.arrival_s[-1]) == pytest.approx(1.0, rel=0.1)


def test_a_trace_without_the_virtual_cluster_is_refused_before_anything_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text(_PHILLY.replace("7f04ca", "11cb48"))

    with pytest.raises(InvalidInput, match="virtual cluster 7f04ca, got clusters: 11cb48, 6214e9"):
        TIRESIAS_ON_PHILLY.reproduce(FigureSize(is_full=True, trace=tmp_path / "other.csv"))

"""Themis' claim, by direction: its worst finish-time ratio is the lowest; and the ratio, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.apps import AppRole, HalvingSchedule, Rung
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.metric_curve import MetricCurve
from gavelpy.reproduction.comparisons import DrawnSize
from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.themis import (
    BASELINES,
    OF_APPS,
    OF_JOBS,
    WORST_RATIOS,
    apps_compared,
    compared,
    drawn,
    jobs_compared,
    on_average,
    ratios,
)
from gavelpy.reproduction.themis_apps import (
    APART,
    AppsSize,
    app_of,
    cluster_of,
    completion_of_apps_s,
    drawn_apps,
    ratios_of_apps,
    steps_done,
)
from gavelpy.traces.workloads import published_throughputs


@pytest.mark.slow
def test_nsdi20_the_worst_ratio_of_searches_is_lower_by_the_published_factor() -> None:
    found = WORST_RATIOS.reproduce(FigureSize())

    searches, jobs = sorted({row.at for row in found.rows}, key=lambda at: at.startswith("single"))
    fairer = {(row.at, row.run): row.ours for row in found.rows if row.quantity == "ratio of worst ρ"}
    assert min(fairer[searches, f"{name} / themis"] for name in BASELINES) > 2.25
    assert fairer[jobs, "tiresias / themis"] > 2.25
    assert min(fairer[jobs, f"{name} / themis"] for name in BASELINES) > 1.1


def test_all_policies_run_on_a_few_jobs_and_ratios_are_those_of_their_values() -> None:
    trace = drawn(DrawnSize(8, 8, 8.0), 0, published_throughputs())
    short = Trace(
        tuple(replace(job, steps_total=job.steps_total / 10) for job in trace.jobs), trace.arrival_s / 10, "short"
    )

    rows, figure = compared([short], 8, FigureSize(), jobs_compared, "jobs")

    worst = {row.run: row.ours for row in rows if row.quantity == "worst ρ"}
    assert tuple(worst) == OF_JOBS
    last = rows[-1]
    assert (last.published, last.ours) == (2.25, worst[BASELINES[-1]] / worst["themis"])
    assert [curve.label for curve in figure.curves] == list(OF_JOBS)


def few_searches() -> Trace:
    """One job, and one search of 5, as they are drawn."""
    return next(trace for seed in range(100) if len(trace := drawn_apps(AppsSize(2, 7, 6.0), seed)) == 6)


def test_all_policies_run_on_two_searches() -> None:
    rows, _ = compared([few_searches()], 7, FigureSize(), apps_compared, "searches")

    worst = {row.run: row.ours for row in rows if row.quantity == "worst ρ"}
    assert tuple(worst) == OF_APPS
    assert all(0.9 < ratio < math.inf for ratio in worst.values())


def test_ratios_of_several_traces_are_those_of_the_means_with_the_least_and_the_most() -> None:
    traces = [Trace((), np.zeros(0), name) for name in ("a", "b")]
    found = {"a": {"themis": [1.0, 2.0], "gandiva": [4.0, 1.0]}, "b": {"themis": [2.0, 1.0], "gandiva": [2.0, 1.0]}}

    def given(trace: Trace, gpus: int, size: FigureSize) -> tuple[dict[str, Floats], dict[str, Floats]]:
        rho = {name: np.array(values) for name, values in found[trace.name].items()}
        return rho, {name: values * 3600.0 for name, values in rho.items()}

    rows, _ = compared(traces, 4, FigureSize(), given, "searches")

    of_gandiva = {row.quantity: row.ours for row in rows if row.run == "gandiva / themis"}
    assert of_gandiva == {"ratio of worst ρ": 3.0 / 2.0, "least of one trace": 1.0, "most of one trace": 2.0}
    assert {row.quantity: row.ours for row in rows if row.run == "themis"} == {
        "worst ρ": 2.0, "mean ρ": 1.5, "average JCT h": 1.5,
    }  # fmt: skip


def test_drawn_searches_have_the_jobs_of_hyperband_and_known_slowdowns() -> None:
    trace = drawn_apps(AppsSize(40, 50, 1.0), 0)

    assert set(np.bincount(app_of(trace)).tolist()) == {1, 5, 17, 49}
    assert {(job.job_type, job.gpus) for job in trace.jobs} == {(name, gpus) for name in APART for gpus in (2, 4)}
    assert [(node.gpu_count) for node in cluster_of(50).nodes] == [4] * 10 + [2] * 4 + [1] * 2
    assert cluster_of(16).gpu_counts.tolist() == [16]


def search_by_hand() -> Trace:
    """Three jobs of 100 steps on 2 GPUs; the best of them at 30 steps continues. Then one job alone."""
    roles = [
        AppRole("tune", at, 3, schedule=HalvingSchedule.SUCCESSIVE_HALVING, rungs=(Rung(30.0, 1),)).text
        for at in range(3)
    ] + [AppRole("other", 0, 1).text]
    rates = {"v100": 1.0}
    jobs = tuple(JobSpec(JobId(f"j{k}"), 100.0, 2, rates_steps_per_s=rates, app=role) for k, role in enumerate(roles))
    curves = {job.id: MetricCurve.parse(f"geometric:start=2:floor=0.{5 - k}:speed=0.1") for k, job in enumerate(jobs)}
    return Trace(jobs, np.array([0.0, 0.0, 0.0, 10.0]), curves=curves)


def test_the_work_of_a_search_and_its_ratio_by_hand() -> None:
    trace = search_by_hand()
    finish_s: Floats = np.array([math.nan, math.nan, 200.0, 110.0])

    jct_s = completion_of_apps_s(trace, finish_s)

    assert steps_done(trace).tolist() == [30.0, 30.0, 100.0, 100.0]  # the third has the lowest floor
    assert jct_s.tolist() == [200.0, 100.0]
    # on 4 GPUs 320 GPU s take 80 s, less than the 100 s of the longest job; on 2 GPUs they take 160 s
    assert ratios_of_apps(trace, jct_s, 4.0).tolist() == [2.0, 1.0]
    assert ratios_of_apps(trace, jct_s, 2.0).tolist() == [200.0 / 160.0, 1.0]


def test_a_search_whose_best_job_never_finished_takes_infinitely_long() -> None:
    finish_s: Floats = np.array([math.nan, math.nan, math.nan, 110.0])

    assert completion_of_apps_s(search_by_hand(), finish_s).tolist() == [math.inf, 100.0]


def test_the_ratio_is_relative_to_an_equal_part_of_the_cluster_by_hand() -> None:
    jobs = tuple(JobSpec(JobId(f"g{g}"), 100.0, gpus=g, rates_steps_per_s={"v100": 2.0}) for g in (1, 4))
    trace = Trace(jobs, np.array([0.0, 50.0]))
    jct_s = np.array([100.0, 200.0])

    mean = on_average(trace.arrival_s, jct_s)

    assert mean == pytest.approx(300.0 / 250.0)  # the last job ends at 250 s
    # alone each runs 50 s; on 4 / 2 GPUs the gang of 4 takes twice as long
    assert ratios(trace, jct_s, 4 / 2.0).tolist() == pytest.approx([2.0, 2.0])

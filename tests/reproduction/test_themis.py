"""Themis' claim, by direction: its worst finish-time ratio is the lowest; and the ratio, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.reproduction.comparisons import DrawnSize
from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.themis import BASELINES, POLICIES, WORST_RATIOS, compared, drawn, jobs_on_average, ratios
from gavelpy.traces.workloads import published_throughputs


@pytest.mark.slow
def test_nsdi20_the_worst_ratio_is_lower_than_under_tiresias_and_gandiva() -> None:
    found = WORST_RATIOS.reproduce(FigureSize())

    fairer = {row.run: row.ours for row in found.rows if row.quantity == "ratio of worst ρ"}
    assert fairer["tiresias / themis"] > 2.25
    assert min(fairer[f"{name} / themis"] for name in BASELINES) > 1.1


def test_all_policies_run_on_a_few_jobs_and_ratios_are_those_of_their_values() -> None:
    trace = drawn(DrawnSize(8, 8, 8.0), 0, published_throughputs())
    short = Trace(
        tuple(replace(job, steps_total=job.steps_total / 10) for job in trace.jobs), trace.arrival_s / 10, "short"
    )

    found = compared([short], 8, FigureSize())

    worst = {row.run: row.ours for row in found.rows if row.quantity == "worst ρ"}
    assert set(worst) == set(POLICIES)
    last = found.rows[-1]
    assert (last.published, last.ours) == (2.25, worst[BASELINES[-1]] / worst["themis"])


def test_the_ratio_is_relative_to_an_equal_part_of_the_cluster_by_hand() -> None:
    jobs = tuple(JobSpec(JobId(f"g{g}"), 100.0, gpus=g, rates_steps_per_s={"v100": 2.0}) for g in (1, 4))
    trace = Trace(jobs, np.array([0.0, 50.0]))
    jct_s = np.array([100.0, 200.0])

    mean = jobs_on_average(trace, jct_s)

    assert mean == pytest.approx(300.0 / 250.0)  # the last job ends at 250 s
    # alone each runs 50 s; on 4 / 2 GPUs the gang of 4 takes twice as long
    assert ratios(trace, jct_s, 4, 2.0).tolist() == pytest.approx([2.0, 2.0])

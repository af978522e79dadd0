"""Shockwave's table of baselines, and the answers of its simulator that differ from those of our policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.job_phases import JobPhase
from gavelpy.model.problem import AllocationProblem
from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.shockwave import (
    JCT,
    MAKESPAN,
    NOT_IN_PAPER,
    PUBLISHED,
    SEEN,
    SHOCKWAVE,
    WORST,
    ByEpochs,
    CentralMakespan,
    CurrentSteps,
    EqualTime,
    analytic_centre,
    bisected,
    fairness,
)
from gavelpy.traces.reader import read_throughputs

WITHIN = {"shockwave": 0.03, SEEN: 0.12, "max_min_fairness": 0.03, "max_sum_throughput": 0.03, "min_makespan": 0.03}
"""Of makespan and average JCT, by policy; of the others 0.06."""
WORST_WITHIN = {"min_makespan": 0.1, "finish_time_fairness": 0.16, "allox": 0.2}


def problem(rates: list[float], gpus: list[int], steps: list[float], total: int) -> AllocationProblem:
    jobs, rows = [f"j{k}" for k in range(len(rates))], [[rate] for rate in rates]
    return AllocationProblem.of(jobs, ["v100"], [total], rows, gpus=gpus, steps_remaining=steps)


@pytest.mark.parametrize("seed", range(3))
def test_analytic_centre_is_that_of_a_general_optimiser(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, gpus = rng.uniform(0.01, 0.5, 5), rng.choice([1.0, 2.0, 4.0], 5)
    total = float(gpus @ low) * 1.3

    def distance(x: Floats) -> float:
        gaps = np.concatenate([x - low, x, 1.0 - x, [total - gpus @ x]])
        return float(-np.log(gaps).sum()) if (gaps > 0).all() else 1e9

    start = low + 0.1 * (total - gpus @ low) / gpus.sum()
    expected = minimize(distance, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 9999})

    assert analytic_centre(low, gpus, total) == pytest.approx(expected.x, abs=1e-4)


def test_bisection_ends_within_five_percent_of_the_least_makespan() -> None:
    needed_s, gpus = np.array([400.0, 1_000.0, 7_000.0]), np.array([1.0, 2.0, 1.0])

    assert 7_000.0 <= bisected(needed_s, gpus, 2.0) <= 1.05 * 7_000.0
    assert 9_400.0 <= bisected(needed_s, gpus, 1.0) <= 1.05 * 9_400.0
    assert 9.4e8 <= bisected(1e5 * needed_s, gpus, 1.0) <= 1.05 * 9.4e8


def test_central_makespan_gives_each_job_more_than_it_needs() -> None:
    one = problem([2.0, 1.0], [1, 2], [2_000.0, 3_000.0], 2)

    share = CentralMakespan().allocate(one).share[:, 0]

    needed = np.array([1_000.0, 3_000.0]) / bisected(np.array([1_000.0, 3_000.0]), np.array([1.0, 2.0]), 2.0)
    assert (share > needed).all()
    assert share @ [1.0, 2.0] < 2.0


def test_a_job_counts_fewer_steps_when_its_batch_grows() -> None:
    """At 6 steps/s of twice the first batch, which count as 12, it has fewer steps than the job with 7."""
    job = JobSpec(JobId("j0"), 100.0, rates_steps_per_s={"v100": 11.0})
    phases = (JobPhase(0.0, {"v100": 10.0}), JobPhase(50.0, {"v100": 12.0}, 2.0))
    policy = CurrentSteps.of(Trace((job,), np.zeros(1), phases={job.id: phases}), "v100")

    before = policy.allocate(problem([10.0, 7.0], [1, 1], [100.0, 100.0], 1)).share[:, 0]
    after = policy.allocate(problem([12.0, 7.0], [1, 1], [50.0, 100.0], 1)).share[:, 0]

    assert before.tolist() == pytest.approx([1.0, 0.0])
    assert after.tolist() == pytest.approx([0.0, 1.0])


def test_progress_counts_in_whole_epochs_of_known_rates() -> None:
    """Two and a half of four epochs are two: the forecast has half of the job left, at the rates of both phases."""
    job = JobSpec(JobId("j0"), 400.0, rates_steps_per_s={"v100": 1.6})
    phases = (JobPhase(0.0, {"v100": 1.0}), JobPhase(200.0, {"v100": 4.0}, 4.0))
    policy = replace(ByEpochs.of(Trace((job,), np.zeros(1), phases={job.id: phases}), "v100"), epochs={"j0": 4})
    problem_ = AllocationProblem.of(["j0"], ["v100"], [1], [[1.0]], steps_remaining=150.0, steps_total=400.0)

    answer = policy.allocate(problem_)

    assert policy.known_rates() == {"j0": (1.0, 4.0)}
    assert answer.problem is problem_
    left_s = (1 / 6 * 400.0 + 1 / 3 * 100.0) * 0.5 / (1 / 6 + 1 / 3)  # (1/2 + 1/2) / 1.5 - 1/2, and (1/2) / 1.5
    assert json.loads(answer.memory)["fair"]["j0"][2] == pytest.approx(200.0 + left_s)


def test_equal_time_ignores_gang_sizes() -> None:
    assert EqualTime().allocate(problem([1.0, 1.0], [1, 3], [9.0, 9.0], 2)).share[:, 0].tolist() == [0.5, 0.5]


def test_fairness_counts_the_time_alone_and_the_jobs_per_gpu() -> None:
    job = JobSpec(JobId("a"), 100.0, rates_steps_per_s={"v100": 2.0})
    trace = Trace((job, JobSpec(JobId("b"), 400.0, rates_steps_per_s={"v100": 2.0})), np.zeros(2))

    assert fairness(trace, np.array([150.0, 200.0]), "v100", 1).tolist() == [1.5, 0.5]
    assert fairness(trace, np.array([150.0, 200.0]), "v100", 4).tolist() == [3.0, 1.0]


def test_a_trace_is_required() -> None:
    with pytest.raises(InvalidInput, match="trace must be given"):
        SHOCKWAVE.reproduce(FigureSize())


@pytest.mark.reference
@pytest.mark.slow
def test_table_of_baselines(reference_directory: Path) -> None:
    data = reference_directory / "data/shockwave"
    size = FigureSize(
        trace=data / "120_jobs_dynamic.trace", throughputs=read_throughputs(data / "tacc_throughputs.json")
    )

    found = SHOCKWAVE.reproduce(size)

    assert [row.run for row in found.rows if row.quantity == JCT] == [*PUBLISHED, *NOT_IN_PAPER]
    for row in found.rows:
        if row.run in NOT_IN_PAPER:
            continue
        if row.quantity in (MAKESPAN, JCT):
            assert row.ours == pytest.approx(row.published, rel=WITHIN.get(row.run, 0.06)), row
        if row.quantity == WORST and row.run in ("shockwave", SEEN):
            assert row.ours <= 1.8, row
        elif row.quantity == WORST:
            assert row.ours == pytest.approx(row.published, rel=WORST_WITHIN.get(row.run, 0.04)), row

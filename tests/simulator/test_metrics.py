"""Metrics against simpler computations over the frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gavelpy.model.cluster import Cluster
from gavelpy.simulator.compare import PolicyRun, compare
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.simulator.settings import preset
from tests.simulator.builders import make_job, make_trace, random_trace, run

PRICES = {"v100": 3.0, "p100": 1.0, "k80": 0.5}


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    cluster = Cluster.of({"v100": 4, "p100": 4, "k80": 8}, price_usd_per_gpu_h=PRICES)
    return run(random_trace(3), cluster, settings=preset("default"))


def test_utilisation_and_cost_are_sums_over_stays(result: SimulationResult) -> None:
    stays = result.leases
    gpu_s = (stays["end_s"] - stays["start_s"]) * stays["gpus"]

    assert result.metrics.utilization == pytest.approx(gpu_s.sum() / (16 * result.metrics.makespan_s))
    assert result.metrics.cost_usd == pytest.approx((gpu_s * stays["gpu_type"].map(PRICES)).sum() / 3600)


def test_utilisation_over_time_is_the_leased_fraction_at_random_moments(result: SimulationResult) -> None:
    """The mean over the bins is the total, and a bin without changes equals a count of stays."""
    binned = result.utilization
    stays = result.leases[result.leases["gpu_type"] == "k80"]
    width_s = binned.index[1] - binned.index[0]
    quiet = [
        t
        for t in binned.index
        if not stays["start_s"].between(t, t + width_s).any() and not stays["end_s"].between(t, t + width_s).any()
    ]

    counts = [stays.loc[(stays["start_s"] <= t) & (stays["end_s"] > t), "gpus"].sum() / 8 for t in quiet]

    assert binned.loc[quiet, "k80"].to_numpy() == pytest.approx(np.array(counts), abs=1e-9)
    total = (binned * [4, 4, 8]).sum(axis=1).mean() / 16
    assert total == pytest.approx(result.metrics.utilization, rel=1e-9)


def test_no_type_is_ever_leased_beyond_its_gpus(result: SimulationResult) -> None:
    stays = result.leases
    moments = pd.concat(
        [
            pd.DataFrame({"t": stays["start_s"], "gpu_type": stays["gpu_type"], "change": stays["gpus"]}),
            pd.DataFrame({"t": stays["end_s"], "gpu_type": stays["gpu_type"], "change": -stays["gpus"]}),
        ]
    ).sort_values(["t", "change"])

    held = moments.groupby("gpu_type")["change"].cumsum()

    assert (held <= moments["gpu_type"].map({"v100": 4, "p100": 4, "k80": 8})).all()


def test_received_time_is_the_length_of_the_stays(result: SimulationResult) -> None:
    lengths = (result.leases["end_s"] - result.leases["start_s"]).sum()

    assert result.shares["received_s"].sum() == pytest.approx(lengths)


def test_averages_are_over_measured_jobs(result: SimulationResult) -> None:
    jct_s = result.jobs["finish_s"] - result.jobs["arrival_s"]

    assert result.metrics.avg_jct_s == pytest.approx(jct_s.mean())
    assert result.metrics.p90_jct_s == pytest.approx(np.percentile(jct_s, 90))


def test_fairness_is_one_for_the_isolated_policy_itself() -> None:
    results = compare(random_trace(4), Cluster.parse("v100:4,p100:4,k80:8"), [PolicyRun("isolated"), PolicyRun("fifo")])

    assert results["isolated"].metrics.ftf_worst == 1.0
    ratio = results["fifo"].jobs["jct_s"] / results["isolated"].jobs["jct_s"]
    assert results["fifo"].metrics.ftf_worst == pytest.approx(ratio.max())
    assert results["fifo"].metrics.ftf_mean == pytest.approx(ratio.mean())


def test_deadlines_are_durations_from_arrival() -> None:
    """The original compares a duration with a point in time, which misses late arrivals."""
    late, early = make_job("late", steps=200.0), make_job("early", steps=100.0)
    trace = make_trace(
        *(
            type(job)(job.id, job.steps_total, rates_steps_per_s={"v100": 1.0}, deadline_s=150.0)
            for job in (early, late)
        ),
        arrival_s=[5000.0, 10_000.0],
    )

    found = run(trace)

    assert found.metrics.deadline_misses == 1


def test_unfinished_jobs_are_counted_and_left_out_of_averages() -> None:
    trace = make_trace(make_job("never", rates={"v100": 0.0, "k80": 1.0}), make_job("a", steps=100.0))

    found = run(trace)

    assert found.metrics.jobs_unfinished == 1
    assert found.metrics.avg_jct_s == pytest.approx(100.0)
    assert "zero on every GPU type" in found.jobs.loc["never", "reason"]
    assert found.metrics.to_json()["ftf_worst"] is None


def test_a_trace_in_which_nobody_can_run_ends_at_once() -> None:
    found = run(make_trace(make_job("never", rates={"v100": 0.0})))

    assert found.metrics.jobs_measured == 0
    assert found.metrics.to_json()["avg_jct_s"] is None
    assert found.leases.empty

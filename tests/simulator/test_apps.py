"""Simulated searches: losers are those of a plain successive halving, at the steps of rungs, under several policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import Event, LeaseEnded, MetricsReported
from gavelpy.model.apps import AppRole, HalvingSchedule, Rung
from gavelpy.model.halving import Bracket, hyperband, successive_halving
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.metric_curve import CurveShape, MetricCurve
from gavelpy.simulator.metric_reports import noisy_at
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.simulator.settings import Costs
from gavelpy.traces.csv_format import read_csv_trace, write_csv_trace
from tests.simulator.builders import make_settings, make_simulation

STEPS = 900.0
CLUSTER = "v100:3,k80:2"


def search(brackets: list[Bracket], seed: int = 1) -> Trace:
    """Jobs with random curves, which may cross, in these brackets."""
    rng = np.random.default_rng(seed)
    count = sum(bracket.jobs for bracket in brackets)
    jobs: list[JobSpec] = []
    curves = {}
    for number, bracket in enumerate(brackets):
        for _ in range(bracket.jobs):
            role = AppRole(
                "tune", len(jobs), count, schedule=HalvingSchedule.HYPERBAND, bracket=number, rungs=bracket.rungs
            )
            job = JobSpec(JobId(f"j{role.at}"), STEPS, rates_steps_per_s={"v100": 1.0, "k80": 0.4}, app=role.text)
            floor, speed = float(rng.uniform(0, 1)), float(rng.uniform(0.001, 0.1))
            curves[job.id] = MetricCurve(CurveShape.RECIPROCAL, 2.0, floor, speed)
            jobs.append(job)
    return Trace(tuple(jobs), np.zeros(len(jobs)), "search", curves=curves)


def survivors(trace: Trace, brackets: list[Bracket]) -> set[int]:
    """Oracle: sort each bracket by its curves at each rung, and cut."""
    found, first = set[int](), 0
    for bracket in brackets:
        rows = list(range(first, first + bracket.jobs))
        first += bracket.jobs
        for steps, keep in bracket.rungs:
            rows = sorted(rows, key=lambda row: (trace.curves[trace.jobs[row].id].at(steps), row))[:keep]
        found |= set(rows)
    return found


def simulated(
    trace: Trace, name: str = "max_min_fairness", restart_s: float = 0.0
) -> tuple[SimulationResult, list[Event]]:
    events: list[Event] = []
    settings = make_settings(Costs(checkpoint_s=0.0, restart_s=restart_s, migration_s=0.0))
    observers = [lambda event, _: events.append(event)]
    return make_simulation(trace, CLUSTER, name, settings, observers=observers).run(), events


@pytest.mark.parametrize("name", ["max_min_fairness", "fifo", "srtf"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_losers_end_at_the_rungs_and_the_others_finish(name: str, seed: int) -> None:
    brackets = [successive_halving(9, 100, STEPS, 3)]
    trace = search(brackets, seed)

    result, events = simulated(trace, name, restart_s=5.0)

    finished = set(np.flatnonzero(np.isfinite(result.history.finish_s[:9])).tolist())
    assert finished == survivors(trace, brackets)
    ends = {"rank": 0}
    for row in set(range(9)) - finished:
        assert result.reasons[row].startswith("ended by HyperBand: rank "), result.reasons[row]
        ends["rank"] += 1
    assert ends["rank"] == 8
    reported = {step for event in events if isinstance(event, MetricsReported) for step in event.metric_steps.tolist()}
    assert {100.0, 300.0} <= reported, "jobs report exactly at the rungs"
    stopped = [event for event in events if isinstance(event, LeaseEnded)]
    assert stopped


def test_hyperband_of_many_jobs_ends_as_the_oracle_says() -> None:
    brackets = hyperband(100, STEPS, 3)
    trace = search(brackets, 5)

    result, _ = simulated(trace)

    assert set(np.flatnonzero(np.isfinite(result.history.finish_s[: len(trace)])).tolist()) == survivors(
        trace, brackets
    )


def test_a_search_with_halving_takes_the_time_of_the_steps_that_are_left() -> None:
    """One GPU and no costs: 9 × 100 + 3 × 200 + 1 × 600 steps at 1 step/s."""
    trace = search([successive_halving(9, 100, STEPS, 3)])

    result = make_simulation(trace, "v100:1", "fifo").run()

    assert result.metrics.makespan_s == pytest.approx(9 * 100 + 3 * 200 + 600, abs=1.0)


def test_a_job_that_waits_for_the_gpu_is_late_where_the_app_limits_the_wait() -> None:
    """One GPU at 1 step/s, first come first served: the jobs would come to 100 steps at 100, 200 and 300 s."""
    trace = search([Bracket(3, (Rung(100.0, 1),))])
    roles = (replace(AppRole.parse(job.app), rung_wait_max_s=150.0) for job in trace.jobs)
    jobs = tuple(replace(job, app=role.text) for job, role in zip(trace.jobs, roles, strict=True))
    curves = {job.id: MetricCurve.parse(f"reciprocal:start=2:floor=0.{3 - k}:speed=0.05") for k, job in enumerate(jobs)}

    result = make_simulation(replace(trace, jobs=jobs, curves=curves), "v100:1", "fifo").run()

    assert result.reasons == {
        0: "ended by HyperBand: rank 2 of 3 at 100 steps, loss 0.583333",
        2: "ended by HyperBand: rank 3 of 3 at 100 steps, which it did not reach within 150 s of the first job",
    }
    assert result.metrics.makespan_s == pytest.approx(250 + STEPS - 100, abs=1.0)


def test_a_trace_keeps_roles_and_curves_in_its_file(tmp_path: Path) -> None:
    trace = search([successive_halving(4, 100, STEPS, 2)])

    write_csv_trace(trace, tmp_path / "search.csv")
    found = read_csv_trace(tmp_path / "search.csv")

    assert found.jobs == trace.jobs
    assert found.curves == trace.curves


def test_jobs_of_an_app_must_be_complete_in_a_trace() -> None:
    trace = search([Bracket(3, (Rung(100.0, 1),))])

    with pytest.raises(InvalidInput, match="app 'tune' must be of 3 jobs"):
        simulated(replace(trace, jobs=trace.jobs[:2], arrival_s=trace.arrival_s[:2], cancelled_s=np.zeros(0)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linear:start=1:floor=0:speed=1", "metric_curve must be reciprocal or geometric"),
        ("geometric:start=1:floor=0:speed=1", r"speed of a geometric metric curve must be in \(0, 1\)"),
        ("reciprocal:start=1:floor=0:speed=0", r"speed of a reciprocal metric curve must be in \(0, inf\)"),
        ("reciprocal:start=1:floor=0", "metric_curve must be"),
        ("reciprocal:start=1:floor=0:speed=x", "metric_curve must have numbers"),
        ("reciprocal:start=nan:floor=0:speed=1", "values of a metric curve must be finite"),
        ("reciprocal:start=1:floor=0:speed=1:noise=2", r"must have noise in \[0, 1\]"),
        ("reciprocal:start=1:floor=0:speed=1:speed=2", "metric_curve must be"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MetricCurve.parse(text)


def test_noise_depends_on_seed_and_steps_only_and_curves_are_the_same_after_text() -> None:
    curve = MetricCurve(CurveShape.GEOMETRIC, 2.0, 0.5, 0.01, 0.05, 7)

    assert MetricCurve.parse(curve.text) == curve
    assert noisy_at(curve, 10) == noisy_at(curve, 10) != noisy_at(replace(curve, seed=8), 10)
    assert noisy_at(curve, 10) == pytest.approx(0.5 + 1.5 * 0.99**10, rel=0.3)
    assert curve.at(10, 1.0) == pytest.approx(0.5 + 1.5 * 0.99**10 * 1.05)

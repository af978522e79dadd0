"""A simulated scheduler with no rates, or wrong ones, learns the true rates from the progress of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.simulator.estimation import Estimation
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation
from tests.conftest import first_fast
from tests.estimator.tables import BATCHES, FAMILY, TYPES, job_type, make_table, true_rate
from tests.simulator.builders import make_settings

CLUSTER = Cluster.parse("old:4,middle:4,new:4")
JOBS, HOUR_S = 20, 3600.0


def make_trace(seed: int, jobs: int = JOBS) -> Trace:
    """Jobs of several hours, of families with known laws, which all arrive at once."""
    rng, specs = np.random.default_rng(seed), []
    for n in range(jobs):
        family, batch = str(rng.choice(list(FAMILY))), int(rng.choice(BATCHES))
        rates = {name: true_rate(family, batch, name) for name in TYPES}
        steps = rates["new"] * HOUR_S * float(rng.uniform(3.0, 8.0))
        specs.append(JobSpec(JobId(f"j{n}"), steps, job_type=job_type(family, batch), rates_steps_per_s=rates))
    return Trace(tuple(specs), np.zeros(jobs))


def wrong(trace: Trace, seed: int) -> dict[str, dict[str, float]]:
    """Claims that are off by a factor between 0.3 and 3."""
    rng = np.random.default_rng(seed)
    span = np.log(0.3), np.log(3.0)
    return {
        job.id: {name: rate * float(np.exp(rng.uniform(*span))) for name, rate in job.rates_steps_per_s.items()}
        for job in trace.jobs
    }


def estimated(
    trace: Trace,
    claims: Mapping[str, Mapping[str, float]],
    table: ThroughputTable | None = None,
    settings: SimulationSettings | None = None,
    **engine: Any,  # Any: fields of Engine
) -> tuple[SimulationResult, Estimation]:
    known = ThroughputEstimator(table or make_table({}, TYPES))
    estimation = Estimation(known, claims)
    asked = Engine(MaxMinFairness(), estimator=known, **engine)
    return Simulation(trace, CLUSTER, asked, settings or SimulationSettings(), estimation=estimation).run(), estimation


def oracle(trace: Trace, settings: SimulationSettings | None = None) -> SimulationResult:
    return Simulation(trace, CLUSTER, Engine(MaxMinFairness()), settings or SimulationSettings()).run()


def work(result: SimulationResult, trace: Trace, from_s: float, until_s: float) -> float:
    """Effective throughput over a time: rates over each job's mean rate, summed."""
    rates = {job.id: job.rates_steps_per_s for job in trace.jobs}
    leases = result.leases
    seconds = np.maximum(np.minimum(leases.end_s, until_s) - np.maximum(leases.start_s, from_s), 0.0)
    speed = [
        rates[job][kind] / np.mean(list(rates[job].values()))
        for job, kind in zip(leases.job, leases.gpu_type, strict=True)
    ]
    return float(np.sum(seconds * np.array(speed)))


@pytest.mark.parametrize("seed", first_fast([0, 1], 1))
def test_with_wrong_claims_the_throughput_is_nearly_the_oracles_after_an_hour(seed: int) -> None:
    trace = make_trace(seed)

    found, _ = estimated(trace, wrong(trace, seed), profile_budget_s=1500.0)

    window = HOUR_S, 4.0 * HOUR_S
    assert work(found, trace, *window) >= 0.95 * work(oracle(trace), trace, *window)


def test_without_any_rates_jobs_run_and_take_about_as_long_as_with_known_ones() -> None:
    trace = make_trace(3)

    found, _ = estimated(trace, {}, profile_budget_s=1500.0)

    assert found.metrics.jobs_unfinished == 0
    assert found.metrics.avg_jct_s <= 1.1 * oracle(trace).metrics.avg_jct_s


def test_a_job_on_a_type_where_it_cannot_run_is_taken_off_it_and_finishes() -> None:
    rates = {"old": 0.0, "middle": 0.0, "new": 1.0}
    trace = Trace((JobSpec(JobId("a"), 7200.0, job_type="only new", rates_steps_per_s=rates),), np.zeros(1))

    found, estimation = estimated(trace, {"a": {"old": 9.0, "middle": 8.0, "new": 1.0}})

    assert found.metrics.jobs_unfinished == 0
    assert any("does not run there" in reason for reason in estimation.reasons)


def test_the_estimator_ends_up_knowing_the_true_rates() -> None:
    trace = make_trace(4, jobs=1)
    job = trace.jobs[0]

    _, estimation = estimated(trace, wrong(trace, 4))

    rates = estimation.estimator.rates([(job.job_type, 1)], TYPES)[0]
    truth = np.array([job.rates_steps_per_s[name] for name in TYPES])
    assert np.abs(rates / truth - 1.0).min() < 0.05


def test_a_table_that_knows_everything_gives_the_oracles_run() -> None:
    trace = make_trace(5)
    rates = {(job.job_type, job.gpus): job.rates_steps_per_s for job in trace.jobs}

    found, _ = estimated(trace, {}, make_table(rates), settings=make_settings())

    assert found.metrics.avg_jct_s == pytest.approx(oracle(trace, make_settings()).metrics.avg_jct_s, rel=0.02)


def test_same_seed_same_run() -> None:
    trace = make_trace(6, jobs=6)

    one, two = (estimated(trace, wrong(trace, 6))[0].metrics.avg_jct_s for _ in range(2))

    assert one == two


@pytest.mark.parametrize("claims", [{}, {"j0": {"old": 10.0}, "j1": {"old": 10.0}}], ids=["none", "of one GPU"])
def test_rates_of_each_size_are_learned_by_running_on_it(claims: dict[str, dict[str, float]]) -> None:
    """Two jobs of one or two GPUs share three; one of them hardly gains by the second GPU."""
    jobs = [
        JobSpec(JobId(f"j{n}"), 72_000.0, rates_steps_per_s={"old": 10.0}, sizes=(1, 2), rates_by_size=rates)
        for n, rates in enumerate([{2: {"old": 19.0}}, {2: {"old": 11.0}}])
    ]
    trace, cluster, known = (
        Trace(tuple(jobs), np.zeros(2)),
        Cluster.parse("old:3"),
        ThroughputEstimator(make_table({}, TYPES)),
    )
    estimation, engine = Estimation(known, claims), Engine(MaxMinFairness(), estimator=known)
    settings = SimulationSettings()
    simulation = Simulation(trace, cluster, engine, settings, estimation=estimation)

    found = simulation.run().metrics
    told = Simulation(trace, cluster, Engine(MaxMinFairness()), settings).run().metrics

    learned = [simulation.core.jobs.sizes[row].rate[:, 0].tolist() for row in (0, 1)]
    assert learned == [pytest.approx([10.0, 19.0], rel=0.03), pytest.approx([10.0, 11.0], rel=0.03)]
    assert found.avg_jct_s < 1.1 * told.avg_jct_s

"""Deadlines in simulations: plans that account for rounds and starts meet more deadlines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.policies.min_cost import MinCost
from gavelpy.simulator.compare import PolicyRun, compare, engine_for, simulate
from gavelpy.simulator.settings import SimulationSettings, default_mechanism, preset

JOBS = 25


def drawn_trace(seed: int) -> Trace:
    """Jobs with deadlines of 1.5 to 3 times their run times on a V100, at a load beyond the cluster's capacity."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(600.0, JOBS))
    specs = []
    for k in range(JOBS):
        speed = rng.uniform(1.0, 10.0)
        rates = {"v100": speed, "k80": speed * rng.uniform(0.15, 0.7)}
        run_s = rng.uniform(600.0, 7200.0)
        gpus, deadline_s = int(rng.choice([1, 1, 1, 2])), run_s * float(rng.choice([1.5, 2.0, 3.0]))
        specs.append(JobSpec(JobId(f"j{k}"), run_s * speed, gpus, rates_steps_per_s=rates, deadline_s=deadline_s))
    return Trace(tuple(specs), arrival_s - arrival_s[0])


def misses(policy: str, settings: SimulationSettings | None = None) -> int:
    """Jobs that miss their deadlines, by default where shares are delivered as promptly as rounds can."""
    settings = settings or with_lag(0.0)
    runs = (simulate(drawn_trace(seed), Cluster.parse("v100:4,k80:4"), policy, settings=settings) for seed in range(2))
    return sum(run.metrics.deadline_misses for run in runs)


def with_lag(move_lag_s: float) -> SimulationSettings:
    """The default settings with another lag, also for policies with deadlines."""
    settings = SimulationSettings(mechanism_given=frozenset({"move_lag_s"}))
    return replace(settings, mechanism=replace(settings.mechanism, move_lag_s=move_lag_s))


def test_min_cost_with_deadlines_misses_fewer_than_policies_that_know_none() -> None:
    planned, unplanned = misses("min_cost:deadlines=true"), misses("min_cost:deadlines=true:work=0.999999")

    assert planned < misses("max_sum_throughput")
    assert planned <= 0.75 * unplanned


def test_what_is_given_stays_and_the_original_plans_without_slack() -> None:
    run, given = PolicyRun("min_cost:deadlines=true"), PolicyRun("min_cost:deadlines=true:slack_s=7")

    default = engine_for(run, SimulationSettings()).policy

    assert default == MinCost(deadlines=True, slack_s=360.0 + 25.0 + 360.0, work=1.0 - 25.0 / 360.0)
    assert engine_for(given, SimulationSettings()).policy == MinCost(deadlines=True, slack_s=7.0)
    assert engine_for(run, preset("gavel-osdi20")).policy == MinCost(deadlines=True)
    assert engine_for(PolicyRun("min_cost"), SimulationSettings()).policy == MinCost()


def test_policies_with_deadlines_have_a_lag_of_one_round_where_it_is_not_set() -> None:
    on_time, others = MinCost(deadlines=True), MinCost()
    shorter = SimulationSettings(default_mechanism().with_round(100.0))

    lags_s = [
        settings.for_policy(policy).mechanism.move_lag_s
        for settings in (SimulationSettings(), shorter, with_lag(1800.0), with_lag(7.0), preset("gavel-osdi20"))
        for policy in (on_time, others)
    ]

    assert lags_s == [360.0, 1800.0, 100.0, 500.0, 1800.0, 1800.0, 7.0, 7.0, 0.0, 0.0]


def test_a_run_with_deadlines_records_the_lag_that_it_had() -> None:
    trace, cluster = drawn_trace(0), Cluster.parse("v100:4,k80:4")

    runs = compare(trace, cluster, [PolicyRun("min_cost:deadlines=1"), PolicyRun("min_cost")])

    assert [run.parameters["move_lag_s"] for run in runs.values()] == [360.0, 1800.0]

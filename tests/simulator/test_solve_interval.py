"""One allocation a round in simulations, and at every change where jobs start only with a share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.policies.base import policy_named
from gavelpy.simulator.compare import simulate
from gavelpy.simulator.settings import SimulationSettings, default_mechanism, preset

CLUSTER = Cluster.parse("v100:4,k80:4")


def six_jobs(apart_s: float) -> Trace:
    specs = tuple(JobSpec(JobId(f"j{k}"), 1000.0 + k, rates_steps_per_s={"v100": 1.0, "k80": 0.5}) for k in range(6))
    return Trace(specs, np.arange(6) * apart_s)


@pytest.mark.parametrize(("policy", "rounds"), [("max_min_fairness", 1), ("fifo", 0), ("allox", 0), ("isolated", 1)])
def test_an_allocation_a_round_unless_jobs_start_only_with_a_share(policy: str, rounds: int) -> None:
    shorter = SimulationSettings(default_mechanism().with_round(100.0))
    given = replace(shorter, mechanism_given=frozenset({"solve_interval_s"}))

    found = [
        settings.for_policy(policy_named(policy)).mechanism.solve_interval_s
        for settings in (SimulationSettings(), shorter, given, preset("gavel-osdi20"))
    ]

    assert found == [360.0 * rounds, 100.0 * rounds, 100.0, 1920.0]


@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo", "shortest_job_first", "allox"])
def test_jobs_start_at_once_on_idle_gpus(policy: str) -> None:
    history = simulate(six_jobs(100.0), CLUSTER, policy).history

    assert (history.first_start_s[:6] == history.arrival_s[:6]).all()


def test_a_round_has_one_allocation_at_most() -> None:
    each_time = replace(default_mechanism(), solve_interval_s=0.0)

    by_round = simulate(six_jobs(30.0), CLUSTER, "max_min_fairness").metrics
    by_change = simulate(six_jobs(30.0), CLUSTER, "max_min_fairness", settings=SimulationSettings(each_time)).metrics

    assert by_round.solves <= 1 + by_round.makespan_s // 360.0
    assert by_change.solves == 11  # six arrivals and five finishes that leave jobs

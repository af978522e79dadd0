"""The ideal simulation by hand, and against the mechanism with short rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.teams import Team
from gavelpy.model.arrays import Floats
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.problem import BlindView
from gavelpy.policies.base import policy_from
from gavelpy.simulator.ideal import IdealSimulation
from gavelpy.simulator.settings import SimulationSettings
from tests.simulator.builders import make_job, make_settings, make_trace, run


def ideal(
    trace: Trace, cluster: str, policy: str, settings: SimulationSettings | None = None, blind: BlindView | None = None
) -> Floats:
    chosen, everyone = settings or make_settings(), np.ones(len(trace), dtype=np.bool_)
    return IdealSimulation(trace, Cluster.parse(cluster), policy_from(policy), chosen, blind=blind).run(everyone)


def singles(seed: int, jobs: int) -> Trace:
    """Jobs on one GPU, some of which arrive later."""
    rng = np.random.default_rng(seed)
    specs = []
    for k in range(jobs):
        speed = rng.uniform(0.5, 2.0)
        rates = {"v100": speed, "p100": speed * rng.uniform(0.4, 0.9), "k80": speed * rng.uniform(0.1, 0.5)}
        specs.append(make_job(f"j{k}", steps=float(rng.uniform(1_000, 6_000)), rates=rates))
    arrival_s = np.sort(np.where(np.arange(jobs) < jobs // 2, 0.0, rng.uniform(0, 4_000, jobs)))
    return Trace(tuple(specs), arrival_s)


def test_two_equal_jobs_on_one_gpu_each_run_at_half_speed() -> None:
    trace = make_trace(make_job("a", steps=100.0), make_job("b", steps=300.0))

    assert ideal(trace, "v100:1", "max_min_fairness").tolist() == pytest.approx([200.0, 400.0])


def test_an_arrival_divides_the_gpu_from_then_on() -> None:
    trace = make_trace(make_job("a", steps=100.0), make_job("b", steps=100.0), arrival_s=[0.0, 60.0])

    assert ideal(trace, "v100:1", "max_min_fairness").tolist() == pytest.approx([140.0, 200.0])


def test_fifo_serves_one_after_the_other() -> None:
    trace = make_trace(make_job("a", steps=100.0), make_job("b", steps=100.0))

    assert ideal(trace, "v100:1", "fifo").tolist() == pytest.approx([100.0, 200.0])


def test_a_job_that_can_run_nowhere_has_no_finish() -> None:
    trace = make_trace(make_job("never", rates={"v100": 0.0}), make_job("a", steps=100.0))

    found = ideal(trace, "v100:1", "max_min_fairness")

    assert math.isnan(found[0])
    assert found[1] == pytest.approx(100.0)


def test_teams_are_refused() -> None:
    with pytest.raises(InvalidInput, match="got teams"):
        ideal(make_trace(make_job("a")), "v100:1", "max_min_fairness", make_settings(teams=(Team("t"),)))


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_sum_throughput"])
def test_the_mechanism_with_rounds_of_5_s_agrees_within_half_a_percent(policy: str) -> None:
    trace, cluster = singles(0, 14), "v100:2,p100:2,k80:2"
    settings = make_settings(round_s=5.0)

    result = run(trace, cluster, policy, settings=settings)

    jct_s = ideal(trace, cluster, policy, settings) - trace.arrival_s
    assert result.metrics.avg_jct_s == pytest.approx(jct_s.mean(), rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "policy", ["max_min_fairness", "finish_time_fairness", "min_makespan", "fifo", "shortest_job_first", "isolated"]
)
def test_the_mechanism_agrees_under_each_policy_and_seed(policy: str, seed: int) -> None:
    trace, cluster = singles(seed, 30), "v100:3,p100:3,k80:4"
    settings = make_settings(round_s=5.0)

    result = run(trace, cluster, policy, settings=settings)

    jct_s = ideal(trace, cluster, policy, settings) - trace.arrival_s
    assert result.metrics.avg_jct_s == pytest.approx(jct_s.mean(), rel=0.005)
    assert result.metrics.makespan_s == pytest.approx((jct_s + trace.arrival_s).max(), rel=0.005)


def test_the_blind_ideal_has_the_shares_of_the_blind_policy() -> None:
    """Blind, both jobs have half of each GPU."""
    jobs = (
        make_job("a", steps=90.0, rates={"v100": 1.0, "k80": 0.8}),
        make_job("b", steps=70.0, rates={"v100": 1.0, "k80": 0.4}),
    )

    found = ideal(make_trace(*jobs), "v100:1,k80:1", "max_min_fairness", blind=BlindView.MEAN)

    assert found.tolist() == pytest.approx([100.0, 100.0])

"""Moves of running jobs within a round to faster GPUs that have fallen free."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import policy_named
from gavelpy.simulator.ideal import IdealSimulation
from tests.simulator.builders import NO_COSTS, make_job, make_settings, make_simulation, make_trace, random_trace

BOTH = {"v100": 2.0, "k80": 1.0}


def finishes(*steps: float, cluster: str = "v100:1,k80:1", **mechanism: object) -> list[float]:
    """When jobs that are twice as fast on a V100 finish under fifo, without costs, in rounds of 360 s."""
    trace = make_trace(*(make_job(f"j{k}", steps=each, rates=BOTH) for k, each in enumerate(steps)))
    settings = make_settings(NO_COSTS, round_s=360.0, **mechanism)
    return [float(each) for each in make_simulation(trace, cluster, "fifo", settings).run().jobs["finish_s"]]


def test_a_job_moves_when_a_faster_gpu_falls_free() -> None:
    assert finishes(200.0, 1000.0, move_within_round=True) == [100.0, 100.0 + 900.0 / 2]


def test_by_default_it_moves_at_the_end_of_the_round() -> None:
    assert finishes(200.0, 1000.0) == [100.0, 360.0 + 640.0 / 2]


def test_a_job_that_would_end_sooner_than_the_move_pays_stays() -> None:
    assert finishes(200.0, 149.0, move_within_round=True) == [100.0, 149.0]  # 49 s or 24.5 s and a start
    assert finishes(200.0, 151.0, move_within_round=True) == [100.0, 100.0 + 51.0 / 2]


def test_a_protected_lease_stays_up_to_the_end_of_the_round() -> None:
    assert finishes(200.0, 1000.0, move_within_round=True, lease_min_s=150.0) == [100.0, 360.0 + 640.0 / 2]


def test_the_oldest_job_moves_and_a_waiting_one_takes_its_place() -> None:
    found = finishes(200.0, 1000.0, 1000.0, 500.0, cluster="v100:1,k80:2", move_within_round=True)

    assert found == [100.0, 550.0, 550.0 + 450.0 / 2, 100.0 + 500.0]


def test_moves_follow_each_other_along_the_types() -> None:
    types = {"a100": 4.0, "v100": 2.0, "k80": 1.0}
    trace = make_trace(
        *(make_job(f"j{k}", steps=steps, rates=types) for k, steps in enumerate((400.0, 1800.0, 1900.0)))
    )
    settings = make_settings(NO_COSTS, round_s=3600.0, move_within_round=True)

    found = make_simulation(trace, "a100:1,v100:1,k80:1", "fifo", settings).run().jobs["finish_s"].tolist()

    assert found == [100.0, 100.0 + 1600.0 / 4, 500.0 + (1900.0 - 100.0 - 400.0 * 2) / 4]


@pytest.mark.parametrize("seed", range(3))
def test_fifo_comes_closer_to_its_fluid_limit(seed: int) -> None:
    trace, cluster = random_trace(seed, 30), "v100:4,p100:4,k80:4"
    fluid = IdealSimulation(trace, Cluster.parse(cluster), policy_named("fifo"), make_settings())
    ideal_s = fluid.run(np.ones(len(trace), dtype=np.bool_)).mean()

    found_s = [
        make_simulation(trace, cluster, "fifo", make_settings(NO_COSTS, round_s=360.0, move_within_round=early))
        .run()
        .jobs["finish_s"]
        .mean()
        for early in (False, True)
    ]

    assert abs(found_s[1] - ideal_s) < 0.5 * abs(found_s[0] - ideal_s)

"""Under any conditions GPU time is conserved, no GPU has two leases, and every job ends; runs repeat exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gavelpy.journal.codec import encode
from gavelpy.mechanism import invariants
from gavelpy.simulator.conditions.causes import TrialRuns
from gavelpy.simulator.conditions.spec import Conditions
from gavelpy.simulator.simulate import Simulation
from tests.conftest import first_fast
from tests.simulator.builders import make_simulation, random_trace, timeless
from tests.simulator.conditions.builders import EVERYTHING, random_conditions, under
from tests.simulator.conditions.test_accounts import assert_conserved

CLUSTER = "v100:6,p100:8,k80:4"


def simulation_of(seed: int, conditions: Conditions, policy: str = "max_min_fairness") -> Simulation:
    return make_simulation(random_trace(seed), CLUSTER, policy, under(conditions), seed=seed)


@pytest.mark.parametrize("seed", first_fast(range(200), 3))
def test_gpu_time_is_conserved_and_every_job_ends(seed: int) -> None:
    trials = TrialRuns(120.0, gpu_type="p100", gpus=2) if seed % 2 else TrialRuns()
    conditions = replace(random_conditions(seed), trials=trials)
    simulation = simulation_of(seed, conditions, ("max_min_fairness", "fifo", "min_makespan")[seed % 3])
    simulation.observers += [lambda event, now_s: invariants.check(simulation.core)]

    result = simulation.run()

    assert_conserved(dict(result.metrics.gpu_hours))
    assert not len(simulation.core.jobs.active)


def test_the_same_seed_gives_the_same_events() -> None:
    journals: list[list[bytes]] = [[], []]
    for journal in journals:
        simulation = simulation_of(3, EVERYTHING)
        simulation.observers.append(lambda event, now_s, journal=journal: journal.append(encode(event, now_s)))
        simulation.run()

    assert journals[0] == journals[1]


def test_another_seed_gives_another_run() -> None:
    first, second = (
        make_simulation(random_trace(3), CLUSTER, settings=under(EVERYTHING), seed=seed).run() for seed in (1, 2)
    )

    assert timeless(first) != timeless(second)

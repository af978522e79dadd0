"""Queueing policies in whole simulations, against a second implementation; and their orders."""

from __future__ import annotations

import pytest

from tests.policies.queue_simulator import (
    Choose,
    DumbJob,
    finish_rounds,
    random_jobs,
    simulated_rounds,
    that_fit,
)

FEW = 4
TRACES = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]


def srtf(present: list[DumbJob], now: int) -> list[DumbJob]:
    return that_fit(sorted(present, key=lambda job: job.left))


def srsf(present: list[DumbJob], now: int) -> list[DumbJob]:
    return that_fit(sorted(present, key=lambda job: job.left * job.gpus))


def least_attained_service(present: list[DumbJob], now: int) -> list[DumbJob]:
    return that_fit(sorted(present, key=lambda job: job.done * job.gpus))


@pytest.mark.parametrize("choose", [srtf, srsf, least_attained_service], ids=lambda choose: choose.__name__)
@pytest.mark.parametrize("seed", TRACES)
def test_simulation_is_that_of_a_dumb_one(seed: int, choose: Choose) -> None:
    assert simulated_rounds(random_jobs(seed), choose.__name__) == finish_rounds(random_jobs(seed), choose)

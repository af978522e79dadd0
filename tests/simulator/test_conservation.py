"""The checks that the builders attach to simulations find what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.mechanism.events import Event, LeaseEnded, LeaseStarted, Outcome
from gavelpy.model.arrays import Floats, Ints
from gavelpy.simulator.simulate import Simulation
from tests.simulator.builders import make_job, make_simulation, make_trace
from tests.simulator.conservation import Conservation

TRACE = make_trace(make_job("a", steps=600.0), make_job("b", steps=600.0, gpus=2))
Observe = Callable[[Event, float], None]


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


@pytest.fixture
def observe() -> Conservation:
    """Checks of a simulation in which both jobs have finished."""
    simulation = make_simulation(TRACE, "v100:2,k80:2", "fifo")
    conservation = Conservation(simulation)
    simulation.run()
    conservation.now_s = 1_000.0
    return conservation


def start(job: int, lease: int, *gpus: int) -> LeaseStarted:
    return LeaseStarted(ints(job), ints(lease), ints(0, len(gpus)), ints(*gpus))


def end(job: int, lease: int, steps: float, outcome: Outcome = Outcome.STOPPED) -> LeaseEnded:
    return LeaseEnded(ints(job), ints(lease), floats(steps), outcome)


def test_a_gpu_under_two_leases_is_found(observe: Observe) -> None:
    observe(start(0, 7, 1), 1_000.0)

    with pytest.raises(AssertionError, match="GPU 1 is under the leases"):
        observe(start(1, 8, 0, 1), 1_010.0)


def test_a_job_that_runs_twice_is_found(observe: Observe) -> None:
    observe(start(0, 7, 1), 1_000.0)

    with pytest.raises(AssertionError, match="job 0 runs twice"):
        observe(start(0, 8, 0), 1_010.0)


def test_a_lease_of_the_wrong_size_is_found(observe: Observe) -> None:
    with pytest.raises(AssertionError, match="lease 8 has 1 GPUs"):
        observe(start(1, 8, 0), 1_000.0)


def test_steps_that_the_rate_cannot_give_are_found(observe: Observe) -> None:
    observe(start(0, 7, 1), 1_000.0)

    with pytest.raises(AssertionError, match="job 0 has 11"):
        observe(end(0, 7, 11.0), 1_010.0)


def test_a_job_that_finishes_early_is_found(observe: Observe) -> None:
    observe(start(0, 7, 1), 1_000.0)

    with pytest.raises(AssertionError, match="job 0 is not done"):
        observe(end(0, 7, 10.0, Outcome.FINISHED), 1_010.0)


def test_idle_time_that_is_not_there_is_found() -> None:
    simulation = make_simulation(TRACE, "v100:2", "fifo")
    conservation = Conservation(simulation)
    simulation.observers.append(conservation)
    result = simulation.run()
    hours = dict(result.metrics.gpu_hours)
    wrong = replace(result, metrics=replace(result.metrics, gpu_hours=hours | {"idle": hours["idle"] + 0.01}))

    conservation.check(result)
    with pytest.raises(AssertionError, match="free GPU time"):
        conservation.check(wrong)


def test_a_job_without_an_end_or_a_reason_is_found() -> None:
    trace = make_trace(make_job("never", rates={"v100": 0.0}))
    simulation = make_simulation(trace)
    conservation = Conservation(simulation)
    simulation.observers.append(conservation)
    result = simulation.run()

    with pytest.raises(AssertionError, match=r"jobs \[0\] neither ended nor have a reason"):
        conservation.check(replace(result, reasons={}))


def test_every_simulation_of_the_tests_is_checked() -> None:
    assert hasattr(Simulation.run, "__wrapped__")

"""Checkpoints at intervals: against a machine that works and saves second by second, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import CheckpointSaved, Event, NodeJoined, NodeLost
from gavelpy.model.checkpoint_interval import checkpoint_interval_s
from gavelpy.simulator.conditions.cadence import PeriodicSaves
from gavelpy.simulator.conditions.causes import Checkpoints, JobFailures
from gavelpy.simulator.conditions.job_costs import JobCosts
from gavelpy.simulator.conditions.spec import Conditions
from gavelpy.simulator.settings import SimulationSettings, preset
from gavelpy.simulator.virtual_leases import VirtualLeases
from tests.simulator.builders import NO_COSTS, make_job, make_simulation, make_trace
from tests.simulator.conditions.builders import under

ROW = np.array([0])
FREE = JobCosts(0.0, 0.0, 60.0, 0.0)


def worked_by_hand(interval_s: int, save_s: int, until_s: int) -> int:
    worked = since = 0
    for _ in range(until_s):
        is_saving = since >= interval_s
        worked += not is_saving
        since = (since + 1) % (interval_s + save_s)
    return worked


@pytest.mark.parametrize("seed", range(20))
def test_work_and_its_inverse_are_those_of_a_machine_that_counts_seconds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    interval_s, save_s, until_s = (int(number) for number in rng.integers((1, 0, 0), (90, 40, 600)))
    steps = PeriodicSaves(np.array([float(interval_s)]), np.array([float(save_s)]))
    cluster = VirtualLeases(np.zeros(1, dtype=np.int64), np.ones((1, 1)), np.array([1e9]), NO_COSTS, steps=steps)
    cluster.accounts.first_step_s[0] = cluster.counted_s[0] = 1000.0

    worked_s = steps.worked_s(cluster, ROW, 1000.0 + until_s, np.array([1000.0])).item()
    at_s = steps.worked_at_s(cluster, ROW, np.array([worked_s])).item()

    assert worked_s == pytest.approx(worked_by_hand(interval_s, save_s, until_s))
    assert steps.worked_s(cluster, ROW, at_s, np.array([1000.0])).item() == pytest.approx(worked_s)
    assert at_s <= 1000.0 + until_s + 1e-6


def test_a_job_takes_its_work_and_its_checkpoints() -> None:
    settings = under(Conditions(FREE, Checkpoints(every_s=600.0)))

    result = make_simulation(make_trace(make_job("a", steps=3600.0)), "v100:1", "fifo", settings).run()

    assert result.jobs["finish_s"].iloc[0] == pytest.approx(3600.0 + 5 * 60.0)  # none after the last step
    assert result.metrics.gpu_hours["checkpoint"] == pytest.approx(300.0 / 3600.0)


def test_a_node_that_dies_takes_the_work_since_the_last_checkpoint() -> None:
    settings = under(Conditions(FREE, Checkpoints(every_s=600.0)))
    trace, saved = make_trace(make_job("a", steps=3600.0)), list[float]()
    node = make_simulation(trace, "v100:1").cluster.nodes[0].node_id
    events = ((1500.0, NodeLost(node)), (2000.0, NodeJoined(node, "v100", 1)))  # 1320 to 1500: after the second

    def note(event: Event, now_s: float) -> None:
        saved.extend(event.steps_done.tolist() if isinstance(event, CheckpointSaved) else ())

    simulation = make_simulation(trace, "v100:1", "fifo", settings, node_events=events, observers=[note])
    result = simulation.run()

    assert max(saved) == 1200.0
    assert result.jobs["finish_s"].iloc[0] == pytest.approx(2000.0 + 2400.0 + 3 * 60.0)
    assert result.metrics.gpu_hours["lost_work"] == pytest.approx(180.0 / 3600.0)


def overhead(interval_s: float, save_s: float, mtbf_s: float) -> float:
    """Time per second of work with failures at exponential times, without restarts: Daly (2006), equation 20."""
    return mtbf_s * math.expm1((interval_s + save_s) / mtbf_s) / interval_s


@pytest.mark.parametrize(("save_s", "mtbf_s"), [(5.0, 3600.0), (60.0, 86_400.0), (300.0, 7200.0), (30.0, 600.0)])
def test_the_interval_of_daly_loses_no_more_than_the_best_of_many(save_s: float, mtbf_s: float) -> None:
    tried = [overhead(interval_s, save_s, mtbf_s) for interval_s in np.geomspace(1.0, 100_000.0, 20_000).tolist()]

    found = overhead(checkpoint_interval_s(save_s, mtbf_s), save_s, mtbf_s)

    assert found <= min(tried) * 1.0005


def test_without_failures_there_is_no_interval() -> None:
    assert checkpoint_interval_s(60.0, math.inf) == math.inf
    assert checkpoint_interval_s(0.0, 3600.0) == 1.0
    with pytest.raises(InvalidInput, match="mtbf_s must be > 0"):
        checkpoint_interval_s(60.0, 0.0)


def test_the_chosen_interval_loses_least_of_several_in_simulations() -> None:
    trace = make_trace(*(make_job(f"j{k}", steps=100_000.0) for k in range(6)))
    failing = JobFailures(system_mtbf_gpu_h=2.0)
    tried = [Checkpoints(by_failure_rate=True), *(Checkpoints(every_s=every_s) for every_s in (150.0, 4000.0))]

    chosen, often, seldom = (
        make_simulation(
            trace, "v100:6", "fifo", under(Conditions(FREE, checkpoints, job_failures=failing))
        ).run().metrics.gpu_hours
        for checkpoints in tried
    )  # fmt: skip

    lost = [hours["checkpoint"] + hours["lost_work"] for hours in (chosen, often, seldom)]
    assert lost[0] < 0.9 * min(lost[1:])


def test_whole_steps_and_periodic_checkpoints_exclude_each_other() -> None:
    settings = SimulationSettings(steps=preset("gavel-osdi20").steps, conditions=Conditions(FREE, Checkpoints(600.0)))

    with pytest.raises(InvalidInput, match="gavel-osdi20"):
        make_simulation(make_trace(make_job("a")), "v100:1", settings=settings)

"""Nodes that join or die during a simulation."""

from __future__ import annotations

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import NodeDraining, NodeJoined, NodeLost
from gavelpy.model.job import NodeId
from tests.simulator.builders import make_job, make_simulation, make_trace


def finish_s(*events: tuple[float, NodeJoined | NodeLost | NodeDraining], jobs: int = 1, gpus: int = 1) -> list[float]:
    """Finish times of jobs of 3,600 s on a V100 that arrive at 0 on one node."""
    trace = make_trace(*(make_job(f"j{k}", gpus=gpus) for k in range(jobs)))
    result = make_simulation(trace, f"v100:{gpus}", "fifo", node_events=events).run()
    return [float(value) for value in result.jobs["finish_s"]]


def node_of_the_cluster() -> NodeId:
    simulation = make_simulation(make_trace(make_job("j0")), "v100:1")
    return simulation.cluster.nodes[0].node_id


def test_a_job_whose_node_dies_restarts_from_its_last_checkpoint_when_a_node_joins() -> None:
    node = node_of_the_cluster()

    (finished_s,) = finish_s((1000.0, NodeLost(node)), (1500.0, NodeJoined(NodeId("spare"), "v100", 1)))

    assert finished_s == pytest.approx(1500.0 + 3600.0)


def test_a_waiting_job_starts_on_a_node_that_joins() -> None:
    first_s, second_s = finish_s((100.0, NodeJoined(NodeId("spare"), "v100", 1)), jobs=2)

    assert (first_s, second_s) == (pytest.approx(3600.0), pytest.approx(3700.0))


def test_a_gang_that_loses_one_of_its_nodes_repeats_its_work() -> None:
    trace = make_trace(make_job("gang", gpus=8))
    simulation = make_simulation(trace, "v100:8", "fifo")
    lost = simulation.cluster.nodes[0].node_id
    events = ((1000.0, NodeLost(lost)), (2000.0, NodeJoined(NodeId("spare"), "v100", 4)))

    result = make_simulation(trace, "v100:8", "fifo", node_events=events).run()

    assert result.jobs["finish_s"].iloc[0] == pytest.approx(2000.0 + 3600.0)


def test_a_node_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidInput, match="GPU type"):
        finish_s((10.0, NodeJoined(NodeId("new"), "h100", 1)))

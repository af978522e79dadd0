"""GPU time is conserved: the uses of leases add up to the time under lease of the history, and all to the capacity."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.mechanism.events import NodeJoined, NodeLost
from gavelpy.model.cluster import Cluster
from gavelpy.simulator.settings import Costs, preset
from tests.simulator.builders import make_job, make_settings, make_simulation, make_trace, random_trace

PARTS = (
    "useful", "start", "restore", "migration", "checkpoint", "lost_work", "slowdown", "idle", "closed", "down",
)  # fmt: skip


def assert_conserved(hours: dict[str, float]) -> None:
    assert sum(hours[part] for part in PARTS) + hours.get("trials", 0.0) == pytest.approx(hours["capacity"], rel=1e-9)
    assert min(hours.values()) >= -1e-9


def test_a_job_alone_uses_its_time_as_its_costs_say() -> None:
    trace = make_trace(make_job("a", steps=3600.0))
    settings = make_settings(Costs(checkpoint_s=10.0, restart_s=360.0, migration_s=5.0))

    hours = make_simulation(trace, "v100:2", "fifo", settings).run().metrics.gpu_hours

    assert (hours["useful"], hours["start"]) == (pytest.approx(1.0), pytest.approx(0.1))
    assert (hours["idle"], hours["capacity"]) == (pytest.approx(1.1), pytest.approx(2.2))


def test_a_job_whose_node_dies_loses_its_work() -> None:
    trace = make_trace(make_job("a", steps=7200.0))
    simulation = make_simulation(trace, "v100:1", "fifo")
    node = simulation.cluster.nodes[0].node_id
    events = ((3600.0, NodeLost(node)), (5400.0, NodeJoined(node, "v100", 1)))

    hours = make_simulation(trace, "v100:1", "fifo", node_events=events).run().metrics.gpu_hours

    assert (hours["lost_work"], hours["down"]) == (pytest.approx(1.0), pytest.approx(0.5))
    assert (hours["useful"], hours["idle"]) == (pytest.approx(2.0), pytest.approx(0.0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["default", "gavel-osdi20"])
def test_gpu_time_is_conserved_while_nodes_come_and_go(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    trace, cluster, events = random_trace(seed), Cluster.parse("v100:6,p100:8,k80:4"), []
    for node in [node for node in cluster.nodes if rng.random() < 0.7]:
        lost_s, back_s = np.sort(rng.uniform(0, 20_000, 2)).tolist()
        joined = NodeJoined(node.node_id, node.gpu_type, node.gpu_count)
        events += [(lost_s, NodeLost(node.node_id)), (back_s, joined)]

    result = make_simulation(trace, cluster, settings=preset(name), node_events=events).run()

    assert_conserved(dict(result.metrics.gpu_hours))
    assert result.metrics.jobs_unfinished == 0

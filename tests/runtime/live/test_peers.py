"""Nodes that the scheduler cannot reach, while their peers can; and nodes that are dead to all."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.proxy import BadNetwork, Weather
from tests.runtime.live.stage import Stage

FIRST, OTHERS = LocalNode("n0", "v100:1"), (LocalNode("n1", "k80:1"), LocalNode("n2", "k80:1"))
RATES = {"v100": 40.0, "k80": 20.0}
MANY = 1e6
QUIET_S = 6.0  # three times the time after which a single node is silent
FAIR = Weather(dropped=0.0, repeated=0.0, delayed=0.0)
ROUNDS = {"round_s": 60.0}


@pytest.fixture
def network(tmp_path: Path) -> Iterator[BadNetwork]:
    with BadNetwork("", FAIR, np.random.default_rng(0)) as found:
        yield found


def started(directory: Path, settings: dict[str, object], ports: dict[str, int] | None = None) -> Stage:
    witnessed = directory / "witnessed"
    witnessed.mkdir()
    cluster = LocalCluster(
        directory / "cluster", (FIRST, *OTHERS), {"nodes": settings, "mechanism": ROUNDS}, ports=ports or {}
    )
    return Stage(cluster, witnessed)


@pytest.mark.slow
def test_with_fencing_a_node_that_only_the_scheduler_cannot_reach_keeps_its_job(
    tmp_path: Path, network: BadNetwork
) -> None:
    stage = started(tmp_path, {"on_node_lost": "fence", "silent_after_s": 2.0}, {"n0": network.port})
    with stage.cluster:
        network.scheduler = stage.cluster.address
        stage.cluster.start()
        job = stage.submit_witness("kept", MANY, RATES)
        before = stage.wait_saved(job)
        time.sleep(3.0)  # the agents have a view, and answers of each other

        network.is_cut = True
        stage.wait(lambda: stage.node("n0").state == "silent", "the node is silent")
        detail, reason_at_s = stage.node("n0").detail, time.monotonic()
        leases = set()
        while time.monotonic() < reason_at_s + QUIET_S:
            leases.add(stage.job(job).lease)
            time.sleep(0.2)
        network.is_cut = False
        stage.wait(lambda: stage.node("n0").state == "up", "the link is back")
        after = stage.job(job)

    assert list(before.node_ids) == ["n0"]
    assert detail.split(";")[0] == "unreachable from the scheduler, alive to 2 other agents"
    assert leases == {before.lease}
    assert (after.lease, after.restarts, after.state) == (before.lease, 0, pb.JOB_STATE_RUNNING)


@pytest.mark.slow
def test_a_suspended_agent_is_dead_to_its_peers_and_keeps_its_job(tmp_path: Path) -> None:
    stage = started(tmp_path, {"silent_after_s": 60.0, "lease_overlap_s": 60.0, "mass_silence_s": 0.0})
    with stage.cluster:
        stage.cluster.start()
        job = stage.submit_witness("kept", MANY, RATES)
        before = stage.wait_saved(job)
        time.sleep(3.0)  # the agents have a view, and answers of each other

        stage.cluster.processes["n0"].send_signal(signal.SIGSTOP)
        stage.wait(lambda: stage.node("n0").state == "silent", "the node is silent")
        detail, leases, began_s = stage.node("n0").detail, set(), time.monotonic()
        while time.monotonic() < began_s + QUIET_S:
            leases.add(stage.job(job).lease)
            time.sleep(0.2)
        stage.cluster.processes["n0"].send_signal(signal.SIGCONT)
        stage.wait(lambda: stage.node("n0").state == "up", "it is back")
        after = stage.job(job)

    assert detail.split(";")[0] == "unreachable from the scheduler, dead to 2 other agents"
    assert leases == {before.lease}
    assert (after.lease, after.restarts, after.state) == (before.lease, 0, pb.JOB_STATE_RUNNING)

"""A hostile user floods the scheduler: an honest one is served, and no heartbeat is missed."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, free_port, program, toml, wait_until
from gavelpy.runtime.security.tokens import Role, TokenFile
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub

FLOOD_S = 60.0
HALF_OPEN, WAITING, UNREAD = 5_000, 20_000, 1_000
NODES = 3
ANSWERED_S, OF_ALL = 0.5, 0.99
REFUSED = {"flood": ("RESOURCE_EXHAUSTED", WAITING + UNREAD - 1_200), "web_flood": ("closed", WAITING)}


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def start_scheduler(cluster: LocalCluster, stub: SchedulerServiceStub, admin: str) -> None:
    cluster.run(SCHEDULER, [program("gavel-scheduler"), "--config", str(cluster.config)])
    stub.ListNodes(pb.ListNodesRequest(), metadata=bearer(admin), timeout=60.0, wait_for_ready=True)


def start_agent(cluster: LocalCluster, node_id: str, token: str, port: int) -> None:
    secret = cluster.directory / f"{node_id}.token"
    secret.write_text(token)
    secret.chmod(0o600)
    node = {
        "scheduler": f"127.0.0.1:{port}",
        "node_id": node_id,
        "gpus": "v100:1",
        "state_directory": str(cluster.directory / node_id),
        "token_file": str(secret),
        "run_as": "agent",
    }
    (cluster.directory / f"{node_id}.toml").write_text(toml({"node": node}))
    cluster.run(node_id, [program("gavel-node"), "--config", str(cluster.directory / f"{node_id}.toml")])


def times_of_answers(address: str, token: str, flood: subprocess.Popen[str]) -> list[float]:
    """Of `gavel jobs`, each on a new connection, until the flood is over."""
    took_s: list[float] = []
    while flood.poll() is None:
        began_s = time.monotonic()
        with Client(ClientSettings(scheduler=address, token=token, timeout_s=60.0)) as client:
            client.jobs()
        took_s.append(time.monotonic() - began_s)
        time.sleep(0.1)
    return took_s


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flood", "web_flood"])
def test_flood_of_one_user_delays_no_other_user_and_no_heartbeat(tmp_path: Path, kind: str) -> None:
    tokens, port, web_port = TokenFile(tmp_path / "tokens.json"), free_port(), free_port()
    node_ids = [f"n{k}" for k in range(NODES)]
    roles = {"ann": Role.USER, "eve": Role.USER, "root": Role.ADMIN} | dict.fromkeys(node_ids, Role.NODE)
    secrets = {name: tokens.create(name, role, now_s=time.time()) for name, role in roles.items()}
    settings = {
        "security": {"tokens": str(tmp_path / "tokens.json")},
        "scheduler": {"agents_listen": f"127.0.0.1:{port}", "web_listen": f"127.0.0.1:{web_port}"},
        "nodes": {"heartbeat_interval_s": 1.0, "silent_after_s": 5.0},
        "mechanism": {"round_s": 10.0},
    }

    with (
        LocalCluster(tmp_path / "cluster", (), settings) as cluster,
        grpc.insecure_channel(cluster.address) as channel,
    ):
        stub = SchedulerServiceStub(channel)

        def states() -> list[str]:
            request = pb.ListNodesRequest()
            return [
                node.state for node in stub.ListNodes(request, metadata=bearer(secrets["root"]), timeout=60.0).nodes
            ]

        start_scheduler(cluster, stub, secrets["root"])
        for node_id in node_ids:
            start_agent(cluster, node_id, secrets[node_id], port)
        wait_until(lambda: states() == ["up"] * NODES, "all nodes are up", 60.0)
        job = pb.JobDescription(name="endless", steps_total=1e9, rates_steps_per_s={"k80": 1.0}, command="true")
        stub.SubmitJobs(pb.SubmitJobsRequest(jobs=[job]), metadata=bearer(secrets["eve"]), timeout=60.0)
        counts = [str(number) for number in (FLOOD_S, HALF_OPEN, WAITING, UNREAD)]
        address = {"flood": cluster.address, "web_flood": f"127.0.0.1:{web_port}"}[kind]
        command = [sys.executable, "-m", f"tests.runtime.security.{kind}", address, secrets["eve"], *counts]
        flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        took_s = times_of_answers(cluster.address, secrets["ann"], flood)
        tally, found, log = json.loads(flood.communicate()[0]), states(), cluster.log(SCHEDULER)

    took_s.sort()
    at_most_s = took_s[int(OF_ALL * (len(took_s) - 1))]
    figures = f"{len(took_s)} answers, median {took_s[len(took_s) // 2]:.3f} s, {OF_ALL:.0%} {at_most_s:.3f} s; {tally}"
    logging.getLogger(__name__).info(figures)
    assert tally["half-open"] >= HALF_OPEN
    assert tally["waits"] >= WAITING
    assert tally["streams"] >= UNREAD
    code, least = REFUSED[kind]
    assert tally[code] >= least
    assert found == ["up"] * NODES
    assert "NodeUnreachable" not in log
    assert at_most_s <= ANSWERED_S, figures

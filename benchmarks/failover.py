"""How long it takes until a standby has taken over from a killed scheduler, with many nodes and jobs.

Two schedulers on one PostgreSQL journal, 1,000 agents (`--nodes`) with two GPUs each in a separate process
(`load_agents`), 10,000 jobs. The leader is killed (`kill -9`) several times; a client submits a job at once. Goals: in
service again within 2 s at the median, all agents back and a round planned within 5 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import RATES, STEPS, request
from gavelpy.errors import GavelError
from gavelpy.runtime.checkpoint_directory import MARKER_FILE
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.local_cluster import wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.journal.postgres_server import binaries, running
from tests.runtime.live.several import Several, several

NODES, GPUS, JOBS, TIMES = 1_000, 2, 10_000, 5
ROUND_S = 2.0
LATELY_S = 3.0  # three heartbeats
SETTINGS = {
    "mechanism": {"round_s": ROUND_S},
    "nodes": {"heartbeat_interval_s": 1.0, "silent_after_s": 10.0},
}


def run(options: Sequence[str] = ()) -> None:
    """Kills the leader several times, and prints how long everything took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks failover", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES, help="simulated nodes of 2 GPUs (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs (default: %(default)s)")
    parser.add_argument("--times", type=int, default=TIMES, help="kills (default: %(default)s)")
    parser.add_argument("--lease-s", type=float, default=3.0, help="standby.lease_s (default: %(default)s)")
    given = parser.parse_args(options)
    folder = binaries()
    if folder is None:
        raise SystemExit("no PostgreSQL here (Debian: apt-get install postgresql)")
    with (
        running(folder) as url,
        tempfile.TemporaryDirectory() as place,
        several(Path(place) / "cluster", url, settings=SETTINGS, lease_s=given.lease_s) as them,
        them.client(60.0) as client,
    ):
        agents = subprocess.Popen(
            _agents(them, given.nodes, 60.0 + 60.0 * given.times), stdout=subprocess.PIPE, text=True
        )
        try:
            wait_until(lambda: _up(client) == given.nodes, f"{given.nodes} nodes are up", 120.0)
            for first in range(0, given.jobs, 1_000):
                client.submit(request(min(1_000, given.jobs - first)).jobs)
            found = [_killed(them, client, given.nodes) for _ in range(given.times)]
        finally:
            agents.kill()
            agents.wait()
    for name in found[0]:
        values = [one[name] for one in found]
        print(f"{name}: median {statistics.median(values):.2f} s, all {', '.join(f'{one:.2f}' for one in values)}")
    print(f"{given.nodes:,} nodes, {given.jobs:,} jobs, load of the machine {os.getloadavg()[0]:.1f}")


def _killed(them: Several, client: Client, nodes: int) -> dict[str, float]:
    """Seconds from the kill of the leader to each of these."""
    leader = them.leader()
    other = "b" if leader == "a" else "a"
    them.wait_standby(other)
    wait_until(lambda: _up(client) == nodes, "all nodes are up", 120.0)
    time.sleep(2 * ROUND_S)
    began_s = time.monotonic()
    them.kill(leader)
    client.submit([pb.JobDescription(steps_total=STEPS, rates_steps_per_s=RATES, command="true")])
    found = {"a submission is acknowledged": time.monotonic() - began_s}
    first = client.cluster().round
    wait_until(lambda: client.cluster().round > first, "a round is planned", 60.0)
    found["a round is planned after it"] = time.monotonic() - began_s
    wait_until(lambda: _up(client) == nodes, "all nodes are up", 120.0)
    found["all nodes are up"] = time.monotonic() - began_s
    them.start(leader)
    return found


def _up(client: Client) -> int:
    """Nodes that are up and reported lately to the scheduler that leads."""
    try:
        return sum(node.state == "up" and 0 <= node.heartbeat_age_s < LATELY_S for node in client.nodes())
    except GavelError:
        return 0


def _agents(them: Several, nodes: int, seconds: float) -> list[str]:
    marker = (them.cluster.checkpoints / MARKER_FILE).read_text().strip()
    words = [them.addresses, str(nodes), str(GPUS), str(seconds), marker]
    return [sys.executable, "-m", "benchmarks.load_agents", *words]


if __name__ == "__main__":
    run()

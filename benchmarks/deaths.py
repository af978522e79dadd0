"""How long it takes until the job of a node that died runs on another node.

Four agents of one GPU on this machine and one job. The agent of the job's node and its shims are killed (`kill -9`);
the time ends when the job's first process writes its start. `here`: the scheduler sees the processes of the agents.
`over hosts`: the scheduler counts itself as another machine, so that the other agents have to see the ends. Goals: 1 s
and 3 s.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.cluster import jobs_of, submit

TIMES = 20
NODES = tuple(LocalNode(f"n{i}", "v100:1") for i in range(4))
SETTINGS = {
    "nodes": {"heartbeat_interval_s": 1.0, "silent_after_s": 10.0, "lease_margin_s": 5.0, "grace_s": 10.0},
    "mechanism": {"round_s": 60.0, "retry_s": 0.0, "retry_max_s": 0.0},
}
ELSEWHERE = """
import sys
from gavelpy.runtime.daemon import scheduler
scheduler.boot_id = lambda: "another machine"
from gavelpy.runtime.daemon.main import main
sys.exit(main())
"""


def run(options: Sequence[str] = ()) -> None:
    """Kills nodes, and prints quantiles of the times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks deaths", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="kills (default: %(default)s)")
    given = parser.parse_args(options)
    for where, is_here in (("here", True), ("over hosts", False)):
        with tempfile.TemporaryDirectory() as place, LocalCluster(Path(place), NODES, SETTINGS) as cluster:
            _start(cluster, is_here)
            found = sorted(_deaths(cluster, Path(place) / "starts", given.times))
        p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
        print(
            f"{where}: {len(found)} dead nodes, job elsewhere after p50 {found[len(found) // 2]:.2f} s, "
            f"p99 {p99:.2f} s, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def _start(cluster: LocalCluster, is_here: bool) -> None:
    if is_here:
        cluster.start_scheduler()
    else:
        cluster.run(SCHEDULER, [sys.executable, "-c", ELSEWHERE, "--config", str(cluster.config)])
        wait_until(cluster.is_serving, "the scheduler answers")
    for node in cluster.nodes:
        cluster.start_agent(node)
    wait_until(lambda: cluster.nodes_up() == len(NODES), "all nodes are up")


def _deaths(cluster: LocalCluster, starts: Path, times: int) -> list[float]:
    starts.touch()
    command = f"/bin/sh -c 'date +%s.%N >> {starts}; exec sleep 100000'"
    job = pb.JobDescription(
        name="it", steps_total=1e9, gpus=1, rates_steps_per_s={"v100": 1.0}, command=command, working_directory="/"
    )
    (serial,) = submit(cluster, [job], "it")
    found = []
    for count in range(1, times + 1):
        wait_until(lambda count=count: len(_starts(starts)) == count, f"start {count}", 120.0)  # type: ignore[misc]  # a default
        wait_until(lambda: jobs_of(cluster)[serial].state == pb.JOB_STATE_RUNNING, "it is known to run")
        time.sleep(1.5)  # neighbors know its processes
        name = jobs_of(cluster)[serial].node_ids[0]
        node = next(node for node in NODES if node.node_id == name)
        killed_s = time.time()
        cluster.kill_node(node)
        wait_until(lambda count=count: len(_starts(starts)) > count, "it runs elsewhere", 120.0)  # type: ignore[misc]  # a default
        found.append(_starts(starts)[count] - killed_s)
        cluster.start_agent(node)
        wait_until(lambda: cluster.nodes_up() == len(NODES), "the node is back")
    return found


def _starts(starts: Path) -> list[float]:
    return [float(line) for line in starts.read_text(encoding="utf-8").split()]

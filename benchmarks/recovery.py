"""Recovery time: of a scheduler after `kill -9` with 10,000 jobs in its journal, of jobs after the death of a node.

Byte code is compiled beforehand, as in an installed package. Goals: in service again within 2 s, also after a long run
with many events; jobs of a node that is certainly dead run elsewhere within 3 s, whether the scheduler detects the
death itself or an operator declares it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from benchmarks import load
from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode, processes_below, wait_until
from gavelpy.runtime.wire import client_pb2 as pb

JOBS = 10_000
AGENTS = 500
BUSY_S = 60.0
RUNS = 5
NODES = (LocalNode("n0", "v100:2"), LocalNode("n1", "v100:2"))
PATIENCE_S = 60.0


def run() -> None:
    """Measures everything, with a cache of byte code."""
    with tempfile.TemporaryDirectory() as byte_code:
        os.environ["PYTHONPYCACHEPREFIX"] = byte_code
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        measure()


def measure() -> None:
    """Measures everything."""
    restarts()
    for what, kill in (("all its processes gone", kill_node), ("cut off, then declared lost", declare_lost)):
        took_s = [moved_s(kill) for _ in range(RUNS)]
        print(f"node {what}: its jobs run elsewhere after {times(took_s)} (goal 3 s); {load_of_machine()}", flush=True)


def restarts() -> None:
    """Restarts the scheduler: idle with all jobs waiting, then after a minute with hundreds of busy nodes."""
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory), (), load.SETTINGS) as cluster:
        empty_s = cluster.start_scheduler()
        with cluster.client() as client:
            for _ in range(JOBS // load.BATCH):
                client.SubmitJobs(load.request(load.BATCH), timeout=60.0)
        print(f"first start: {empty_s:.2f} s; imports of these: {times([imports_s() for _ in range(RUNS)])}")
        print_restarts(cluster, f"{JOBS:,} waiting jobs")
        agents = subprocess.Popen(load.agents_command(cluster, AGENTS, 2, 100_000.0), stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: cluster.nodes_up() == AGENTS, f"{AGENTS} nodes are up", PATIENCE_S)
            time.sleep(BUSY_S)
            print_restarts(cluster, f"{JOBS:,} jobs on {AGENTS} nodes at work for {BUSY_S:g} s and more")
        finally:
            agents.kill()
            agents.wait()


def print_restarts(cluster: LocalCluster, what: str) -> None:
    """Kills and restarts the scheduler several times."""
    took_s, read_s, cpu_s, events = [], [], [], []
    for _ in range(RUNS):
        time.sleep(2.0)  # lets events happen after the last start
        cluster.kill(SCHEDULER)
        began_s = time.time()
        took_s.append(cluster.start_scheduler())
        cpu_s.append(load.processor_s(cluster.processes[SCHEDULER].pid))
        at_s, count = journal_read(cluster)
        read_s.append(at_s - began_s)
        events.append(count)
    print(f"killed and started with {what}: answers after {times(took_s)} (goal 2 s)")
    print(f"    of these, until the journal was read: {times(read_s)}, with {events} events replayed")
    print(f"    processor time until then: {times(cpu_s)}; {load_of_machine()}", flush=True)


def journal_read(cluster: LocalCluster) -> tuple[float, int]:
    """When the newest scheduler had read its journal, as Unix time, and how many events it replayed."""
    lines = [line for line in cluster.log(SCHEDULER).splitlines() if '"journal read"' in line]
    entry = json.loads(lines[-1])
    return datetime.fromisoformat(entry["time"]).timestamp(), entry["events"]


def imports_s() -> float:
    """Seconds to import the daemon's modules in a separate process, including the start of the interpreter."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import gavelpy.runtime.daemon.service"], check=True)
    return time.monotonic() - began_s


def moved_s(kill: Callable[[LocalCluster, LocalNode], float]) -> float:
    """Seconds from a node's confirmed death until all its jobs run on the other node."""
    settings = {"mechanism": {"round_s": 60.0}, "nodes": {"heartbeat_interval_s": 1.0, "silent_after_s": 10.0}}
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory), NODES, settings) as cluster:
        cluster.start()
        jobs = [
            pb.JobDescription(name=f"job-{k}", steps_total=1e6, rates_steps_per_s={"v100": 1.0}, command="sleep 600")
            for k in range(2)
        ]
        with cluster.client() as client:
            client.SubmitJobs(pb.SubmitJobsRequest(jobs=jobs), timeout=10.0)
        wait_until(lambda: all(job.state == pb.JOB_STATE_RUNNING for job in listed(cluster)), "both run", PATIENCE_S)
        time.sleep(2.0)
        [first, *_] = listed(cluster)
        victim = next(node for node in NODES if node.node_id == first.node_ids[0])
        began_s = kill(cluster, victim)
        wait_until(lambda: all(runs_away_from(job, victim) for job in listed(cluster)), "they run again", PATIENCE_S)
        return time.monotonic() - began_s


def kill_node(cluster: LocalCluster, victim: LocalNode) -> float:
    """Kills a node as a power failure would; the scheduler, on the same machine here, sees its processes disappear."""
    began_s = time.monotonic()
    cluster.kill_node(victim)
    return began_s


def declare_lost(cluster: LocalCluster, victim: LocalNode) -> float:
    """Makes a node with running jobs unreachable; then the operator declares it lost."""
    for number in processes_below(cluster.directory / victim.node_id):
        os.kill(number, signal.SIGSTOP)
    cluster.kill(victim.node_id)
    time.sleep(1.0)
    began_s = time.monotonic()
    with cluster.client() as client:
        client.SetNode(pb.SetNodeRequest(node_id=victim.node_id, wish=pb.NODE_WISH_LOST), timeout=10.0)
    return began_s


def runs_away_from(job: pb.Job, node: LocalNode) -> bool:
    """Whether a job runs on another node."""
    return job.state == pb.JOB_STATE_RUNNING and node.node_id not in job.node_ids


def listed(cluster: LocalCluster) -> list[pb.Job]:
    """All jobs that are not over."""
    with cluster.client() as client:
        return list(client.ListJobs(pb.ListJobsRequest(), timeout=10.0).jobs)


def times(took_s: list[float]) -> str:
    """Median and extremes."""
    return f"{statistics.median(took_s):.2f} s ({min(took_s):.2f} to {max(took_s):.2f}, {len(took_s)} times)"


def load_of_machine() -> str:
    """The load of the machine."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


if __name__ == "__main__":
    run()

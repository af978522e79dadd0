"""The scheduler under load: durable submissions per second, round planning, memory, heartbeats.

1,000 agents (`--nodes`) with two GPUs each in a separate process (`load_agents`) that see the checkpoint directory,
10,000 jobs or more, real gRPC, SQLite with a commit to disk before every answer. Goals: 300 submissions/s one by one
from 8 clients, 5,000 jobs/s in batches, rounds planned within 100 ms (99 %), no heartbeat missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

from gavelpy.runtime.checkpoint_directory import MARKER_FILE
from gavelpy.runtime.local_cluster import LocalCluster, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub

NODES, GPUS = 1_000, 2
JOBS = 10_000
LISTED = 10_000  # a page has no more
LISTS = 5
CLIENTS = 8
ONE_BY_ONE_S = 10.0
BATCH = 1_000
BATCHES_MIN = 5
LISTEN_S = 60.0
SETTINGS = {"mechanism": {"round_s": 10.0}, "nodes": {"heartbeat_interval_s": 1.0, "silent_after_s": 10.0}}
RATES = {"v100": 100.0, "p100": 40.0, "k80": 10.0}
STEPS = 2_000.0  # 20 s to 200 s


def run(options: Sequence[str] = ()) -> None:
    """Measures everything on one scheduler."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks load", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES, help="simulated nodes of 2 GPUs (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs submitted in all, or more (default: %(default)s)")
    given = parser.parse_args(options)
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(Path(directory), (), SETTINGS, serves_http=True) as cluster,
    ):
        cluster.start_scheduler()
        idle = one_by_one(cluster, "submitted one by one from {clients} clients, no nodes")
        command = agents_command(cluster, given.nodes, GPUS, 2 * ONE_BY_ONE_S + LISTEN_S + 60.0)
        agents = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            measure(cluster, agents, idle, given.nodes, given.jobs)
        finally:
            agents.kill()
            agents.wait()


def measure(cluster: LocalCluster, agents: subprocess.Popen[str], submitted: int, nodes: int, jobs: int) -> None:
    """Prints a line per figure."""
    wait_until(lambda: cluster.nodes_up() == nodes, f"{nodes} nodes are up", 120.0)
    with timed(cluster, f"{nodes:,} nodes that run the first jobs, for {ONE_BY_ONE_S:g} s", [], agents.pid):
        time.sleep(ONE_BY_ONE_S)
    submitted += one_by_one(cluster, f"the same with {nodes:,} nodes of {GPUS} GPUs", agents.pid)
    rest = max(BATCHES_MIN * BATCH, jobs - submitted)
    batches = [request(min(BATCH, rest - first)) for first in range(0, rest, BATCH)]  # created before the clock starts
    with (
        cluster.client() as client,
        timed(cluster, f"submitted in batches of {BATCH:,} (goal 5,000/s)", [rest], agents.pid),
    ):
        for batch in batches:
            client.SubmitJobs(batch, timeout=60.0)
    with timed(cluster, f"{nodes:,} nodes and {submitted + rest:,} jobs for {LISTEN_S:g} s", [], agents.pid):
        time.sleep(LISTEN_S)
    listed(cluster)
    metrics = page(cluster)
    print(f"nodes up: {cluster.nodes_up()} of {nodes}; fell silent meanwhile: {silences(metrics)} (goal 0)")
    for name in ("gavel_round_planning_seconds", "gavel_journal_commit_seconds", "gavel_solve_seconds"):
        print(f"{name}, 50 % and 99 %: {quantile(metrics, name, 0.5)}, {quantile(metrics, name, 0.99)}")
    print(f"memory of the scheduler at its peak: {peak_mb(cluster.processes['scheduler'].pid):.0f} MB")
    out, _ = agents.communicate(timeout=200.0)
    print(f"agents: {json.dumps(json.loads(out))}")


@contextlib.contextmanager
def timed(cluster: LocalCluster, what: str, counts: list[int], agents: int = 0) -> Iterator[None]:
    """Prints the duration of a block, the scheduler's CPU time for it, and the machine's load.

    `counts`: numbers of operations; their sum is read afterwards. `agents`: the process of the simulated nodes.
    """
    process = cluster.processes["scheduler"].pid
    cpu_s, agents_s, began_s = processor_s(process), processor_s(agents), time.monotonic()
    yield
    took_s, cpu_s = time.monotonic() - began_s, processor_s(process) - cpu_s
    agents_s = processor_s(agents) - agents_s
    count = sum(counts)
    rate = f"{count / took_s:.0f}/s, {1e3 * cpu_s / count:.2f} ms of the scheduler each; " if count else ""
    busy = f"scheduler {cpu_s / took_s:.0%} of a core, nodes {agents_s / took_s:.0%}"
    busy += f", load of the machine {os.getloadavg()[0]:.1f}"
    print(f"{what}: {rate}{busy}", flush=True)


def agents_command(cluster: LocalCluster, nodes: int, gpus: int, seconds: float) -> list[str]:
    """The command that starts the simulated nodes."""
    command = [sys.executable, "-m", "benchmarks.load_agents", cluster.address, str(nodes), str(gpus), str(seconds)]
    return [*command, (cluster.checkpoints / MARKER_FILE).read_text().strip()]


def one_by_one(cluster: LocalCluster, what: str, agents: int = 0) -> int:
    """Number of acknowledged submissions by CLIENTS clients, with one job per call."""
    counts = [0] * CLIENTS
    until_s = time.monotonic() + ONE_BY_ONE_S

    def client(index: int) -> None:
        channel = grpc.insecure_channel(f"127.0.0.1:{cluster.port}", [("grpc.use_local_subchannel_pool", 1)])
        stub = SchedulerServiceStub(channel)
        while time.monotonic() < until_s:
            stub.SubmitJobs(request(1), timeout=10.0)
            counts[index] += 1
        channel.close()

    threads = [threading.Thread(target=client, args=(index,)) for index in range(CLIENTS)]
    with timed(cluster, f"{what.format(clients=CLIENTS)} (goal 300/s)", counts, agents):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts)


def listed(cluster: LocalCluster) -> None:
    """Lists all jobs several times; prints the time, and how long another call waits during that.

    A wait is also printed as the CPU time that the scheduler spends during it, which other work on the machine does not
    prolong.
    """
    took_s, waits = zip(*(listed_once(cluster) for _ in range(LISTS)), strict=True)
    at_most = [max(times) for times in waits]
    lists = f"{LISTED:,} jobs listed in {statistics.median(took_s):.2f} s of CPU (median of {LISTS})"
    computed, elapsed = (statistics.median(times) for times in zip(*at_most, strict=True))
    print(f"{lists}; longest wait of others: {1e3 * computed:.0f} ms of CPU, {1e3 * elapsed:.0f} ms elapsed (medians)")


def listed_once(cluster: LocalCluster) -> tuple[float, list[tuple[float, float]]]:
    """The scheduler's CPU time for a list, and that of each other call's wait with the time elapsed."""
    process, is_over = cluster.processes["scheduler"].pid, threading.Event()
    waits: list[tuple[float, float]] = []

    def others() -> None:
        with cluster.client() as client:
            while not is_over.is_set():
                began = cpu_clock_s(process), time.monotonic()
                client.GetServerInfo(pb.GetServerInfoRequest(api_versions=[1]), timeout=10.0)
                waits.append((cpu_clock_s(process) - began[0], time.monotonic() - began[1]))
                is_over.wait(0.001)

    thread = threading.Thread(target=others)
    with cluster.client() as client:
        thread.start()
        began_s = cpu_clock_s(process)
        client.ListJobs(pb.ListJobsRequest(page_size=LISTED, all_states=True), timeout=60.0)
        took_s = cpu_clock_s(process) - began_s
        is_over.set()
        thread.join()
    return took_s, waits


def cpu_clock_s(process: int) -> float:
    """CPU time of a process by its clock, which is finer than that of `processor_s`."""
    return time.clock_gettime((~process << 3) | 2)  # as clock_getcpuclockid of the C library


def request(count: int) -> pb.SubmitJobsRequest:
    """A request with jobs of a few minutes at most."""
    job = pb.JobDescription(steps_total=STEPS, rates_steps_per_s=RATES, command="true", preemptible=True)
    return pb.SubmitJobsRequest(idempotency_key=uuid.uuid4().hex, jobs=[job] * count)


def page(cluster: LocalCluster) -> str:
    """The contents of /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http_port}/metrics", timeout=10.0) as answer:
        text: str = answer.read().decode()
    return text


def silences(metrics: str) -> int:
    """How often a node was declared silent."""
    found = re.search(r'^gavel_events_total{kind="NodeSilent"} (\S+)$', metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0


def quantile(metrics: str, name: str, part: float) -> str:
    """Upper bound of the histogram bucket that contains this quantile."""
    found = re.findall(rf'^{name}_bucket{{[^}}]*?le="([^"]+)"[^}}]*}} ([\d.e+]+)$', metrics, re.MULTILINE)
    buckets: dict[str, float] = {}  # over all other labels
    for bound, count in found:
        buckets[bound] = buckets.get(bound, 0.0) + float(count)
    total = buckets.get("+Inf", 0.0)
    return next((f"<= {bound} s" for bound, count in buckets.items() if count >= part * total > 0), "not measured")


def peak_mb(process: int) -> float:
    """Peak memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return float(found[1]) / 1024 if found else 0.0


def processor_s(process: int) -> float:
    """CPU time of a process; 0 for no process."""
    if not process:
        return 0.0
    stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    run()

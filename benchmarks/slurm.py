"""Slurm against gavel-scheduler in one run: submissions per second, start of a job, losses by `kill -9`.

Submissions to Slurm use the command `sbatch`; ours are measured over a connection and by command. Both have their
default configuration.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import grpc

from benchmarks.slurm_server import SlurmServer, missing
from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub

NODES = ("n0", "n1")
SUBMIT_S = 8.0
STARTS = 11
HELD = 10
KILLED_AFTER_S = 1.0
SETTINGS = {
    "mechanism": {"round_s": 360.0},
    "nodes": {"heartbeat_interval_s": 1.0, "silent_after_s": 10.0, "lease_margin_s": 5.0, "grace_s": 10.0},
}
Submit = Callable[[], object]


def run() -> None:
    """Measures Slurm, then gavel-scheduler."""
    if problem := missing():
        print(f"left out: {problem}")
        return
    with tempfile.TemporaryDirectory() as directory, SlurmServer(Path(directory), NODES) as slurm:
        measure_slurm(slurm)
    nodes = tuple(LocalNode(name, "v100:2") for name in NODES)
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory), nodes, SETTINGS) as cluster:
        cluster.start()
        measure_ours(cluster)


def measure_slurm(slurm: SlurmServer) -> None:
    """Measures Slurm: starts first, while no job waits."""

    def batch(*options: str) -> str:
        answer = slurm.run("sbatch", "--parsable", "-o", "/dev/null", *options)
        assert answer is not None, "sbatch was refused"
        return answer

    print_times(
        "Slurm", "a one-GPU job starts after", start_s(slurm.directory, lambda c: batch("--gres=gpu:1", "--wrap", c))
    )
    for clients in (1, 8):
        rate = submitted_per_s(clients, lambda: lambda: batch("-H", "--gres=gpu:1", "--wrap", "true"))
        print(f"Slurm: {rate:.0f} submissions/s by sbatch, {clients} at a time; {load_of_machine()}", flush=True)
    time.sleep(8.0)  # all of these are on its disk by then
    numbers = {batch("-H", "--wrap", "true") for _ in range(HELD)}
    time.sleep(KILLED_AFTER_S)
    slurm.kill_controller()
    back_s = slurm.start_controller()
    known = set((slurm.run("squeue", "-h", "-o", "%i") or "").split())
    print(f"Slurm: of {HELD} jobs acknowledged {KILLED_AFTER_S:g} s before kill -9, {len(numbers & known)} are known "
          f"after; it answers after {back_s:.2f} s", flush=True)  # fmt: skip


def measure_ours(cluster: LocalCluster) -> None:
    """The same measurements for gavel-scheduler."""
    with cluster.client() as client:
        print_times("gavel", "a one-GPU job starts after",
             start_s(cluster.directory, lambda c: client.SubmitJobs(request(c), timeout=10.0)))  # fmt: skip
    held = request("true", gpu_type="none-such")

    def connected() -> Submit:
        options = [("grpc.use_local_subchannel_pool", 1)]
        stub = SchedulerServiceStub(grpc.insecure_channel(cluster.address, options))
        return lambda: stub.SubmitJobs(pb.SubmitJobsRequest(idempotency_key=uuid.uuid4().hex, jobs=held.jobs))

    for clients in (1, 8):
        rate = submitted_per_s(clients, connected)
        print(f"gavel: {rate:.0f} submissions/s by connection, {clients} at a time; {load_of_machine()}", flush=True)
    program = str(Path(sys.executable).with_name("gavel"))
    command = [program, "submit", "--scheduler", cluster.address, "--steps", "1", "--rate", "none-such:1", "--", "true"]
    rate = submitted_per_s(1, lambda: lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    print(f"gavel: {rate:.1f} submissions/s by the command, 1 at a time; {load_of_machine()}", flush=True)
    with cluster.client() as client:
        numbers = {client.SubmitJobs(held, timeout=10.0).jobs[0].job for _ in range(HELD)}
        cluster.kill(SCHEDULER)
    back_s = cluster.start_scheduler()
    with cluster.client() as client:
        listed = client.ListJobs(pb.ListJobsRequest(page_size=HELD, after=min(numbers) - 1), timeout=10.0).jobs
    known = {job.job for job in listed}
    print(f"gavel: of {HELD} jobs acknowledged right before kill -9, {len(numbers & known)} are known after; "
          f"it answers after {back_s:.2f} s", flush=True)  # fmt: skip


def request(command: str, gpu_type: str = "v100") -> pb.SubmitJobsRequest:
    """A request with one job on one GPU."""
    job = pb.JobDescription(steps_total=1.0, rates_steps_per_s={gpu_type: 1.0}, command=command)
    return pb.SubmitJobsRequest(jobs=[job])


def start_s(directory: Path, submit: Callable[[str], object]) -> list[float]:
    """Seconds from submission to the first command of the job, by the job's own clock; one job at a time."""
    took_s = []
    for number in range(STARTS):
        file = directory / f"started-{number}"
        began_s = time.time()
        submit(f"sh -c 'date +%s.%N > {file}.new && mv {file}.new {file}'")
        wait_until(file.exists, "the job has started", 60.0)
        took_s.append(float(file.read_text()) - began_s)
        time.sleep(2.0)  # lets the cluster become idle
    return took_s


def submitted_per_s(clients: int, connect: Callable[[], Submit]) -> float:
    """Acknowledged submissions per second of concurrent clients, each of which submits one job at a time."""
    counts = [0] * clients
    until_s = time.monotonic() + SUBMIT_S

    def client(index: int) -> None:
        submit = connect()
        while time.monotonic() < until_s:
            submit()
            counts[index] += 1

    threads = [threading.Thread(target=client, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SUBMIT_S


def print_times(system: str, what: str, took_s: list[float]) -> None:
    """Prints median and extremes."""
    extremes = f"{min(took_s):.3f} to {max(took_s):.3f}, {len(took_s)} times"
    print(f"{system}: {what} {statistics.median(took_s):.3f} s ({extremes}); {load_of_machine()}", flush=True)


def load_of_machine() -> str:
    """The load of the machine."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


if __name__ == "__main__":
    run()

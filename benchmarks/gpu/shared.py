"""Jobs that share one GPU under a real scheduler: by time-slicing, and with NVIDIA's Multi-Process Service."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from typing import Any
from unittest.mock import patch

from benchmarks.gpu.stage import Stage, Target
from benchmarks.gpu.worker import Answer
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode

ONE, TWO, THREE = "language_model", "actor_critic", "gan"
GIB = {ONE: 12.0, TWO: 6.0}  # declared
LEFT_GIB = 4.0  # that the third job, which declares the rest, leaves: too little for another one
ROUND_S = 10.0
SHARED_S = 8.0  # in which the rates next to each other are measured
SETTLED_S = 4.0  # after a partner was killed
STEPS = 1e9
_GREEDY = """import time, torch
from gavelpy import LeaseIterator
taken = []
for step in LeaseIterator(range(100_000)):
    if step in (50, 100):  # 1 GiB, then 8 more
        taken.append(torch.zeros((1 if step == 50 else 8) << 30, dtype=torch.uint8, device="cuda"))
    time.sleep(0.02)
"""


def run(target: Target, *, mps: bool) -> Answer:
    """Two jobs share the GPU, a third waits; one is killed, one needs more than it declared."""
    folder = target.folder / ("mps" if mps else "sliced")
    folder.mkdir(parents=True)
    (folder / "node.toml").write_text(f"[node]\nmps = {str(mps).lower()}\n")
    (folder / "rates.csv").write_text(_rates(target.gpu_type))
    settings: dict[str, dict[str, Any]] = {  # Any: TOML values
        "mechanism": {"round_s": ROUND_S, "packing": True},
        f"gpu_types.{target.gpu_type}": {"memory_gib": target.memory_gib},
        "throughputs": {"file": str(folder / "rates.csv"), "estimate": True, "warm_up_s": 1.0},
        "nodes": {"heartbeat_interval_s": 0.5, "silent_after_s": 10.0, "lease_margin_s": 5.0, "grace_s": 10.0},
    }
    node = LocalNode("n0", "" if target.on_gpu else "cpu:1")
    with (
        patch.dict(os.environ, {"GAVEL_NODE_CONFIG": str(folder / "node.toml")}),
        LocalCluster(folder / "cluster", (node,), settings) as cluster,
    ):
        cluster.start()
        return _shared(Stage(cluster, target), mps=mps)


def _rates(gpu_type: str) -> str:
    """Rates at which any two jobs gain by sharing the GPU: assumed, until they are measured."""
    kinds = ("LSTM", "A2C", "DCGAN", "greedy")
    pairs = itertools.combinations_with_replacement(kinds, 2)
    rows = [f"{one},1,{gpu_type},100,," for one in kinds]
    rows += [f"{one},1,{gpu_type},90,{two},90" for one, two in pairs]
    return "\n".join(["job_type,gpus,gpu_type,rate_steps_per_s,pair_job_type,pair_rate_steps_per_s", *rows, ""])


def _shared(stage: Stage, *, mps: bool) -> Answer:
    kinds = {ONE: "LSTM", TWO: "A2C", THREE: "DCGAN"}
    declared = {**GIB, THREE: stage.target.memory_gib - LEFT_GIB}

    def submit(name: str) -> int:
        return stage.submit(
            name, stage.target.command(name), STEPS, job_type=kinds[name], gpu_memory_gib=declared[name],
            checkpoint_every_s=1.0, preemptible=True,
        )  # fmt: skip

    one, two = submit(ONE), submit(TWO)
    stage.wait(lambda: list(stage.job(one).co_located_with) == [two], "the two share the GPU")
    for job in (one, two):
        stage.wait_steps(job, 1.0, saved=1.0)
    found: Answer = {"node": stage.cli("nodes", "-o", "json"), "variables": _device_variables(stage, one)}
    began = {job: (time.monotonic(), stage.job(job).steps_done) for job in (one, two)}
    time.sleep(SHARED_S)
    found["rates"] = {
        name: (stage.job(job).steps_done - began[job][1]) / (time.monotonic() - began[job][0])
        for name, job in ((ONE, one), (TWO, two))
    }
    found["reported_rates"] = {name: stage.job(job).rate_steps_per_s for name, job in ((ONE, one), (TWO, two))}
    stage.target.note(**found)
    found["killed"] = _killed(stage, one, two)
    stage.target.note(killed=found["killed"])
    found["explained"] = {name: stage.cli("explain", str(job)) for name, job in ((ONE, one), (TWO, two))}
    if not mps:
        return {**found, "too_large": _too_large(stage, submit(THREE))}
    if stage.target.on_gpu:
        found["greedy"] = _greedy(stage)
    return {**found, "daemon": _daemon_after_leaving(stage)}


def _killed(stage: Stage, one: int, two: int) -> Answer:
    """Kills the first job: its partner must keep its lease and its process, and continue."""
    before, process = stage.job(two), stage.processes(two)
    lease = stage.job(one).lease
    os.kill(stage.processes(one)[0], signal.SIGKILL)
    killed_at = stage.job(two).steps_done
    time.sleep(SETTLED_S)
    after = stage.job(two)
    stage.wait(lambda: stage.job(one).lease > lease, "the killed job runs again")
    stage.wait_steps(one, 1.0)
    return {
        "events": stage.cli("events", "--limit", "60"),
        "partner_kept_lease": stage.job(two).lease == before.lease or "a round has ended",
        "partner_kept_process": stage.processes(two) == process,
        "partner_failures": after.failures,
        "partner_steps_meanwhile": after.steps_done - killed_at,
        "failure": stage.job(one).failure,
        "shared_again": list(stage.job(one).co_located_with) == [two],
    }


def _greedy(stage: Stage) -> Answer:
    """A job that declares 4 GiB and takes 9: the service refuses it."""
    program = stage.target.folder / "greedy.py"
    program.write_text(_GREEDY)
    command = f"{sys.executable} {program}"
    job = stage.submit("greedy", command, 1000.0, job_type="greedy", gpu_memory_gib=4.0, preemptible=True)
    stage.wait(lambda: stage.job(job).failures > 0, "the greedy job has failed")
    answer = stage.job(job)
    stage.cli("cancel", str(job))
    return {"class": answer.failure_class, "failure": answer.failure, "detail": answer.detail}


def _too_large(stage: Stage, three: int) -> Answer:
    """Whether the third job, which fits next to no other, was ever with another one, over some rounds."""
    with_others = 0
    seen = 0
    until_s = time.monotonic() + 2.0 * ROUND_S
    while time.monotonic() < until_s:
        job = stage.job(three)
        seen += job.lease >= 0
        with_others += bool(job.co_located_with)
        time.sleep(0.2)
    return {
        "looks_while_it_ran": seen,
        "looks_with_another_job": with_others,
        "explained": stage.cli("explain", str(three)),
    }


def _daemon_after_leaving(stage: Stage) -> str:
    """What is left of the service when all jobs are over and the agent has left."""
    stage.cli("cancel", "--state", "running", "--yes")
    stage.cli("cancel", "--state", "waiting", "--yes")
    stage.wait(lambda: not any(stage.processes(job) for job in range(8)), "no job runs")
    time.sleep(2.0)
    agent = stage.cluster.processes["n0"]
    agent.terminate()
    agent.wait(timeout=30)
    found = subprocess.run(["pgrep", "-fc", "nvidia-cuda-mps"], capture_output=True, text=True, check=False).stdout
    return f"agent's exit code {agent.returncode}; processes of the service: {found.strip()}"


def _device_variables(stage: Stage, job: int) -> dict[str, str]:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GAVEL_GPU_TYPE", "LD_LIBRARY_PATH")
    found = stage.variables(job)
    return {name: value for name, value in found.items() if name in names or name.startswith("CUDA_MPS")}

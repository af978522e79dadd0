"""Stops, kills and errors of jobs with state on a GPU: what is lost, and whether the digits are those of a whole run.

Several nodes offer the same GPU, so that jobs move between nodes and all run at once; nothing is timed here.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from benchmarks.gpu.stage import Stage, Target
from benchmarks.gpu.worker import CLASSES, Answer
from gavelpy.runtime.lease_files import read_progress
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode

JOBS = ("language_model", "gan")  # those that are moved and killed in a cluster
STEPS_GPU, STEPS_CPU = 500, 500
SAVED_EVERY_S = 1.0
KINDS = ("whole", "moved", "killed")
_TOO_LARGE = "import torch; torch.zeros(1 << 40, dtype=torch.uint8, device='cuda')"  # at once: other jobs need memory
_OUT_OF_BOUNDS = "import torch; t = torch.zeros(4, device='cuda'); i = torch.tensor([9], device='cuda'); print(t[i])"
_SETTINGS = {
    "mechanism": {"round_s": 3600.0, "retry_s": 0.5, "retry_max_s": 1.0},
    "nodes": {"heartbeat_interval_s": 0.5, "silent_after_s": 10.0, "lease_margin_s": 5.0, "grace_s": 20.0},
}


def run(target: Target) -> Answer:
    """Moves and kills jobs, and lets two fail."""
    names = JOBS if target.on_gpu else JOBS[:1]
    nodes = tuple(LocalNode(f"n{k}", f"{target.gpu_type}:1") for k in range(len(KINDS) * len(names) + 2))
    with LocalCluster(target.folder / "cluster", nodes, _SETTINGS) as cluster:
        cluster.start()
        stage = Stage(cluster, target)
        failing = _failing(stage) if target.on_gpu else {}
        steps = STEPS_GPU if target.on_gpu else STEPS_CPU
        jobs = {
            (name, kind): stage.submit(
                f"{name}-{kind}", target.command(name, "--deterministic"), steps, checkpoint_every_s=SAVED_EVERY_S
            )
            for name in names
            for kind in KINDS
        }
        moved = {name: _moved(stage, jobs[name, "moved"]) for name in names}
        killed = {name: _killed(stage, jobs[name, "killed"]) for name in names}
        for kind, orders in (("moved", moved), ("killed", killed)):
            for name, order in orders.items():
                order |= _resumed(stage, jobs[name, kind], order)
        target.note(moved=moved, killed=killed)
        stage.wait_over(*failing.values())
        failures = {name: _failure(stage, job) for name, job in failing.items()}
        target.note(failures=failures)
        stage.wait_over(*jobs.values())
        results = {name: {kind: dict(stage.last_line(jobs[name, kind])) for kind in KINDS} for name in names}
        return {
            "moved": moved,
            "killed": killed,
            "results": results,
            "failures": failures,
            "explained": {name: stage.cli("explain", str(jobs[name, "killed"])) for name in names},
        }


def _moved(stage: Stage, job: int) -> Answer:
    """Stops the job on its node, which is drained."""
    before = stage.wait_steps(job, 20.0)
    stage.cli("drain", before.node_ids[0])
    stage.cli("requeue", str(job), "--force")
    return {"lease": before.lease, "from": before.node_ids[0], "steps_at_order": before.steps_done}


def _killed(stage: Stage, job: int) -> Answer:
    """Kills the job's process some time after a checkpoint."""
    stage.wait_steps(job, 20.0, saved=1.0)
    ((lease, launch),) = stage.leases(job).items()
    process = stage.processes(job)[0]
    os.kill(process, signal.SIGSTOP)  # so that nothing changes between the reading and the end
    progress = read_progress(Path(launch.environment["GAVEL_LEASE_DIR"]), 0)
    assert progress is not None, "the job has reported progress"
    os.kill(process, signal.SIGKILL)
    return {"lease": lease, "steps_done": progress.steps_done, "steps_saved": progress.steps_saved}


def _resumed(stage: Stage, job: int, order: Answer) -> Answer:
    """Where and at which step the job has resumed, once it has."""
    stage.wait(lambda: any(lease > order["lease"] for lease in stage.leases(job)), f"job {job} has another lease")
    launch = stage.leases(job)[max(stage.leases(job))]
    return {"on": launch.environment["GAVEL_NODE_ID"], "resumed_at": launch.steps_done}


def _failing(stage: Stage) -> dict[str, int]:
    programs = {"out-of-memory": _TOO_LARGE, "out-of-bounds": _OUT_OF_BOUNDS}
    return {name: stage.submit(name, f'{sys.executable} -c "{text}"', 1000.0) for name, text in programs.items()}


def _failure(stage: Stage, serial: int) -> Answer:
    job = stage.job(serial)
    return {
        "class": job.failure_class,
        "failures": job.failures,
        "detail": job.detail,
        "failure": job.failure,
        "explain": stage.cli("explain", str(serial)),
    }


def digits(target: Target, steps: int = 60) -> Answer:
    """Whether each job ends with the same digits: two whole runs, and one that stopped at half; all run at once.

    With deterministic algorithms; and two whole runs with torch's defaults, whose difference is the noise.
    """
    import json
    import subprocess

    from benchmarks.gpu.worker import JOBS as FOLDER

    def start(name: str, upto: int, keep: str, *more: str) -> subprocess.Popen[str]:
        words = [sys.executable, str(FOLDER / f"{name}.py"), *target.arguments, f"--steps={upto}", *more]
        words += [f"--checkpoints={target.folder / keep}"] if keep else []
        return subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(process: subprocess.Popen[str]) -> Answer:
        out, errors = process.communicate(timeout=180)
        return dict(json.loads(out.splitlines()[-1])) if out.strip() else {"error": errors[-1500:]}

    exact = "--deterministic"
    first = {name: start(name, steps // 2, name, exact) for name in CLASSES}
    whole = {name: [start(name, steps, "", exact) for _ in range(2)] for name in CLASSES}
    default = {name: [start(name, steps, "") for _ in range(2)] for name in CLASSES}
    halves = {name: end(process) for name, process in first.items()}
    second = {name: start(name, steps, name, exact) for name in CLASSES}
    return {
        name: {
            "half": halves[name],
            "whole": [end(one) for one in whole[name]],
            "resumed": end(second[name]),
            "default": [end(one) for one in default[name]],
        }
        for name in CLASSES
    }

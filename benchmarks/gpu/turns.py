"""The six jobs take turns on one GPU under a real scheduler; what starts, stops and memory are measured to be."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from benchmarks.gpu.stage import Stage, Target
from benchmarks.gpu.worker import CLASSES, Answer
from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode

ROUND_S = 7.0
TURNS = 2
PATIENCE_S = 2.0 * ROUND_S * TURNS * len(CLASSES)
STEPS = 1e9
GRACE_S = 10.0


def run(target: Target) -> Answer:
    """Each job gets TURNS leases on the detected GPU."""
    node = LocalNode("n0", "" if target.on_gpu else "cpu:1")
    settings = {
        "mechanism": {"round_s": ROUND_S},
        "nodes": {"heartbeat_interval_s": 0.5, "silent_after_s": 10.0, "lease_margin_s": 5.0, "grace_s": GRACE_S},
        "throughputs": {"warm_up_s": 1.0},
    }
    with LocalCluster(target.folder / "cluster", (node,), settings) as cluster:
        cluster.start()
        stage = Stage(cluster, target)
        nodes = stage.cli("nodes", "-o", "json")
        jobs = {name: stage.submit(name, target.command(name), STEPS, preemptible=True) for name in CLASSES}
        leases: dict[str, set[int]] = {name: set() for name in CLASSES}
        rates: dict[str, float] = {}

        def each_had_turns() -> bool:
            for name, serial in jobs.items():
                job = stage.job(serial)
                leases[name] |= {job.lease} - {-1}
                if job.rate_steps_per_s and job.lease >= 0:
                    rates[name] = job.rate_steps_per_s
            return all(len(found) >= TURNS for found in leases.values())

        began_s = time.monotonic()
        target.note(nodes=nodes)
        with suppress(RemoteViolation):  # what there is by then is the result
            stage.wait(each_had_turns, "each job has had its turns", PATIENCE_S)
        explained = {name: stage.cli("explain", str(serial)) for name, serial in jobs.items()}
        events = stage.cli("events", "-o", "json")
        listed = json.loads(stage.cli("jobs", "--all", "-o", "json"))
        sizes = {name: _checkpoint_bytes(cluster, serial) for name, serial in jobs.items()}
    return {
        "seconds": time.monotonic() - began_s,
        "nodes": nodes,
        "leases": {name: sorted(found) for name, found in leases.items()},
        "rates": rates,
        "checkpoint_bytes": sizes,
        "jobs": listed,
        "explained": explained,
        "events": [line for line in events.splitlines() if "easured" in line or "ended" in line or "started" in line],
    }


def _checkpoint_bytes(cluster: LocalCluster, serial: int) -> int:
    """Of the newest checkpoint of a job."""
    root = lease_files.job_checkpoints(cluster.checkpoints, serial)
    newest = max((folder for folder in root.glob("lease-*/step-*") if folder.is_dir()), default=root)
    return sum(file.stat().st_size for file in newest.glob("*") if file.is_file())

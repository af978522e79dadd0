"""Compares what the scheduler claims about checkpoints with the file system, at many moments of a run.

Claims are in lists, statuses, explanations, and the output of `gavel`. A claim is false if no complete checkpoint of
the job with as many steps is on the disk right after the answer: checkpoints are only replaced by newer ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc

from gavelpy.runtime.local_cluster import LocalCluster
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.cluster import OVER

EVERY_S = 0.1
CALL_S = 10.0
GAVEL = str(Path(sys.executable).parent / "gavel")


def steps_on_disk(checkpoints: Path, job: int) -> int:
    """Steps of the newest complete checkpoint of a job; 0 = none."""
    names = [path.parent.name for path in checkpoints.glob(f"{job}/lease-*/step-*/gavel.json")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


class ClaimsAudit:
    """Requests jobs in a thread until it is left. `claims` counts those of checkpoints; `lies` are the false ones."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.claims = 0
        self.answers = 0
        self.lies: list[str] = []

    def __enter__(self) -> ClaimsAudit:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while not self._over.wait(EVERY_S):
            try:
                turn = self._look(turn)
            except grpc.RpcError:  # the scheduler is down
                time.sleep(EVERY_S)

    def _look(self, turn: int) -> int:
        with self._cluster.client() as client:
            request = pb.ListJobsRequest(all_states=True, page_size=10_000)
            jobs = list(client.ListJobs(request, timeout=CALL_S).jobs)
            for job in jobs:
                self._job(job, "list")
            if not jobs:
                return turn
            chosen = str(jobs[turn % len(jobs)].job)
            for job in client.WaitJobs(pb.WaitJobsRequest(jobs=[chosen]), timeout=CALL_S).jobs:
                self._job(job, "status")
            self._explained(client.GetJob(pb.GetJobRequest(job=chosen), timeout=CALL_S))
        return turn + 1

    def _job(self, job: pb.Job, where: str) -> None:
        self.answers += 1
        self._claim(job.job, job.steps_saved, where)
        saved = re.search(r"has saved ([0-9]+) steps", job.preemptible_why)
        self._claim(job.job, float(saved[1]) if saved else 0.0, f"{where}, preemptible_why")
        if job.steps_saved > job.steps_done:
            self.lies.append(f"{where}: job {job.job} saved {job.steps_saved} steps of {job.steps_done}")

    def _explained(self, found: pb.GetJobResponse) -> None:
        self._job(found.job, "explain")
        if found.checkpoint:
            steps = int(Path(found.checkpoint).name.removeprefix("step-"))
            self._claim(found.job.job, steps, "explain, checkpoint")
            if found.job.state not in OVER and not str(found.checkpoint).startswith(str(self._cluster.checkpoints)):
                self.lies.append(f"explain: the checkpoint {found.checkpoint} is in no checkpoint directory")

    def _claim(self, job: int, steps: float, where: str) -> None:
        if steps <= 0:
            return
        self.claims += 1
        found = steps_on_disk(self._cluster.checkpoints, job)
        if found < steps:
            self.lies.append(f"{where}: job {job} has {steps:.0f} steps in a checkpoint, on disk are {found}")

    def command_line(self) -> None:
        """The same for `gavel jobs` and `gavel explain`, as users see them."""
        options = ["--scheduler", self._cluster.address]
        listed = json.loads(_run("jobs", "--all", "-o", "json", *options))["jobs"]
        for job in listed:
            self._claim(job["job"], job["steps_saved"], "gavel jobs")
        for job in listed[:4]:
            text = _run("explain", str(job["job"]), *options)
            saved = re.search(r"([0-9,]+) of them in a checkpoint", text)
            self._claim(job["job"], float(saved[1].replace(",", "")) if saved else 0.0, "gavel explain")


def _run(*arguments: str) -> str:
    return subprocess.run([GAVEL, *arguments], capture_output=True, text=True, check=True, timeout=120.0).stdout

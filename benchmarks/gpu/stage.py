"""A local cluster for the phases: jobs are submitted, watched and read as users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.worker import JOBS
from gavelpy.runtime import lease_files
from gavelpy.runtime.local_cluster import CALL_S, LocalCluster, program, wait_until
from gavelpy.runtime.wire import client_pb2 as pb

PATIENCE_S = 90.0
OVER = (pb.JOB_STATE_FINISHED, pb.JOB_STATE_CANCELLED, pb.JOB_STATE_FAILED)


@dataclass(frozen=True)
class Target:
    """What the phases run on: a GPU type, arguments of the shipped jobs, and a folder for logs."""

    gpu_type: str
    arguments: tuple[str, ...]
    folder: Path
    seconds: float = 3.0  # of a measured rate
    memory_gib: float = 140.0  # of the GPU

    @property
    def on_gpu(self) -> bool:
        """Whether jobs use a GPU."""
        return self.gpu_type != "cpu"

    def note(self, **facts: Any) -> None:  # Any: JSON values
        """Adds facts to notes.jsonl at once, with the time: a phase that is killed leaves what it has found."""
        line = json.dumps({"at_s": round(time.monotonic(), 2), "phase": self.folder.name, **facts}, default=str)
        with (self.folder.parent / "notes.jsonl").open("a") as file:
            file.write(line + "\n")

    def command(self, job: str, *arguments: str) -> str:
        """The command of a shipped job."""
        return " ".join([sys.executable, str(JOBS / f"{job}.py"), *self.arguments, *arguments])


@dataclass(frozen=True)
class Stage:
    """A running cluster."""

    cluster: LocalCluster
    target: Target

    def submit(
        self, name: str, command: str, steps: float, rate: float = 100.0, **fields: Any
    ) -> int:  # Any: of protobuf
        """Submits a job on one GPU; returns its number."""
        job = pb.JobDescription(
            name=name, command=command, steps_total=steps, rates_steps_per_s={self.target.gpu_type: rate},
            working_directory=str(self.target.folder), **fields,
        )  # fmt: skip
        with self.cluster.client() as client:
            answer = client.SubmitJobs(pb.SubmitJobsRequest(idempotency_key=name, jobs=[job]), timeout=CALL_S)
        return int(answer.jobs[0].job)

    def job(self, serial: int) -> pb.Job:
        """The scheduler's report of a job."""
        return self.explained(serial).job

    def explained(self, serial: int) -> pb.GetJobResponse:
        """The scheduler's explanation of a job."""
        with self.cluster.client() as client:
            return client.GetJob(pb.GetJobRequest(job=str(serial)), timeout=CALL_S)

    def wait(self, holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Returns as soon as the condition holds; RemoteViolation after a while."""
        wait_until(holds, what, patience_s)
        self.target.note(happened=what)

    def wait_steps(self, serial: int, steps: float, saved: float = 0.0) -> pb.Job:
        """Waits until a running job has done, and saved, so many steps; returns it."""

        def holds() -> bool:
            job = self.job(serial)
            if job.state in OVER:
                raise RuntimeError(f"job {serial} is over: {job.detail} {job.failure}")
            return job.state == pb.JOB_STATE_RUNNING and job.steps_done >= steps and job.steps_saved >= saved

        self.wait(holds, f"job {serial} has done {steps:g} steps")
        return self.job(serial)

    def wait_over(self, *serials: int) -> None:
        """Waits until jobs are over."""
        self.wait(
            lambda: all(self.job(serial).state in OVER for serial in serials),
            f"jobs {serials} are over",
            2 * PATIENCE_S,
        )

    def cli(self, *words: str) -> str:
        """The output of the command `gavel`."""
        environment = {**os.environ, "GAVEL_SCHEDULER": self.cluster.address, "COLUMNS": "120"}
        done = subprocess.run(
            [program("gavel"), *words], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    def last_line(self, serial: int) -> Mapping[str, Any]:  # Any: JSON values
        """The JSON that a shipped job printed last."""
        lines = [line for line in self.cli("logs", str(serial)).splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1])) if lines else {}

    def leases(self, serial: int) -> dict[int, lease_files.Launch]:
        """What the node started for the leases of a job that are not cleared away yet, by lease."""
        found = {}
        for file in self.cluster.directory.glob(f"*/leases/*/{lease_files.LAUNCH_FILE}"):
            launch = lease_files.read_launch(file.parent)
            if launch is not None and launch.job == serial:
                found[launch.lease] = launch
        return found

    def processes(self, serial: int) -> list[int]:
        """The processes of a job that run, of this cluster."""
        marks = (f"GAVEL_JOB_ID={serial}\0".encode(), f"GAVEL_LEASE_DIR={self.cluster.directory}/".encode())
        found = []
        for entry in Path("/proc").iterdir():
            try:
                environment = (entry / "environ").read_bytes() if entry.name.isdecimal() else b""
            except OSError:
                continue
            if all(mark in environment for mark in marks):
                found.append(int(entry.name))
        return found

    def variables(self, serial: int) -> dict[str, str]:
        """The environment of a running job's first process."""
        text = Path(f"/proc/{self.processes(serial)[0]}/environ").read_text()
        return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)

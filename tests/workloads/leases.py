"""Simulated leases: writes the files and environment that an agent would provide."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gavelpy.runtime.lease_files import LeaseTerms, clock_s, newest_checkpoint, write_lease

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "workloads" / "jobs"
LONG_S = 3600.0


@dataclass(frozen=True)
class PlayedLease:
    """One lease of a job with the folder `folder`."""

    folder: Path
    number: int
    directory: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints" / f"lease-{self.number:08d}"

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of the job; it resumes from the newest checkpoint of the previous lease."""
        before = newest_checkpoint(self.folder / "checkpoints" / f"lease-{self.number - 1:08d}")
        return {
            "GAVEL_LEASE_DIR": str(self.directory),
            "GAVEL_CHECKPOINT_DIR": str(self.checkpoints),
            "GAVEL_RESUME_DIR": str(before or ""),
            "GAVEL_LEASE": str(self.number),
            **more,
        }


def play_lease(folder: Path, number: int, *, steps_max: float = 0.0, seconds: float = LONG_S) -> PlayedLease:
    """A lease that ends at this total of steps of the job, or after a time."""
    lease = PlayedLease(folder, number, folder / f"lease-{number}")
    lease.directory.mkdir(parents=True)
    lease.checkpoints.mkdir(parents=True)
    write_lease(lease.directory, LeaseTerms(1, clock_s() + seconds, steps_max=steps_max))
    return lease


def run_script(script: str, *arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a job as a separate process, to its end."""
    path = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(JOBS / script), *arguments]
    return subprocess.run(
        command, env=path | dict(environment), capture_output=True, text=True, timeout=300, check=False
    )


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:  # Any: JSON values
    """The JSON lines of its stdout; if the job failed, fails the test with its stderr."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]

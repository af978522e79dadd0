"""A process in a simulated lease, and its lease directory."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import Launch, LeaseTerms, Progress, clock_s

VARIABLES = (
    "GAVEL_RESUME_DIR", "GAVEL_STEPS_TOTAL", "GAVEL_CHECKPOINT_EVERY_S", "GAVEL_MTBF_S", "RANK", "LOCAL_RANK",
    "WORLD_SIZE",
)  # fmt: skip


@dataclass
class Held:
    """A lease that the test controls in place of the agent."""

    directory: Path
    checkpoints: Path
    lease: LeaseTerms
    monkeypatch: pytest.MonkeyPatch

    def order(self, **changes: object) -> None:
        """Writes newer lease terms."""
        self.lease = replace(self.lease, version=self.lease.version + 1, **changes)  # type: ignore[arg-type]  # of Lease
        lease_files.write_lease(self.directory, self.lease)

    def progress(self) -> Progress:
        """The last report of the job."""
        progress = lease_files.read_progress(self.directory, 0)
        assert progress is not None
        return progress

    def environment(self, **variables: str) -> None:
        """Sets more environment variables of the job."""
        for name, value in variables.items():
            self.monkeypatch.setenv(name, value)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No lease at all."""
    for name in (*VARIABLES, "GAVEL_LEASE_DIR", "GAVEL_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def held(tmp_path: Path, outside: pytest.MonkeyPatch) -> Iterator[Held]:
    """A lease of 60 s, with a grace of 1 s."""
    directory, checkpoints = tmp_path / "lease", lease_files.lease_checkpoints(tmp_path / "checkpoints", job=1, lease=7)
    directory.mkdir()
    lease = LeaseTerms(1, clock_s() + 60.0)
    lease_files.write_lease(directory, lease)
    lease_files.write_launch(directory, Launch(1, 1, ("x",), "/", {}, ({},), grace_s=1.0))
    outside.setenv("GAVEL_LEASE_DIR", str(directory))
    outside.setenv("GAVEL_CHECKPOINT_DIR", str(checkpoints))
    handler = signal.getsignal(signal.SIGTERM)
    yield Held(directory, checkpoints, lease, outside)
    signal.signal(signal.SIGTERM, handler)

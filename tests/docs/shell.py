"""A user at a shell: runs `gavel` in this process against a cluster, and reads jobs and nodes as JSON."""

from __future__ import annotations

import contextlib
import json
import shlex
from dataclasses import dataclass
from typing import Any

import pytest

from gavelpy.cli.main import main
from gavelpy.runtime.local_cluster import LocalCluster, wait_until


@dataclass(frozen=True)
class Ran:
    """What a row's command printed."""

    out: str
    err: str
    user: User

    @property
    def json(self) -> Any:  # Any: JSON values
        return json.loads(self.out)

    @property
    def job(self) -> str:
        """Number of the first job that was submitted."""
        return self.out.split("\t", 1)[0]


class User:
    """A user at a shell, in a folder with scripts."""

    def __init__(self, cluster: LocalCluster, capture: pytest.CaptureFixture[str]) -> None:
        self.cluster, self._capture = cluster, capture

    def __call__(self, line: str) -> Ran:
        code = main(shlex.split(line)[1:])
        captured = self._capture.readouterr()
        assert code == 0, (line, captured)
        return Ran(captured.out, captured.err, self)

    def job(self, name: str) -> dict[str, Any]:
        """The newest job of this name, or with this number, as JSON."""
        found: dict[str, Any] = self(f"gavel status {name} -o json").json["jobs"][0]
        return found

    def description(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self(f"gavel explain {name} -o json").json["description"]
        return found

    def until(self, name: str, *states: str) -> None:
        wait_until(lambda: self.job(name)["state"] in states, f"job {name} is {' or '.join(states)}")

    def finish(self, name: str) -> str:
        """Waits until a job has finished; returns its output."""
        self.until(name, "finished")
        wait_until(lambda: bool(self(f"gavel logs {name}").out), "its output has arrived")
        return self(f"gavel logs {name}").out

    def has(self, name: str) -> bool:
        with contextlib.suppress(AssertionError):
            return self.job(name)["state"] in ("waiting", "starting", "running")
        return False

    def node(self, name: str) -> dict[str, Any]:
        (found,) = [node for node in self("gavel nodes -o json").json["nodes"] if node["node_id"] == name]
        return dict(found)

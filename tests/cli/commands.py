"""A wrapper with which tests call the command line, in this process, as a shell would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gavelpy.cli.main import main

TRACE = """id,arrival_s,steps_total,gpus,rate_v100,rate_k80
a,0,36000,1,10,1
b,10,7200,1,2,1
c,20,7200,2,4,2
"""
PROBLEM: dict[str, Any] = {
    "cluster": {"v100": 1, "k80": 1},
    "jobs": [
        {"id": "a", "rates_steps_per_s": {"v100": 4.0, "k80": 1.0}},
        {"id": "b", "rates_steps_per_s": {"v100": 3.0, "k80": 2.0}},
    ],
}


@dataclass(frozen=True)
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # Any: JSON values
        return json.loads(self.out)


@dataclass(frozen=True)
class Gavel:
    """The command, and a folder to work in."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Answer:
        code = main(arguments)
        captured = self.capture.readouterr()
        return Answer(code, captured.out, captured.err)

    def file(self, name: str, content: str | bytes) -> str:
        """Writes a file in the folder; returns its path."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def trace(self, content: str | bytes = TRACE) -> str:
        return self.file("trace.csv", content)

    def problem(self, **changes: Any) -> str:
        return self.file("problem.json", json.dumps(PROBLEM | changes))

"""A user at a shell: runs `gavel` in this process against a cluster, and reads jobs and nodes as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gavelpy.cli.main import main
from gavelpy.runtime.local_cluster import START_S, LocalCluster, wait_until


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

    def on_terminal(self, line: str, typed: str, until: str) -> Ran:
        """Runs a command on a terminal and types a line every second until its output matches; then types `exit`."""
        ours, theirs = os.openpty()
        command = [str(Path(sys.executable).parent / "gavel"), *shlex.split(line)[1:]]
        text, deadline_s = b"", time.monotonic() + START_S
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
            os.close(theirs)
            while not re.search(until, text.decode(errors="replace")) and time.monotonic() < deadline_s:
                os.write(ours, f"{typed}\n".encode())
                time.sleep(1.0)
                while select.select([ours], [], [], 0.0)[0]:
                    text += os.read(ours, 4096)
            os.write(ours, b"exit\n")
            with contextlib.suppress(OSError):  # the other end is closed
                while piece := os.read(ours, 4096):
                    text += piece
            code = process.wait(START_S)
        os.close(ours)
        assert code == 0, (line, text)
        return Ran(text.decode(errors="replace"), "", self)

    @contextlib.contextmanager
    def in_background(self, line: str) -> Iterator[None]:
        """Runs a command until the context ends."""
        command = [str(Path(sys.executable).parent / "gavel"), *shlex.split(line)[1:]]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            yield
            process.terminate()

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


def page_at(port: int) -> str:
    """The page at a port of this machine; empty = none."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=5.0) as answer:
        return str(answer.read().decode())
    return ""


def posted_to(port: int) -> dict[str, Any]:
    """The JSON of the first POST to a port of this machine."""
    found: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", port), Receiver) as server:
        server.timeout = START_S
        server.handle_request()
    return dict(json.loads(found[0]))

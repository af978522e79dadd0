"""haproxy between schedulers and their database, clients and agents: each connection by name, cut and healed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import reserved_port, wait_until

_HEAD = """global
  stats socket {control} mode 600 level admin
  maxconn 4000
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
"""
_LINK = """listen {name}
  bind 127.0.0.1:{port}
  server it {target}
"""


@dataclass(frozen=True)
class Links:
    """A running haproxy. A cut link loses its connections, and closes new ones at once."""

    control: Path
    ports: Mapping[str, int]  # by name of a link

    def cut(self, name: str) -> None:
        """Ends all connections of a link, and refuses others."""
        self._say(f"set server {name}/it state maint")
        self._say(f"shutdown sessions server {name}/it")

    def heal(self, name: str) -> None:
        """Lets a link work again."""
        self._say(f"set server {name}/it state ready")

    def _say(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self.control))
            control.sendall(f"{command}\n".encode())
            answer = control.makefile().read().strip()
        assert not answer, f"haproxy: {command}: {answer}"


def binary() -> str:
    """The program; without it the test is skipped, or fails if CI is "true"."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is not None:
        return found
    complaint = "no haproxy here (Debian: apt-get install haproxy)"
    if os.environ.get("CI") == "true":
        pytest.fail(complaint)
    pytest.skip(complaint)


@contextlib.contextmanager
def links(directory: Path, targets: Mapping[str, str]) -> Iterator[Links]:
    """Links to these addresses, HOST:PORT or unix@PATH, by name."""
    program = binary()
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(reserved_port()) for name in targets}
        control, config = directory / "control", directory / "haproxy.cfg"
        parts = [_LINK.format(name=name, port=ports[name], target=target) for name, target in targets.items()]
        config.write_text(_HEAD.format(control=control) + "".join(parts), encoding="utf-8")
        with (directory / "log").open("w") as log:
            process = subprocess.Popen([program, "-f", str(config), "-db"], stdout=log, stderr=log)
        try:
            wait_until(control.exists, "haproxy is up", 10.0)
            yield Links(control, ports)
        finally:
            process.kill()
            process.wait()

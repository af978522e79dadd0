"""Fixtures with a peer and agents: real processes that are killed, with their children, after a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.local_cluster import reserved_port
from gavelpy.runtime.shim import processes
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.peer import Peer, serving, until

PYTHON = sys.executable


class Node:
    """A gavel-node with a state directory, which can be killed and restarted."""

    def __init__(self, state: Path, scheduler: str, *flags: str, more: str = "") -> None:
        self.state = state
        self.checkpoints = state / "checkpoints"
        self.log = state.with_name(f"{state.name}.log")
        config = state.with_name(f"{state.name}.toml")
        config.write_text(
            f"[node]\nsilent_start_s = 0.0\n{more}"
        )  # the jobs of these tests are shell commands that report nothing
        self._command = [
            PYTHON,
            "-m",
            "gavelpy.runtime.agent.main",
            *("--config", str(config), "--scheduler", scheduler, "--state-dir", str(state)),
            *(flags if "--gpus" in flags else ("--gpus", "v100:4", *flags)),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, prefix: tuple[str, ...] = ()) -> None:
        """Starts the agent, by a command that becomes another user if one is given."""
        environment = {**os.environ, "GAVEL_NODE_ID": "n0"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*prefix, *self._command], stderr=log, env=environment, cwd="/")

    def send(self, number: int) -> int:
        """Sends a signal, waits until the agent is gone, and returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def lease(self, lease: int) -> Path:
        return lease_files.lease_directory(self.state / "leases", lease)

    def shim(self, lease: int) -> lease_files.ShimState:
        return until(lambda: lease_files.read_shim(self.lease(lease)))

    def log_text(self, lease: int, rank: int = 0) -> str:
        """The output of a rank of a lease so far."""
        folder = self.lease(lease) / lease_files.LOG_DIRECTORY / lease_files.log_file(rank, is_error_stream=False)
        return folder.read_text() if folder.exists() else ""

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for directory in (self.state / "leases").glob("[0-9]*"):
            state = lease_files.read_shim(directory)
            if state is not None and processes.is_shim_alive(state):
                processes.send(state.process, signal.SIGKILL)
            if state is not None:
                until(partial(processes.kill_lease, state, directory))


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def port(peer: Peer) -> Iterator[int]:
    with serving(peer) as taken:
        yield taken


@pytest.fixture
def kept_port() -> Iterator[int]:
    """A port that successive schedulers can use."""
    with reserved_port() as port:
        yield port


@pytest.fixture
def make_node(tmp_path: Path, port: int) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(*flags: str, scheduler: str = f"127.0.0.1:{port}", start: bool = True, more: str = "") -> Node:
        node = Node(tmp_path / f"state{len(made)}", scheduler, *flags, more=more)
        made.append(node)
        if start:
            node.start()
        return node

    yield make
    for node in made:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Node]]:
    """A peer and a node that the tests of a module share."""
    peer = Peer()
    with serving(peer) as port:
        node = Node(tmp_path_factory.mktemp("node") / "state", f"127.0.0.1:{port}")
        node.start()
        until(lambda: peer.nodes)
        yield peer, node
        node.close()


@pytest.fixture
def shared(running: tuple[Peer, Node]) -> Iterator[tuple[Peer, Node]]:
    """The module's peer and node, without leases before and after the test."""
    peer, node = running
    yield peer, node
    peer.orders.clear()
    peer.push()
    until(lambda: all(report.phase == pb.LEASE_PHASE_ENDED for report in peer.until_heard_anew().leases))
    peer.forget = [report.lease for report in peer.heard[-1].leases]
    peer.push()
    until(lambda: not peer.until_heard_anew(1).leases)
    peer.forget = []

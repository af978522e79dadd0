"""A cluster of real processes on one machine: a scheduler and its agents, for demonstrations, tests and trying out.

Everything lives below one directory: configuration, journal, logs, checkpoints, the agents' states. Leaving the `with`
block kills what still runs, the jobs included.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub

SCHEDULER = "scheduler"
START_S = 60.0  # a process that does not answer by then never will
CALL_S = 30.0  # on a busy machine; a scheduler that is not there says so at once
_LOOK_S = 0.02
_TAIL = 2_000  # characters of a log that a complaint quotes


@dataclass(frozen=True)
class LocalNode:
    """How an agent is started."""

    node_id: str
    gpus: str  # as in --gpus
    speed_factor: float = 1.0
    sees_checkpoints: bool = True
    checkpoint_directory: str = ""  # where it sees the shared directory; empty = where the scheduler does


@dataclass(eq=False)
class LocalCluster:
    """`settings` are the configuration's tables, over the defaults below."""

    directory: Path
    nodes: tuple[LocalNode, ...]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Any: whatever TOML can say
    port: int = 0
    http_port: int = 0
    ports: Mapping[str, int] = field(default_factory=dict)  # of a node's way to the scheduler, if it is another
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _reserved: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> LocalCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        self.port = self.port or self._reserved.enter_context(reserved_port())
        self.http_port = self.http_port or self._reserved.enter_context(reserved_port())
        self.config.write_text(_toml(self._tables()), encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for number in processes_below(self.directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self._reserved.close()

    @property
    def config(self) -> Path:
        """The scheduler's configuration."""
        return self.directory / "scheduler.toml"

    @property
    def checkpoints(self) -> Path:
        """The directory that all nodes share."""
        return self.directory / "checkpoints"

    @property
    def address(self) -> str:
        """Where the scheduler listens."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """The scheduler, then every agent; returns when all nodes are up. Raises RemoteViolation."""
        self.start_scheduler()
        for node in self.nodes:
            self.start_agent(node)
        wait_until(lambda: self.nodes_up() == len(self.nodes), f"{len(self.nodes)} nodes are up")

    def start_scheduler(self) -> float:
        """Returns how long it took until it answered, in seconds. Raises RemoteViolation."""
        began_s = time.monotonic()
        self._run(SCHEDULER, [_program("gavel-scheduler"), "--config", str(self.config)])
        wait_until(self.is_serving, "the scheduler answers")
        return time.monotonic() - began_s

    def start_agent(self, node: LocalNode) -> None:
        """Does not wait for it."""
        command = [
            _program("gavel-node"),
            *("--scheduler", f"127.0.0.1:{self.ports.get(node.node_id, self.port)}"),
            *("--node-id", node.node_id, "--gpus", node.gpus),
            *("--state-dir", str(self.directory / node.node_id)),
            *("--speed-factor", str(node.speed_factor)),
        ]
        if node.sees_checkpoints:
            command += ["--checkpoint-dir", node.checkpoint_directory or str(self.checkpoints)]
        self._run(node.node_id, command)

    def kill(self, name: str) -> None:
        """SIGKILL to the scheduler or an agent, and waits until it is gone."""
        self.processes[name].kill()
        self.processes[name].wait()

    def kill_node(self, node: LocalNode) -> None:
        """The agent and all that runs under it: a machine that loses power, as others see it."""
        self.kill(node.node_id)
        for number in processes_below(self.directory / node.node_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    @contextlib.contextmanager
    def client(self) -> Iterator[SchedulerServiceStub]:
        """A connection to the scheduler."""
        with grpc.insecure_channel(self.address) as channel:
            yield SchedulerServiceStub(channel)

    def is_serving(self) -> bool:
        """Whether the scheduler answers; raises RemoteViolation when its process has left."""
        code = self.processes[SCHEDULER].poll()
        if code is not None:
            raise RemoteViolation(f"the scheduler left with exit code {code}: {self.log(SCHEDULER)[-_TAIL:]}")
        try:
            with self.client() as client:
                client.GetServerInfo(pb.GetServerInfoRequest(api_versions=[1]), timeout=1.0)
        except grpc.RpcError:
            return False
        return True

    def nodes_up(self) -> int:
        """How many nodes may run jobs."""
        with self.client() as client:
            nodes = client.ListNodes(pb.ListNodesRequest(), timeout=CALL_S).nodes
        return sum(node.state == "up" for node in nodes)

    def log(self, name: str) -> str:
        """What the scheduler or an agent wrote."""
        return (self.directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _run(self, name: str, command: list[str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _tables(self) -> dict[str, dict[str, Any]]:
        tables: dict[str, dict[str, Any]] = {
            "scheduler": {
                "name": "local",
                "state_directory": str(self.directory / SCHEDULER),
                "listen": self.address,
                "http_listen": f"127.0.0.1:{self.http_port}",
            },
            "policy": {"name": "max_min_fairness"},
            "mechanism": {"round_s": 2.0, "retry_s": 0.5, "retry_max_s": 4.0},
            "nodes": {
                "heartbeat_interval_s": 0.2,
                "silent_after_s": 2.0,
                "lease_margin_s": 0.5,
                "grace_s": 1.0,
                "checkpoint_directory": str(self.checkpoints),
            },
        }
        for name, table in self.settings.items():
            tables[name] = {**tables.get(name, {}), **table}
        return tables


def processes_below(directory: Path) -> list[int]:
    """Process ids of the shims and jobs of lease directories below a directory."""
    mark = f"{directory}/".encode()
    return [number for number, command, environment in _processes() if mark in command or mark in environment]


def free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port on loopback that the system gives to nobody else while this lasts, whether somebody listens there or not.

    Servers can listen there, for they bind it by its number and let addresses be used again.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def wait_until(holds: Callable[[], bool], what: str, patience_s: float = START_S) -> None:
    """Returns as soon as a condition holds; raises RemoteViolation naming it when it never does."""
    deadline_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise RemoteViolation(f"not within {patience_s:g} s: {what}")
        time.sleep(_LOOK_S)


def _processes() -> Iterator[tuple[int, bytes, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                leased = environment if b"GAVEL_LEASE_DIR=" in environment else b""
                yield int(entry.name), command if b"shim" in command else b"", leased


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values; JSON's strings, numbers, booleans and lists are TOML's."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)

"""A local cluster of real processes on one host, a scheduler and agents, for demonstrations and tests.

One directory contains all files: configuration, journal, logs, checkpoints, the agents' state. Leaving the `with` block
kills all processes, including jobs.
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
START_S = 60.0  # timeout of a process start
CALL_S = 30.0  # timeout of a call on a busy host
_LOOK_S = 0.1  # between two looks, each of which takes the time of a call or more from what it waits for
_TAIL = 2_000  # characters of a log in an error message


@dataclass(frozen=True)
class LocalNode:
    """Options of an agent."""

    node_id: str
    gpus: str  # value of --gpus; with several types, the agent is as many nodes; empty = detected
    speed_factor: float = 1.0
    sees_checkpoints: bool = True
    checkpoint_directory: str = ""  # its path of the shared directory; empty = the scheduler's
    cpus: float = 0.0  # CPU cores that it offers; 0 = those of the host
    memory_gib: float = 0.0
    rack: str = ""
    zone: str = ""
    region: str = ""


@dataclass(eq=False)
class LocalCluster:
    """`settings`: tables of the configuration, which override the defaults in `tables`.

    `serves_http`: metrics and health too, for which the scheduler loads aiohttp: as long as it takes to start.
    """

    directory: Path
    nodes: tuple[LocalNode, ...]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Any: TOML values
    port: int = 0
    http_port: int = 0
    serves_http: bool = False
    ports: Mapping[str, int] = field(default_factory=dict)  # by node: port of a proxy to the scheduler, if it uses one
    addresses: str = ""  # of several schedulers, for the agents; empty = the scheduler's
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _reserved: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> LocalCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        self.port = self.port or self._reserved.enter_context(reserved_port())
        if self.serves_http:
            self.http_port = self.http_port or self._reserved.enter_context(reserved_port())
        self.config.write_text(toml(self.tables()), encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        _kill_below(self.directory)
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
        """The scheduler's address, HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the scheduler and all agents; returns when all nodes are up. Raises RemoteViolation."""
        self.start_scheduler()
        for node in self.nodes:
            self.start_agent(node)
        count = sum(len(node.gpus.split(",")) for node in self.nodes)
        wait_until(lambda: self.nodes_up() == count, f"{count} nodes are up")

    def start_scheduler(self) -> float:
        """Starts the scheduler; returns the seconds until it answered. Raises RemoteViolation."""
        began_s = time.monotonic()
        self.run(SCHEDULER, [program("gavel-scheduler"), "--config", str(self.config)])
        wait_until(self.is_serving, "the scheduler answers")
        return time.monotonic() - began_s

    def start_agent(self, node: LocalNode) -> None:
        """Starts an agent without waiting for it."""
        command = [
            program("gavel-node"),
            *("--scheduler", self.addresses or f"127.0.0.1:{self.ports.get(node.node_id, self.port)}"),
            *("--node-id", node.node_id, *(("--gpus", node.gpus) if node.gpus else ())),
            *("--state-dir", str(self.directory / node.node_id)),
            *("--speed-factor", str(node.speed_factor)),
        ]
        for option, amount in (("--cpus", node.cpus), ("--memory-gib", node.memory_gib)):
            command += [option, f"{amount:g}"] if amount else []
        for option, name in (("--rack", node.rack), ("--zone", node.zone), ("--region", node.region)):
            command += [option, name] if name else []
        if node.sees_checkpoints:
            command += ["--checkpoint-dir", node.checkpoint_directory or str(self.checkpoints)]
        self.run(node.node_id, command)

    def kill(self, name: str) -> None:
        """Sends SIGKILL to the scheduler or an agent, and waits for its end."""
        self.processes[name].kill()
        self.processes[name].wait()

    def kill_node(self, node: LocalNode) -> None:
        """Kills an agent and its shims and jobs, like a power failure of its host."""
        self.kill(node.node_id)
        _kill_below(self.directory / node.node_id)

    @contextlib.contextmanager
    def client(self) -> Iterator[SchedulerServiceStub]:
        """A connection to the scheduler."""
        with grpc.insecure_channel(self.address) as channel:
            yield SchedulerServiceStub(channel)

    def is_serving(self) -> bool:
        """Whether the scheduler answers; raises RemoteViolation if its process has exited."""
        code = self.processes[SCHEDULER].poll()
        if code is not None:
            raise RemoteViolation(f"the scheduler exited with code {code}: {self.log(SCHEDULER)[-_TAIL:]}")
        try:
            with self.client() as client:
                client.GetServerInfo(pb.GetServerInfoRequest(api_versions=[1]), timeout=1.0)
        except grpc.RpcError:
            return False
        return True

    def nodes_up(self) -> int:
        """Number of nodes in state `up`."""
        with self.client() as client:
            nodes = client.ListNodes(pb.ListNodesRequest(), timeout=CALL_S).nodes
        return sum(node.state == "up" for node in nodes)

    def log(self, name: str) -> str:
        """The log of the scheduler or an agent."""
        return (self.directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def run(self, name: str, command: list[str]) -> None:
        """Starts a process, whose log has this name."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def tables(self) -> dict[str, dict[str, Any]]:
        """The scheduler's configuration."""
        tables: dict[str, dict[str, Any]] = {
            "scheduler": {
                "name": "local",
                "state_directory": str(self.directory / SCHEDULER),
                "listen": self.address,
                "http_listen": f"127.0.0.1:{self.http_port}" if self.serves_http else "",
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
    """A free port on loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port on loopback that the system assigns to no other process in this context.

    Servers can listen on it, because they bind it by number with SO_REUSEADDR.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def wait_until(holds: Callable[[], bool], what: str, patience_s: float = START_S) -> None:
    """Waits until a condition is true; raises RemoteViolation with its description at the timeout.

    Evaluates the condition for at most a third of the time, so that an expensive one does not delay what it waits for.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        asked_s = time.monotonic()
        if holds():
            return
        answered_s = time.monotonic()
        if answered_s > deadline_s:
            raise RemoteViolation(f"not within {patience_s:g} s: {what}")
        time.sleep(max(_LOOK_S, 2 * (answered_s - asked_s)))


def _kill_below(directory: Path) -> None:
    for number in processes_below(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, bytes, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                leased = environment if b"GAVEL_LEASE_DIR=" in environment else b""
                yield int(entry.name), command if b"shim" in command else b"", leased


def program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables as TOML; strings, numbers, booleans and lists are written as in JSON."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)

"""Several schedulers of one PostgreSQL journal with agents, as real processes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, program, reserved_port, toml, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub
from tests.runtime.live.stage import Settings

LEASE_S = 1.0
Own = Mapping[str, Mapping[str, Any]]  # by scheduler
NO_PORTS: Mapping[str, int] = {}
NO_FIELDS: Own = {}
NO_URLS: Mapping[str, str] = {}
NO_PATHS: Mapping[str, Path] = {}


@dataclass(eq=False)
class Several:
    """Schedulers by name, of which one leads."""

    cluster: LocalCluster
    ports: dict[str, int]
    lease_s: float = LEASE_S
    own: Own = field(default_factory=dict)  # fields of `[scheduler]` of each
    older: Mapping[str, Path] = field(default_factory=dict)  # the package of those of an older version
    through: str = ""  # addresses of proxies, for clients

    @property
    def addresses(self) -> str:
        """Of all schedulers, for clients and agents."""
        return ",".join(map(self.address, self.ports))

    def address(self, name: str) -> str:
        """Of one scheduler."""
        return f"127.0.0.1:{self.ports[name]}"

    def start(self, name: str) -> None:
        """Starts a scheduler, which leads or stands by."""
        config = self.config(name)
        if not config.exists():
            tables = self.cluster.tables()
            tables["scheduler"] |= {
                "listen": self.address(name), "state_directory": str(self.cluster.directory / f"state-{name}")
            }  # fmt: skip
            tables["scheduler"] |= self.own.get(name, {})
            tables["standby"] = {"enabled": True, "lease_s": self.lease_s}
            config.write_text(toml(tables), encoding="utf-8")
        path = [f"PYTHONPATH={self.older[name]}"] if name in self.older else []
        self.cluster.run(name, ["env", *path, program("gavel-scheduler"), "--config", str(config)])

    def config(self, name: str) -> Path:
        """The configuration of a scheduler."""
        return self.cluster.directory / f"{name}.toml"

    def leads(self, name: str) -> bool:
        """Whether this scheduler answers as the leader."""
        try:
            with grpc.insecure_channel(self.address(name)) as channel:
                SchedulerServiceStub(channel).GetServerInfo(pb.GetServerInfoRequest(api_versions=[1]), timeout=0.5)
        except grpc.RpcError:
            return False
        return True

    def leader(self) -> str:
        """The scheduler that leads; waits until there is one."""
        wait_until(lambda: any(map(self.leads, self.ports)), "a scheduler leads", 30.0)
        return next((name for name in self.ports if self.leads(name)), "") or self.leader()

    def wait_standby(self, name: str) -> None:
        """Returns when this scheduler stands by."""
        wait_until(lambda: self.stands_by(name), f"{name} stands by")

    def stands_by(self, name: str) -> bool:
        """Whether this scheduler stands by, and there is a leader."""
        try:
            with grpc.insecure_channel(self.address(name)) as channel:
                SchedulerServiceStub(channel).GetServerInfo(pb.GetServerInfoRequest(api_versions=[1]), timeout=0.5)
        except grpc.RpcError as error:
            return "a standby" in str(error.details()) and "no scheduler" not in str(error.details())
        return False

    def kill(self, name: str) -> None:
        """kill -9."""
        self.cluster.kill(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a scheduler."""
        self.cluster.processes[name].send_signal(number)

    def client(self, timeout_s: float = 30.0) -> Client:
        """A client with the addresses of all schedulers."""
        return Client(ClientSettings(scheduler=self.through or self.addresses, timeout_s=timeout_s))


@contextlib.contextmanager
def several(
    directory: Path,
    postgres_url: str,
    *nodes: LocalNode,
    names: str = "ab",
    settings: Settings | None = None,
    lease_s: float = LEASE_S,
    ports: Mapping[str, int] = NO_PORTS,
    own: Own = NO_FIELDS,
    proxies: Mapping[str, str] = NO_URLS,
    older: Mapping[str, Path] = NO_PATHS,
) -> Iterator[Several]:
    """Schedulers with these names, of which the first leads, and agents.

    `ports` of all, `own` fields of `[scheduler]` of some, `older`: packages of those of an older version. `proxies`:
    addresses of those of all schedulers, for clients and agents.
    """
    with contextlib.ExitStack() as stack:
        ports = ports or {name: stack.enter_context(reserved_port()) for name in names}
        given = {**(settings or {})}
        given["scheduler"] = {**given.get("scheduler", {}), "journal": postgres_url, "http_listen": ""}
        cluster = LocalCluster(directory, nodes, given, port=ports[names[0]])
        found = Several(cluster, dict(ports), lease_s, own, older, proxies.get("clients", ""))
        cluster.addresses = proxies.get("agents", found.addresses)
        stack.enter_context(cluster)
        for name in names:
            found.start(name)
            if name == names[0]:
                wait_until(lambda: found.leads(names[0]), "the first scheduler leads")
        for name in names[1:]:
            found.wait_standby(name)
        for node in nodes:
            cluster.start_agent(node)
        with found.client() as client:
            wait_until(lambda: sum(node.state == "up" for node in client.nodes()) == len(nodes), "all nodes are up")
        yield found

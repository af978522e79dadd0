"""A scheduler in this process with a journal on disk and agents without processes, connected by real gRPC."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio

from gavelpy.journal.sqlite import BackupSettings
from gavelpy.journal.store import open_store
from gavelpy.model.job import JobId, JobSpec
from gavelpy.runtime.agent.leases.orders import FEATURES
from gavelpy.runtime.daemon.config import Config, parse_config
from gavelpy.runtime.daemon.recovery import recover
from gavelpy.runtime.daemon.rpc.agent_service import AgentService
from gavelpy.runtime.daemon.scheduler import Scheduler
from gavelpy.runtime.security.identity import NoTokens
from gavelpy.runtime.security.interceptor import Door
from gavelpy.runtime.security.well_formed import WellFormed
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc

PATIENCE_S = 60.0  # on a busy machine; every wait returns as soon as it can
HEARTBEAT_S = 0.05


def make_config(directory: Path, **sections: dict[str, Any]) -> Config:
    """A configuration with short times; `sections` are tables of the file."""
    tables: dict[str, dict[str, Any]] = {
        "scheduler": {"state_directory": str(directory), "listen": "127.0.0.1:0", "http_listen": ""},
        "mechanism": {"round_s": 2.0, "solve_interval_s": 0.2, "retry_s": 0.2, "retry_max_s": 1.0},
        "nodes": {"heartbeat_interval_s": 0.05, "silent_after_s": 1.0, "lease_overlap_s": 1.0,
                  "unsaved_overlap_s": 1.0, "lease_margin_s": 0.2, "grace_s": 0.3},
    }  # fmt: skip
    for name, fields in sections.items():
        tables[name] = tables.get(name, {}) | fields
    text = "\n".join(f"[{name}]\n" + "\n".join(f"{k} = {_toml(v)}" for k, v in t.items()) for name, t in tables.items())
    return parse_config(text, "test.toml")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def make_spec(name: str = "-", *, steps: float = 1e6, gpus: int = 1, **fields: Any) -> JobSpec:
    """A job with declared rates."""
    fields.setdefault("rates_steps_per_s", {"v100": 10.0})
    return JobSpec(JobId(name), steps, gpus=gpus, command="true", **fields)


class Running:
    """A running scheduler, and the port for its agents."""

    def __init__(self, scheduler: Scheduler, port: int) -> None:
        self.scheduler = scheduler
        self.port = port
        self.core = scheduler.core

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Waits for a condition; checks it after each batch of events and periodically."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"in vain: {what or condition}"
            await self.scheduler.wait_changed(self.scheduler.version, 0.02)

    async def submit(self, *specs: JobSpec, key: str = "") -> list[int]:
        """Submits jobs; returns their serials."""
        done = await self.scheduler.submit(specs, key, "alice")
        return list(range(done.first_job, done.first_job + done.count))


@asynccontextmanager
async def running(
    config: Config, *, in_good_order: bool = True, accept_loss: bool = False, backups: BackupSettings | None = None
) -> AsyncIterator[Running]:
    """Runs a scheduler while the context is open; if not `in_good_order`, ends it abruptly, as kill -9 does."""
    url = f"sqlite:///{config.scheduler.state_directory}/journal.sqlite"
    store = open_store(url, accept_loss=accept_loss, backups=backups)
    scheduler = Scheduler(config, store, recover(store, config))
    server = grpc.aio.server(interceptors=[Door(NoTokens()), WellFormed()])
    agent_pb2_grpc.add_AgentServiceServicer_to_server(AgentService(scheduler), server)
    port = server.add_insecure_port("127.0.0.1:0")
    task = asyncio.create_task(scheduler.run())
    try:
        await asyncio.wait({task, asyncio.ensure_future(scheduler.is_ready.wait())}, return_when="FIRST_COMPLETED")
        await server.start()
        yield Running(scheduler, port)
    finally:
        await server.stop(0)
        if in_good_order:
            await scheduler.stop()
        else:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        store.close()


class Agent:
    """A node that follows its orders immediately. Tests change `leases` and call `tell`."""

    def __init__(self, node_id: str, *, gpus: int = 1, **node: Any) -> None:
        self.node = agent_pb2.Node(
            node_id=node_id, api_versions=[1], gpu_type="v100", gpu_count=gpus, address="127.0.0.1", agent_version="1",
            **{"host_id": f"host-{node_id}", "features": FEATURES, **node},
        )  # fmt: skip
        self.leases: dict[int, agent_pb2.LeaseReport] = {}
        self.orders: dict[int, agent_pb2.LeaseOrder] = {}
        self.launches: list[tuple[int, agent_pb2.Launch]] = []
        self.heartbeat_interval_s = 0.0  # as last requested by the scheduler
        self.is_mute = False
        self.is_draining = False
        self.trouble = ""
        self.peers: list[agent_pb2.PeerSight] = []
        self.ended: list[agent_pb2.HostProcess] = []
        self.neighbors: list[tuple[int, int]] = []  # as last requested by the scheduler
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)

    def tell(self) -> None:
        """Sends the next message now."""
        self._changed.set()

    def finish(self, lease: int) -> None:
        """Reports that a lease's job has finished."""
        self._end(lease, agent_pb2.LEASE_OUTCOME_FINISHED)
        self.tell()

    def message(self) -> agent_pb2.ConnectRequest:
        """The complete state of the node."""
        return agent_pb2.ConnectRequest(
            sequence=next(self._numbers), clock_s=time.monotonic(), leases=list(self.leases.values()),
            draining=self.is_draining, trouble=self.trouble, peers=self.peers, ended=self.ended,
        )  # fmt: skip

    @asynccontextmanager
    async def connected(self, cluster: Running) -> AsyncIterator[Agent]:
        """Sends reports and follows orders while the context is open; the node sees the checkpoint directory."""
        self.node.checkpoint_marker = cluster.scheduler.cluster_id
        async with grpc.aio.insecure_channel(f"127.0.0.1:{cluster.port}") as channel:
            call = agent_pb2_grpc.AgentServiceStub(channel).Connect()  # type: ignore[call-arg]  # written one by one
            tasks = [asyncio.create_task(self._talk(call)), asyncio.create_task(self._listen(call))]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                call.cancel()

    async def _talk(self, call: Any) -> None:
        first = self.message()
        first.node.CopyFrom(self.node)
        await call.write(first)
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), HEARTBEAT_S)
            self._changed.clear()
            if not self.is_mute:
                await call.write(self.message())

    async def _listen(self, call: Any) -> None:
        async for orders in call:
            if not self.is_mute:
                self.obey(orders)

    def obey(self, message: agent_pb2.ConnectResponse) -> None:
        """Starts, stops, kills and forgets leases immediately."""
        self.orders = {order.lease: order for order in message.leases}
        self.heartbeat_interval_s = message.heartbeat_interval_s
        self.neighbors = [(process.process, process.start) for process in message.neighbors]
        for lease in message.forget:
            self.leases.pop(lease, None)
        for lease, report in self.leases.items():
            if lease not in self.orders and report.phase != agent_pb2.LEASE_PHASE_ENDED:
                self._end(lease, agent_pb2.LEASE_OUTCOME_LOST)
        for order in message.leases:
            self._follow(order)
        self.tell()

    def _follow(self, order: agent_pb2.LeaseOrder) -> None:
        report = self.leases.get(order.lease)
        if report is None:
            report = self.leases[order.lease] = agent_pb2.LeaseReport(lease=order.lease, job=order.job)
        if report.phase == agent_pb2.LEASE_PHASE_ENDED:
            return
        if order.wish in (agent_pb2.LEASE_WISH_STOP, agent_pb2.LEASE_WISH_KILL):
            report.steps_saved = report.steps_done
            self._end(order.lease, agent_pb2.LEASE_OUTCOME_STOPPED)
        elif order.wish == agent_pb2.LEASE_WISH_PREPARE:
            report.phase, report.rendezvous_port = agent_pb2.LEASE_PHASE_PREPARED, 4711
        elif report.phase != agent_pb2.LEASE_PHASE_RUNNING:
            report.phase = agent_pb2.LEASE_PHASE_RUNNING
            report.steps_done = order.launch.resume_steps
            self.launches.append((order.lease, order.launch))

    def _end(self, lease: int, outcome: agent_pb2.LeaseOutcome.ValueType) -> None:
        self.leases[lease].phase = agent_pb2.LEASE_PHASE_ENDED
        self.leases[lease].outcome = outcome

"""A complete scheduler in a thread of this process, with its gRPC server and a journal on disk, for real clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from gavelpy.mechanism.events import Event
from gavelpy.runtime.agent.leases.orders import FEATURES
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.daemon.service import Service, open_state
from gavelpy.runtime.local_cluster import wait_until
from gavelpy.runtime.security.tokens import Role, TokenFile
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.daemon.harness import make_config

PATIENCE_S = 60.0  # on a busy machine; every wait returns as soon as it can


@dataclass(eq=False)
class Serving:
    """A running scheduler. `tokens` are secrets by name; empty = single-user mode."""

    service: Service
    tokens: dict[str, str]
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.service.port}"

    def client(self, name: str = "", **settings: Any) -> Client:
        """A client with the token of that name."""
        return Client(ClientSettings(scheduler=self.address, token=self.tokens.get(name, ""), **settings))

    def metadata(self, name: str) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.tokens[name]}")] if name else []

    def events(self) -> list[Event]:
        """All events in the journal."""
        read = self.service.scheduler.read_journal(lambda store: store.events(0, 1_000_000))
        return [event for _, _, event in asyncio.run_coroutine_threadsafe(read, self.loop).result(PATIENCE_S)]

    def join_node(
        self,
        node_id: str,
        *,
        gpus: int = 1,
        gpu_type: str = "v100",
        name: str = "",
        trouble: str = "",
        images: str = "",
        once: threading.Event | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        """Joins a node that reports no leases; call the result to end its stream.

        It reports its trouble from the start, or only after `once` is set. `address`: empty = that of clients.
        """
        leave = threading.Event()
        node = agent_pb2.Node(
            node_id=node_id,
            api_versions=[1],
            gpu_type=gpu_type,
            gpu_count=gpus,
            address="here",
            containment="cgroup v2",
            images=images,
            features=FEATURES,
        )

        def messages() -> Iterator[agent_pb2.ConnectRequest]:
            first = "" if once else trouble
            yield agent_pb2.ConnectRequest(sequence=1, clock_s=time.monotonic(), node=node, trouble=first)
            if once is not None and once.wait(PATIENCE_S):
                yield agent_pb2.ConnectRequest(sequence=2, clock_s=time.monotonic(), trouble=trouble)
            leave.wait(PATIENCE_S)

        channel = grpc.insecure_channel(address or self.address)
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.Connect(messages(), metadata=self.metadata(name))
        next(call)

        def end() -> None:
            leave.set()
            call.cancel()
            channel.close()

        return end


@contextmanager
def serving(directory: Path, *, users: dict[str, Role] | None = None, **sections: dict[str, Any]) -> Iterator[Serving]:
    """Runs a scheduler while the context is open. `users` get tokens; without users it is in single-user mode."""
    tokens = {}
    if users is not None:
        file = TokenFile(directory / "tokens.json")
        tokens = {name: file.create(name, role, now_s=time.time()) for name, role in users.items()}
        sections["security"] = {"tokens": str(file.path), **sections.get("security", {})}
    config = make_config(directory, **sections)
    store = open_state(config)
    started: list[Serving] = []
    ready = threading.Event()

    async def work() -> None:
        service = Service(config, store)
        started.append(Serving(service, tokens, threading.current_thread(), asyncio.get_running_loop()))
        running = asyncio.create_task(service.run())
        has_page = bool(config.scheduler.web_listen)
        while not (service.port and (service.web_port or not has_page)) and not running.done():
            await asyncio.sleep(0.01)
        ready.set()
        await running

    thread = threading.Thread(target=lambda: asyncio.run(work()), name="scheduler")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S), "the scheduler does not start"
        yield started[0]
    finally:
        started[0].loop.call_soon_threadsafe(started[0].service.stop)
        thread.join(PATIENCE_S)
        store.close()
        assert not thread.is_alive(), "the scheduler does not stop"


def make_description(name: str = "", *, steps: float = 1e6, **fields: Any) -> pb.JobDescription:
    """A job with declared rates."""
    fields.setdefault("rates_steps_per_s", {"v100": 10.0})
    fields.setdefault("command", "python train.py")
    return pb.JobDescription(name=name, steps_total=steps, **fields)


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition; fails after the time limit."""
    wait_until(condition, what, PATIENCE_S)

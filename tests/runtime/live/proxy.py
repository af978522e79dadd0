"""A bad network between an agent and the scheduler: it drops, delays and repeats messages, and cuts whole links.

It is a gRPC server that forwards AgentService, message by message, in a thread with its own event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import grpc
import numpy as np

from gavelpy.runtime.wire import agent_pb2 as pb
from gavelpy.runtime.wire.agent_pb2_grpc import (
    AgentServiceServicer,
    AgentServiceStub,
    add_AgentServiceServicer_to_server,
)

Message = TypeVar("Message")
LAST_CALLS_S = 2.0


@dataclass(frozen=True)
class Weather:
    """Fractions of messages that the network harms."""

    dropped: float = 0.1
    repeated: float = 0.1
    delayed: float = 0.2
    delay_s: float = 0.5


class BadNetwork(AgentServiceServicer):
    """A context manager; agents connect to `port`."""

    def __init__(self, scheduler: str, weather: Weather, rng: np.random.Generator) -> None:
        self.scheduler = scheduler
        self.weather = weather
        self.rng = rng
        self.port = 0
        self.is_cut = False
        self.harmed = 0  # messages dropped, repeated or delayed so far
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> BadNetwork:
        self._thread.start()
        assert self._ready.wait(60.0), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10.0)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server()
        add_AgentServiceServicer_to_server(self, server)
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._ready.set()
        await self._over.wait()
        await server.stop(None)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=LAST_CALLS_S)  # gRPC logs errors for calls that end with the loop

    async def Connect(self, requests: AsyncIterator[pb.ConnectRequest], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for message in self._passed(requests, "Connect", context):
            yield message

    async def ServeLogs(self, requests: AsyncIterator[pb.ServeLogsRequest], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for message in self._passed(requests, "ServeLogs", context):
            yield message

    async def _passed(self, requests: AsyncIterator[Any], method: str, context: Any) -> AsyncIterator[Any]:
        metadata = [(key, value) for key, value in context.invocation_metadata() if key == "authorization"]
        async with grpc.aio.insecure_channel(self.scheduler) as channel:
            with contextlib.closing(Weathered(requests, self._fates)) as there:
                call = getattr(AgentServiceStub(channel), method)(there, metadata=metadata)
                try:
                    with contextlib.closing(Weathered(call, self._fates)) as back:
                        async for message in back:
                            yield message
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details() or "")

    def _fates(self) -> list[float]:
        """Delays after which the copies of a message arrive; empty when it is lost."""
        weather, (drop, repeat, delay, length) = self.weather, self.rng.random(4)
        if self.is_cut or drop < weather.dropped:
            self.harmed += 1
            return []
        delay_s = weather.delay_s * length if delay < weather.delayed else 0.0
        copies = 2 if repeat < weather.repeated else 1
        self.harmed += int(delay_s > 0 or copies > 1)
        return [delay_s] * copies


class Weathered(AsyncIterator[Message]):
    """A stream as it arrives: a delayed message comes after later ones.

    `fates` gives the delay of each copy of the next message.
    """

    def __init__(self, messages: AsyncIterable[Message], fates: Callable[[], list[float]]) -> None:
        self._arrived: asyncio.Queue[Message | None] = asyncio.Queue()
        self._tasks = {asyncio.create_task(self._receive(messages, fates))}

    async def __anext__(self) -> Message:
        message = await self._arrived.get()
        if message is None:
            raise StopAsyncIteration
        return message

    def close(self) -> None:
        """Stops the stream."""
        for task in self._tasks:
            task.cancel()

    async def _receive(self, messages: AsyncIterable[Message], fates: Callable[[], list[float]]) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for message in messages:
                for delay_s in fates():
                    task = asyncio.create_task(self._later(message, delay_s))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        self._arrived.put_nowait(None)

    async def _later(self, message: Message, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self._arrived.put_nowait(message)

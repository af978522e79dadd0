"""One connection of the agent: heartbeats out, orders in, until either side ends it or nothing comes any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import grpc.aio

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.agent.orders import Orders, heartbeat_interval_s, orders_of
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.wire import agent_pb2

logger = logging.getLogger(__name__)

FIRST_HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 20.0  # after which the scheduler is given up on, if its heartbeats are not slower
WRITE_S: Final = 10.0

T = TypeVar("T")
ConnectCall = grpc.aio.StreamStreamCall[agent_pb2.ConnectRequest, agent_pb2.ConnectResponse]


class Stream:
    """Speaks on one call. `describe` gives the leases of a message, `obey` takes orders as they come."""

    def __init__(
        self,
        call: ConnectCall,
        number: int,
        node: agent_pb2.Node,
        describe: Callable[[], agent_pb2.ConnectRequest],
        obey: Callable[[Orders], None],
        heard: Callable[[], None],
    ) -> None:
        self._call = call
        self._number = number
        self._node = node
        self._describe = describe
        self._obey = obey
        self._heard = heard
        self._interval_s = FIRST_HEARTBEAT_S
        self._sequence = 0

    async def run(self, changed: asyncio.Event) -> None:
        """Until the stream is over; raises what ended it, RemoteViolation where the scheduler broke the protocol."""
        await self._send(self._node)
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write(changed))
        try:
            done, _ = await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(reading, writing)
            self._call.cancel()
        for task in done:
            task.result()

    async def _write(self, changed: asyncio.Event) -> None:
        """A message at each interval, and at once when something has changed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await changed.wait()
            changed.clear()
            await self._send(None)

    async def _send(self, node: agent_pb2.Node | None) -> None:
        request = self._describe()
        self._sequence += 1
        request.sequence = self._sequence
        if node is not None:
            request.node.CopyFrom(node)
        request.clock_s = clock_s()
        await _within(WRITE_S, self._call.write(request), "take a message")

    async def _read(self) -> None:
        messages = aiter(self._call)
        while True:
            patience_s = max(SILENCE_S, 5 * self._interval_s)
            message = await _within(patience_s, anext(messages, None), "say anything")
            if message is None:
                return
            orders = orders_of(message, self._number)
            self._interval_s = heartbeat_interval_s(message, self._interval_s)
            self._heard()
            self._obey(orders)


async def _within(limit_s: float, waiting: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(limit_s):
            return await waiting
    except TimeoutError:
        raise RemoteViolation(f"the scheduler did not {what} within {limit_s:g} s") from None


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # it has been seen

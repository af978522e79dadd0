"""The stream to the scheduler: heartbeats and reports out, orders in; and the channel and back-off to reconnect."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.leases.orders import Orders, heartbeat_interval_s, orders_of
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.wire import agent_pb2

MESSAGE_BYTES_MAX: Final = 4 << 20
FIRST_WAIT_S: Final = 0.1
WAIT_S_MAX: Final = 2.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", 4 * MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)


class SchedulerEndpoint:
    """Address and credentials of the scheduler. Raises InvalidInput if a file cannot be read."""

    def __init__(self, config: NodeConfig) -> None:
        self._target = config.scheduler
        self._credentials: grpc.ChannelCredentials | None = None
        token = config.token()
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if config.tls_ca:
            own = (
                (_pem("tls_key", config.tls_key), _pem("tls_certificate", config.tls_certificate))
                if config.tls_key
                else (None, None)
            )
            self._credentials = grpc.ssl_channel_credentials(_pem("tls_ca", config.tls_ca), *own)

    def open(self) -> grpc.aio.Channel:
        """A new channel."""
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._target, options=_OPTIONS)
        return grpc.aio.secure_channel(self._target, self._credentials, options=_OPTIONS)


class Backoff:
    """Waits between attempts: they double, each drawn at random from the upper half of its range."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._wait_s = FIRST_WAIT_S

    def succeeded(self) -> None:
        """Resets to short waits."""
        self._wait_s = FIRST_WAIT_S

    def next_s(self) -> float:
        """The next wait."""
        wait_s = self._wait_s
        self._wait_s = min(2 * wait_s, WAIT_S_MAX)
        return wait_s * self._rng.uniform(0.5, 1.0)


def _pem(field: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InvalidInput(f"{field} must be a PEM file that can be read, got {path!r} ({error.strerror})") from None


logger = logging.getLogger(__name__)

FIRST_HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 20.0  # without a message the stream is closed, unless heartbeats are slower
WRITE_S: Final = 10.0

T = TypeVar("T")
ConnectCall = grpc.aio.StreamStreamCall[agent_pb2.ConnectRequest, agent_pb2.ConnectResponse]


class SchedulerStream:
    """One call. `describe` makes a report, `obey` takes orders, `on_message` is called for each message received."""

    def __init__(
        self,
        call: ConnectCall,
        number: int,
        node: agent_pb2.Node,
        describe: Callable[[], agent_pb2.ConnectRequest],
        obey: Callable[[Orders], None],
        on_message: Callable[[], None],
    ) -> None:
        self._call = call
        self._number = number
        self._node = node
        self._describe = describe
        self._obey = obey
        self._on_message = on_message
        self._interval_s = FIRST_HEARTBEAT_S
        self._sequence = 0

    async def run(self, changed: asyncio.Event) -> None:
        """Runs until the stream ends. Raises the error that ended it, RemoteViolation for a breach of protocol."""
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
        """Sends a report at each interval, and at once when `changed` is set."""
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
        await _within(WRITE_S, self._call.write(request), "accept a message")

    async def _read(self) -> None:
        messages = aiter(self._call)
        while True:
            timeout_s = max(SILENCE_S, 5 * self._interval_s)
            message = await _within(timeout_s, anext(messages, None), "send a message")
            if message is None:
                return
            orders = orders_of(message, self._number)
            self._interval_s = heartbeat_interval_s(message, self._interval_s)
            self._on_message()
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
            task.exception()  # mark it as retrieved

"""Tunnels between clients and jobs: the terminal of an interactive job, and TCP ports of any job.

A client opens a tunnel; the scheduler requests it from the job's first node over the node's stream for log requests,
and the agent answers with a stream of its own. The two streams are joined here. Each has the flow control of gRPC, and
the queues between them are short, so a slow reader slows the writer and nothing else. A tunnel ends with either stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.daemon.rpc.agent_logs import LogNodes
from gavelpy.runtime.wire import agent_pb2
from gavelpy.runtime.wire import client_pb2 as pb

OPEN_TIMEOUT_S = 15.0
PORT_MAX = 65_535
SIDE_MAX = 10_000  # rows and columns of a window
_QUEUED_MESSAGES = 8
Up = agent_pb2.ServeTunnelRequest
Down = agent_pb2.ServeTunnelResponse


@dataclass(eq=False)
class _Tunnel:
    """Messages on their way; None = this direction has ended."""

    node_id: str
    up: asyncio.Queue[Up | None] = field(default_factory=lambda: asyncio.Queue(_QUEUED_MESSAGES))
    down: asyncio.Queue[Down | None] = field(default_factory=lambda: asyncio.Queue(_QUEUED_MESSAGES))
    is_joined: bool = False
    refusal: InvalidInput | None = None  # of a message of the client
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class Tunnels:
    """The open tunnels of all clients."""

    def __init__(self, nodes: LogNodes, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._open: dict[int, _Tunnel] = {}

    async def serve_client(
        self, node_id: str, job: int, port: int, requests: AsyncIterator[pb.OpenTunnelRequest]
    ) -> AsyncIterator[pb.OpenTunnelResponse]:
        """The messages for a client until the tunnel ends. Raises RemoteViolation if there is none, or InvalidInput."""
        with self._opened(node_id, job, port) as tunnel:
            try:
                async with asyncio.timeout(self._timeout_s):
                    first = await tunnel.up.get()
            except TimeoutError:
                raise RemoteViolation(
                    f"node {node_id} did not open a tunnel within {self._timeout_s:g} s (an old agent has none)"
                ) from None
            if first is None or first.error:
                why = first.error[:500] if first is not None else "the node closed the tunnel"
                raise RemoteViolation(f"node {node_id}: {why}")
            sending = asyncio.create_task(_send(requests, tunnel))
            try:
                yield pb.OpenTunnelResponse()
                while (message := await tunnel.up.get()) is not None:
                    yield _response(message)
                if tunnel.refusal is not None:
                    raise tunnel.refusal
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def serve_agent(self, first: Up, messages: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """The messages for an agent until the tunnel ends. Raises RemoteViolation if no client waits for it."""
        tunnel = self._open.get(first.question)
        if tunnel is None or tunnel.is_joined or tunnel.node_id != first.node_id:
            raise RemoteViolation(f"question must be of a tunnel that a client waits for, got {first.question}")
        tunnel.is_joined = True
        receiving = asyncio.create_task(_receive(first, messages, tunnel))
        closing = asyncio.create_task(tunnel.closed.wait())
        try:
            while True:
                taking = asyncio.create_task(tunnel.down.get())
                done, _ = await asyncio.wait({taking, closing, receiving}, return_when=asyncio.FIRST_COMPLETED)
                if taking not in done:
                    taking.cancel()
                    return
                message = taking.result()
                assert message is not None, "the end of this direction is a message"
                yield message
        finally:
            for task in (receiving, closing):
                task.cancel()
            await asyncio.gather(receiving, closing, return_exceptions=True)

    @contextmanager
    def _opened(self, node_id: str, job: int, port: int) -> Iterator[_Tunnel]:
        number = self._nodes.request_tunnel(node_id, job, port)
        tunnel = self._open[number] = _Tunnel(node_id)
        try:
            yield tunnel
        finally:
            del self._open[number]
            tunnel.closed.set()


async def _send(requests: AsyncIterator[pb.OpenTunnelRequest], tunnel: _Tunnel) -> None:
    """Passes a client's messages on. Their end has no meaning: a connection that is lost ends them, too."""
    async for request in requests:
        rows, columns = request.rows, request.columns
        if max(rows, columns) > SIDE_MAX:
            tunnel.refusal = InvalidInput(f"rows and columns must be at most {SIDE_MAX}, got {rows} and {columns}")
            await tunnel.up.put(None)
            return
        await tunnel.down.put(Down(data=request.data, rows=rows, columns=columns, last=request.last))


async def _receive(first: Up, messages: AsyncIterator[Up], tunnel: _Tunnel) -> None:
    """Passes an agent's messages on. If they break off, or the client has gone, does not wait for a reader."""
    has_ended = False
    try:
        await tunnel.up.put(first)
        async for message in messages:
            await tunnel.up.put(message)
        await tunnel.up.put(None)
        has_ended = True
    finally:
        if not has_ended:
            if tunnel.up.full():
                tunnel.up.get_nowait()
            tunnel.up.put_nowait(Up(error="the connection to the node was lost"))


def _response(message: Up) -> pb.OpenTunnelResponse:
    if message.error:
        raise RemoteViolation(message.error[:500])
    exit_code = message.exit_code if message.HasField("exit_code") else None
    return pb.OpenTunnelResponse(data=message.data, exit_code=exit_code)

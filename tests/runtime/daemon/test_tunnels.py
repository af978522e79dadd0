"""Tunnels end when either side does, also with messages on their way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.daemon.rpc.agent_logs import LogNodes
from gavelpy.runtime.daemon.rpc.tunnels import SIDE_MAX, Tunnels
from gavelpy.runtime.wire import agent_pb2
from gavelpy.runtime.wire import client_pb2 as pb

NUMBER = 7
PATIENCE_S = 20.0
FIRST = agent_pb2.ServeTunnelRequest(node_id="n1", question=NUMBER)


class OneNode:
    """Requests each tunnel under the same number."""

    def request_tunnel(self, node_id: str, job: int, port: int) -> int:
        return NUMBER


def tunnels() -> Tunnels:
    return Tunnels(cast("LogNodes", OneNode()))


async def without_end() -> AsyncIterator[agent_pb2.ServeTunnelRequest]:
    while True:
        yield agent_pb2.ServeTunnelRequest(data=b"much")
        await asyncio.sleep(0)


async def silent() -> AsyncIterator[pb.OpenTunnelRequest]:
    await asyncio.Event().wait()
    yield pb.OpenTunnelRequest()


async def agent_of(served: Tunnels, messages: AsyncIterator[agent_pb2.ServeTunnelRequest]) -> None:
    while not served._open:
        await asyncio.sleep(0)
    async for _ in served.serve_agent(FIRST, messages):
        pass


async def all_of(messages: AsyncIterator[pb.OpenTunnelResponse], into: list[bytes]) -> None:
    async for message in messages:
        into.append(message.data)


def test_busy_tunnel_ends_at_the_node_when_its_client_has_gone() -> None:
    async def run() -> None:
        served = tunnels()
        agent = asyncio.create_task(agent_of(served, without_end()))
        client = served.serve_client("n1", 3, 0, silent())
        for _ in range(3):
            await anext(client)
        await asyncio.sleep(0.05)  # the queue is full
        await client.aclose()
        await asyncio.wait_for(agent, PATIENCE_S)

    asyncio.run(run())


def test_client_learns_that_the_connection_to_the_node_was_lost() -> None:
    async def breaks() -> AsyncIterator[agent_pb2.ServeTunnelRequest]:
        yield agent_pb2.ServeTunnelRequest(data=b"some")
        raise ConnectionResetError

    async def run() -> list[bytes]:
        served = tunnels()
        agent = asyncio.create_task(agent_of(served, breaks()))
        found: list[bytes] = []
        with pytest.raises(RemoteViolation, match="connection to the node was lost"):
            await all_of(served.serve_client("n1", 3, 0, silent()), found)
        await asyncio.wait_for(agent, PATIENCE_S)
        return found

    assert asyncio.run(run()) == [b"", b"some"]


def test_window_that_means_nothing_is_refused() -> None:
    async def resizes() -> AsyncIterator[pb.OpenTunnelRequest]:
        yield pb.OpenTunnelRequest(rows=SIDE_MAX + 1, columns=80)

    async def run() -> None:
        served = tunnels()
        agent = asyncio.create_task(agent_of(served, without_end()))
        with pytest.raises(InvalidInput, match=f"at most {SIDE_MAX}, got {SIDE_MAX + 1} and 80"):
            await all_of(served.serve_client("n1", 3, 0, resizes()), [])
        await asyncio.wait_for(agent, PATIENCE_S)

    asyncio.run(run())

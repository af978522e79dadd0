"""Connections at the port of the web page that send no request, or do not read: they are few, short, and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gavelpy.runtime.daemon.web import connections
from gavelpy.runtime.daemon.web.server import WebServer
from tests.runtime.daemon.harness import make_config

LARGE = b"x" * (16 << 20)  # more than sockets buffer
HONEST = b"GET /api/v1/small HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAIT_S = 20.0  # on a busy machine
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Opener = Callable[[bytes], Awaitable[Opened]]


async def small(_: web.Request) -> web.Response:
    return web.Response(text="small")


async def large(_: web.Request) -> web.Response:
    return web.Response(body=LARGE)


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for k in range(8):
        await response.write(b"%d\n" % k)
        await asyncio.sleep(0.1)
    return response


@asynccontextmanager
async def serving(directory: Path, **limits: int) -> AsyncIterator[Opener]:
    """A server; the context is what opens connections to it and sends some bytes."""
    config = make_config(directory, scheduler={"web_listen": "127.0.0.1:0"}, limits=limits)
    routes = [web.get("/api/v1/small", small), web.get("/api/v1/large", large), web.get("/api/v1/stream", stream)]
    server, writers = WebServer(config, routes), []
    port = await server.start()

    async def opened(data: bytes) -> Opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        writer.write(data)
        return reader, writer

    try:
        yield opened
    finally:
        for writer in writers:
            writer.close()
        await server.stop()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What the server sends until it closes the connection."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    except ConnectionResetError:
        return b""


async def answered(opened: Opener) -> bytes:
    """The first line of the answer to an honest caller."""
    reader, _ = await opened(HONEST)
    async with asyncio.timeout(WAIT_S):
        return await reader.readline()


@pytest.mark.parametrize("part", [b"", b"GET /api/v1/small HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_connection_without_a_whole_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)

    async def run() -> None:
        async with serving(tmp_path) as opened:
            reader, _ = await opened(part)
            assert await closed(reader) == b""

    asyncio.run(run())


def test_many_half_open_connections_keep_no_caller_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HALF_OPEN_MAX", 8)

    async def run() -> None:
        async with serving(tmp_path) as opened:
            kept, _ = await opened(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await kept.readline()
            first = [await opened(b"GET") for _ in range(4)]
            flood = [await opened(b"GET /") for _ in range(60)]
            assert await answered(opened) == b"HTTP/1.1 200 OK\r\n"
            assert [await closed(reader) for reader, _ in first] == [b""] * 4
            assert b"7\n" in await closed_of_stream(kept)  # a stream is not half-open
            assert sum(not reader.at_eof() for reader, _ in flood) >= 1

    async def closed_of_stream(reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await reader.readuntil(b"0\r\n\r\n")

    asyncio.run(run())


def test_an_answer_that_is_not_read_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.2)
    request = b"GET /api/v1/large HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def run() -> None:
        async with serving(tmp_path) as opened:
            reader, writer = await opened(request)
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # the stubs lack it
            await asyncio.sleep(1.0)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await closed(reader)) < len(LARGE)
            monkeypatch.setattr(connections, "UNREAD_S", WAIT_S)
            slow, _ = await opened(request)
            assert len(await slow.readexactly(len(LARGE))) == len(LARGE)  # one that is read does not

    asyncio.run(run())


def test_an_address_has_a_limit_of_connections(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, connections_an_address_max=3) as opened:
            held = [await opened(b"") for _ in range(3)]
            refused, _ = await opened(HONEST)
            assert await closed(refused) == b""
            held[0][1].close()
            await held[0][1].wait_closed()
            await asyncio.sleep(0.1)
            assert await answered(opened) == b"HTTP/1.1 200 OK\r\n"

    asyncio.run(run())

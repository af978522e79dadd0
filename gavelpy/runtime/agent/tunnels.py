"""The node's end of a tunnel: the terminal of an interactive job, or a TCP port that a process of the job listens on.

A client may reach what its own job has, and nothing else of the node: before a port is connected, the listening socket
must be found among the open files of a process of the lease. The terminal's socket must belong to this agent's user.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.agent.agent_state import AgentState
from gavelpy.runtime.agent.leases.directory import LeaseDirectory
from gavelpy.runtime.agent.leases.registry import LeaseRegistry
from gavelpy.runtime.shim.processes import lease_processes
from gavelpy.runtime.terminal_frames import (
    DATA,
    EXIT,
    FrameReader,
    data_frame,
    exit_of,
    has_own_user,
    socket_path,
    window_frame,
)
from gavelpy.runtime.wire import agent_pb2

logger = logging.getLogger(__name__)

READ_BYTES: Final = 64 << 10
CONNECT_S: Final = 5.0
_LISTENING = "0A"
_TABLES = {Path("/proc/net/tcp"): "127.0.0.1", Path("/proc/net/tcp6"): "::1"}
Up = agent_pb2.ServeTunnelRequest
TunnelCall = grpc.aio.StreamStreamCall[Up, agent_pb2.ServeTunnelResponse]


async def serve_tunnel(
    call: TunnelCall, node: AgentState, registry: LeaseRegistry, request: agent_pb2.ServeLogsResponse
) -> None:
    """Opens the tunnel that the scheduler requests and serves it until either side ends it."""
    job, port = request.tunnel.job, request.tunnel.port
    first = Up(node_id=node.node_id, state_id=node.state_id, identity_key=node.identity_key, question=request.question)
    try:
        try:
            folder = _lease_of(registry, job)
            opening = _open_port(folder, port) if port else _open_terminal(folder)
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await opening
        except (RemoteViolation, OSError) as error:
            first.error = str(error) or "it could not be opened in time"
            await call.write(first)
            await _close(call, asyncio.create_task(_drain(call)))
            return
        await call.write(first)
        logger.info("tunnel opened", extra={"job": job, "port": port})
        try:
            await (_relay_port if port else _relay_terminal)(call, reader, writer)
        finally:
            writer.close()
    except (grpc.RpcError, asyncio.InvalidStateError, OSError, ValueError) as error:
        logger.info("tunnel ended", extra={"job": job, "port": port, "detail": str(error)[:200]})
    finally:
        call.cancel()


def _lease_of(registry: LeaseRegistry, job: int) -> LeaseDirectory:
    found = [folder for folder in registry.folders if folder.job == job and folder.shim_process]
    if not found:
        raise RemoteViolation(f"job {job} does not run here")
    return found[-1]


async def _open_terminal(folder: LeaseDirectory) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if folder.launch is None or folder.launch.terminal_away_s <= 0:
        raise RemoteViolation(f"job {folder.job} has no terminal: only jobs of `gavel run` have one")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    with ExitStack() as opened:
        opened.callback(connection.close)
        with socket_path(folder.directory) as path:
            await asyncio.get_running_loop().sock_connect(connection, path)
        if not has_own_user(connection):
            raise RemoteViolation(f"the terminal of job {folder.job} is not its shim's")
        streams = await asyncio.open_unix_connection(sock=connection)
        opened.pop_all()
    return streams


async def _open_port(folder: LeaseDirectory, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host = await asyncio.to_thread(_listener_of, folder, port)
    if not host:
        raise RemoteViolation(f"no process of job {folder.job} listens on port {port}")
    return await asyncio.open_connection(host, port)


def _listener_of(folder: LeaseDirectory, port: int) -> str:
    """The loopback address on which a process of a lease listens on a port; empty = none."""
    if folder.shim is None or folder.launch is None:
        return ""
    processes = lease_processes(folder.shim, folder.job_directory, folder.launch.cgroup)
    owned = {inode for process in processes for inode in _sockets_of(process)}
    for table, host in _TABLES.items():
        if not owned.isdisjoint(_listening(table, port)):
            return host
    return ""


def _listening(table: Path, port: int) -> Iterator[str]:
    """Inodes of the sockets that listen on a port, at any address."""
    with suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _sockets_of(process: int) -> Iterator[str]:
    with suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target.removeprefix("socket:[").removesuffix("]")


async def _relay_port(call: TunnelCall, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def receive() -> None:
        async for message in call:
            writer.write(message.data)
            await writer.drain()
            if message.last and writer.can_write_eof():
                writer.write_eof()

    receiving = asyncio.create_task(receive())
    try:
        while content := await _read_while(reader, receiving):
            await call.write(Up(data=content))
        await _close(call, receiving)
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


async def _relay_terminal(call: TunnelCall, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def receive() -> None:
        async for message in call:
            if writer.is_closing():  # the program has ended
                continue
            if message.rows and message.columns:
                writer.write(window_frame(message.rows, message.columns))
            if message.data or message.last:
                writer.write(data_frame(message.data))
            await writer.drain()

    receiving = asyncio.create_task(receive())
    frames = FrameReader()
    try:
        while content := await _read_while(reader, receiving):
            for kind, part in frames.feed(content):
                if kind == DATA:
                    await call.write(Up(data=part))
                elif kind == EXIT:
                    await call.write(Up(exit_code=exit_of(part)))
        writer.close()  # the shim waits for it
        await _close(call, receiving)
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


async def _close(call: TunnelCall, receiving: asyncio.Task[None]) -> None:
    """Ends the messages, and waits until the scheduler has passed all of them on and ends the call."""
    await call.done_writing()
    await asyncio.wait({receiving})


async def _drain(call: TunnelCall) -> None:
    async for _ in call:
        pass


async def _read_while(reader: asyncio.StreamReader, receiving: asyncio.Task[None]) -> bytes:
    """The next bytes; empty at the end, and when the client is away."""
    reading = asyncio.create_task(reader.read(READ_BYTES))
    done, _ = await asyncio.wait({reading, receiving}, return_when=asyncio.FIRST_COMPLETED)
    if reading in done:
        return reading.result()
    reading.cancel()
    return b""

"""Server-sent events of the web page: the log of a job, and changes of the scheduler's state.

The page reads them with `fetch`, because `EventSource` cannot send a token in a header. A stream ends with an event
`error` when its token is revoked or expires; a reader that does not read stops its own stream only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.queries.logs import LogChunk, LogQueries, LogSelection
from gavelpy.runtime.daemon.scheduler import Scheduler
from gavelpy.runtime.daemon.web.access import Access
from gavelpy.runtime.daemon.web.reads import Reads, whole
from gavelpy.runtime.daemon.web.server import error_values, http_status
from gavelpy.runtime.security.identity import Caller, Operation
from gavelpy.runtime.security.interceptor import LOOK_EVERY_S
from gavelpy.runtime.security.well_formed import ANSWERED

CHANGE_S = 1.0  # shortest time between two events of changes
QUIET_S = 15.0  # a comment after this time without an event, so that proxies keep the connection
TAIL_LINES = 200
_END = ("", None)
Events = AsyncIterator[tuple[str, Any]]  # name and JSON value of each event


class Streams:
    """Sends events of a scheduler."""

    def __init__(self, scheduler: Scheduler, jobs: JobQueries, reads: Reads) -> None:
        self._scheduler, self._jobs, self._reads = scheduler, jobs, reads
        self._logs = LogQueries(scheduler, jobs)

    def routes(self, access: Access) -> list[web.RouteDef]:
        """The routes."""

        async def log(request: web.Request, caller: Caller) -> web.StreamResponse:
            return await _sent(request, access, Operation.READ_LOGS, self._log(request, caller))

        async def changes(request: web.Request, _: Caller) -> web.StreamResponse:
            return await _sent(request, access, Operation.GET_CLUSTER, self._changes())

        return [
            web.get("/api/v1/jobs/{job}/log", access.guarded(Operation.READ_LOGS, log, is_stream=True)),
            web.get("/api/v1/changes", access.guarded(Operation.GET_CLUSTER, changes, is_stream=True)),
        ]

    async def _log(self, request: web.Request, caller: Caller) -> Events:
        query = request.query
        selected = LogSelection(
            request.match_info["job"],
            rank=whole(query, "rank", 0) if "rank" in query else -1,
            pattern=query.get("pattern", ""),
            follow=query.get("follow", "true") == "true",
            tail_lines=whole(query, "tail", TAIL_LINES),
        )
        async for chunk in self._logs.read(caller, selected):
            yield ("notice", {"text": chunk.notice}) if chunk.notice else ("lines", {"lines": _lines(chunk)})
        yield "end", {}

    async def _changes(self) -> Events:
        """The number of the state and the cluster's numbers, after each change, at most once in CHANGE_S."""
        version = -1
        while True:
            if version != self._scheduler.version:
                version = self._scheduler.version
                status = self._reads.cluster.cluster()
                yield (
                    "change",
                    {
                        "state": version,
                        "jobs_waiting": status.jobs_waiting,
                        "jobs_running": status.jobs_running,
                        "jobs_over": status.jobs_over,
                        "round": status.round,
                        "policy": status.policy,
                    },
                )
                await asyncio.sleep(CHANGE_S)
            else:
                await self._scheduler.wait_changed(version, QUIET_S)


def _lines(chunk: LogChunk) -> list[dict[str, Any]]:
    return [
        {
            "time_s": time_s,
            "node_id": piece.node_id,
            "lease": piece.lines.origins[row].lease,
            "rank": piece.lines.origins[row].rank,
            "is_error_stream": piece.lines.origins[row].is_error_stream,
            "text": line,
        }
        for piece in chunk.pieces
        for row, time_s, line in zip(piece.lines.origin, piece.lines.time_s, piece.lines.text, strict=True)
    ]


async def _sent(request: web.Request, access: Access, operation: Operation, events: Events) -> web.StreamResponse:
    """Sends events until they end, the reader is gone, or the token is. Errors before the first event are raised."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    pending: asyncio.Task[tuple[str, Any]] | None = None
    quiet_s = 0.0
    try:
        while request.transport is not None and not request.transport.is_closing():
            pending = pending or asyncio.create_task(_next(events))
            await asyncio.wait({pending}, timeout=LOOK_EVERY_S)
            found = None
            if pending.done():
                found, pending = pending.result(), None
            access.still(request, operation)
            if not response.prepared:
                await response.prepare(request)
            quiet_s = 0.0 if found else quiet_s + LOOK_EVERY_S
            if found == _END:
                break
            if found:
                await response.write(_event(*found))
            elif quiet_s >= QUIET_S:
                quiet_s = 0.0
                await response.write(b": quiet\n\n")
    except ANSWERED as error:
        if not response.prepared:
            raise
        await response.write(_event("error", error_values(http_status(error), str(error))["error"]))
    except ConnectionResetError:  # the reader is gone
        pass
    finally:
        if pending is not None:
            pending.cancel()
            with suppress(asyncio.CancelledError, *ANSWERED):
                await pending
        await events.aclose()  # type: ignore[attr-defined]  # a generator
    return response


async def _next(events: Events) -> tuple[str, Any]:
    return await anext(events, _END)


def _event(name: str, values: Any) -> bytes:  # Any: JSON values
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(values))

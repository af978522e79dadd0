"""Request log lines from the agents, over the stream that each agent holds open for it (ServeLogs).

A request is answered by one or more messages, the last one marked. Pages are requested one at a time, so at most a page
of each request waits here. Answers to requests that have ended are dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.daemon.queries.log_lines import (
    LogLines,
    LogOrigin,
    LogRequest,
    LogsUnavailable,
    NodeLogPage,
    joined,
)
from gavelpy.runtime.wire import agent_pb2

ANSWER_TIMEOUT_S = 10.0
_PENDING_MESSAGES_MAX = 10_000
Answers = asyncio.Queue[agent_pb2.ServeLogsRequest | None]  # None: the stream has ended


@dataclass(eq=False)
class _Stream:
    """One agent's stream: requests to send, and the queues that wait for answers by request number."""

    requests: asyncio.Queue[agent_pb2.ServeLogsResponse | None] = field(default_factory=asyncio.Queue)
    waiting: dict[int, Answers] = field(default_factory=dict)

    def close(self) -> None:
        self.requests.put_nowait(None)
        for answers in self.waiting.values():
            with suppress(asyncio.QueueFull):
                answers.put_nowait(None)


class LogNodes:
    """The agents' streams by node id. `timeout_s`: the longest wait for the next message of an answer."""

    def __init__(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._streams: dict[str, _Stream] = {}
        self._numbers = itertools.count(1)

    @property
    def node_ids(self) -> frozenset[str]:
        """The connected nodes."""
        return frozenset(self._streams)

    async def serve(
        self, node_id: str, answers: AsyncIterator[agent_pb2.ServeLogsRequest]
    ) -> AsyncIterator[agent_pb2.ServeLogsResponse]:
        """Requests for a node, until its stream ends; a newer stream of the node ends this one.

        `answers`: the agent's messages after the first, which names the node and is checked by the caller.
        """
        stream = _Stream()
        if (older := self._streams.get(node_id)) is not None:
            older.close()
        self._streams[node_id] = stream
        receiving = asyncio.create_task(self._receive(node_id, stream, answers))
        try:
            while (request := await stream.requests.get()) is not None:
                yield request
            if receiving.done():
                receiving.result()  # raises if the agent broke the protocol
        finally:
            self._end(node_id, stream)
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def page(self, node_id: str, request: LogRequest) -> NodeLogPage:
        """One page of a node's lines; raises LogsUnavailable."""
        stream = self._streams.get(node_id)
        if stream is None:
            raise LogsUnavailable(f"node {node_id} is not connected")
        number = next(self._numbers)
        answers = stream.waiting[number] = Answers(_PENDING_MESSAGES_MAX)
        stream.requests.put_nowait(_message(number, request))
        try:
            return await self._page(node_id, request, answers)
        finally:
            del stream.waiting[number]

    async def _page(self, node_id: str, request: LogRequest, answers: Answers) -> NodeLogPage:
        parts: list[LogLines] = []
        removed: dict[int, int] = {}
        count = 0
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await answers.get()
            except TimeoutError:
                raise LogsUnavailable(f"node {node_id} did not answer within {self._timeout_s:g} s") from None
            if answer is None:
                raise LogsUnavailable(f"node {node_id} disconnected before it had answered")
            if answer.error:
                raise LogsUnavailable(f"node {node_id}: {answer.error[:500]}")
            try:
                parts.append(_lines(answer).part(0, request.lines_max - count))
            except RemoteViolation as violation:
                raise LogsUnavailable(f"node {node_id}: {violation}") from None
            count += len(parts[-1])
            removed |= {one.job: one.lines for one in answer.removed}
            if answer.last:
                return NodeLogPage(joined(parts), answer.next_offset, answer.end_offset, removed)

    def request_tunnel(self, node_id: str, job: int, port: int) -> int:
        """Requests a tunnel to a job from a node; returns the number under which the node opens it.

        Raises LogsUnavailable.
        """
        stream = self._streams.get(node_id)
        if stream is None:
            raise LogsUnavailable(f"node {node_id} is not connected")
        number = next(self._numbers)
        target = agent_pb2.TunnelTarget(job=job, port=port)
        stream.requests.put_nowait(agent_pb2.ServeLogsResponse(question=number, tunnel=target))
        return number

    def _end(self, node_id: str, stream: _Stream) -> None:
        stream.close()
        if self._streams.get(node_id) is stream:
            del self._streams[node_id]

    async def _receive(self, node_id: str, stream: _Stream, answers: AsyncIterator[agent_pb2.ServeLogsRequest]) -> None:
        """Passes answers to the requests that wait for them; drops them where a queue is full."""
        try:
            async for answer in answers:
                waiting = stream.waiting.get(answer.question)
                if waiting is not None:
                    with suppress(asyncio.QueueFull):
                        waiting.put_nowait(answer)
        finally:
            self._end(node_id, stream)


def _message(number: int, request: LogRequest) -> agent_pb2.ServeLogsResponse:
    return agent_pb2.ServeLogsResponse(question=number, batches=True, **vars(request))


def _lines(answer: agent_pb2.ServeLogsRequest) -> LogLines:
    """The lines of an answer; raises RemoteViolation. An older agent sends them one by one, without offsets."""
    if not answer.HasField("batch"):
        rows: dict[LogOrigin, int] = {}
        of_line = (LogOrigin(line.job, line.lease, line.rank, line.is_error_stream) for line in answer.lines)
        origin = [rows.setdefault(one, len(rows)) for one in of_line]
        return LogLines(
            list(rows), origin, [line.time_s for line in answer.lines], [line.text for line in answer.lines]
        )
    batch = answer.batch
    lengths = {len(batch.origin), len(batch.time_s), len(batch.text), len(batch.offset)}
    if len(lengths) > 1:
        raise RemoteViolation(f"columns of a batch must have one length, got {sorted(lengths)}")
    if batch.origin and max(batch.origin) >= len(batch.origins):
        raise RemoteViolation(f"origin must be below {len(batch.origins)}, got {max(batch.origin)}")
    origins = [LogOrigin(one.job, one.lease, one.rank, one.is_error_stream) for one in batch.origins]
    return LogLines(origins, list(batch.origin), list(batch.time_s), list(batch.text), list(batch.offset))

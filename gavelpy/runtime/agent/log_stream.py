"""Answer the scheduler's requests for log lines, over a stream of their own (ServeLogs)."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import grpc
import grpc.aio

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.agent_state import AgentState
from gavelpy.runtime.agent.leases.registry import LeaseRegistry
from gavelpy.runtime.agent.log_reader import LogPage, LogPageQuery, LogRows, read_page
from gavelpy.runtime.agent.tunnels import TunnelCall, serve_tunnel
from gavelpy.runtime.wire import agent_pb2, log_pb2

logger = logging.getLogger(__name__)

CONCURRENT_REQUESTS_MAX: Final = 8
MESSAGE_LINES_MAX: Final = 2_000
MESSAGE_BYTES_MAX: Final = 256 << 10  # of text
WRITE_TIMEOUT_S: Final = 30.0
_JOBS_MAX = 100_000

Answer = agent_pb2.ServeLogsRequest
LogsCall = grpc.aio.StreamStreamCall[Answer, agent_pb2.ServeLogsResponse]


async def serve_logs(
    call: LogsCall,
    node: AgentState,
    registry: LeaseRegistry,
    on_message: Callable[[], None],
    open_call: Callable[[], TunnelCall],
) -> None:
    """Answers until the stream ends, several requests at a time. `on_message` is called for each request.

    A request for a tunnel is answered next to the others, with a call of its own.
    """
    writing = asyncio.Lock()
    slots = asyncio.Semaphore(CONCURRENT_REQUESTS_MAX)
    answering: set[asyncio.Task[None]] = set()

    async def answer(request: agent_pb2.ServeLogsResponse) -> None:
        try:
            async for message in _answers(request, node.node_id, registry):
                async with writing, asyncio.timeout(WRITE_TIMEOUT_S):
                    await call.write(message)
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            call.cancel()  # ends the loop below
        finally:
            slots.release()

    await call.write(Answer(node_id=node.node_id, state_id=node.state_id, identity_key=node.identity_key))
    try:
        async for request in call:
            on_message()
            if request.HasField("tunnel"):
                task = asyncio.create_task(serve_tunnel(open_call(), node, registry, request))
            else:
                await slots.acquire()
                task = asyncio.create_task(answer(request))
            answering.add(task)
            task.add_done_callback(answering.discard)
    finally:
        for task in answering:
            task.cancel()


async def _answers(
    request: agent_pb2.ServeLogsResponse, node_id: str, registry: LeaseRegistry
) -> AsyncIterator[Answer]:
    """The messages that answer a request; the last one is marked."""
    try:
        query = LogPageQuery(
            job=request.job,
            jobs_allowed=frozenset(request.jobs_allowed[:_JOBS_MAX]),
            rank=request.rank,
            pattern=request.pattern,
            offset=request.offset,
            tail_lines=request.tail_lines,
            lines_max=request.lines_max,
        )
        page = await asyncio.to_thread(read_page, registry.log_directories(), query)
    except InvalidInput as error:
        yield Answer(question=request.question, last=True, error=str(error))
    except OSError as error:
        logger.exception("cannot read the log")
        yield Answer(question=request.question, last=True, error=f"cannot read the log: {error.strerror}")
    else:
        for message in _messages(page, request, node_id):
            yield message


def _messages(page: LogPage, request: agent_pb2.ServeLogsResponse, node_id: str) -> Iterator[Answer]:
    starts, removed = _message_starts(page.rows.texts), page.removed
    for start, end in zip(starts, [*starts[1:], len(page.rows)], strict=True):
        rows = page.rows.part(start, end)
        answer = Answer(
            question=request.question,
            next_offset=page.next_offset,
            end_offset=page.end_offset,
            last=end == len(page.rows),
            removed=[agent_pb2.RemovedLines(job=job, lines=lines) for job, lines in removed.items()],
        )
        removed = {}
        if request.batches:
            answer.batch.CopyFrom(_batch(rows))
        else:
            answer.lines.extend(_lines(rows, node_id))
        yield answer


def _message_starts(texts: Sequence[str]) -> list[int]:
    """The first row of each message."""
    sizes = list(accumulate(map(len, texts), initial=0))
    starts = [0]
    while True:
        end = min(bisect_left(sizes, sizes[starts[-1]] + MESSAGE_BYTES_MAX), starts[-1] + MESSAGE_LINES_MAX)
        if end >= len(texts):
            return starts
        starts.append(end)


def _batch(rows: LogRows) -> log_pb2.LogBatch:
    sources = {id(source): source for source in rows.sources}  # by identity: hashing a source a line is slow
    origins = {number: row for row, number in enumerate(sources)}
    return log_pb2.LogBatch(
        origins=[
            log_pb2.LogOrigin(job=one.job, lease=one.lease, rank=one.rank, is_error_stream=one.is_error_stream)
            for one in sources.values()
        ],
        origin=[origins[id(source)] for source in rows.sources],
        time_s=rows.times_s(),
        text=rows.texts,
        offset=rows.keys,
    )


def _lines(rows: LogRows, node_id: str) -> Iterator[agent_pb2.LogLine]:
    """For a scheduler that does not support batches."""
    for source, text, time_s in zip(rows.sources, rows.texts, rows.times_s(), strict=True):
        yield agent_pb2.LogLine(
            job=source.job,
            lease=source.lease,
            rank=source.rank,
            is_error_stream=source.is_error_stream,
            text=text,
            node_id=node_id,
            time_s=time_s,
        )

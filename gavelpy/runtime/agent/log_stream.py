"""Answers the scheduler's questions about logs, over a stream of their own."""

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
from gavelpy.runtime.agent.book import LeaseBook
from gavelpy.runtime.agent.log_pages import Page, Question, read_page
from gavelpy.runtime.agent.memory import Memory
from gavelpy.runtime.wire import agent_pb2, log_pb2

logger = logging.getLogger(__name__)

QUESTIONS_AT_ONCE: Final = 8
LINES_A_MESSAGE: Final = 2_000
BYTES_A_MESSAGE: Final = 256 << 10  # of text
WRITE_S: Final = 30.0
_JOBS_MAX = 100_000

Answer = agent_pb2.ServeLogsRequest
LogsCall = grpc.aio.StreamStreamCall[Answer, agent_pb2.ServeLogsResponse]


async def serve_logs(call: LogsCall, who: Memory, book: LeaseBook, heard: Callable[[], None]) -> None:
    """Answers until the stream ends; some questions at once, each by one or more messages. `heard`: one has come."""
    writing = asyncio.Lock()
    places = asyncio.Semaphore(QUESTIONS_AT_ONCE)
    answering: set[asyncio.Task[None]] = set()

    async def answer(asked: agent_pb2.ServeLogsResponse) -> None:
        try:
            async for message in answers_to(asked, who.node_id, book):
                async with writing, asyncio.timeout(WRITE_S):
                    await call.write(message)
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            call.cancel()  # which ends the reading below, too
        finally:
            places.release()

    await call.write(Answer(node_id=who.node_id, state_id=who.state_id, identity_key=who.identity_key))
    try:
        async for asked in call:
            heard()
            await places.acquire()
            task = asyncio.create_task(answer(asked))
            answering.add(task)
            task.add_done_callback(answering.discard)
    finally:
        for task in answering:
            task.cancel()


async def answers_to(asked: agent_pb2.ServeLogsResponse, node_id: str, book: LeaseBook) -> AsyncIterator[Answer]:
    """The messages that answer a question; the last one is marked."""
    try:
        question = Question(
            job=asked.job,
            jobs_allowed=frozenset(asked.jobs_allowed[:_JOBS_MAX]),
            rank=asked.rank,
            pattern=asked.pattern,
            offset=asked.offset,
            tail_lines=asked.tail_lines,
            lines_max=asked.lines_max,
        )
        page = await read_page(book.log_directories, question)
    except InvalidInput as error:
        yield Answer(question=asked.question, last=True, error=str(error))
    except OSError as error:
        logger.exception("log cannot be read")
        yield Answer(question=asked.question, last=True, error=f"the log cannot be read: {error.strerror}")
    else:
        for message in _messages(page, asked, node_id):
            yield message


def _messages(page: Page, asked: agent_pb2.ServeLogsResponse, node_id: str) -> Iterator[Answer]:
    starts = _starts(page.texts)
    for start, end in zip(starts, [*starts[1:], len(page)], strict=True):
        part = page.part(start, end)
        answer = Answer(
            question=asked.question,
            next_offset=page.next_offset,
            end_offset=page.end_offset,
            last=end == len(page),
        )
        if asked.batches:
            answer.batch.CopyFrom(_batch(part))
        else:
            answer.lines.extend(_lines(part, node_id))
        yield answer


def _starts(texts: Sequence[str]) -> list[int]:
    """Where each message begins: none has more than so many lines, or much more than so many bytes."""
    sizes = list(accumulate(map(len, texts), initial=0))
    starts = [0]
    while (end := min(bisect_left(sizes, sizes[starts[-1]] + BYTES_A_MESSAGE), starts[-1] + LINES_A_MESSAGE)) < len(
        texts
    ):
        starts.append(end)
    return starts


def _batch(part: Page) -> log_pb2.LogBatch:
    files = {id(source): source for source in part.sources}  # by identity: quick, and they are few
    places = {number: place for place, number in enumerate(files)}
    origins = [
        log_pb2.LogOrigin(job=one.job, lease=one.lease, rank=one.rank, is_error_stream=one.is_error_stream)
        for one in files.values()
    ]
    return log_pb2.LogBatch(
        origins=origins,
        origin=[places[id(source)] for source in part.sources],
        time_s=part.times_s(),
        text=part.texts,
        offset=part.keys,
    )


def _lines(part: Page, node_id: str) -> Iterator[agent_pb2.LogLine]:
    for source, text, time_s in zip(part.sources, part.texts, part.times_s(), strict=True):
        yield agent_pb2.LogLine(
            job=source.job,
            lease=source.lease,
            rank=source.rank,
            is_error_stream=source.is_error_stream,
            text=text,
            node_id=node_id,
            time_s=time_s,
        )

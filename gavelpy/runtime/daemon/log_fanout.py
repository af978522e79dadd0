"""Questions about logs to the agents, and their answers, over the stream that each agent holds open for them.

A question is answered by one or more messages, the last marked so. The next page is asked for when somebody wants it,
so no more than a page a question waits here. Answers to questions that nobody asks any more are dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.daemon.log_columns import LogColumns, columns_of, joined
from gavelpy.runtime.wire import agent_pb2

ALL_JOBS = -1
ANSWER_TIMEOUT_S = 10.0
_MESSAGES_WAITING_MAX = 10_000


class NodeSilent(RemoteViolation):
    """A node gave no answer to a question about its logs; the message says why."""


@dataclass(frozen=True)
class LogQuestion:
    """Which lines of one node are wanted."""

    job: int  # or ALL_JOBS
    jobs_allowed: tuple[int, ...] = ()
    rank: int = -1
    pattern: str = ""
    offset: int = 0  # of this job's log on this node
    tail_lines: int = 0
    lines_max: int = 1_000

    def message(self, number: int) -> agent_pb2.ServeLogsResponse:
        """As the agent is asked."""
        return agent_pb2.ServeLogsResponse(
            question=number,
            job=self.job,
            jobs_allowed=self.jobs_allowed,
            rank=self.rank,
            pattern=self.pattern,
            offset=self.offset,
            tail_lines=self.tail_lines,
            lines_max=self.lines_max,
            batches=True,
        )


@dataclass(frozen=True)
class LogPage:
    """Lines of one node, oldest first, and where a following read goes on."""

    columns: LogColumns
    next_offset: int
    end_offset: int = 0  # what was there when the node was asked lies before it; 0 = not told


Answers = asyncio.Queue[agent_pb2.ServeLogsRequest | None]  # None: there will be no more


@dataclass(eq=False)
class _Stream:
    """One agent's stream: what it is still to be asked, and who waits for what it says."""

    questions: asyncio.Queue[agent_pb2.ServeLogsResponse | None] = field(default_factory=asyncio.Queue)
    waiting: dict[int, Answers] = field(default_factory=dict)

    def close(self) -> None:
        self.questions.put_nowait(None)
        for answers in self.waiting.values():
            with suppress(asyncio.QueueFull):
                answers.put_nowait(None)


class LogFanout:
    """The agents' streams by node id. `timeout_s`: how long an answer's next message is waited for."""

    def __init__(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._streams: dict[str, _Stream] = {}
        self._numbers = itertools.count(1)

    @property
    def node_ids(self) -> frozenset[str]:
        """Nodes that can be asked."""
        return frozenset(self._streams)

    async def serve(
        self, node_id: str, answers: AsyncIterator[agent_pb2.ServeLogsRequest]
    ) -> AsyncIterator[agent_pb2.ServeLogsResponse]:
        """Questions for a node, for as long as it holds its stream open; a newer stream of the node ends this one.

        `answers`: what the agent sends, after its first message, which names the node and is the caller's to check.
        """
        stream = _Stream()
        if (older := self._streams.get(node_id)) is not None:
            older.close()
        self._streams[node_id] = stream
        hearing = asyncio.create_task(self._hear(node_id, stream, answers))
        try:
            while (question := await stream.questions.get()) is not None:
                yield question
            if hearing.done():
                hearing.result()  # raises what was wrong with what the agent sent
        finally:
            self._end(node_id, stream)
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def ask(self, node_id: str, question: LogQuestion) -> LogPage:
        """One page of a node's lines; raises NodeSilent."""
        stream = self._streams.get(node_id)
        if stream is None:
            raise NodeSilent(f"node {node_id} is not connected")
        number = next(self._numbers)
        answers = stream.waiting[number] = Answers(_MESSAGES_WAITING_MAX)
        stream.questions.put_nowait(question.message(number))
        try:
            return await self._page(node_id, question, answers)
        finally:
            del stream.waiting[number]

    async def _page(self, node_id: str, question: LogQuestion, answers: Answers) -> LogPage:
        parts: list[LogColumns] = []
        count = 0
        while True:
            try:
                answer = await asyncio.wait_for(answers.get(), self._timeout_s)
            except TimeoutError:
                raise NodeSilent(f"node {node_id} did not answer within {self._timeout_s:g} s") from None
            if answer is None:
                raise NodeSilent(f"node {node_id} went away while it answered")
            if answer.error:
                raise NodeSilent(f"node {node_id}: {answer.error[:500]}")
            try:
                parts.append(columns_of(answer).part(0, question.lines_max - count))
            except RemoteViolation as violation:
                raise NodeSilent(f"node {node_id}: {violation}") from None
            count += len(parts[-1])
            if answer.last:
                return LogPage(joined(parts), answer.next_offset, answer.end_offset)

    def _end(self, node_id: str, stream: _Stream) -> None:
        """Nobody is asked by this stream any more, and whoever waits for an answer hears that there is none."""
        stream.close()
        if self._streams.get(node_id) is stream:
            del self._streams[node_id]

    async def _hear(self, node_id: str, stream: _Stream, answers: AsyncIterator[agent_pb2.ServeLogsRequest]) -> None:
        """Passes answers to who waits for them; somebody who lets thousands pile up gets no more."""
        try:
            async for answer in answers:
                waiting = stream.waiting.get(answer.question)
                if waiting is not None:
                    with suppress(asyncio.QueueFull):
                        waiting.put_nowait(answer)
        finally:
            self._end(node_id, stream)

"""Lines of jobs for clients, gathered from all nodes in the order of their times, as they are or as they come.

A node that is away or does not answer is told of, once, and never waited for longer than an answer may take.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.gpus import NOBODY
from gavelpy.mechanism.lifecycle import ALIVE, NodeState
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.client_service_board import JobBoard
from gavelpy.runtime.daemon.client_service_checks import PATTERN_CHARACTERS_MAX, require, shown
from gavelpy.runtime.daemon.facts import name_of
from gavelpy.runtime.daemon.log_fanout import ALL_JOBS, LogQuestion, NodeSilent
from gavelpy.runtime.security.identity import Caller
from gavelpy.runtime.wire import agent_pb2
from gavelpy.runtime.wire import client_pb2 as pb

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

_POLL_S = 0.3
_LINGER_S = 5.0  # a node is still asked for so long after the job has left it
_JOBS_ALLOWED_MAX = 50_000  # the newest of the caller's, where no job is named
_RANK_MAX = 1_000_000
_TAIL_MAX = 100_000
_NODES_NAMED = 5


@dataclass(eq=False)
class _Reader:
    """One node's lines from an offset on."""

    node_id: str
    question: LogQuestion
    lines: deque[agent_pb2.LogLine] = field(default_factory=deque)
    is_at_end: bool = False  # for now
    trouble: str = ""

    async def fill(self, scheduler: Scheduler) -> None:
        """Reads on until there is a line, or none for now."""
        self.trouble, self.is_at_end = "", False
        while not self.lines and not self.is_at_end:
            try:
                page = await scheduler.logs.ask(self.node_id, self.question)
            except NodeSilent as silence:
                self.trouble, self.is_at_end = str(silence), True
                return
            self.is_at_end = page.next_offset <= self.question.offset
            self.question = replace(self.question, offset=max(page.next_offset, self.question.offset), tail_lines=0)
            self.lines.extend(page.lines)


class LogStream:
    """Asks a scheduler's nodes."""

    def __init__(self, scheduler: Scheduler, board: JobBoard) -> None:
        self._scheduler, self._board = scheduler, board

    async def read(self, request: pb.ReadLogsRequest, caller: Caller) -> AsyncIterator[pb.ReadLogsResponse]:
        """The lines that were asked for and that the caller may see."""
        question = self._question(request, caller)
        readers = {node_id: _Reader(node_id, question) for node_id in sorted(self._scheduler.logs.node_ids)}
        if missing := self._missing(readers):
            yield pb.ReadLogsResponse(notice=missing)
        kept: deque[pb.ReadLogsResponse] = deque(maxlen=request.tail_lines or None)
        async for line in self._merged(readers.values(), caller):
            if line.notice or not request.tail_lines:
                yield line
            else:
                kept.append(line)
        for line in kept:
            yield line
        if request.follow:
            async for line in self._followed(readers, question, caller):
                yield line

    def _question(self, request: pb.ReadLogsRequest, caller: Caller) -> LogQuestion:
        require(-1 <= request.rank <= _RANK_MAX, "rank", f"in [-1, {_RANK_MAX}] (-1 = all)", request.rank)
        require(request.tail_lines <= _TAIL_MAX, "tail_lines", f"at most {_TAIL_MAX}", request.tail_lines)
        _check_pattern(request.pattern)
        asked = LogQuestion(ALL_JOBS, (), request.rank, request.pattern, 0, request.tail_lines)
        if request.job:
            return replace(asked, job=self._board.find(caller, request.job))
        return replace(asked, jobs_allowed=self._allowed(caller))

    def _allowed(self, caller: Caller) -> tuple[int, ...]:
        return tuple(self._board.serials(caller)[-_JOBS_ALLOWED_MAX:].tolist())

    def _missing(self, readers: Iterable[str]) -> str:
        """Which nodes cannot be asked; empty = none."""
        pool = self._scheduler.core.pool
        states = zip(pool.node_ids, pool.node_state, strict=True)
        away = [node for node, state in states if state is not NodeState.LOST and node not in set(readers)]
        if not away:
            return ""
        more = f" and {len(away) - _NODES_NAMED} more" if len(away) > _NODES_NAMED else ""
        return f"not connected: {', '.join(away[:_NODES_NAMED])}{more}; lines written there are missing"

    async def _merged(self, readers: Iterable[_Reader], caller: Caller) -> AsyncIterator[pb.ReadLogsResponse]:
        """All that there is now, by time."""
        asked = list(readers)
        await asyncio.gather(*(reader.fill(self._scheduler) for reader in asked))
        heads = [(reader.lines[0].time_s, row) for row, reader in enumerate(asked) if reader.lines]
        heapq.heapify(heads)
        for reader in asked:
            if reader.trouble:
                yield pb.ReadLogsResponse(notice=reader.trouble)
        while heads:
            _, row = heapq.heappop(heads)
            reader = asked[row]
            line = self._message(reader, reader.lines.popleft(), caller)
            if line is not None:
                yield line
            if not reader.lines and not reader.is_at_end:
                await reader.fill(self._scheduler)
                if reader.trouble:
                    yield pb.ReadLogsResponse(notice=reader.trouble)
            if reader.lines:
                heapq.heappush(heads, (reader.lines[0].time_s, row))

    async def _followed(
        self, readers: dict[str, _Reader], question: LogQuestion, caller: Caller
    ) -> AsyncIterator[pb.ReadLogsResponse]:
        """Lines as they come, from where the job is or was lately, until it is over."""
        active: dict[str, float] = {}
        silent: set[str] = set()
        first = replace(question, tail_lines=0)
        while True:
            is_over, now_s = self._is_over(question), time.monotonic()
            active |= dict.fromkeys(self._nodes_of(question, caller), now_s)
            here = self._scheduler.logs.node_ids
            asked = [
                readers.setdefault(node, _Reader(node, first))
                for node, seen_s in active.items()
                if node in here and now_s < seen_s + _LINGER_S
            ]
            for reader in asked if question.job == ALL_JOBS else ():
                reader.question = replace(reader.question, jobs_allowed=self._allowed(caller))
            count = 0
            async for line in self._merged(asked, caller):
                is_repeated = bool(line.notice) and line.notice in silent
                count += not line.notice
                if line.notice:
                    silent.add(line.notice)
                if not is_repeated:
                    yield line
            silent &= {reader.trouble for reader in asked}
            if is_over and not count:
                return
            await asyncio.sleep(_POLL_S)

    def _is_over(self, question: LogQuestion) -> bool:
        """Whether the one job that is followed has ended, and no lease of it is left."""
        jobs, job = self._scheduler.core.jobs, question.job
        return job != ALL_JOBS and bool(jobs.state[job] > ALIVE[-1]) and bool(jobs.stopping[job] < 0)

    def _nodes_of(self, question: LogQuestion, caller: Caller) -> list[str]:
        """Nodes that hold, or give up, a lease of the jobs in question."""
        core = self._scheduler.core
        jobs, pool = core.jobs, core.pool
        if question.job != ALL_JOBS:
            held: Ints = np.concatenate([jobs.gpus_held(question.job), jobs.gpus_stopping(question.job)])
            gpus = held[held >= 0]
        else:
            gpus = np.flatnonzero(pool.job != NOBODY)
            if not caller.is_admin:
                gpus = gpus[np.isin(pool.job[gpus], self._board.serials(caller))]
        return [str(pool.node_ids[row]) for row in np.unique(pool.node_of[gpus]).tolist()]

    def _message(self, reader: _Reader, line: agent_pb2.LogLine, caller: Caller) -> pb.ReadLogsResponse | None:
        """As the client gets it; nothing where a node sends what it was not asked for."""
        core, wanted = self._scheduler.core, reader.question.job
        if not 0 <= line.job < core.jobs.count or (wanted not in (ALL_JOBS, line.job)):
            return None
        if not self._board.may_see(caller, line.job):
            return None
        return pb.ReadLogsResponse(
            job=line.job,
            job_name=name_of(core.jobs.specs[line.job].id),
            lease=line.lease,
            rank=line.rank,
            is_error_stream=line.is_error_stream,
            node_id=reader.node_id,
            text=line.text,
            time_s=line.time_s,
        )


def _check_pattern(pattern: str) -> None:
    require(len(pattern) <= PATTERN_CHARACTERS_MAX, "pattern", f"at most {PATTERN_CHARACTERS_MAX} characters", pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a pattern may mean one day
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidInput(f"pattern must be a regular expression ({error}), got {shown(pattern)}") from None

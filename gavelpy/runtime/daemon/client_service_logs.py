"""Lines of jobs for clients, gathered from all nodes in the order of their times, as they are or as they come.

A node that is away or does not answer is told of, once, and never waited for longer than an answer may take.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.gpus import NOBODY
from gavelpy.mechanism.lifecycle import ALIVE, NodeState
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.client_service_board import JobBoard
from gavelpy.runtime.daemon.client_service_checks import require
from gavelpy.runtime.daemon.facts import name_of
from gavelpy.runtime.daemon.log_columns import Parcel, Piece, singly
from gavelpy.runtime.daemon.log_fanout import ALL_JOBS, LogQuestion
from gavelpy.runtime.daemon.log_readers import LogReader, merged
from gavelpy.runtime.log_pattern import compile_pattern
from gavelpy.runtime.security.identity import Caller
from gavelpy.runtime.wire import client_pb2 as pb

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

_POLL_S = 0.3
_LINGER_S = 5.0  # a node is still asked for so long after the job has left it
_JOBS_ALLOWED_MAX = 50_000  # the newest of the caller's, where no job is named
_RANK_MAX = 1_000_000
_TAIL_MAX = 100_000
_NODES_NAMED = 5
_BACK_S = 10.0  # agents are waited for by who goes on after a restart
_PARCEL_CHARACTERS = 256 << 10
_LINES_AT_ONCE, _PAGE_LINES_MIN, _PAGE_LINES_MAX = 40_000, 500, 10_000
_AFTER_MAX = 100_000  # nodes


class LogStream:
    """Asks a scheduler's nodes."""

    def __init__(self, scheduler: Scheduler, board: JobBoard) -> None:
        self._scheduler, self._board = scheduler, board

    async def read(self, request: pb.ReadLogsRequest, caller: Caller) -> AsyncIterator[pb.ReadLogsResponse]:
        """The lines that were asked for and that the caller may see."""
        async for message in self._read(request, caller):
            if request.batches:
                yield message
                continue
            for single in singly(message):
                yield single

    async def _read(self, request: pb.ReadLogsRequest, caller: Caller) -> AsyncIterator[pb.ReadLogsResponse]:
        question = self._question(request, caller)
        if request.after and request.follow:
            await self._nodes_back(question, caller, request.after)
        logs, parcel = self._scheduler.logs, Parcel()
        readers = {node_id: _reader(node_id, question, request.after) for node_id in sorted(logs.node_ids)}
        _share_out(readers.values())
        if missing := self._missing(readers):
            yield pb.ReadLogsResponse(notice=missing)
        if request.tail_lines:
            async for message in self._last(readers, request.tail_lines, parcel, caller):
                yield message
        else:
            async for message in self._passed(list(readers.values()), question.job, parcel, caller):
                yield message
        if request.follow:
            async for message in self._followed(readers, replace(question, tail_lines=0), request, parcel, caller):
                yield message

    async def _nodes_back(self, question: LogQuestion, caller: Caller, told: Iterable[str]) -> None:
        """After a restart agents come back one by one; who reads on waits a moment for those with something to say."""
        deadline_s = time.monotonic() + _BACK_S
        while time.monotonic() < deadline_s:
            pool = self._scheduler.core.pool
            lost = {node for node, state in zip(pool.node_ids, pool.node_state, strict=True) if state is NodeState.LOST}
            wanted = {*told, *self._nodes_of(question, caller)}.intersection(pool.node_ids)
            if wanted - lost <= self._scheduler.logs.node_ids:
                return
            await asyncio.sleep(_POLL_S)

    def _question(self, request: pb.ReadLogsRequest, caller: Caller) -> LogQuestion:
        require(-1 <= request.rank <= _RANK_MAX, "rank", f"in [-1, {_RANK_MAX}] (-1 = all)", request.rank)
        require(request.tail_lines <= _TAIL_MAX, "tail_lines", f"at most {_TAIL_MAX}", request.tail_lines)
        require(len(request.after) <= _AFTER_MAX, "after", f"at most {_AFTER_MAX} nodes", len(request.after))
        compile_pattern(request.pattern)  # refuses what is none
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

    async def _passed(
        self, readers: Sequence[LogReader], job: int, parcel: Parcel, caller: Caller
    ) -> AsyncIterator[pb.ReadLogsResponse]:
        """All that there is now of a job, or of ALL_JOBS, by time."""
        async for found in merged(readers, self._scheduler.logs):
            if isinstance(found, str):
                for message in (*parcel.messages(), pb.ReadLogsResponse(notice=found)):
                    yield message
                continue
            self._pack(self._seen(found, job, caller), parcel)
            if parcel.size >= _PARCEL_CHARACTERS:
                for message in parcel.messages():
                    yield message
        for reader in readers:
            if reader.position:
                parcel.move(reader.node_id, reader.position)
        for message in parcel.messages():
            yield message

    async def _last(
        self, readers: Mapping[str, LogReader], lines: int, parcel: Parcel, caller: Caller
    ) -> AsyncIterator[pb.ReadLogsResponse]:
        """The last so many lines that there are now."""
        kept: deque[Piece] = deque()
        count = 0
        async for found in merged(list(readers.values()), self._scheduler.logs):
            if isinstance(found, str):
                yield pb.ReadLogsResponse(notice=found)
                continue
            seen = self._seen(found, readers[found.node_id].question.job, caller)
            kept.append(seen)
            count += len(seen.columns)
            while count - len(kept[0].columns) >= lines:
                count -= len(kept.popleft().columns)
        if kept:
            kept[0] = kept[0].last(lines - count + len(kept[0].columns))
        before = {piece.node_id: piece.columns.offset[0] - 1 for piece in reversed(kept) if piece.columns.offset}
        for node_id, reader in readers.items():  # who is cut off while these come goes on among them
            if position := before.get(node_id, reader.position):
                parcel.move(node_id, position)
        for piece in kept:
            for message in parcel.messages() if parcel.size >= _PARCEL_CHARACTERS else ():
                yield message
            self._pack(piece, parcel)
        for message in parcel.messages():
            yield message

    async def _followed(
        self,
        readers: dict[str, LogReader],
        question: LogQuestion,
        request: pb.ReadLogsRequest,
        parcel: Parcel,
        caller: Caller,
    ) -> AsyncIterator[pb.ReadLogsResponse]:
        """Lines as they come, from where the job is or was lately, until it is over and all nodes have been asked."""
        active: dict[str, float] = {}
        silent: set[str] = set()
        was_over = False
        while True:
            is_over, now_s = self._is_over(question), time.monotonic()
            active |= dict.fromkeys(self._nodes_of(question, caller), now_s)
            lately = {node for node, seen_s in active.items() if now_s < seen_s + _LINGER_S}
            here = self._scheduler.logs.node_ids
            asked = [
                readers.setdefault(node, _reader(node, question, request.after))
                for node in sorted(here if is_over else here & lately)
            ]
            for reader in asked if question.job == ALL_JOBS else ():
                reader.question = replace(reader.question, jobs_allowed=self._allowed(caller))
            count = 0
            async for message in self._passed(asked, question.job, parcel, caller):
                is_repeated = bool(message.notice) and message.notice in silent
                count += len(message.batch.text)
                if message.notice:
                    silent.add(message.notice)
                if not is_repeated:
                    yield message
            silent &= {reader.trouble for reader in asked}
            if is_over and was_over and not count and lately <= here:
                return
            was_over = is_over  # the last lines may have been too young to be given: once more after a pause
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

    def _seen(self, piece: Piece, wanted: int, caller: Caller) -> Piece:
        """Without what a node sends that it was not asked for, or that the caller may not see."""
        jobs, origins = self._scheduler.core.jobs, piece.columns.origins
        allowed = frozenset(
            row
            for row, job in enumerate(origin.job for origin in origins)
            if 0 <= job < jobs.count and wanted in (ALL_JOBS, job) and self._board.may_see(caller, job)
        )
        return replace(piece, columns=piece.columns.chosen(allowed))

    def _pack(self, piece: Piece, parcel: Parcel) -> None:
        specs = self._scheduler.core.jobs.specs
        used = set(piece.columns.origin)
        origins = piece.columns.origins
        parcel.add(piece, {row: name_of(specs[origins[row].job].id) for row in used})


def _reader(node_id: str, question: LogQuestion, after: Mapping[str, int]) -> LogReader:
    """From where the client has come to, if it has been told anything of that node."""
    if node_id not in after:
        return LogReader(node_id, question)
    return LogReader(node_id, replace(question, offset=after[node_id], tail_lines=0))


def _share_out(readers: Collection[LogReader]) -> None:
    """Large pages from few nodes, small ones from many: all pages together have their bound."""
    lines_max = min(max(_LINES_AT_ONCE // max(len(readers), 1), _PAGE_LINES_MIN), _PAGE_LINES_MAX)
    for reader in readers:
        reader.question = replace(reader.question, lines_max=lines_max)

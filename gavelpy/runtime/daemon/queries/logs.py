"""Read the log lines of jobs for clients: merged by time over all nodes, as they are or while they are written.

A read consists of passes. A pass ends at the lines that existed when it began (each node sends that offset with its
first answer), so it ends although the logs grow. A node that is not connected or does not answer is named in a notice.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import ALIVE, NodeState
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.queries.jobs import JobBoard
from gavelpy.runtime.daemon.rpc.agent_logs import ALL_JOBS, LogLines, LogNodes, LogOrigin, LogRequest, LogsUnavailable
from gavelpy.runtime.daemon.rpc.requests import require
from gavelpy.runtime.log_pattern import compile_pattern
from gavelpy.runtime.security.identity import Caller
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import log_pb2

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

_POLL_S = 0.3
_LINGER_S = 5.0  # a node is read for this long after its last lease of the job
_RECONNECT_S = 10.0  # a read that continues after a restart of the scheduler waits this long for the agents
_JOBS_ALLOWED_MAX = 50_000  # the newest jobs of the caller, where the request names none
_RANK_MAX = 1_000_000
_TAIL_MAX = 100_000
_AFTER_MAX = 100_000  # nodes
_NODES_NAMED = 5
_MESSAGE_CHARACTERS = 256 << 10
_LINES_AT_ONCE, _PAGE_LINES_MIN, _PAGE_LINES_MAX = 40_000, 500, 10_000


class LogStream:
    """Reads logs of a scheduler's jobs."""

    def __init__(self, scheduler: Scheduler, board: JobBoard) -> None:
        self._scheduler, self._board = scheduler, board

    async def read(self, request: pb.ReadLogsRequest, caller: Caller) -> AsyncIterator[pb.ReadLogsResponse]:
        """The lines that the request selects and the caller may read."""
        async for message in _Reading(self._scheduler, self._board, request, caller).messages():
            for response in [message] if request.batches else _line_responses(message):
                yield response


class _Reading:
    """One request."""

    def __init__(self, scheduler: Scheduler, board: JobBoard, request: pb.ReadLogsRequest, caller: Caller) -> None:
        require(-1 <= request.rank <= _RANK_MAX, "rank", f"in [-1, {_RANK_MAX}] (-1 = all)", request.rank)
        require(request.tail_lines <= _TAIL_MAX, "tail_lines", f"at most {_TAIL_MAX}", request.tail_lines)
        require(len(request.after) <= _AFTER_MAX, "after", f"at most {_AFTER_MAX} nodes", len(request.after))
        compile_pattern(request.pattern)
        self._core, self._nodes, self._board = scheduler.core, scheduler.logs, board
        self._request, self._caller = request, caller
        self._job = board.find(caller, request.job) if request.job else ALL_JOBS
        self._readers: dict[str, _NodeReader] = {}
        self._batch = _BatchBuilder(lambda job: name_of(self._core.jobs.specs[job].id))
        self._tail_lines = request.tail_lines

    async def messages(self) -> AsyncIterator[pb.ReadLogsResponse]:
        """Batches and notices."""
        if self._request.after and self._request.follow:
            await self._wait_for_agents()
        readers = [self._reader(node) for node in sorted(self._nodes.node_ids)]
        if notice := self._missing_nodes():
            yield pb.ReadLogsResponse(notice=notice)
        async for message in self._tail(readers) if self._tail_lines else self._pass(readers):
            yield message
        if self._request.follow:
            self._tail_lines = 0
            async for message in self._followed():
                yield message

    async def _wait_for_agents(self) -> None:
        """Waits until the agents that have lines for this read are connected again, or too long."""
        deadline_s = time.monotonic() + _RECONNECT_S
        while time.monotonic() < deadline_s:
            wanted = {*self._request.after, *self._nodes_of_jobs()}.intersection(self._present_nodes())
            if wanted <= self._nodes.node_ids:
                return
            await asyncio.sleep(_POLL_S)

    def _present_nodes(self) -> list[str]:
        pool = self._core.pool
        states = zip(pool.node_ids, pool.node_state, strict=True)
        return [node for node, state in states if state is not NodeState.LOST]

    def _missing_nodes(self) -> str:
        """A notice of the nodes that are not connected; empty = none."""
        missing = [node for node in self._present_nodes() if node not in self._readers]
        if not missing:
            return ""
        more = f" and {len(missing) - _NODES_NAMED} more" if len(missing) > _NODES_NAMED else ""
        return f"not connected: {', '.join(missing[:_NODES_NAMED])}{more}; lines written there are missing"

    def _reader(self, node_id: str) -> _NodeReader:
        """The node's reader, which continues where the client stopped."""
        reader = self._readers.get(node_id)
        if reader is None:
            offset = self._request.after.get(node_id, 0)
            tail_lines = 0 if node_id in self._request.after else self._tail_lines
            lines_max = _LINES_AT_ONCE // max(len(self._nodes.node_ids), 1)
            lines_max = min(max(lines_max, _PAGE_LINES_MIN), _PAGE_LINES_MAX)
            request = LogRequest(
                self._job, (), self._request.rank, self._request.pattern, offset, tail_lines, lines_max
            )
            reader = self._readers[node_id] = _NodeReader(node_id, request)
        if self._job == ALL_JOBS:
            allowed = tuple(self._board.serials(self._caller)[-_JOBS_ALLOWED_MAX:].tolist())
            reader.request = replace(reader.request, jobs_allowed=allowed)
        return reader

    async def _pass(self, readers: Sequence[_NodeReader]) -> AsyncIterator[pb.ReadLogsResponse]:
        """All lines that exist now."""
        async for found in _merged(readers, self._nodes):
            if isinstance(found, str):
                for message in (*self._batch.messages(), pb.ReadLogsResponse(notice=found)):
                    yield message
                continue
            self._batch.add(self._readable(found))
            for message in self._batch.messages(_MESSAGE_CHARACTERS):
                yield message
        for reader in readers:
            if reader.position:
                self._batch.move(reader.node_id, reader.position)
        for message in self._batch.messages():
            yield message

    async def _tail(self, readers: Sequence[_NodeReader]) -> AsyncIterator[pb.ReadLogsResponse]:
        """The last lines that exist now."""
        kept: deque[_Piece] = deque()
        count = 0
        async for found in _merged(readers, self._nodes):
            if isinstance(found, str):
                yield pb.ReadLogsResponse(notice=found)
                continue
            kept.append(self._readable(found))
            count += len(kept[-1].lines)
            while count - len(kept[0].lines) >= self._tail_lines:
                count -= len(kept.popleft().lines)
        if kept:
            lines = kept[0].lines
            first = min(max(count - self._tail_lines, 0), len(lines))
            kept[0] = replace(kept[0], lines=lines.part(first, len(lines)))
        starts = {piece.node_id: piece.lines.offset[0] - 1 for piece in reversed(kept) if piece.lines.offset}
        for reader in readers:  # a client that is cut off within the tail continues within it
            if position := starts.get(reader.node_id, reader.position):
                self._batch.move(reader.node_id, position)
        for piece in kept:
            for message in self._batch.messages(_MESSAGE_CHARACTERS):
                yield message
            self._batch.add(piece)
        for message in self._batch.messages():
            yield message

    async def _followed(self) -> AsyncIterator[pb.ReadLogsResponse]:
        """Lines as they are written, until the job is over and all nodes have sent its last lines."""
        seen_s: dict[str, float] = {}  # when a node last had a lease of the jobs
        notices: set[str] = set()  # sent, and still the case
        was_over = False
        while True:
            is_over, now_s = self._is_over(), time.monotonic()
            seen_s |= dict.fromkeys(self._nodes_of_jobs(), now_s)
            recent = {node for node, at_s in seen_s.items() if now_s < at_s + _LINGER_S}
            connected = self._nodes.node_ids
            readers = [self._reader(node) for node in sorted(connected if is_over else connected & recent)]
            count = 0
            async for message in self._pass(readers):
                count += len(message.batch.text)
                if message.notice not in notices:
                    yield message
                notices |= {message.notice} - {""}
            notices &= {reader.error for reader in readers}
            if is_over and was_over and not count and recent <= connected:
                return
            was_over = is_over  # the last lines may have been too young to be sent: once more after a pause
            await asyncio.sleep(_POLL_S)

    def _is_over(self) -> bool:
        """Whether the job that is followed has ended, and all its leases."""
        jobs = self._core.jobs
        return self._job != ALL_JOBS and bool(jobs.state[self._job] > ALIVE[-1] and jobs.stopping[self._job] < 0)

    def _nodes_of_jobs(self) -> list[str]:
        """Nodes with a lease of the jobs, running or stopping."""
        jobs, pool = self._core.jobs, self._core.pool
        if self._job != ALL_JOBS:
            held: Ints = np.concatenate([jobs.gpus_held(self._job), jobs.gpus_stopping(self._job)])
            gpus = held[held >= 0]
        else:
            gpus = np.flatnonzero(pool.job != NONE)
            if not self._caller.is_admin:
                gpus = gpus[np.isin(pool.job[gpus], self._board.serials(self._caller))]
        return [str(pool.node_ids[row]) for row in np.unique(pool.node_of[gpus]).tolist()]

    def _readable(self, piece: _Piece) -> _Piece:
        """Without lines of other jobs than those requested, and of jobs that the caller may not see."""
        rows = frozenset(
            row
            for row, origin in enumerate(piece.lines.origins)
            if 0 <= origin.job < self._core.jobs.count
            and self._job in (ALL_JOBS, origin.job)
            and self._board.may_see(self._caller, origin.job)
        )
        return replace(piece, lines=piece.lines.of_origins(rows))


@dataclass(frozen=True, eq=False)
class _Piece:
    """Consecutive lines of one node, and the offset after them."""

    node_id: str
    lines: LogLines
    position: int


@dataclass(eq=False)
class _NodeReader:
    """The lines of one node from an offset on."""

    node_id: str
    request: LogRequest
    is_at_end: bool = False  # of the pass
    error: str = ""
    _lines: LogLines = field(default_factory=LogLines)
    _row: int = 0
    _page_offset: int = 0  # where the page in _lines begins
    _end_offset: int = 0  # of the pass; 0 = unknown

    @property
    def next_s(self) -> float:
        """Time of the next line; infinite if none has been read."""
        return self._lines.time_s[self._row] if self._row < len(self._lines) else math.inf

    @property
    def position(self) -> int:
        """The offset after the lines taken."""
        if self._row == len(self._lines):
            return self.request.offset
        return self._lines.offset[self._row - 1] if self._row and self._lines.offset else self._page_offset

    def begin(self) -> None:
        """Starts a pass."""
        self._end_offset, self.is_at_end = 0, False

    async def fill(self, nodes: LogNodes) -> None:
        """Reads pages until there is a line, or the pass ends."""
        self.error = ""
        while self._row == len(self._lines) and not self.is_at_end:
            try:
                page = await nodes.page(self.node_id, self.request)
            except LogsUnavailable as error:
                self.error, self.is_at_end = str(error), True
                return
            self._end_offset = self._end_offset or page.end_offset
            lines = page.lines.until(self._end_offset) if self._end_offset else page.lines
            start, reached = self.request.offset, page.next_offset
            is_cut = len(lines) < len(page.lines)  # the rest is for the next pass
            if is_cut:
                reached = lines.offset[-1] if len(lines) else start
            self.is_at_end = reached <= start or is_cut or reached == self._end_offset
            self.request = replace(self.request, offset=max(reached, start), tail_lines=0)
            self._page_offset, self._lines, self._row = start, lines, 0

    def take(self, until_s: float) -> _Piece:
        """The next line, and those that follow it up to a time."""
        first = self._row
        self._row = max(bisect_right(self._lines.time_s, until_s, first), first + 1)
        return _Piece(self.node_id, self._lines.part(first, self._row), self.position)


async def _merged(readers: Sequence[_NodeReader], nodes: LogNodes) -> AsyncIterator[_Piece | str]:
    """One pass: the lines of all nodes by time, and the errors of nodes."""
    for reader in readers:
        reader.begin()
    await asyncio.gather(*(reader.fill(nodes) for reader in readers))
    for reader in readers:
        if reader.error:
            yield reader.error
    heads = [(reader.next_s, row) for row, reader in enumerate(readers) if reader.next_s < math.inf]
    heapq.heapify(heads)
    while heads:
        _, row = heapq.heappop(heads)
        reader = readers[row]
        yield reader.take(heads[0][0] if heads else math.inf)
        if reader.next_s == math.inf and not reader.is_at_end:
            await reader.fill(nodes)
            if reader.error:
                yield reader.error
        if reader.next_s < math.inf:
            heapq.heappush(heads, (reader.next_s, row))


class _BatchBuilder:
    """Collects lines and positions for the next message to the client."""

    def __init__(self, job_name: Callable[[int], str]) -> None:
        self._job_name = job_name
        self._batch = log_pb2.LogBatch()
        self._rows: dict[tuple[str, LogOrigin], int] = {}  # of the batch's origins
        self._positions: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._size = 0

    def add(self, piece: _Piece) -> None:
        """Adds lines and the position after them."""
        lines = piece.lines
        rows = {row: self._origin_row(piece.node_id, lines.origins[row]) for row in set(lines.origin)}
        self._batch.origin.extend([rows[row] for row in lines.origin])
        self._batch.time_s.extend(lines.time_s)
        self._batch.text.extend(lines.text)
        self._size += sum(map(len, lines.text)) + len(lines)
        self.move(piece.node_id, piece.position)

    def move(self, node_id: str, position: int) -> None:
        """Sets how far the node's log has been read."""
        self._positions[node_id] = position

    def messages(self, size_min: int = 0) -> Iterator[pb.ReadLogsResponse]:
        """The message, if there is anything to send and it has so many characters; a new one is begun."""
        moved = dict(self._positions.items() - self._sent.items())
        if self._size < size_min or not (self._size or moved):
            return
        yield pb.ReadLogsResponse(batch=self._batch, positions=moved)
        self._sent |= moved
        self._batch, self._rows, self._size = log_pb2.LogBatch(), {}, 0

    def _origin_row(self, node_id: str, origin: LogOrigin) -> int:
        row = self._rows.setdefault((node_id, origin), len(self._rows))
        if row == len(self._batch.origins):
            self._batch.origins.add(
                job=origin.job,
                job_name=self._job_name(origin.job),
                lease=origin.lease,
                rank=origin.rank,
                is_error_stream=origin.is_error_stream,
                node_id=node_id,
            )
        return row


def _line_responses(message: pb.ReadLogsResponse) -> Iterator[pb.ReadLogsResponse]:
    """One message a line, for a client that does not support batches."""
    if message.notice:
        yield message
    batch = message.batch
    for row, time_s, text in zip(batch.origin, batch.time_s, batch.text, strict=True):
        origin = batch.origins[row]
        yield pb.ReadLogsResponse(
            job=origin.job,
            job_name=origin.job_name,
            lease=origin.lease,
            rank=origin.rank,
            is_error_stream=origin.is_error_stream,
            node_id=origin.node_id,
            text=text,
            time_s=time_s,
        )

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
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import ALIVE, NodeState
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.queries.fields import require
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.queries.log_lines import ALL_JOBS, LineSource, LogLines, LogRequest, LogsUnavailable
from gavelpy.runtime.log_pattern import compile_pattern
from gavelpy.runtime.security.identity import Caller

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
_SETTLED_S = 0.1  # after which a node sends all lines of a job that has ended; nodes wait for half as long
_CHUNK_CHARACTERS = 256 << 10
_LINES_AT_ONCE, _PAGE_LINES_MIN, _PAGE_LINES_MAX = 40_000, 500, 10_000


@dataclass(frozen=True)
class LogSelection:
    """Which lines to read."""

    job: str = ""  # empty = all jobs of the caller
    rank: int = -1  # -1 = all
    pattern: str = ""
    follow: bool = False
    tail_lines: int = 0  # the last lines only; 0 = all
    after: Mapping[str, int] = field(default_factory=dict)  # by node: continue after these positions of a chunk


@dataclass(frozen=True, eq=False)
class LogPiece:
    """Consecutive lines of one node, and the offset after them."""

    node_id: str
    lines: LogLines
    position: int


@dataclass(frozen=True, eq=False)
class LogChunk:
    """Lines in order of time, or a notice for the reader. `positions`: by node, how far its log has been read."""

    pieces: Sequence[LogPiece] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    notice: str = ""


class LogQueries:
    """Reads logs of a scheduler's jobs."""

    def __init__(self, scheduler: Scheduler, jobs: JobQueries) -> None:
        self._scheduler, self._jobs = scheduler, jobs

    async def read(self, caller: Caller, query: LogSelection) -> AsyncIterator[LogChunk]:
        """The lines that the query selects and the caller may read; of past jobs, those that nodes still keep."""
        past = (await self._scheduler.past.among(caller, self._jobs, [query.job])).get(query.job)
        reading = _Reading(self._scheduler, self._jobs, query, caller, past.job if past is not None else ALL_JOBS)
        if past is not None:
            yield LogChunk(notice=f"job {past.job} is in the archive: nodes keep the logs of past jobs for a time only")
        async for chunk in reading.chunks():
            yield chunk


class _Reading:
    """One query."""

    def __init__(self, scheduler: Scheduler, jobs: JobQueries, query: LogSelection, caller: Caller, past: int) -> None:
        require(-1 <= query.rank <= _RANK_MAX, "rank", f"in [-1, {_RANK_MAX}] (-1 = all)", query.rank)
        require(query.tail_lines <= _TAIL_MAX, "tail_lines", f"at most {_TAIL_MAX}", query.tail_lines)
        require(len(query.after) <= _AFTER_MAX, "after", f"at most {_AFTER_MAX} nodes", len(query.after))
        compile_pattern(query.pattern)
        self._scheduler, self._core, self._nodes, self._jobs = scheduler, scheduler.core, scheduler.logs, jobs
        self._query, self._caller = query, caller
        self._is_past = past != ALL_JOBS
        self._job = past if self._is_past else jobs.find(caller, query.job) if query.job else ALL_JOBS
        self._readers: dict[str, _NodeReader] = {}
        self._chunk = _ChunkBuilder()
        self._tail_lines = query.tail_lines

    async def chunks(self) -> AsyncIterator[LogChunk]:
        """Lines and notices."""
        if self._query.after and self._query.follow:
            await self._wait_for_agents()
        await self._wait_for_last_lines()
        readers = [self._reader(node) for node in sorted(self._nodes.node_ids)]
        if notice := self._missing_nodes():
            yield LogChunk(notice=notice)
        async for chunk in self._tail(readers) if self._tail_lines else self._pass(readers):
            yield chunk
        if self._query.follow:
            self._tail_lines = 0
            async for chunk in self._followed():
                yield chunk

    async def _wait_for_agents(self) -> None:
        """Waits until the agents that have lines for this read are connected again, or too long."""
        deadline_s = time.monotonic() + _RECONNECT_S
        while time.monotonic() < deadline_s:
            wanted = {*self._query.after, *self._nodes_of_jobs()}.intersection(self._present_nodes())
            if wanted <= self._nodes.node_ids:
                return
            await asyncio.sleep(_POLL_S)

    async def _wait_for_last_lines(self) -> None:
        """Waits a moment if the job has just ended: nodes do not send lines that were written just now."""
        if self._job != ALL_JOBS and not self._is_past and self._is_over():
            ago_s = self._scheduler.now_s() - self._scheduler.history.ended_s(self._job)
            if ago_s < _SETTLED_S:
                await asyncio.sleep(_SETTLED_S - max(ago_s, 0.0))

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
            offset = self._query.after.get(node_id, 0)
            tail_lines = 0 if node_id in self._query.after else self._tail_lines
            lines_max = _LINES_AT_ONCE // max(len(self._nodes.node_ids), 1)
            lines_max = min(max(lines_max, _PAGE_LINES_MIN), _PAGE_LINES_MAX)
            request = LogRequest(self._job, (), self._query.rank, self._query.pattern, offset, tail_lines, lines_max)
            reader = self._readers[node_id] = _NodeReader(node_id, request)
        if self._job == ALL_JOBS:
            allowed = tuple(self._jobs.serials(self._caller)[-_JOBS_ALLOWED_MAX:].tolist())
            reader.request = replace(reader.request, jobs_allowed=allowed)
        return reader

    async def _pass(self, readers: Sequence[_NodeReader]) -> AsyncIterator[LogChunk]:
        """All lines that exist now."""
        async for found in _merged(readers, self._nodes):
            if isinstance(found, str):
                for chunk in (*self._chunk.chunks(), LogChunk(notice=found)):
                    yield chunk
                continue
            self._chunk.add(self._readable(found))
            for chunk in self._chunk.chunks(_CHUNK_CHARACTERS):
                yield chunk
        for reader in readers:
            if reader.position:
                self._chunk.move(reader.node_id, reader.position)
        for chunk in self._chunk.chunks():
            yield chunk

    async def _tail(self, readers: Sequence[_NodeReader]) -> AsyncIterator[LogChunk]:
        """The last lines that exist now."""
        kept: deque[LogPiece] = deque()
        count = 0
        async for found in _merged(readers, self._nodes):
            if isinstance(found, str):
                yield LogChunk(notice=found)
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
                self._chunk.move(reader.node_id, position)
        for piece in kept:
            for chunk in self._chunk.chunks(_CHUNK_CHARACTERS):
                yield chunk
            self._chunk.add(piece)
        for chunk in self._chunk.chunks():
            yield chunk

    async def _followed(self) -> AsyncIterator[LogChunk]:
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
            async for chunk in self._pass(readers):
                count += len(chunk.pieces)
                if chunk.notice not in notices:
                    yield chunk
                notices |= {chunk.notice} - {""}
            notices &= {reader.error for reader in readers}
            if is_over and was_over and not count and recent <= connected:
                return
            was_over = is_over  # the last lines may have been too young to be sent: once more after a pause
            await asyncio.sleep(_POLL_S)

    def _is_over(self) -> bool:
        """Whether the job that is followed has ended, and all its leases."""
        jobs = self._core.jobs.by_serial
        if self._is_past or (self._job != ALL_JOBS and jobs.ids.row(self._job) < 0):
            return True
        return self._job != ALL_JOBS and bool(jobs.state[self._job] > ALIVE[-1] and jobs.stopping[self._job] < 0)

    def _nodes_of_jobs(self) -> list[str]:
        """Nodes with a lease of the jobs, running or stopping."""
        jobs, pool = self._core.jobs.by_serial, self._core.pool
        if self._job != ALL_JOBS and jobs.ids.row(self._job) < 0:
            return []
        if self._job != ALL_JOBS:
            held: Ints = np.concatenate([jobs.gpus_held(self._job), jobs.gpus_stopping(self._job)])
            gpus = held[held >= 0]
        else:
            gpus = np.flatnonzero(pool.job != NONE)
            if not self._caller.is_admin:
                holders = self._core.jobs.ids.of_rows(pool.job[gpus])
                gpus = gpus[np.isin(holders, self._jobs.serials(self._caller))]
        return [str(pool.node_ids[row]) for row in np.unique(pool.node_of[gpus]).tolist()]

    def _may_read(self, job: int) -> bool:
        """Whether the caller may see a job; of past jobs, only the one that was looked up."""
        if self._core.jobs.ids.row(job) < 0:
            return self._is_past and job == self._job
        return self._jobs.may_see(self._caller, job)

    def _readable(self, piece: LogPiece) -> LogPiece:
        """Without lines of other jobs than those requested, and of jobs that the caller may not see."""
        rows = frozenset(
            row
            for row, origin in enumerate(piece.lines.origins)
            if self._job in (ALL_JOBS, origin.job) and self._may_read(origin.job)
        )
        return replace(piece, lines=piece.lines.of_origins(rows))


@dataclass(eq=False)
class _NodeReader:
    """The lines of one node from an offset on."""

    node_id: str
    request: LogRequest
    is_at_end: bool = False  # of the pass
    error: str = ""
    notice: str = ""  # of lines that the node has removed; once a read
    _lines: LogLines = field(default_factory=LogLines)
    _row: int = 0
    _page_offset: int = 0  # where the page in _lines begins
    _end_offset: int = 0  # of the pass; 0 = unknown
    _is_noted: bool = False

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

    async def fill(self, nodes: LineSource) -> None:
        """Reads pages until there is a line, or the pass ends."""
        self.error = ""
        while self._row == len(self._lines) and not self.is_at_end:
            try:
                page = await nodes.page(self.node_id, self.request)
            except LogsUnavailable as error:
                self.error, self.is_at_end = str(error), True
                return
            self.notice = self.notice or self._notice_of(page.removed)
            self._end_offset = self._end_offset or page.end_offset
            lines = page.lines.until(self._end_offset) if self._end_offset else page.lines
            start, reached = self.request.offset, page.next_offset
            is_cut = len(lines) < len(page.lines)  # the rest is for the next pass
            if is_cut:
                reached = lines.offset[-1] if len(lines) else start
            self.is_at_end = reached <= start or is_cut or reached == self._end_offset
            self.request = replace(self.request, offset=max(reached, start), tail_lines=0)
            self._page_offset, self._lines, self._row = start, lines, 0

    def taken_notice(self) -> str:
        """The notice, once."""
        notice, self._is_noted = "" if self._is_noted else self.notice, self._is_noted or bool(self.notice)
        return notice

    def _notice_of(self, removed: Mapping[int, int]) -> str:
        """That the node has removed earlier lines of jobs that were requested; empty = it has not."""
        request = self.request
        jobs = {job: lines for job, lines in removed.items() if job == request.job or job in request.jobs_allowed}
        if not jobs:
            return ""
        count = f"{sum(jobs.values()):,} earlier lines" if all(jobs.values()) else "earlier lines"
        of = f"job {next(iter(jobs))}" if len(jobs) == 1 else f"{len(jobs)} jobs"
        return f"node {self.node_id} has removed {count} of {of}: it keeps log_files_max full files of log_bytes_max"

    def take(self, until_s: float) -> LogPiece:
        """The next line, and those that follow it up to a time."""
        first = self._row
        self._row = max(bisect_right(self._lines.time_s, until_s, first), first + 1)
        return LogPiece(self.node_id, self._lines.part(first, self._row), self.position)


async def _merged(readers: Sequence[_NodeReader], nodes: LineSource) -> AsyncIterator[LogPiece | str]:
    """One pass: the lines of all nodes by time, and the errors of nodes."""
    for reader in readers:
        reader.begin()
    await asyncio.gather(*(reader.fill(nodes) for reader in readers))
    for reader in readers:
        if reader.error:
            yield reader.error
        if notice := reader.taken_notice():
            yield notice
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


class _ChunkBuilder:
    """Collects lines and positions for the next chunk."""

    def __init__(self) -> None:
        self._pieces: list[LogPiece] = []
        self._positions: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._size = 0

    def add(self, piece: LogPiece) -> None:
        """Adds lines and the position after them."""
        if len(piece.lines):
            self._pieces.append(piece)
            self._size += sum(map(len, piece.lines.text)) + len(piece.lines)
        self.move(piece.node_id, piece.position)

    def move(self, node_id: str, position: int) -> None:
        """Sets how far the node's log has been read."""
        self._positions[node_id] = position

    def chunks(self, size_min: int = 0) -> Iterator[LogChunk]:
        """The chunk, if there is anything to send and it has so many characters; a new one is begun."""
        moved = dict(self._positions.items() - self._sent.items())
        if self._size < size_min or not (self._size or moved):
            return
        yield LogChunk(self._pieces, moved)
        self._sent |= moved
        self._pieces, self._size = [], 0

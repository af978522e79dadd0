"""Nodes' logs read page by page and merged by time, a pass at a time.

A pass ends at what was there when it began: each node tells with its first answer where that is. So a pass over a log
that grows faster than it is read ends all the same.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from gavelpy.runtime.daemon.log_columns import LogColumns, Piece
from gavelpy.runtime.daemon.log_fanout import LogFanout, LogQuestion, NodeSilent


@dataclass(eq=False)
class LogReader:
    """One node's lines from an offset on. `position`: up to where they were taken."""

    node_id: str
    question: LogQuestion
    position: int = field(init=False)
    is_at_end: bool = False  # for now
    trouble: str = ""
    _columns: LogColumns = field(default_factory=LogColumns)
    _row: int = 0
    _end_offset: int = 0  # of this pass; 0 = not known

    def __post_init__(self) -> None:
        self.position = self.question.offset

    @property
    def next_s(self) -> float:
        """Time of the next line; infinite where none is here."""
        return self._columns.time_s[self._row] if self._row < len(self._columns) else math.inf

    def begin(self) -> None:
        """Another pass."""
        self._end_offset, self.is_at_end = 0, False

    async def fill(self, logs: LogFanout) -> None:
        """Reads on until there is a line, or none before the end of the pass."""
        self.trouble = ""
        while self._row == len(self._columns) and not self.is_at_end:
            try:
                page = await logs.ask(self.node_id, self.question)
            except NodeSilent as silence:
                self.trouble, self.is_at_end = str(silence), True
                return
            self._end_offset = self._end_offset or page.end_offset
            here = page.columns.upto(self._end_offset) if self._end_offset else page.columns
            was, reached = self.question.offset, page.next_offset
            if len(here) < len(page.columns):  # the rest is for another pass
                reached = here.offset[-1] if len(here) else was
            self.is_at_end = reached <= was or len(here) < len(page.columns) or reached == self._end_offset
            self.question = replace(self.question, offset=max(reached, was), tail_lines=0)
            self._columns, self._row = here, 0
            self._note()

    def take(self, until_s: float) -> Piece:
        """The next line, and those that follow it up to a time."""
        first = self._row
        self._row = max(bisect_right(self._columns.time_s, until_s, first), first + 1)
        self._note()
        return Piece(self.node_id, self._columns.part(first, self._row), self.position)

    def _note(self) -> None:
        if self._row == len(self._columns):
            self.position = self.question.offset
        elif self._row and self._columns.offset:
            self.position = self._columns.offset[self._row - 1]


async def merged(readers: Sequence[LogReader], logs: LogFanout) -> AsyncIterator[Piece | str]:
    """All that there is now, by time, and what is wrong with a node."""
    for reader in readers:
        reader.begin()
    await asyncio.gather(*(reader.fill(logs) for reader in readers))
    for reader in readers:
        if reader.trouble:
            yield reader.trouble
    heads = [(reader.next_s, row) for row, reader in enumerate(readers) if reader.next_s < math.inf]
    heapq.heapify(heads)
    while heads:
        _, row = heapq.heappop(heads)
        reader = readers[row]
        yield reader.take(heads[0][0] if heads else math.inf)
        if reader.next_s == math.inf and not reader.is_at_end:
            await reader.fill(logs)
            if reader.trouble:
                yield reader.trouble
        if reader.next_s < math.inf:
            heapq.heappush(heads, (reader.next_s, row))

"""Pages of the logs of this node's jobs: bounded in lines, bytes and time, whatever is asked.

A page may be short, or empty, though more follows: where next_offset has grown, asking on there goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.folder import Kept
from gavelpy.runtime.agent.log_sources import (
    KEY_MAX,
    FilesMoved,
    LogRow,
    LogSource,
    merged_after,
    sources_of,
    tail_key,
)
from gavelpy.runtime.agent.patterns import Matcher

ALL_JOBS: Final = -1
LINES_MAX: Final = 10_000
TAIL_LINES_MAX: Final = 100_000
PAGE_BYTES_MAX: Final = 1 << 20  # of text
SCAN_BYTES_MAX: Final = 64 << 20
SCAN_S_MAX: Final = 3.0  # after which a page ends where it is
PATTERN_S_MAX: Final = 2.0  # for all matching of one page
SETTLED_S: Final = 0.05  # younger lines may still be joined by others of their time
_BATCH_LINES = 1_000
_ROW_BYTES = 64
_TRIES = 5
_FUTURE_S = 5.0


@dataclass(frozen=True)
class Question:
    """Which lines are wanted; -1 = all jobs allowed, or all ranks."""

    job: int = ALL_JOBS
    jobs_allowed: frozenset[int] = frozenset()
    rank: int = -1
    pattern: str = ""
    offset: int = 0
    tail_lines: int = 0
    lines_max: int = 1_000

    def __post_init__(self) -> None:
        if self.job < ALL_JOBS or self.rank < -1:
            raise InvalidInput(f"job and rank must be -1 or more, got {self.job} and {self.rank}")
        if not 0 <= self.offset <= KEY_MAX:
            raise InvalidInput(f"offset must be one that this node gave, got {self.offset}")

    def wants(self, job: int) -> bool:
        """Whether lines of this job are wanted."""
        return job in self.jobs_allowed if self.job == ALL_JOBS else job == self.job


@dataclass(frozen=True)
class Page:
    """Lines, oldest first, and the offset after them."""

    rows: tuple[LogRow, ...]
    next_offset: int


async def read_page(directories: Sequence[tuple[Path, Kept]], question: Question) -> Page:
    """The page that answers a question. InvalidInput for a pattern that is none or takes too long."""
    wanted = [(directory, kept.lease, kept.job) for directory, kept in directories if question.wants(kept.job)]
    for _ in range(_TRIES):
        try:
            return await _try_page(wanted, question)
        except FilesMoved:
            continue  # a log was rotated under our hands
    return Page((), question.offset)


async def _try_page(wanted: Sequence[tuple[Path, int, int]], question: Question) -> Page:
    sources = await asyncio.to_thread(sources_of, wanted, question.rank)
    async with Matcher(question.pattern, PATTERN_S_MAX) as matcher:
        after = question.offset
        if not after and question.tail_lines:
            after = await _tail(sources, min(question.tail_lines, TAIL_LINES_MAX), matcher)
        newer = [source for source in sources if source.may_follow(after)]
        return await _forward(newer, after, min(question.lines_max or LINES_MAX, LINES_MAX), matcher)


async def _tail(sources: Sequence[LogSource], lines: int, matcher: Matcher) -> int:
    loop = asyncio.get_running_loop()

    def matching(rows: list[LogRow]) -> Sequence[int]:
        texts = [row.line.text for row in rows]
        return asyncio.run_coroutine_threadsafe(matcher.matching(texts), loop).result()

    return await asyncio.to_thread(tail_key, sources, lines, matching, SCAN_BYTES_MAX)


async def _forward(sources: Sequence[LogSource], after: int, lines_max: int, matcher: Matcher) -> Page:
    """Reads and matches by batches until the page is full or has taken long enough."""
    rows = merged_after(sources, after)
    deadline_s = time.monotonic() + SCAN_S_MAX
    found: list[LogRow] = []
    page_bytes = scanned_bytes = 0
    while scanned_bytes < SCAN_BYTES_MAX and time.monotonic() < deadline_s:
        batch = await asyncio.to_thread(_batch, rows)
        for index in await matcher.matching([row.line.text for row in batch]):
            page_bytes += len(batch[index].line.text) + _ROW_BYTES
            if found and page_bytes > PAGE_BYTES_MAX:
                return Page(tuple(found), found[-1].key)
            found.append(batch[index])
            if len(found) == lines_max:
                return Page(tuple(found), found[-1].key)
        after = batch[-1].key if batch else after
        if len(batch) < _BATCH_LINES:
            break  # all that there is, for now
        scanned_bytes += sum(len(row.line.text) + _ROW_BYTES for row in batch)
    return Page(tuple(found), after)


def _batch(rows: Iterator[LogRow]) -> list[LogRow]:
    """The next settled lines; fewer than _BATCH_LINES = no more for now."""
    now_s = time.time()
    settled = itertools.takewhile(lambda row: not now_s - SETTLED_S < row.line.time_s < now_s + _FUTURE_S, rows)
    return list(itertools.islice(settled, _BATCH_LINES))

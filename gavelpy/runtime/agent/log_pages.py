"""Pages of the logs of this node's jobs: bounded in lines, bytes and time, whatever is asked.

A page may be short, or empty, though more follows: where next_offset has grown, asking on there goes on.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.folder import Kept
from gavelpy.runtime.agent.log_sources import (
    KEY_MAX,
    TIE_BITS,
    FilesMoved,
    LogRows,
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
_BATCH_LINES = 2_000
_ROW_BYTES = 64
_TRIES = 5
_FUTURE_S = 5.0
_TICK_S = 0.01  # what a file's time may be behind


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


@dataclass(eq=False)
class Page:
    """Lines in columns, oldest first, and the offset after them.

    `end_offset`: one that all lines that were there are before.
    """

    keys: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    sources: list[LogSource] = field(default_factory=list)
    next_offset: int = 0
    end_offset: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    def times_s(self) -> list[float]:
        """Unix times of the lines."""
        return [(key >> TIE_BITS) / 1e6 for key in self.keys]

    def part(self, first: int, end: int) -> Page:
        """Some of the lines, the same offsets."""
        columns = self.keys[first:end], self.texts[first:end], self.sources[first:end]
        return Page(*columns, self.next_offset, self.end_offset)

    def add(self, other: Page) -> None:
        """Lines that follow."""
        self.keys += other.keys
        self.texts += other.texts
        self.sources += other.sources


async def read_page(directories: Sequence[tuple[Path, Kept]], question: Question) -> Page:
    """The page that answers a question. InvalidInput for a pattern that is none or takes too long."""
    wanted = [(directory, kept.lease, kept.job) for directory, kept in directories if question.wants(kept.job)]
    for _ in range(_TRIES):
        try:
            return await _try_page(wanted, question)
        except FilesMoved:
            continue  # a log was rotated under our hands
    return Page(next_offset=question.offset)


async def _try_page(wanted: Sequence[tuple[Path, int, int]], question: Question) -> Page:
    sources = await asyncio.to_thread(sources_of, wanted, question.rank)
    async with Matcher(question.pattern, PATTERN_S_MAX) as matcher:
        after = question.offset
        if not after and question.tail_lines:
            after = await _tail(sources, min(question.tail_lines, TAIL_LINES_MAX), matcher)
        newer = [source for source in sources if source.may_follow(after)]
        page = Page(next_offset=after, end_offset=_end(sources))
        await _forward(page, newer, min(question.lines_max or LINES_MAX, LINES_MAX), matcher)
        return page


def _end(sources: Sequence[LogSource]) -> int:
    """A key that nothing written up to now lies behind, even if the clock has been set back since."""
    end_s = max([time.time(), *(source.changed_s + _TICK_S for source in sources)])
    return min(_key(end_s + 1e-6), KEY_MAX)


def _key(time_s: float) -> int:
    """The first one of a time."""
    return round(time_s * 1e6) << TIE_BITS


async def _tail(sources: Sequence[LogSource], lines: int, matcher: Matcher) -> int:
    loop = asyncio.get_running_loop()

    def matching(texts: Sequence[str]) -> Sequence[int]:
        return asyncio.run_coroutine_threadsafe(matcher.matching(texts), loop).result()

    return await asyncio.to_thread(tail_key, sources, lines, matching, SCAN_BYTES_MAX)


async def _forward(page: Page, sources: Sequence[LogSource], lines_max: int, matcher: Matcher) -> None:
    """Reads and matches by batches until the page is full or has taken long enough."""
    runs = merged_after(sources, page.next_offset)
    deadline_s = time.monotonic() + SCAN_S_MAX
    page_bytes = scanned_bytes = 0
    is_more = True
    while is_more and scanned_bytes < SCAN_BYTES_MAX and time.monotonic() < deadline_s:
        batch, is_more = await asyncio.to_thread(_batch, runs)
        found = _chosen(batch, await matcher.matching(batch.texts))
        sizes = list(accumulate((len(text) + _ROW_BYTES for text in found.texts), initial=page_bytes))
        room = min(bisect_right(sizes, PAGE_BYTES_MAX) - 1, lines_max - len(page))
        if room < len(found) or len(page) + len(found) == lines_max:
            page.add(found.part(0, _whole(found.keys, max(room, 0 if len(page) else 1))))
            page.next_offset = page.keys[-1]
            return
        page.add(found)
        page.next_offset = batch.keys[-1] if len(batch) else page.next_offset
        page_bytes = sizes[-1]
        scanned_bytes += sum(map(len, batch.texts)) + _ROW_BYTES * len(batch)


def _whole(keys: Sequence[int], end: int) -> int:
    """An end, moved so that lines of one key stay together: a read goes on after a key."""
    while 1 < end < len(keys) and keys[end - 1] == keys[end]:
        end -= 1
    return end


def _chosen(batch: Page, indices: Sequence[int]) -> Page:
    if len(indices) == len(batch):
        return batch
    return Page(
        [batch.keys[index] for index in indices],
        [batch.texts[index] for index in indices],
        [batch.sources[index] for index in indices],
    )


def _batch(runs: Iterator[LogRows]) -> tuple[Page, bool]:
    """The next settled lines, and whether there may be more for now."""
    now_s = time.time()
    settled, future = _key(now_s - SETTLED_S), _key(now_s + _FUTURE_S)
    batch = Page()
    while len(batch) < _BATCH_LINES:
        run = next(runs, None)
        if run is None:
            return batch, False
        end = bisect_right(run.keys, settled)
        is_settled = end == len(run.keys) or run.keys[end] >= future  # times far ahead are of another clock
        count = len(run.keys) if is_settled else end
        batch.add(Page(run.keys[:count], run.texts[:count], run.sources[:count]))
        if not is_settled:
            return batch, False
    return batch, True

"""Read the log lines of this node's jobs by time, in pages that are bounded in lines, bytes and time.

A line has a key: its time in microseconds, followed by bits for its rank and stream. The shim gives the lines of one
stream rising times, so within a job a key identifies a line, across rotated files and leases, and it stays the same
when older files are removed or the agent restarts. A read continues after a key; 0 comes before all lines. A page can
be short, or empty, although more lines follow: continue as long as next_offset grows.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Final

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.leases.retention import LeaseLogs
from gavelpy.runtime.log_pattern import Matcher, compile_pattern
from gavelpy.runtime.shim.log_files import LINE_BYTES_MAX, log_files, parse_lines, removed_lines

ALL_JOBS: Final = -1
LINES_MAX: Final = 10_000
TAIL_LINES_MAX: Final = 100_000
PAGE_BYTES_MAX: Final = 1 << 20  # of text
PAGE_S_MAX: Final = 3.0  # a page ends after this long, however few lines matched
SETTLED_S: Final = 0.05  # another stream may still write a line that is older than lines younger than this
TIE_BITS: Final = 13
KEY_MAX: Final = (1 << 64) - 1
_TRIES = 10
_FUTURE_S = 5.0
_FILE_CLOCK_S = 0.01  # a file's modification time may lag by this
_MTIME_SLACK_S = 10.0
_LINE_OVERHEAD_BYTES = 64
_ROW_BYTES_MAX = LINE_BYTES_MAX + 64  # with the time before the text
_BLOCK_BYTES, _BLOCK_BYTES_MIN = 256 << 10, 32 << 10
_READ_BYTES = 2 << 20  # the blocks of all files that are merged at a time
_SEEK_BYTES = 64 << 10


@dataclass(frozen=True)
class LogPageQuery:
    """The lines to return. job -1 = all of jobs_allowed; rank -1 = all ranks."""

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
            raise InvalidInput(f"offset must be a next_offset of this node, got {self.offset}")

    def matches_job(self, job: int) -> bool:
        """Whether lines of this job are wanted."""
        return job in self.jobs_allowed if self.job == ALL_JOBS else job == self.job


@dataclass(frozen=True)
class LeaseLogFile:
    """One log file of one lease."""

    job: int
    lease: int
    rank: int
    is_error_stream: bool
    path: Path
    inode: int
    changed_s: float


@dataclass(frozen=True, eq=False)
class LogRows:
    """Lines in columns, in the order of their keys."""

    keys: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    sources: list[LeaseLogFile] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, first: int, end: int) -> LogRows:
        """The rows from first up to end."""
        return LogRows(self.keys[first:end], self.texts[first:end], self.sources[first:end])

    def select(self, rows: Sequence[int]) -> LogRows:
        """The given rows, in the given order."""
        return LogRows(
            [self.keys[row] for row in rows], [self.texts[row] for row in rows], [self.sources[row] for row in rows]
        )

    def times_s(self) -> list[float]:
        """Unix times of the lines."""
        return [(key >> TIE_BITS) / 1e6 for key in self.keys]


@dataclass(frozen=True, eq=False)
class LogPage:
    """Lines, the offset at which to continue, and one that follows all lines that exist now."""

    rows: LogRows
    next_offset: int
    end_offset: int = 0
    removed: Mapping[int, int] = field(default_factory=dict)  # by job, of a read from the beginning; see removed_lines


class _FilesMoved(Exception):
    """A file or a lease was moved between listing and reading it."""


def read_page(leases: Callable[[], Sequence[LeaseLogs]], query: LogPageQuery) -> LogPage:
    """The page that answers a query over the leases that a function lists. Blocks.

    The leases are listed again when files were moved while they were read. Raises InvalidInput for a wrong pattern,
    OSError for logs that cannot be read or that move at each try.
    """
    matcher = compile_pattern(query.pattern) if query.pattern else None
    for _ in range(_TRIES):
        wanted = [lease for lease in leases() if query.matches_job(lease.job)]
        with suppress(_FilesMoved):
            page = _read_page(_sources(wanted, query.rank), query, matcher)
            return replace(page, removed=_removed(wanted, query))
    raise OSError(errno.EBUSY, f"files were moved during each of {_TRIES} tries to read them")


def _read_page(sources: Sequence[LeaseLogFile], query: LogPageQuery, matcher: Matcher | None) -> LogPage:
    deadline_s = time.monotonic() + PAGE_S_MAX
    offset = query.offset
    if not offset and query.tail_lines:
        offset = _tail_offset(sources, min(query.tail_lines, TAIL_LINES_MAX), matcher, deadline_s)
    end_s = max([time.time(), *(source.changed_s + _FILE_CLOCK_S for source in sources)])  # a clock can be set back
    end_offset = min(_key(end_s + 1e-6), KEY_MAX)
    lines_max = min(query.lines_max or LINES_MAX, LINES_MAX)
    found: list[LogRows] = []
    lines = size = 0
    for rows in _settled(_merged(sources, offset)):
        scanned, matches = _search(rows, matcher, deadline_s)
        chosen = rows if len(matches) == len(rows) else rows.select(matches)
        sizes = list(accumulate((len(text) + _LINE_OVERHEAD_BYTES for text in chosen.texts), initial=size))
        room = min(bisect_right(sizes, PAGE_BYTES_MAX) - 1, lines_max - lines)
        if room < len(chosen):
            end = _untied(chosen.keys, room, 0 if lines else 1)
            found.append(chosen.part(0, end))
            offset = chosen.keys[end - 1] if end else offset
            break
        found.append(chosen)
        offset, lines, size = rows.keys[scanned - 1], lines + len(chosen), sizes[-1]
        if time.monotonic() >= deadline_s:
            break
    return LogPage(_joined(found), offset, end_offset)


def _removed(leases: Sequence[LeaseLogs], query: LogPageQuery) -> dict[int, int]:
    """Lines that are missing at the beginning of each job's log, for a read from the beginning."""
    found: dict[int, int] = {}
    for directory, _, job in leases if not query.offset and not query.tail_lines else ():
        with suppress(FileNotFoundError):  # moved or forgotten meanwhile
            if (lines := removed_lines(directory, query.rank)) is not None:
                found[job] = found.get(job, 0) + lines
    return found


def _search(rows: LogRows, matcher: Matcher | None, deadline_s: float) -> tuple[int, Sequence[int]]:
    """How many rows were searched before the deadline, one at least, and which of them match."""
    if matcher is None:
        return len(rows), range(len(rows))
    matches: list[int] = []
    for row, text in enumerate(rows.texts):
        if row and time.monotonic() >= deadline_s and rows.keys[row] != rows.keys[row - 1]:
            return row, matches
        if matcher(text):
            matches.append(row)
    return len(rows), matches


def _untied(keys: Sequence[int], end: int, least: int) -> int:
    """The end, moved back so that it does not separate lines of one key: a read continues after a key."""
    end = max(end, least)
    while least < end < len(keys) and keys[end - 1] == keys[end]:
        end -= 1
    return end


def _settled(blocks: Iterator[LogRows]) -> Iterator[LogRows]:
    """The rows before the first one so young that an older one may still be written."""
    now_s = time.time()
    settled, future = _key(now_s - SETTLED_S), _key(now_s + _FUTURE_S)
    for rows in blocks:
        end = bisect_right(rows.keys, settled)
        if end < len(rows) and rows.keys[end] < future:  # later times are from another clock
            if end:
                yield rows.part(0, end)
            return
        yield rows


def _tail_offset(sources: Sequence[LeaseLogFile], lines: int, matcher: Matcher | None, deadline_s: float) -> int:
    """The key before the last `lines` matching lines, or before those found by the deadline; 0 if there are none."""
    keys: list[int] = []
    for source in sorted(sources, key=lambda source: source.changed_s, reverse=True):
        if len(keys) == lines and source.changed_s * 1e6 < keys[-1] >> TIE_BITS:
            break  # this file and all that follow are older than the lines found
        keys = heapq.nlargest(lines, chain(keys, _last_keys(source, lines, matcher, deadline_s)))
        if time.monotonic() >= deadline_s:
            break
    return keys[-1] - 1 if keys else 0


def _last_keys(source: LeaseLogFile, lines: int, matcher: Matcher | None, deadline_s: float) -> list[int]:
    keys: list[int] = []
    for rows in _blocks_from_end(source):
        for row in reversed(range(len(rows))):
            if len(keys) == lines or time.monotonic() >= deadline_s:
                return keys
            if matcher is None or matcher(rows.texts[row]):
                keys.append(rows.keys[row])
    return keys


# Files in the order of their lines.


def _sources(leases: Sequence[LeaseLogs], rank: int) -> list[LeaseLogFile]:
    """The log files of the leases, of one rank or, with -1, of all; not what a job has put in their place."""
    found: list[LeaseLogFile] = []
    for directory, lease, job in leases:
        try:
            files = log_files(directory)
            status = {file.path: file.path.lstat() for file in files if rank in (-1, file.rank)}
            if log_files(directory) != files or not directory.is_dir():
                raise _FilesMoved(str(directory))
        except FileNotFoundError as error:
            raise _FilesMoved(str(directory)) from error
        found += [
            LeaseLogFile(job, lease, file.rank, file.is_error_stream, file.path, known.st_ino, known.st_mtime)
            for file in files
            if (known := status.get(file.path)) is not None and stat.S_ISREG(known.st_mode)
        ]
    return found


def _merged(sources: Sequence[LeaseLogFile], key: int) -> Iterator[LogRows]:
    """The lines of all sources after a key, in blocks. A file is opened when its first line is due."""
    newer = [source for source in sources if source.changed_s + _MTIME_SLACK_S >= (key >> TIE_BITS) / 1e6]
    waiting = sorted(((max(_first_key(source), key), place) for place, source in enumerate(newer)), reverse=True)
    cursors: list[_Cursor] = []
    while waiting or cursors:
        limit = min((cursor.last_key for cursor in cursors), default=KEY_MAX)  # each cursor has all its lines up to it
        while waiting and (not cursors or waiting[-1][0] <= limit):
            share = max(_READ_BYTES // (len(cursors) + 1), _BLOCK_BYTES_MIN)
            cursor = _Cursor(_blocks_after(newer[waiting.pop()[1]], key, min(share, _BLOCK_BYTES)))
            cursors += [cursor] if cursor.rows else []
            limit = min((one.last_key for one in cursors), default=KEY_MAX)
        if cursors:
            rows = _joined([cursor.take(limit) for cursor in cursors])
            yield rows.select(sorted(range(len(rows)), key=rows.keys.__getitem__)) if len(cursors) > 1 else rows
        cursors = [cursor for cursor in cursors if cursor.rows]


class _Cursor:
    """The block of a source that is read next."""

    def __init__(self, blocks: Iterator[LogRows]) -> None:
        self._blocks = blocks
        self.rows = next(blocks, LogRows())

    @property
    def last_key(self) -> int:
        return self.rows.keys[-1]

    def take(self, limit: int) -> LogRows:
        """The rows up to a key."""
        end = bisect_right(self.rows.keys, limit)
        taken, rest = self.rows.part(0, end), self.rows.part(end, len(self.rows))
        self.rows = rest if rest else next(self._blocks, rest)
        return taken


def _joined(parts: Sequence[LogRows]) -> LogRows:
    if len(parts) == 1:
        return parts[0]
    return LogRows(
        list(chain.from_iterable(part.keys for part in parts)),
        list(chain.from_iterable(part.texts for part in parts)),
        list(chain.from_iterable(part.sources for part in parts)),
    )


# One file.


def _first_key(source: LeaseLogFile) -> int:
    """Key of the first line; KEY_MAX if there is none yet."""
    with _opened(source) as file:
        keys = _parsed(source, file.readline(_ROW_BYTES_MAX)).keys
    return keys[0] if keys else KEY_MAX


def _blocks_after(source: LeaseLogFile, key: int, block_bytes: int) -> Iterator[LogRows]:
    """The whole lines after a key, in blocks."""
    with _opened(source) as file:
        file.seek(_position_of(source, file, key))
        rest = b""
        while len(rest) <= _ROW_BYTES_MAX and (block := file.read(block_bytes)):
            whole, _, rest = (rest + block).rpartition(b"\n")
            rows = _parsed(source, whole)
            first = bisect_right(rows.keys, key)
            if first < len(rows):
                yield rows.part(first, len(rows))


def _blocks_from_end(source: LeaseLogFile) -> Iterator[LogRows]:
    """The whole lines in blocks, the newest block first, each in order."""
    with _opened(source) as file:
        end = file.seek(0, os.SEEK_END)
        rest = b""
        while end > 0:
            start = max(0, end - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(end - start) + rest
            rest, newline, whole = block.partition(b"\n") if start > 0 else (b"", b"\n", block)
            rest += newline if start > 0 else b""
            yield _parsed(source, whole[: whole.rfind(b"\n") + 1])  # the rest is still being written
            end = start


def _opened(source: LeaseLogFile) -> IO[bytes]:
    """Raises _FilesMoved where the name refers to another file by now. Never blocks on a FIFO or a device."""
    try:
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise _FilesMoved(str(error)) from error
    status = os.fstat(descriptor)
    if status.st_ino != source.inode or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise _FilesMoved(str(source.path))
    return os.fdopen(descriptor, "rb")


def _position_of(source: LeaseLogFile, file: IO[bytes], key: int) -> int:
    """The start of a line at or before the first line after the key, by bisection."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > _SEEK_BYTES:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline(_ROW_BYTES_MAX)  # the rest of a line
        start = file.tell()
        keys = _parsed(source, file.readline(_ROW_BYTES_MAX)).keys
        if not keys or keys[0] > key or start >= high:
            high = middle
        else:
            low = start
    return low


def _parsed(source: LeaseLogFile, lines: bytes) -> LogRows:
    found = parse_lines(lines)
    tie = (2 * source.rank + source.is_error_stream) % (1 << TIE_BITS)
    keys = [int(seconds + micros) << TIE_BITS | tie for seconds, micros, _ in found]
    if keys and max(keys) >= KEY_MAX:
        keys = [min(key, KEY_MAX - 1) for key in keys]
    return LogRows(keys, [text for _, _, text in found], [source] * len(keys))


def _key(time_s: float) -> int:
    """The first key of a time."""
    return round(time_s * 1e6) << TIE_BITS

"""The lines of log files in the order of their times, from any place on, forwards or from the end.

A line has a key: its time in microseconds, then a number for its rank and stream. The shim gives the lines of a stream
rising times, so keys tell all lines of a job on a node apart, over rotated files and over leases, and stay the same
when older files are removed or the agent starts anew. Key 0 is before every line.
"""

from __future__ import annotations

import heapq
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Final

from gavelpy.runtime.shim.log_lines import LINE_BYTES_MAX, log_files, parse_lines

TIE_BITS: Final = 13
KEY_MAX: Final = (1 << 64) - 1
_TRIES = 10
_ROW_BYTES_MAX = LINE_BYTES_MAX + 64  # with the time before the text
_BLOCK_BYTES, _BLOCK_BYTES_MIN = 256 << 10, 32 << 10
_READ_BYTES = 2 << 20  # of all files that are read side by side
_NARROW_BYTES = 64 << 10
_MTIME_SLACK_S = 10.0


class FilesMoved(Exception):
    """A file was rotated while it was looked for."""


@dataclass(frozen=True)
class LogSource:
    """One log file of one lease."""

    job: int
    lease: int
    rank: int
    is_error_stream: bool
    path: Path
    file_number: int  # of the file system: tells whether the name now means another file
    changed_s: float

    def may_follow(self, key: int) -> bool:
        """Whether it may hold lines after a key."""
        return self.changed_s + _MTIME_SLACK_S >= (key >> TIE_BITS) / 1e6

    def first_key(self) -> int:
        """Key of its first line; KEY_MAX where it has none yet."""
        with self._opened() as file:
            keys = self._rows(file.readline(_ROW_BYTES_MAX)).keys
        return keys[0] if keys else KEY_MAX

    def rows_after(self, key: int, block_bytes: int) -> Iterator[LogRows]:
        """Its whole lines after a key by blocks, in order."""
        with self._opened() as file:
            file.seek(self._start_of(file, key))
            rest = b""
            while len(rest) <= _ROW_BYTES_MAX and (block := file.read(block_bytes)):
                whole, _, rest = (rest + block).rpartition(b"\n")
                rows = self._rows(whole)
                first = bisect_right(rows.keys, key)
                if first < len(rows.keys):
                    yield rows.part(first, len(rows.keys))

    def blocks_from_end(self) -> Iterator[LogRows]:
        """Its whole lines by blocks, the newest block first, each in order."""
        with self._opened() as file:
            end = file.seek(0, os.SEEK_END)
            rest = b""
            while end > 0:
                start = max(0, end - _BLOCK_BYTES)
                file.seek(start)
                block = file.read(end - start) + rest
                rest, newline, whole = block.partition(b"\n") if start > 0 else (b"", b"\n", block)
                rest += newline if start > 0 else b""
                yield self._rows(whole[: whole.rfind(b"\n") + 1])  # what follows is still being written
                end = start

    def _opened(self) -> IO[bytes]:
        """Raises FilesMoved where the name means another file by now. Never waits on what is no plain file."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            raise FilesMoved(str(error)) from error
        status = os.fstat(descriptor)
        if status.st_ino != self.file_number or not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise FilesMoved(str(self.path))
        return os.fdopen(descriptor, "rb")

    def _start_of(self, file: IO[bytes], key: int) -> int:
        """A place at the start of a line, at or before the first line after the key: halving, then reading on."""
        low, high = 0, file.seek(0, os.SEEK_END)
        while high - low > _NARROW_BYTES:
            middle = (low + high) // 2
            file.seek(middle)
            file.readline(_ROW_BYTES_MAX)  # the rest of a line
            start = file.tell()
            keys = self._rows(file.readline(_ROW_BYTES_MAX)).keys
            if not keys or keys[0] > key or start >= high:
                high = middle
            else:
                low = start
        return low

    def _rows(self, lines: bytes) -> LogRows:
        found = parse_lines(lines)
        tie = (2 * self.rank + self.is_error_stream) % (1 << TIE_BITS)
        keys = [int(seconds + micros) << TIE_BITS | tie for seconds, micros, _ in found]
        if keys and max(keys) >= KEY_MAX:
            keys = [min(key, KEY_MAX - 1) for key in keys]
        return LogRows(keys, [text for _, _, text in found], [self] * len(keys))


@dataclass(frozen=True, eq=False)
class LogRows:
    """Lines in columns, in order: their keys, texts and files."""

    keys: list[int]
    texts: list[str]
    sources: list[LogSource]

    def part(self, first: int, end: int) -> LogRows:
        """Some of them."""
        return LogRows(self.keys[first:end], self.texts[first:end], self.sources[first:end])


def sources_of(directories: Sequence[tuple[Path, int, int]], rank: int) -> list[LogSource]:
    """The log files of (directory, lease, job), of one rank or with -1 of all. Raises FilesMoved."""
    found: list[LogSource] = []
    for directory, lease, job in directories:
        for _ in range(_TRIES):
            files = log_files(directory)
            try:
                made = [
                    LogSource(job, lease, file.rank, file.is_error_stream, file.path, status.st_ino, status.st_mtime)
                    for file in files
                    if rank in (-1, file.rank)
                    for status in [file.path.lstat()]
                ]
            except FileNotFoundError:
                continue
            if log_files(directory) == files:
                found += made
                break
        else:
            raise FilesMoved(str(directory))
    return found


def merged_after(sources: Sequence[LogSource], key: int) -> Iterator[LogRows]:
    """The lines of all sources after a key by blocks, in order. A source is opened in its turn. Raises FilesMoved."""
    waiting = sorted(((max(source.first_key(), key), place) for place, source in enumerate(sources)), reverse=True)
    current: list[_Cursor] = []
    while waiting or current:
        limit = min((cursor.last_key for cursor in current), default=KEY_MAX)  # no block holds less than all up to it
        while waiting and (not current or waiting[-1][0] <= limit):
            share = max(_READ_BYTES // (len(current) + 1), _BLOCK_BYTES_MIN)
            cursor = _Cursor(sources[waiting.pop()[1]].rows_after(key, min(share, _BLOCK_BYTES)))
            current += [cursor] if cursor.has_rows else []
            limit = min((one.last_key for one in current), default=KEY_MAX)
        if current:
            yield _in_order([cursor.taken(limit) for cursor in current])
        current = [cursor for cursor in current if cursor.has_rows]


def tail_key(
    sources: Sequence[LogSource], lines: int, matching: Callable[[Sequence[str]], Sequence[int]], bytes_max: int
) -> int:
    """A key after which there are at most the last so many lines that match, as far back as bytes_max reach."""
    keys: list[int] = []
    read = 0
    for source in sorted(sources, key=lambda source: source.changed_s, reverse=True):
        found = 0
        if len(keys) == lines and source.changed_s * 1e6 < keys[-1] >> TIE_BITS:
            break  # older than all that is found
        for rows in source.blocks_from_end():
            indices = matching(rows.texts)
            keys += [rows.keys[index] for index in indices]
            found += len(indices)
            read += _BLOCK_BYTES
            if found >= lines or read > bytes_max:
                break
        keys = heapq.nlargest(lines, keys)
        if read > bytes_max:
            break
    return keys[-1] - 1 if keys else 0


class _Cursor:
    """Where a source is read."""

    def __init__(self, blocks: Iterator[LogRows]) -> None:
        self._blocks = blocks
        self._rows = next(blocks, _NO_ROWS)

    @property
    def has_rows(self) -> bool:
        """Whether there are more."""
        return bool(self._rows.keys)

    @property
    def last_key(self) -> int:
        """Of what has been read."""
        return self._rows.keys[-1]

    def taken(self, upto: int) -> LogRows:
        """What follows, up to a key; all of a block that ends there."""
        rows = self._rows
        if upto == self.last_key:
            self._rows = next(self._blocks, _NO_ROWS)
            return rows
        end = bisect_right(rows.keys, upto)
        self._rows = rows.part(end, len(rows.keys)) if end else rows
        return rows.part(0, end)


def _in_order(parts: Sequence[LogRows]) -> LogRows:
    some = [part for part in parts if part.keys]
    if len(some) == 1:
        return some[0]
    keys = list(chain.from_iterable(part.keys for part in some))
    texts = list(chain.from_iterable(part.texts for part in some))
    sources = list(chain.from_iterable(part.sources for part in some))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return LogRows([keys[row] for row in order], [texts[row] for row in order], [sources[row] for row in order])


_NO_ROWS: Final = LogRows([], [], [])

"""Log files of a job's processes: the format, the shim's writer with rotation, and the listing for readers.

A line of a file is `<Unix time, 6 decimals><mark><text>\\n`. The mark is a space, or `+` where the text continues in
the next line because it was longer than LINE_BYTES_MAX or its newline was late. The text is the bytes that the process
wrote. Times of one stream rise by a microsecond or more from line to line, so a time identifies a line and a reader
can continue after it. A full file is renamed to the next number: rank-0.out.7 is older than rank-0.out.8, and
rank-0.out is the newest. Where there are too many, the oldest is removed, and rank-0.out.removed has the number of all
lines that were removed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gavelpy.runtime.lease_files import LOG_DIRECTORY, log_file

LINE_BYTES_MAX: Final = 16 << 10
FLUSH_S: Final = 1.0  # an unfinished line is written after this long
_NAME = re.compile(r"rank-(\d{1,9})\.(out|err)(?:\.(\d{1,9}))?")
_COUNT_SUFFIX = ".removed"
_COUNT = re.compile(rb"[0-9]{1,18}")
_LINES = re.compile(r"^([0-9]{1,12})\.([0-9]{6})[ +](.*)$", re.MULTILINE)


@dataclass(frozen=True)
class LogFile:
    """One file of a rank's log."""

    rank: int
    is_error_stream: bool
    number: int  # rises with time within a stream; the file being written to has the highest
    path: Path


def parse_lines(lines: bytes) -> list[tuple[str, str, str]]:
    """Seconds, microseconds and text of each line that the shim wrote; others are left out."""
    found: list[tuple[str, str, str]] = _LINES.findall(lines.decode(errors="replace"))
    return found


def log_files(directory: Path) -> tuple[LogFile, ...]:
    """The log files of a lease directory by rank, stream and age, oldest first.

    The shim may rename a file before you open it: if it is gone, list again.
    """
    folder = directory / LOG_DIRECTORY
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    matches = [match for match in map(_NAME.fullmatch, names) if match]
    last: dict[tuple[str, str], int] = {}
    for match in matches:
        last[match[1], match[2]] = max(last.get((match[1], match[2]), 0), int(match[3] or 0))
    found = (
        LogFile(int(match[1]), match[2] == "err", int(match[3] or last[match[1], match[2]] + 1), folder / match[0])
        for match in matches
    )
    return tuple(sorted(found, key=lambda file: (file.rank, file.is_error_stream, file.number)))


def removed_lines(directory: Path, rank: int) -> int | None:
    """Lines at the beginning of the logs of a lease directory that were removed, of one rank or, with -1, of all.

    None if there are none, 0 if an older shim did not count them.
    """
    files = [file for file in log_files(directory) if rank in (-1, file.rank)]
    first: dict[tuple[int, bool], int] = {}
    for file in files:
        first.setdefault((file.rank, file.is_error_stream), file.number)  # the oldest comes first
    names = {log_file(of, is_error_stream=is_error): number for (of, is_error), number in first.items()}
    counts = {name: _count(directory / LOG_DIRECTORY / f"{name}{_COUNT_SUFFIX}") for name in names}
    if not any(counts[name] or number > 1 for name, number in names.items()):
        return None
    return sum(counts.values())


def _count(path: Path) -> int:
    """The number in a file; 0 if there is none, or something else in its place, which the job may have put there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        text = os.read(descriptor, 20) if is_file else b""
    finally:
        os.close(descriptor)
    return int(text) if _COUNT.fullmatch(text) else 0


class LogWriter:
    """Writes the output of one stream as lines and keeps the newest files.

    If a write fails, its lines are lost and counted, and the job continues.
    """

    def __init__(self, directory: Path, rank: int, *, is_error_stream: bool, bytes_max: int, files_max: int) -> None:
        self._path = directory / LOG_DIRECTORY / log_file(rank, is_error_stream=is_error_stream)
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._number = 0
        self._rest = b""
        self._rest_since_s = 0.0
        self._lost = 0
        self._lost_time = b""  # of the first lost line
        self._last_us = 0
        self._lines_written = 0  # in the newest file
        self._lines_kept = deque[int]()  # in each full file, the oldest first
        self._lines_removed = 0
        self._file = self._opened()

    def write(self, content: bytes, now_s: float) -> None:
        """Takes bytes that were read at a Unix time."""
        whole, newline, rest = content.rpartition(b"\n")
        pieces = (self._rest + whole).split(b"\n") if newline else []
        self._rest_since_s = now_s if newline or not self._rest else self._rest_since_s
        self._rest = rest if newline else self._rest + rest
        lines = b"".join(self._lines(piece, now_s) for piece in pieces)
        cut = len(self._rest) - len(self._rest) % LINE_BYTES_MAX
        lines += b"".join(
            self._line(self._rest[at : at + LINE_BYTES_MAX], b"+", now_s) for at in range(0, cut, LINE_BYTES_MAX)
        )
        self._rest = self._rest[cut:]
        self._put(lines)

    def flush(self, now_s: float) -> None:
        """Writes a line that has been unfinished for FLUSH_S."""
        if self._rest and now_s - self._rest_since_s >= FLUSH_S:
            self._put(self._line(self._rest, b"+", now_s))
            self._rest = b""

    def close(self, now_s: float) -> None:
        """Writes the unfinished line and closes the file."""
        if self._rest:
            self._put(self._lines(self._rest, now_s))
        self._rest = b""
        os.close(self._file)

    def _put(self, lines: bytes) -> None:
        for part in _parts(lines, self._bytes_max):
            self._put_part(part)

    def _put_part(self, lines: bytes) -> None:
        try:
            self._rotate(len(lines))
            if self._lost:
                note = b" [%d lines were lost: the log could not be written]\n"
                self._append(self._lost_time + note % self._lost)
                self._lost = 0
            self._append(lines)
        except OSError:
            self._lost_time = self._lost_time if self._lost else lines[: lines.index(b".") + 7]
            self._lost += lines.count(b"\n")

    def _append(self, lines: bytes) -> None:
        """Appends all lines or, if the disk is full, none; raises OSError."""
        end = os.fstat(self._file).st_size
        if os.write(self._file, lines) < len(lines):
            os.ftruncate(self._file, end)
            raise OSError(errno.ENOSPC, "the disk is full")
        self._lines_written += lines.count(b"\n")

    def _rotate(self, size: int) -> None:
        written = os.fstat(self._file).st_size
        if written == 0 or written + size <= self._bytes_max:
            return
        full = self._path.with_name(f"{self._path.name}.{self._number + 1}")
        self._path.rename(full)
        try:
            opened = self._opened()
        except OSError:  # keep the old file and try again at the next write
            full.rename(self._path)
            raise
        os.close(self._file)
        self._file, self._number = opened, self._number + 1
        self._lines_kept.append(self._lines_written)
        self._lines_written = 0
        if len(self._lines_kept) > self._files_max:
            self._lines_removed += self._lines_kept.popleft()
            self._path.with_name(f"{self._path.name}.{self._number - self._files_max}").unlink(missing_ok=True)
            with suppress(OSError):  # a full disk: the number is for a note only
                self._path.with_name(f"{self._path.name}{_COUNT_SUFFIX}").write_text(f"{self._lines_removed}")

    def _opened(self) -> int:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _lines(self, text: bytes, now_s: float) -> bytes:
        """One line of the process as one line of the file, or as several if it is too long."""
        if len(text) <= LINE_BYTES_MAX:
            return self._line(text, b" ", now_s)
        starts = range(0, len(text), LINE_BYTES_MAX)
        marks = (b" " if start + LINE_BYTES_MAX >= len(text) else b"+" for start in starts)
        return b"".join(
            self._line(text[start : start + LINE_BYTES_MAX], mark, now_s)
            for start, mark in zip(starts, marks, strict=True)
        )

    def _line(self, text: bytes, mark: bytes, now_s: float) -> bytes:
        self._last_us = max(round(now_s * 1e6), self._last_us + 1)
        return b"%d.%06d%b%b\n" % (self._last_us // 1_000_000, self._last_us % 1_000_000, mark, text)


def _parts(lines: bytes, bytes_max: int) -> Iterator[bytes]:
    """Whole lines, as many at a time as one file holds, at least one."""
    while len(lines) > bytes_max:
        cut = lines.rfind(b"\n", 0, bytes_max) + 1 or lines.index(b"\n") + 1
        yield lines[:cut]
        lines = lines[cut:]
    if lines:
        yield lines

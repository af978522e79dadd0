"""What a job's processes print, as files of lines: captured and rotated by the shim, read by the agent.

A line of a file is `<Unix time, 6 decimals><mark><text>\\n`. The mark is a space; it is `+` where the text was cut (it
was longer than LINE_BYTES_MAX, or no newline came for a while) and goes on in the next line. The text is what the
process wrote, byte by byte. Times rise from line to line of a stream by a microsecond or more, so that a time names a
line: a reader goes on after the last one it has seen. A full file is renamed to the next number, so a number and an
offset name a place for as long as the file is kept: rank-0.out.7 is older than rank-0.out.8, and rank-0.out is younger
than both.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gavelpy.runtime.lease_files import LOG_DIRECTORY, log_file

LINE_BYTES_MAX: Final = 16 << 10
PATIENCE_S: Final = 1.0  # an unfinished line is written after this long
_NAME = re.compile(r"rank-(\d{1,9})\.(out|err)(?:\.(\d{1,9}))?")
_LINE = re.compile(rb"(\d{1,12}\.\d{6})([ +])(.*)", re.DOTALL)

_LINES = re.compile(r"^([0-9]{1,12})\.([0-9]{6})[ +](.*)$", re.MULTILINE)


@dataclass(frozen=True)
class CapturedLine:
    """One line of a log file."""

    time_s: float  # Unix time when it was captured
    text: str  # bytes that are no UTF-8 are replaced
    is_continued: bool  # in the next line


@dataclass(frozen=True)
class LogFile:
    """One file of a rank's log."""

    rank: int
    is_error_stream: bool
    number: int  # rises with time within a stream; the file being written to has the highest
    path: Path


def parse_line(line: bytes) -> CapturedLine | None:
    """A line without its newline; None where the shim did not write it."""
    match = _LINE.fullmatch(line)
    if not match:
        return None
    return CapturedLine(float(match[1]), match[3].decode(errors="replace"), match[2] == b"+")


def parse_lines(lines: bytes) -> list[tuple[str, str, str]]:
    """Seconds, microseconds and text of each line that the shim wrote, many at once; others are left out."""
    found: list[tuple[str, str, str]] = _LINES.findall(lines.decode(errors="replace"))
    return found


def log_files(directory: Path) -> tuple[LogFile, ...]:
    """The log files of a lease directory by rank, stream and age, oldest first.

    A file may be renamed to its number between this and its opening: where it is gone, ask again.
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


class LogWriter:
    """Cuts what one stream brings into lines and keeps the newest files of them.

    Where the disk refuses, lines are lost and counted, and the job goes on.
    """

    def __init__(self, directory: Path, rank: int, *, is_error_stream: bool, bytes_max: int, files_max: int) -> None:
        self._path = directory / LOG_DIRECTORY / log_file(rank, is_error_stream=is_error_stream)
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._number = 0
        self._rest = b""
        self._rest_since_s = 0.0
        self._lost = 0
        self._lost_time = b""  # of the first of them
        self._last_us = 0
        self._file = self._opened()

    def write(self, content: bytes, now_s: float) -> None:
        """Takes bytes as they came at a Unix time."""
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
        """Writes an unfinished line that has waited for its end for long enough."""
        if self._rest and now_s - self._rest_since_s >= PATIENCE_S:
            self._put(self._line(self._rest, b"+", now_s))
            self._rest = b""

    def close(self, now_s: float) -> None:
        """Writes what is left; nothing comes after it."""
        if self._rest:
            self._put(self._lines(self._rest, now_s))
        self._rest = b""
        os.close(self._file)

    def _put(self, lines: bytes) -> None:
        for part in _parts(lines, self._bytes_max):
            self._put_part(part)

    def _put_part(self, lines: bytes) -> None:
        try:
            self._make_room(len(lines))
            if self._lost:
                said = b" [%d lines were lost: the log could not be written]\n"
                self._append(self._lost_time + said % self._lost)
                self._lost = 0
            self._append(lines)
        except OSError:
            self._lost_time = self._lost_time if self._lost else lines[: lines.index(b".") + 7]
            self._lost += lines.count(b"\n")

    def _append(self, lines: bytes) -> None:
        """All of it or, where the disk is full on the way, nothing; raises OSError."""
        end = os.fstat(self._file).st_size
        if os.write(self._file, lines) < len(lines):
            os.ftruncate(self._file, end)
            raise OSError(errno.ENOSPC, "the disk is full")

    def _make_room(self, size: int) -> None:
        written = os.fstat(self._file).st_size
        if written == 0 or written + size <= self._bytes_max:
            return
        kept = self._path.with_name(f"{self._path.name}.{self._number + 1}")
        self._path.rename(kept)
        try:
            opened = self._opened()
        except OSError:  # no room for a new file: the old one goes on, and this is tried again
            kept.rename(self._path)
            raise
        os.close(self._file)
        self._file, self._number = opened, self._number + 1
        self._path.with_name(f"{self._path.name}.{self._number - self._files_max}").unlink(missing_ok=True)

    def _opened(self) -> int:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _lines(self, text: bytes, now_s: float) -> bytes:
        """One line of a process as one line of the file, or several where it is too long."""
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
    """Whole lines, as many at a time as one file holds, and one at least."""
    while len(lines) > bytes_max:
        cut = lines.rfind(b"\n", 0, bytes_max) + 1 or lines.index(b"\n") + 1
        yield lines[:cut]
        lines = lines[cut:]
    if lines:
        yield lines

"""A journal in one file, as simulations write it: a first line with the format, then records with length and checksum.

Reading stops at the first torn or damaged record and reports its position; `recover` returns the events before it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from gavelpy.errors import InvalidInput, JournalCorrupt, JournalTooNew
from gavelpy.journal.codec import decode, encode
from gavelpy.mechanism.events import Event

MAGIC = b"gavelpy-journal 1\n"
_HEAD = struct.Struct("<II")  # length, CRC-32 of the record


class JournalWriter:
    """Appends events to a new file; a context manager."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise InvalidInput(f"journal cannot be written: {error.strerror}", file=str(path)) from None
        self._file.write(MAGIC)

    def append(self, event: Event, now_s: float) -> None:
        """Appends one event."""
        record = encode(event, now_s)
        self._file.write(_HEAD.pack(len(record), zlib.crc32(record)))
        self._file.write(record)

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> Iterator[tuple[float, Event]]:
    """(now_s, event) in order; raises JournalCorrupt at the first damaged record, JournalTooNew at a newer one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"journal cannot be read: {error.strerror}", file=str(path)) from None
    if not data.startswith(MAGIC):
        raise JournalCorrupt(f"journal must begin with {MAGIC.decode().strip()!r}", file=str(path))
    position, count = len(MAGIC), 0
    while position < len(data):
        end = position + _HEAD.size
        if end <= len(data):
            length, checksum = _HEAD.unpack_from(data, position)
            end += length
        if end > len(data):
            raise JournalCorrupt(f"journal is torn at byte {position}, after {count} good events", file=str(path))
        record = data[end - length : end]
        if zlib.crc32(record) != checksum:
            raise JournalCorrupt(f"journal is damaged at byte {position}, after {count} good events", file=str(path))
        try:
            entry = decode(record)
        except JournalCorrupt as error:
            text = f"journal is damaged at byte {position}, after {count} good events: {error}"
            raise JournalCorrupt(text, file=str(path)) from None
        except JournalTooNew as error:
            raise error.located(f"{path}: event {count + 1}") from None
        yield entry
        position, count = end, count + 1


def recover(path: Path) -> tuple[list[tuple[float, Event]], str]:
    """The events up to the first damage, and a description of the damage ("" for none)."""
    good: list[tuple[float, Event]] = []
    try:
        for entry in read(path):
            good.append(entry)  # noqa: PERF402 - keeps the events before an error
    except JournalCorrupt as error:
        return good, str(error)
    return good, ""

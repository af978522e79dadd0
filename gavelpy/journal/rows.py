"""Rows of the event store: their fields and checksums, and the chain of events.

Every row contains a CRC-32 of its fields, and every event the checksum of the event before it, so a row of another
history is never taken for the next event. An event contains the last sequence of its append and the number of
submissions in it, so recovery keeps or drops an append as a whole.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal.codec import decode, encode, journal_name
from gavelpy.mechanism.events import Event

Entry = tuple[int, float, Event]  # sequence, now_s, event
_EVENT = struct.Struct("<qqdqqIH")
_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_EVENT_SEED = zlib.crc32(b"gavel_events")


# Tuples for the database driver; the fields are in the order of the columns.
class EventRow(NamedTuple):
    """One event."""

    sequence: int
    incarnation: int
    now_s: float
    kind: str
    record: bytes
    append_end: int  # sequence of the last event of the same append
    submissions: int  # number in the append
    previous_crc32: int
    crc32: int

    def checksum(self) -> int:
        """The valid value of crc32."""
        return _event_crc32(*self[:-1])


class SnapshotRow(NamedTuple):
    """The core's state after an event."""

    sequence: int
    incarnation: int
    data: bytes
    event_crc32: int  # checksum of the event at `sequence`, where the chain continues
    crc32: int

    def checksum(self) -> int:
        """The valid value of crc32."""
        return _mixed("gavel_snapshots", self[:-1])


class SubmissionRow(NamedTuple):
    """A submission by its idempotency key, with its first job."""

    owner: str
    key: str
    digest: str
    first_job: int
    jobs: int
    at_s: float
    sequence: int  # append_end of its events
    crc32: int

    def checksum(self) -> int:
        """The valid value of crc32."""
        return _mixed("gavel_submissions", self[:-1])


class MetaRow(NamedTuple):
    """A named value."""

    name: str
    value: str
    crc32: int

    def checksum(self) -> int:
        """The valid value of crc32."""
        return _mixed("gavel_meta", self[:-1])


Row = EventRow | SnapshotRow | SubmissionRow | MetaRow


@dataclass(frozen=True)
class Position:
    """The end of a chain of events: (0, 0) before the first."""

    sequence: int = 0
    crc32: int = 0


@dataclass(frozen=True)
class Chain:
    """Good events in order from some position on, and the damage after them ("" for none)."""

    end: Position
    entries: list[Entry] = field(default_factory=list)
    damage: str = ""


def event_row(incarnation: int, now_s: float, kind: str, record: bytes, place: tuple[int, int, int, int]) -> EventRow:
    """A row with its checksum; `place` is its sequence, append_end, submissions and the checksum before it."""
    sequence, append_end, submissions, previous = place
    crc32 = _event_crc32(sequence, incarnation, now_s, kind, record, append_end, submissions, previous)
    return EventRow(sequence, incarnation, now_s, kind, record, append_end, submissions, previous, crc32)


def snapshot_row(sequence: int, incarnation: int, data: bytes, event_crc32: int) -> SnapshotRow:
    """A row with its checksum."""
    row = SnapshotRow(sequence, incarnation, data, event_crc32, 0)
    return row._replace(crc32=row.checksum())


def meta_row(name: str, value: str) -> MetaRow:
    """A row with its checksum."""
    return MetaRow(name, value, MetaRow(name, value, 0).checksum())


def is_whole(row: Row) -> bool:
    """Whether the checksum is valid; false if a field has another type."""
    try:
        return row.crc32 == row.checksum()
    except (AttributeError, TypeError, ValueError, struct.error):
        return False


def read_chain(rows: Iterable[Sequence[Any]], start: Position) -> Chain:
    """The events after `start`, up to the last whole append."""
    entries: list[Entry] = []
    at, end, good = start, start, 0
    damage = ""
    for values in rows:
        row = EventRow(*values)
        try:
            entries.append(entry_of(row, at))
        except JournalCorrupt as error:
            damage = str(error)
            break
        at = Position(row.sequence, row.crc32)
        if row.sequence == row.append_end:
            end, good = at, len(entries)
    if not damage and good < len(entries):
        damage = f"event {at.sequence + 1} is missing"
    if damage and good < len(entries):
        damage += f"; it is of one append with the events from {end.sequence + 1} on"
    return Chain(end, entries[:good], damage)


def event_rows(
    incarnation: int, start: Position, records: Sequence[tuple[float, Event]], submissions: int
) -> list[EventRow]:
    """The rows of one append after `start`; raises InvalidInput for a time that is not finite."""
    rows: list[EventRow] = []
    end, crc32 = start.sequence + len(records), start.crc32
    for sequence, (now_s, event) in enumerate(records, start.sequence + 1):
        if not math.isfinite(now_s):
            raise InvalidInput(f"now_s must be finite, got {now_s!r}")
        place = (sequence, end, submissions, crc32)
        row = event_row(incarnation, float(now_s), journal_name(event), encode(event, now_s), place)
        rows.append(row)
        crc32 = row.crc32
    return rows


def entry_of(row: EventRow, before: Position) -> Entry:
    """The event of a row that follows `before`; raises JournalCorrupt."""
    if row.sequence != before.sequence + 1:
        raise JournalCorrupt(f"event {before.sequence + 1} is missing")
    if not is_whole(row):
        raise JournalCorrupt(f"event {row.sequence} does not have its checksum")
    if row.previous_crc32 != before.crc32:
        raise JournalCorrupt(f"event {row.sequence} does not follow the event before it")
    try:
        return row.sequence, *decode(row.record)
    except JournalCorrupt as error:
        raise JournalCorrupt(f"event {row.sequence} cannot be decoded: {error}") from None


def _event_crc32(
    sequence: int, incarnation: int, now_s: float, kind: str, record: bytes, append_end: int, submissions: int,
    previous_crc32: int,
) -> int:  # fmt: skip
    name = kind.encode()
    head = _EVENT.pack(sequence, incarnation, now_s, append_end, submissions, previous_crc32, len(name))
    return zlib.crc32(record, zlib.crc32(name, zlib.crc32(head, _EVENT_SEED)))


def _mixed(table: str, values: Iterable[Any]) -> int:
    crc = zlib.crc32(table.encode())
    for value in values:
        if isinstance(value, int):
            crc = zlib.crc32(_INT.pack(value), crc)
        elif isinstance(value, float):
            crc = zlib.crc32(_FLOAT.pack(value), crc)
        else:
            data = value if isinstance(value, bytes) else value.encode()
            crc = zlib.crc32(data, zlib.crc32(_INT.pack(len(data)), crc))
    return crc


@dataclass(frozen=True)
class Submission:
    """The answer to a submission: repeating it, with the same owner and key, returns the same answer."""

    owner: str
    key: str
    digest: str  # of the request; the caller compares it
    first_job: int
    count: int
    at_s: float


def submission_row(submission: Submission, sequence: int) -> SubmissionRow:
    """The row of a submission in the append that ends at `sequence`; raises InvalidInput."""
    texts = {name: storable(name, getattr(submission, name)) for name in ("owner", "key", "digest")}
    numbers = (int(submission.first_job), int(submission.count), float(submission.at_s))
    row = SubmissionRow(**texts, first_job=numbers[0], jobs=numbers[1], at_s=numbers[2], sequence=sequence, crc32=0)
    return row._replace(crc32=row.checksum())


def storable(name: str, value: str) -> str:
    """The text, if both databases store it unchanged; else raises InvalidInput."""
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidInput(f"{name} must be text without NUL and lone surrogates, got {value!r}")
    return value

"""The event store's tables: their rows with checksums, the chain of events, the layout, and named values.

Every row contains a CRC-32 of its fields, and every event the checksum of the event before it, so a row of another
history is never taken for the next event. An event contains the last sequence of its append and the number of
submissions in it, so repair keeps or drops an append as a whole.

Columns are in the order of the fields of the rows. New columns are added only at the end of a table, so a migrated
table and a new one have the same order.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    inspect,
    select,
    text,
)

from gavelpy.errors import InvalidInput, JournalCorrupt, JournalTooNew
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
        return mixed_crc32("gavel_snapshots", self[:-1])


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
        return mixed_crc32("gavel_submissions", self[:-1])


class MetaRow(NamedTuple):
    """A named value."""

    name: str
    value: str
    crc32: int

    def checksum(self) -> int:
        """The valid value of crc32."""
        return mixed_crc32("gavel_meta", self[:-1])


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
    """The event of a row that follows `before`; raises JournalCorrupt and JournalTooNew."""
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
    except JournalTooNew as error:
        raise JournalTooNew(f"event {row.sequence} of the journal: {error}") from None


def _event_crc32(
    sequence: int, incarnation: int, now_s: float, kind: str, record: bytes, append_end: int, submissions: int,
    previous_crc32: int,
) -> int:  # fmt: skip
    name = kind.encode()
    head = _EVENT.pack(sequence, incarnation, now_s, append_end, submissions, previous_crc32, len(name))
    return zlib.crc32(record, zlib.crc32(name, zlib.crc32(head, _EVENT_SEED)))


def mixed_crc32(table: str, values: Iterable[Any]) -> int:
    """The checksum of a row of a table."""
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
    if "\0" in value or (not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise InvalidInput(f"{name} must be text without NUL and lone surrogates, got {value!r}")
    return value


SCHEMA_VERSION = "schema_version"
INCARNATION = "incarnation"
CURRENT = 3  # version of this layout
MARKED = "marked"  # set in a journal that has a file of marks next to it
SERIAL = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER is the row id in SQLite

TABLES = MetaData()
META = Table(
    "gavel_meta",
    TABLES,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("crc32", BigInteger, nullable=False, server_default="0"),
)
EVENTS = Table(
    "gavel_events",
    TABLES,
    Column("sequence", SERIAL, primary_key=True, autoincrement=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("now_s", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("append_end", BigInteger, nullable=False, server_default="0"),
    Column("submissions", BigInteger, nullable=False, server_default="0"),
    Column("previous_crc32", BigInteger, nullable=False, server_default="0"),
    Column("crc32", BigInteger, nullable=False, server_default="0"),
)
SNAPSHOTS = Table(
    "gavel_snapshots",
    TABLES,
    Column("sequence", SERIAL, primary_key=True, autoincrement=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("event_crc32", BigInteger, nullable=False, server_default="0"),
    Column("crc32", BigInteger, nullable=False, server_default="0"),
)
SUBMISSIONS = Table(
    "gavel_submissions",
    TABLES,
    Column("owner", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("first_job", BigInteger, nullable=False),
    Column("jobs", BigInteger, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("crc32", BigInteger, nullable=False),
)
QUARANTINE = Table(
    "gavel_quarantine",
    TABLES,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),  # name of the table
    Column("why", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),  # the columns in order, MessagePack
)


def prepare(connection: Connection) -> bool:
    """Creates the tables if there are none; whether they existed."""
    names = set(inspect(connection).get_table_names())
    if META.name in names:
        return True
    if EVENTS.name in names:
        raise JournalCorrupt(f"journal has {EVENTS.name} but no {META.name}")
    TABLES.create_all(connection)
    for row in (meta_row(SCHEMA_VERSION, str(CURRENT)), meta_row(INCARNATION, "0")):
        connection.execute(META.insert(), row._asdict())
    return False


@cache
def insertion(table: Table, paramstyle: str) -> str:
    """The INSERT statement for rows as tuples; with dictionaries, appends take twice the time."""
    columns = table.columns.keys()
    mark = "?" if paramstyle == "qmark" else "%s"
    return f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"


def version_of(connection: Connection) -> int:
    """The version of the layout; raises JournalCorrupt if it cannot be read, JournalTooNew if it is too new."""
    query = text(f"SELECT value FROM {META.name} WHERE name = :name")
    found = connection.execute(query, {"name": SCHEMA_VERSION}).scalar()
    if not isinstance(found, str) or not found.isascii() or not found.isdigit() or int(found) < 1:
        raise JournalCorrupt(f"journal's schema_version must be a number from 1 to {CURRENT}, got {found!r}")
    if int(found) > CURRENT:
        raise JournalTooNew(
            f"journal's schema_version must be at most {CURRENT}, got {found}: a newer gavelpy has written it"
        )
    return int(found)


# Every append executes it; as text, that takes a third of the time.
_NEWEST = f"SELECT value FROM {META.name} WHERE name = '{INCARNATION}'"
_NAMED = select(META.c.name, META.c.value, META.c.crc32).where(META.c.name == bindparam("its_name"))


def newest_incarnation(connection: Connection, *, locks: bool = True) -> int:
    """The incarnation in force, 0 before the first. Locks the row until the end of the transaction."""
    lock = " FOR UPDATE" if locks and connection.dialect.name != "sqlite" else ""  # SQLite locks the whole file
    found = connection.exec_driver_sql(f"{_NEWEST}{lock}").scalar()
    return int(found) if found and found.isdigit() else 0


def put_meta(connection: Connection, row: MetaRow) -> None:
    """Inserts a named value, or replaces it."""
    if not connection.execute(META.update().where(META.c.name == row.name), row._asdict()).rowcount:
        connection.execute(META.insert(), row._asdict())


def meta_named(connection: Connection, name: str) -> MetaRow | None:
    """The row of a named value, whole or not; None if there is none."""
    found = connection.execute(_NAMED, {"its_name": name}).one_or_none()
    return MetaRow(*found) if found is not None else None


def snapshot_sequences(connection: Connection) -> list[int]:
    """Sequences of the snapshots, newest first."""
    return list(connection.execute(select(SNAPSHOTS.c.sequence).order_by(SNAPSHOTS.c.sequence.desc())).scalars())


# Compiled once: every submission executes it.
_ANSWER = select(SUBMISSIONS).where(
    SUBMISSIONS.c.owner == bindparam("its_owner"), SUBMISSIONS.c.key == bindparam("its_key")
)


def submission_named(connection: Connection, owner: str, key: str) -> Submission | None:
    """The submission of a key; None if its owner has not used the key."""
    named = {"its_owner": storable("owner", owner), "its_key": storable("key", key)}
    found = connection.execute(_ANSWER, named).one_or_none()
    if found is None:
        return None
    row = SubmissionRow(*found)
    if not is_whole(row):
        raise JournalCorrupt(f"submission {key!r} of {owner!r} does not have its checksum")
    return Submission(*row[:-2])

"""Reads a whole journal without writing to it: from a scheduler's database, in use or not, or from a file.

A database is read in one transaction, so that events which move to the archive meanwhile are neither missed nor read
twice. If the early events have left the journal, the recording begins with the oldest state that is kept. No lock is
taken, and no table, file or row is created.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, inspect, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal import file
from gavelpy.journal.archive_tables import OLD_SNAPSHOTS, SEGMENTS, OldSnapshotRow, SegmentRow, events_of, is_sealed
from gavelpy.journal.codec import decode_state
from gavelpy.journal.database import failing
from gavelpy.journal.repair import read_only
from gavelpy.journal.tables import (
    CURRENT,
    EVENTS,
    SNAPSHOTS,
    EventRow,
    Position,
    SnapshotRow,
    entry_of,
    is_whole,
    meta_named,
    version_of,
)
from gavelpy.mechanism.events import Event, PolicyChanged

CLOCK = "clock"  # meta value of the daemon: the date at time 0
_CONNECT_S = 10
_SQLITE_HEADER = b"SQLite format 3\x00"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, eq=False)
class Recording:
    """All events of a journal that are kept, in order, and the state before the first of them."""

    name: str  # of the journal, without a password
    events: list[tuple[float, Event]]
    core: dict[str, Any] | None = None  # snapshot of the core before the first event; None = an empty core
    policy: PolicyChanged | None = None  # in force in that state
    epoch_s: float = math.nan  # Unix time of time 0; NaN = unknown
    notes: list[str] = field(default_factory=list)  # what is missing
    sha256: str = ""  # of the file of a simulation, or of the records of a database in order; empty = not read from one

    @property
    def span_s(self) -> tuple[float, float]:
        """Times of the first and last event."""
        begin_s = float(self.core["core"]["now_s"]) if self.core is not None else self.events[0][0]
        return begin_s, self.events[-1][0]

    def time_s(self, text: str, option: str) -> float:
        """The scheduler's time of a date (`2026-11-23`, `2026-11-23T08:30`) or of seconds since the journal began."""
        if _DATE.match(text):
            try:
                date = datetime.fromisoformat(text)
            except ValueError:
                raise InvalidInput(f"{option} must be a date such as 2026-11-23T08:30, got {text!r}") from None
            if math.isnan(self.epoch_s):
                raise InvalidInput(f"{option} must be seconds: {self.name} does not record dates, got {text!r}")
            return (date if date.tzinfo else date.astimezone()).timestamp() - self.epoch_s
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            raise InvalidInput(f"{option} must be a date such as 2026-11-23T08:30, or seconds, got {text!r}")
        return seconds


def read_recording(journal: str | os.PathLike[str]) -> Recording:
    """The journal of a scheduler (`sqlite:///PATH`, PATH or `postgresql://...`), or of `gavel simulate --journal`.

    Raises InvalidInput if there is none or its database cannot be reached, JournalCorrupt if it is damaged, and
    JournalFailed if the database fails.
    """
    text = os.fspath(journal)
    if "://" not in text:
        return _of_file(Path(text))
    try:
        url = make_url(text)
    except ArgumentError:
        raise InvalidInput(
            "journal must be a file, sqlite:///PATH or postgresql://..., got a text that is no URL"
        ) from None
    if url.get_backend_name() == "sqlite" and url.database:
        return _of_file(Path(url.database))
    name = url.render_as_string(hide_password=True)
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise InvalidInput(f"journal must be a file, sqlite:///PATH or postgresql://..., got {name}")
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"), poolclass=NullPool, hide_parameters=True,
        connect_args={"connect_timeout": _CONNECT_S},
    )  # fmt: skip
    try:
        connected = engine.connect()
    except DBAPIError as error:
        why = " ".join(str(error.orig).split())
        raise InvalidInput(f"journal must be in a database that can be reached, got {name} ({why})") from None
    with failing(name), connected as connection:
        return _recording(
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True), name
        )


def _of_file(path: Path) -> Recording:
    if path.exists() and not path.is_file() and not path.is_dir():  # reading a FIFO would wait for its writer
        raise InvalidInput("journal must be a SQLite file or one of gavel simulate --journal", file=str(path))
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_SQLITE_HEADER))
    except OSError as error:
        raise InvalidInput(f"journal cannot be read: {error.strerror}", file=str(path)) from None
    if head == file.MAGIC[: len(head)] and head:
        events = list(file.read(path))
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return _checked(Recording(str(path), events, sha256=digest))
    if head != _SQLITE_HEADER:
        raise InvalidInput("journal must be a SQLite file or one of gavel simulate --journal", file=str(path))
    engine = create_engine("sqlite://", creator=lambda: _reading(path), poolclass=NullPool)
    with failing(str(path)), engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        return _recording(connection, str(path))


def _reading(path: Path) -> sqlite3.Connection:
    """A connection that creates no file: without a write-ahead log, SQLite would make an empty one."""
    if Path(f"{path}-wal").exists():
        return read_only(path)
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)


def _recording(connection: Connection, name: str) -> Recording:
    missing = {table.name for table in (EVENTS, SNAPSHOTS)} - set(inspect(connection).get_table_names())
    if missing:
        raise InvalidInput(f"journal must have the tables of a scheduler, got {name} without {min(missing)}")
    if (version := version_of(connection)) != CURRENT:
        raise InvalidInput(f"journal must have layout {CURRENT}, got {version} in {name}: start its scheduler once")
    with _locating(name):
        rows = list(_rows(connection))
        first = rows[0].sequence if rows else 0
        state, at = (None, Position()) if first == 1 else _oldest_state(connection, first)
        events = [(now_s, event) for _, now_s, event in _entries(rows, at)]
        digest = hashlib.sha256()
        for row in rows:
            digest.update(row.record)
        recording = Recording(name, events, *_parts(state), _epoch_s(connection), sha256=digest.hexdigest())
    if state is not None:
        recording.notes.append(f"the journal keeps no events before {recording.span_s[0]:,.0f} s")
    return _checked(recording)


def _rows(connection: Connection) -> Iterator[EventRow]:
    """All rows of events, from the archive and then the journal, without overlaps."""
    last = 0
    for row in connection.execute(select(SEGMENTS).order_by(SEGMENTS.c.first)):
        for event in events_of(SegmentRow(*row)):
            if event.sequence > last:
                yield event
                last = event.sequence
    for row in connection.execute(select(EVENTS).where(EVENTS.c.sequence > last).order_by(EVENTS.c.sequence)):
        yield EventRow(*row)


def _entries(rows: Iterable[EventRow], at: Position) -> Iterator[tuple[int, float, Event]]:
    for row in rows:
        if row.sequence > at.sequence:
            yield entry_of(row, at)
            at = Position(row.sequence, row.crc32)


def _oldest_state(connection: Connection, first: int) -> tuple[dict[str, Any] | None, Position]:
    """The oldest snapshot from which all later events are kept."""
    old = select(OLD_SNAPSHOTS).where(OLD_SNAPSHOTS.c.sequence >= first - 1).order_by(OLD_SNAPSHOTS.c.sequence)
    for row in connection.execute(old.limit(1)):
        archived = OldSnapshotRow(*row)
        if not is_sealed(OLD_SNAPSHOTS, archived):
            raise JournalCorrupt(f"snapshot after event {archived.sequence} in the archive does not have its checksum")
        return decode_state(zlib.decompress(archived.data)), Position(archived.sequence, archived.event_crc32)
    kept = select(SNAPSHOTS).where(SNAPSHOTS.c.sequence >= max(first - 1, 0)).order_by(SNAPSHOTS.c.sequence)
    for row in connection.execute(kept.limit(1)):
        snapshot = SnapshotRow(*row)
        if not is_whole(snapshot):
            raise JournalCorrupt(f"snapshot after event {snapshot.sequence} does not have its checksum")
        return decode_state(snapshot.data), Position(snapshot.sequence, snapshot.event_crc32)
    if first:
        raise JournalCorrupt(f"events before {first} are gone, and no snapshot replaces them")
    return None, Position()


def _parts(state: dict[str, Any] | None) -> tuple[dict[str, Any] | None, PolicyChanged | None]:
    if state is None:
        return None, None
    policy = state.get("facts", {}).get("policy")
    return state["core"], None if policy is None else PolicyChanged(*policy)


def _epoch_s(connection: Connection) -> float:
    found = meta_named(connection, CLOCK)
    try:
        return float(json.loads(found.value)["epoch_s"]) if found is not None else math.nan
    except (LookupError, TypeError, ValueError) as error:
        raise JournalCorrupt(f"the clock stored in the journal is corrupt: {error!r}") from None


@contextmanager
def _locating(name: str) -> Iterator[None]:
    try:
        yield
    except JournalCorrupt as error:
        raise JournalCorrupt(f"journal {name}: {error}") from None


def _checked(recording: Recording) -> Recording:
    if not recording.events:
        raise InvalidInput(f"journal must contain events, got none in {recording.name}")
    return recording

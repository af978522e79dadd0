"""Builders for tests of the event store: events, loads, and SQL that bypasses the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from gavelpy.journal.codec import encode
from gavelpy.journal.repair import Loaded
from gavelpy.journal.sqlite import PAGE_BYTES, BackupSettings
from gavelpy.journal.store import EventStore, Submission, open_store
from gavelpy.journal.tables import Entry
from gavelpy.mechanism.events import Event, JobCancelled

Record = tuple[float, Event]


def cancelled(first: int, count: int = 1) -> list[Record]:
    """Distinct events; event k has time k s."""
    return [(float(k), JobCancelled(k)) for k in range(first, first + count)]


def submission(key: str = "k", owner: str = "ann", first_job: int = 0) -> Submission:
    return Submission(owner, key, "digest", first_job, 1, 12.5)


def begun(url: str) -> EventStore:
    """An open journal with the newest incarnation."""
    store = open_store(url, accept_loss=True, take_over=True, backups=BackupSettings(kept=2))
    store.begin_incarnation()
    return store


def filled(url: str, appends: int = 10) -> None:
    """A journal with one event per append: event k has sequence k + 1."""
    with begun(url) as store:
        for k in range(appends):
            store.append(cancelled(k))


def corrupt_header(path: Path, byte: bytes = b"\xaa") -> bytes:
    """Overwrites the first page of a file, so that SQLite cannot open it; returns its bytes."""
    path.write_bytes(byte * PAGE_BYTES + path.read_bytes()[PAGE_BYTES:])
    return path.read_bytes()


def bytes_of(entries: Sequence[Entry]) -> list[tuple[int, bytes]]:
    """Entries as values that can be compared."""
    return [(sequence, encode(event, now_s)) for sequence, now_s, event in entries]


def expected(records: Sequence[Record], first_sequence: int = 1) -> list[tuple[int, bytes]]:
    """The result of `bytes_of` for appended records."""
    return [(first_sequence + k, encode(event, now_s)) for k, (now_s, event) in enumerate(records)]


def loaded(url: str) -> tuple[Loaded, list[tuple[int, bytes]]]:
    """The state that the next scheduler loads, with events as values."""
    with begun(url) as store:
        found = store.load()
    return found, bytes_of(list(found.events))


def execute(url: str, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Runs SQL that bypasses the store and returns the rows, if any. A SQLite file is left without a log."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        result = connection.execute(text(statement), parameters)
        return [tuple(row) for row in result] if result.returns_rows else []


def harm(url: str, statement: str, **parameters: Any) -> None:
    """Runs SQL that bypasses the store, and leaves no older version of a row in the pages of a SQLite file."""
    execute(url, statement, **parameters)
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text({"sqlite": "VACUUM", "postgresql": "SELECT 1"}[engine.dialect.name]))


def path_of(url: str) -> Path:
    """The file of a SQLite journal."""
    return Path(str(make_url(url).database))

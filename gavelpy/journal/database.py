"""The databases of the event store: what the store requires of one, and how a URL selects it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from gavelpy.errors import InvalidInput, JournalFailed
from gavelpy.journal.loss_detection import Loss, Marks
from gavelpy.journal.postgres import PostgresDatabase
from gavelpy.journal.recovery import JournalContent
from gavelpy.journal.sqlite import BackupSettings, SqliteDatabase


class Database(Protocol):
    """Where the tables are."""

    name: str  # for messages, without the password
    note: str  # what opening found and left as it is; "" for nothing
    loss: Loss | None  # found when opening, and accepted
    content: JournalContent | None  # of the tables, if opening has read them
    marks: Marks | None  # from the file of marks
    has_mark_file: bool

    def connect(self) -> Connection:
        """A connection with durable commits."""

    def is_damage(self, error: BaseException | None) -> bool:
        """Whether the driver's error means damaged data: not busy, full or unreachable."""

    def repair(self, fault: str, incarnation: int) -> bool:
        """Replaces damaged tables by what can be recovered; false if there is no other source than the tables."""

    def keep_marks(self, marks: Marks, durably: bool) -> bool:
        """Writes marks to their file; false if there is none."""

    def back_up(self) -> Path | None:
        """Makes a backup while the journal is in use; None if none is configured."""

    def check_leader(self, connection: Connection, incarnation: int) -> None:
        """Raises JournalInUse if the scheduler of this incarnation is running in another process."""

    def lead(self, connection: Connection, incarnation: int) -> None:
        """Registers this process as the scheduler of an incarnation, until the connection ends."""

    def release(self) -> None:
        """Releases what excludes other schedulers."""


def database_of(
    url: str, *, create: bool, accept_loss: bool = False, backups: BackupSettings | None = None
) -> Database:
    """Opens the database of a URL; raises InvalidInput unless it is SQLite in a file or PostgreSQL."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidInput("journal must be sqlite:///PATH or postgresql://..., got a text that is no URL") from None
    with failing(parsed.render_as_string(hide_password=True)):
        return _opened(parsed, create, accept_loss, backups)


@contextmanager
def failing(name: str) -> Iterator[None]:
    """Raises errors of the database as JournalFailed, without the values that were being written."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise JournalFailed(f"journal {name}: {error}") from error
    except DBAPIError as error:
        raise JournalFailed(f"journal {name}: {' '.join(str(error.orig).split())}") from error


def _opened(url: URL, create: bool, accept_loss: bool, backups: BackupSettings | None) -> Database:
    match url.get_backend_name():
        case "sqlite" if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
            return SqliteDatabase(Path(url.database), create=create, accept_loss=accept_loss, backups=backups)
        case "postgresql" if url.drivername in ("postgresql", "postgresql+psycopg"):
            return PostgresDatabase(url.set(drivername="postgresql+psycopg"), create=create)
    raise InvalidInput(
        f"journal must be sqlite:///PATH (a file) or postgresql://..., got {url.render_as_string(hide_password=True)}"
    )

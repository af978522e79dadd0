"""What the event store asks of a database, which one a URL means, and what its errors become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from gavelpy.errors import InvalidInput, JournalFailed
from gavelpy.journal.loss_detection import Loss, Marks
from gavelpy.journal.postgres import PostgresDatabase
from gavelpy.journal.recovery import Reading
from gavelpy.journal.sqlite import SqliteDatabase


class Database(Protocol):
    """Where the tables are."""

    name: str  # for messages; no password in it
    note: str  # what opening found and left as it is; "" for nothing
    loss: Loss | None  # that opening found and was allowed to accept
    reading: Reading | None  # what the tables hold, where opening has looked
    marks: Marks | None  # that lie beside the tables

    def connect(self) -> Connection:
        """A connection whose commits are durable."""

    def is_damage(self, error: BaseException | None) -> bool:
        """Whether the driver's error says that the data are damaged: not busy, not full, not out of reach."""

    def repair(self, fault: str, incarnation: int) -> bool:
        """Puts what can still be read in place of damaged tables; false where there is no way to know better."""

    def keep_marks(self, marks: Marks, durably: bool) -> bool:
        """Keeps marks beside the tables; false where they have no place there."""

    def check_leader(self, connection: Connection, incarnation: int) -> None:
        """Raises JournalInUse where the scheduler of this incarnation still runs, in another process."""

    def lead(self, connection: Connection, incarnation: int) -> None:
        """From now on, until the connection ends, `check_leader` reports this process as that incarnation's."""

    def release(self) -> None:
        """Gives up what keeps others out."""


def database_of(url: str, *, create: bool, accept_loss: bool = False) -> Database:
    """Opens what a URL names; raises InvalidInput for what is neither SQLite in a file nor PostgreSQL."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidInput("journal must be sqlite:///PATH or postgresql://..., got something that is no URL") from None
    with failing(parsed.render_as_string(hide_password=True)):
        return _opened(parsed, create, accept_loss)


@contextmanager
def failing(name: str) -> Iterator[None]:
    """Errors of the database come out as JournalFailed, without the values that were being written."""
    try:
        yield
    except OSError as error:
        raise JournalFailed(f"journal {name}: {error}") from error
    except DBAPIError as error:
        raise JournalFailed(f"journal {name}: {' '.join(str(error.orig).split())}") from error


def _opened(url: URL, create: bool, accept_loss: bool) -> Database:
    match url.get_backend_name():
        case "sqlite" if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
            return SqliteDatabase(Path(url.database), create=create, accept_loss=accept_loss)
        case "postgresql" if url.drivername in ("postgresql", "postgresql+psycopg"):
            return PostgresDatabase(url.set(drivername="postgresql+psycopg"), create=create)
    raise InvalidInput(
        f"journal must be sqlite:///PATH (a file) or postgresql://..., got {url.render_as_string(hide_password=True)}"
    )

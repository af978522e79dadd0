"""The databases of the event store: what the store requires of one, how a URL selects it, and PostgreSQL.

In PostgreSQL the tables are in the first schema of the user's search path. The scheduler holds a session-level advisory
lock on its incarnation while it is connected. A second scheduler is refused because of the lock; with `take_over` it
starts the next incarnation, which fences the first one out. TCP keepalives end the session and its lock within about
20 s of the loss of the scheduler's machine.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    DateTime,
    MetaData,
    Table,
    Text,
    create_engine,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from gavelpy.errors import InvalidInput, JournalFailed, JournalInUse
from gavelpy.journal.loss_detection import Loss, Marks
from gavelpy.journal.repair import JournalContent
from gavelpy.journal.sqlite import BackupSettings, SqliteDatabase
from gavelpy.journal.tables import META, prepare

LEADERSHIP = MetaData()  # of PostgreSQL only: see `leadership`
LEADER = Table(
    "gavel_leader",
    LEADERSHIP,
    Column("incarnation", BigInteger, primary_key=True, autoincrement=False),
    Column("address", Text, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("successor", Text, nullable=False),
)
STANDBYS = Table(
    "gavel_standbys",
    LEADERSHIP,
    Column("address", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("seen", DateTime(timezone=True), nullable=False),
)


class SchedulerMember(NamedTuple):
    """A scheduler among several of one journal."""

    address: str  # at which clients reach it
    version: str = ""


class Session(NamedTuple):
    """The database session of a scheduler."""

    process: int  # of the server
    text: str  # who is connected, and since when


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

    def read(self) -> Connection:
        """A connection to read only, for the calling thread, while another one writes."""

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
    url: str, *, accept_loss: bool = False, backups: BackupSettings | None = None, member: SchedulerMember | None = None
) -> Database:
    """Opens the database of a URL; raises InvalidInput unless it is SQLite in a file or PostgreSQL."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidInput("journal must be sqlite:///PATH or postgresql://..., got a text that is no URL") from None
    with failing(parsed.render_as_string(hide_password=True)):
        return _opened(parsed, accept_loss, backups, member)


@contextmanager
def failing(name: str) -> Iterator[None]:
    """Raises errors of the database as JournalFailed, without the values that were being written."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise JournalFailed(f"journal {name}: {error}") from error
    except DBAPIError as error:
        raise JournalFailed(f"journal {name}: {' '.join(str(error.orig).split())}") from error


def _opened(url: URL, accept_loss: bool, backups: BackupSettings | None, member: SchedulerMember | None) -> Database:
    match url.get_backend_name():
        case "sqlite" if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
            return SqliteDatabase(Path(url.database), accept_loss=accept_loss, backups=backups)
        case "postgresql" if url.drivername in ("postgresql", "postgresql+psycopg"):
            return PostgresDatabase(url.set(drivername="postgresql+psycopg"), member)
    raise InvalidInput(
        f"journal must be sqlite:///PATH (a file) or postgresql://..., got {url.render_as_string(hide_password=True)}"
    )


_CONNECT_S = 10
_CREATION_LOCK = 0x67617665  # advisory, so that two schedulers do not create the tables at the same time
# A scheduler that is frozen inside a transaction must not block the next one.
_SETTINGS = {
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "30s",
    "client_encoding": "UTF8",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_WATCH_SETTINGS = {"statement_timeout": "5s", "lock_timeout": "5s", "synchronous_commit": "off"}
_NAME_LENGTH_MAX = 63  # of an application_name; the server truncates longer ones, with a notice
_LOCK_MODULUS = 1 << 31  # the second half of an advisory lock's key is an int4
# The first half of the key is the oid of the table, so clusters in several schemas do not exclude each other.
_LEAD = text("SELECT pg_try_advisory_lock(CAST(CAST(CAST(:table AS regclass) AS oid) AS int), :number)")
_UNLEAD = text("SELECT pg_advisory_unlock(CAST(CAST(CAST(:table AS regclass) AS oid) AS int), :number)")
_LEADER = text(
    "SELECT activity.pid, activity.application_name, host(activity.client_addr), activity.backend_start "
    "FROM pg_locks JOIN pg_stat_activity AS activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND objid = :number "
    "AND classid = CAST(:table AS regclass) "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class PostgresDatabase:
    """The tables in the schema that the URL selects."""

    has_mark_file = False

    def __init__(self, url: URL, member: SchedulerMember | None = None) -> None:
        self.member = member  # this scheduler, if others stand by
        self.name = url.render_as_string(hide_password=True)
        self.note = ""
        self.loss: Loss | None = None
        self.content: JournalContent | None = None
        self.marks: Marks | None = None
        self._engine = create_engine(
            url,
            poolclass=NullPool,
            hide_parameters=True,
            connect_args={
                "connect_timeout": _CONNECT_S,
                "application_name": _application_name(),
                "keepalives_idle": 2,
                "keepalives_interval": 1,
                "keepalives_count": 3,
                "tcp_user_timeout": 1_000 * _CONNECT_S,
            },
        )
        with self.connect() as connection, connection.begin():
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
            prepare(connection)
            LEADERSHIP.create_all(connection)

    def connect(self) -> Connection:
        """A connection with a transaction for each `begin`, durable after its commit."""
        connection = self._engine.connect()
        with connection.begin():
            for name, value in _SETTINGS.items():
                connection.execute(text("SELECT set_config(:name, :value, false)"), {"name": name, "value": value})
        return connection

    def read(self) -> Connection:
        """A connection to read only."""
        return self._engine.connect()

    def watch(self) -> Connection:
        """A connection for the rows of leader and standbys; calls fail within seconds where the server is silent.

        Each statement is a transaction, so that a frozen scheduler has no lock on a row.
        """
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with connection.begin():
            for name, value in _WATCH_SETTINGS.items():
                connection.execute(text("SELECT set_config(:name, :value, false)"), {"name": name, "value": value})
        return connection

    def is_damage(self, error: BaseException | None) -> bool:  # noqa: ARG002 - as with repair
        """False: damaged pages are for the server's administrator."""
        return False

    def repair(self, fault: str, incarnation: int) -> bool:  # noqa: ARG002 - the server manages its pages
        """False: there is no other source than the tables."""
        return False

    def keep_marks(self, marks: Marks, durably: bool) -> bool:  # noqa: ARG002 - there is no file
        """False: they belong in a row."""
        return False

    def back_up(self) -> None:
        """None: back the server up with its own tools."""

    def check_leader(self, connection: Connection, incarnation: int) -> None:
        """Raises JournalInUse, with process and machine, if the scheduler of this incarnation is connected."""
        key = _key(incarnation)
        if connection.execute(_LEAD, key).scalar():
            connection.execute(_UNLEAD, key)
            return
        session = self.session_of(connection, incarnation)
        holder = "another scheduler" if session is None else session.text
        raise JournalInUse(
            f"journal {self.name} is in use by {holder}: one scheduler per journal. This one changed nothing; start it "
            "again when the other has stopped, or with --take-over to fence the other out"
        )

    def session_of(self, connection: Connection, incarnation: int) -> Session | None:
        """The session of the scheduler of an incarnation; None if it is not connected."""
        found = connection.execute(_LEADER, _key(incarnation)).one_or_none()
        if found is None:
            return None
        process, name, address, since = found
        where = f" ({address})" if address else ""
        return Session(process, f"{name or 'a scheduler'}{where}, connected since {since:%F %T %Z}")

    def lead(self, connection: Connection, incarnation: int) -> None:
        """Takes the lock of the incarnation, which the server releases when this connection ends."""
        connection.execute(_LEAD, _key(incarnation))
        if self.member is not None:
            connection.execute(LEADER.delete().where(LEADER.c.incarnation <= incarnation))
            row = {"incarnation": incarnation, "address": self.member.address, "beat": 0, "successor": ""}
            connection.execute(LEADER.insert(), row)

    def release(self) -> None:
        """No change: the lock ends with the connection."""


def _key(incarnation: int) -> dict[str, str | int]:
    return {"table": META.name, "number": incarnation % _LOCK_MODULUS}


def _application_name() -> str:
    host = socket.gethostname().encode("ascii", "replace").decode()
    process = f" (process {os.getpid()})"
    return f"gavel-scheduler on {host}"[: _NAME_LENGTH_MAX - len(process)] + process

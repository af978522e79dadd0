"""The event store's tables, migrations of older layouts, and named values.

Columns are in the order of the fields in `rows`. New columns are added only at the end of a table, so a migrated table
and a new one have the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

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

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal.rows import MetaRow, event_row, meta_row, snapshot_row

SCHEMA_VERSION = "schema_version"
INCARNATION = "incarnation"
MARKED = "marked"  # set in a journal that has a file of marks next to it
_SERIAL = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER is the row id in SQLite

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
    Column("sequence", _SERIAL, primary_key=True, autoincrement=False),
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
    Column("sequence", _SERIAL, primary_key=True, autoincrement=False),
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
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),  # name of the table
    Column("why", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),  # the columns in order, MessagePack
)


@dataclass(frozen=True)
class Migration:
    """One step: the schema version after it, what it does, and how."""

    version: int
    what: str
    apply: Callable[[Connection], None]


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


def bring_up_to_date(
    transaction: Callable[[], AbstractContextManager[Connection]],
    check_leader: Callable[[Connection, int], None],
) -> None:
    """Creates missing tables, and migrates an older layout, each step in a transaction.

    `check_leader` raises if the scheduler of an incarnation is running.
    """
    with transaction() as connection:
        prepare(connection)
        version = version_of(connection)
    for step in pending(version):
        with transaction() as connection:
            incarnation = newest_incarnation(connection)
            check_leader(connection, incarnation)
            if version_of(connection) < step.version:  # unless another scheduler has done it
                migrate(connection, step)
                put_meta(connection, meta_row(INCARNATION, str(incarnation + 1)))  # fences out old writers


def insertion(table: Table, paramstyle: str) -> str:
    """The INSERT statement for rows as tuples; with dictionaries, appends take twice the time."""
    columns = table.columns.keys()
    mark = "?" if paramstyle == "qmark" else "%s"
    return f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"


def version_of(connection: Connection) -> int:
    """The version of the layout; raises JournalCorrupt if it cannot be read, InvalidInput if it is too new."""
    query = text(f"SELECT value FROM {META.name} WHERE name = :name")
    found = connection.execute(query, {"name": SCHEMA_VERSION}).scalar()
    if not isinstance(found, str) or not found.isascii() or not found.isdigit() or int(found) < 1:
        raise JournalCorrupt(f"journal's schema_version must be a number from 1 to {CURRENT}, got {found!r}")
    if int(found) > CURRENT:
        raise InvalidInput(
            f"journal's schema_version must be at most {CURRENT}, got {found}: a newer gavelpy has written it"
        )
    return int(found)


def pending(version: int) -> list[Migration]:
    """The steps that a layout of this version still needs, in order."""
    return [step for step in MIGRATIONS if step.version > version]


def migrate(connection: Connection, step: Migration) -> None:
    """Applies one step inside the caller's transaction."""
    step.apply(connection)
    row = meta_row(SCHEMA_VERSION, str(step.version))
    statement = text(f"UPDATE {META.name} SET value = :value, crc32 = :crc32 WHERE name = :name")
    connection.execute(statement, row._asdict())


def _add_checksums(connection: Connection) -> None:
    """Adds checksums, the ends of appends, submissions and the quarantine."""
    added = {
        META.name: ("crc32",),
        EVENTS.name: ("append_end", "submissions", "previous_crc32", "crc32"),
        SNAPSHOTS.name: ("event_crc32", "crc32"),
    }
    for table, columns in added.items():
        for column in columns:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} BIGINT NOT NULL DEFAULT 0"))
    TABLES.create_all(connection, tables=[SUBMISSIONS, QUARANTINE])
    for name, value in connection.execute(text(f"SELECT name, value FROM {META.name}")).all():
        row = meta_row(name, value)
        connection.execute(META.update().where(META.c.name == name), row._asdict())
    _chain_events(connection)
    crcs = f"SELECT s.sequence, s.incarnation, s.data, e.crc32 FROM {SNAPSHOTS.name} s"
    joined = text(f"{crcs} LEFT JOIN {EVENTS.name} e ON e.sequence = s.sequence")
    for sequence, incarnation, data, event_crc32 in connection.execute(joined).all():
        kept = snapshot_row(sequence, incarnation, data, event_crc32 or 0)
        connection.execute(SNAPSHOTS.update().where(SNAPSHOTS.c.sequence == sequence), kept._asdict())


def _chain_events(connection: Connection) -> None:
    columns = "sequence, incarnation, now_s, kind, record"
    query = text(f"SELECT {columns} FROM {EVENTS.name} WHERE sequence > :after ORDER BY sequence LIMIT 1000")
    statement = EVENTS.update().where(EVENTS.c.sequence == bindparam("at"))
    after, previous = -1, 0
    while found := connection.execute(query, {"after": after}).all():
        changes = []
        for sequence, incarnation, now_s, kind, record in found:
            row = event_row(incarnation, now_s, kind, record, (sequence, sequence, 0, previous))
            changes.append({"at": sequence, **row._asdict()})
            after, previous = sequence, row.crc32
        connection.execute(statement, changes)


MIGRATIONS: tuple[Migration, ...] = (
    Migration(2, "checksums, whole appends, submissions and quarantine", _add_checksums),
)
CURRENT = MIGRATIONS[-1].version

# Compiled once: every append executes it.
_NEWEST = select(META.c.value).where(META.c.name == INCARNATION).with_for_update()
_NAMED = select(META.c.name, META.c.value, META.c.crc32).where(META.c.name == bindparam("its_name"))


def newest_incarnation(connection: Connection) -> int:
    """The incarnation in force, 0 before the first. Locks the row until the end of the transaction."""
    found = connection.execute(_NEWEST).scalar()
    return int(found) if found and found.isdigit() else 0


def put_meta(connection: Connection, row: MetaRow) -> None:
    """Inserts a named value, or replaces it."""
    if not connection.execute(META.update().where(META.c.name == row.name), row._asdict()).rowcount:
        connection.execute(META.insert(), row._asdict())


def meta_named(connection: Connection, name: str) -> MetaRow | None:
    """The row of a named value, whole or not; None if there is none."""
    found = connection.execute(_NAMED, {"its_name": name}).one_or_none()
    return MetaRow(*found) if found is not None else None

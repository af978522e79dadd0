"""Migrations of the event store: from the tables of an older version to those of `tables`, one step after another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, text

from gavelpy.journal.archive_tables import ROWS as ARCHIVE
from gavelpy.journal.tables import (
    EVENTS,
    INCARNATION,
    META,
    QUARANTINE,
    SCHEMA_VERSION,
    SNAPSHOTS,
    SUBMISSIONS,
    TABLES,
    event_row,
    meta_row,
    newest_incarnation,
    put_meta,
    snapshot_row,
    version_of,
)


@dataclass(frozen=True)
class Migration:
    """One step: the schema version after it, what it does, and how."""

    version: int
    what: str
    apply: Callable[[Connection], None]


def bring_up_to_date(
    version: int,
    transaction: Callable[[], AbstractContextManager[Connection]],
    check_leader: Callable[[Connection, int], None],
) -> None:
    """Migrates a layout of an older version, each step in a transaction.

    `check_leader` raises if the scheduler of an incarnation is running.
    """
    for step in pending(version):
        with transaction() as connection:
            incarnation = newest_incarnation(connection)
            check_leader(connection, incarnation)
            if version_of(connection) < step.version:  # unless another scheduler has done it
                migrate(connection, step)
                put_meta(connection, meta_row(INCARNATION, str(incarnation + 1)))  # fences out old writers


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


def _add_archive(connection: Connection) -> None:
    """Adds the tables of the archive."""
    TABLES.create_all(connection, tables=list(ARCHIVE))


MIGRATIONS: tuple[Migration, ...] = (
    Migration(2, "checksums, whole appends, submissions and quarantine", _add_checksums),
    Migration(3, "an archive of past jobs and events", _add_archive),
)

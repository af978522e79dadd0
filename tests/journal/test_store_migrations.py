"""Older layouts are migrated with all their rows; newer ones are refused."""

from __future__ import annotations

import dataclasses

import pytest
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.pool import NullPool

from gavelpy.errors import InvalidInput, JournalCorrupt, JournalFailed
from gavelpy.journal import migrations
from gavelpy.journal.codec import encode, encode_state
from gavelpy.journal.migrations import MIGRATIONS, Migration
from gavelpy.journal.store import open_store
from gavelpy.journal.tables import CURRENT, meta_row
from tests.journal.stores import begun, bytes_of, cancelled, execute, expected, filled, harm, loaded, submission

BLOB = {"sqlite": "BLOB", "postgresql": "BYTEA"}
DOUBLE = {"sqlite": "DOUBLE", "postgresql": "DOUBLE PRECISION"}
SERIAL = {"sqlite": "INTEGER", "postgresql": "BIGINT"}
VERSION_1 = """
CREATE TABLE gavel_meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE gavel_events (sequence {serial} NOT NULL PRIMARY KEY, incarnation BIGINT NOT NULL,
    now_s {double} NOT NULL, kind TEXT NOT NULL, record {blob} NOT NULL);
CREATE TABLE gavel_snapshots (sequence {serial} NOT NULL PRIMARY KEY, incarnation BIGINT NOT NULL,
    data {blob} NOT NULL);
INSERT INTO gavel_meta VALUES ('schema_version', '1'), ('incarnation', '4'), ('cluster', 'c1')
"""


def make_version_1(url: str, events: int = 5) -> None:
    """A journal in the layout of version 1: event k at sequence k + 1, a snapshot after the third."""
    engine = create_engine(url, poolclass=NullPool)
    kind = engine.dialect.name
    with engine.begin() as connection:
        for statement in VERSION_1.format(serial=SERIAL[kind], double=DOUBLE[kind], blob=BLOB[kind]).split(";"):
            connection.execute(text(statement))
        insert = text("INSERT INTO gavel_events VALUES (:sequence, 4, :now_s, 'JobCancelled', :record)")
        for k, (now_s, event) in enumerate(cancelled(0, events)):
            connection.execute(insert, {"sequence": k + 1, "now_s": now_s, "record": encode(event, now_s)})
        insert = text("INSERT INTO gavel_snapshots VALUES (3, 4, :data)")
        connection.execute(insert, {"data": encode_state({"number": 3})})


def layout(url: str) -> dict[str, list[tuple[str, str, bool]]]:
    """Columns of every table in order: name, type, whether it may be NULL; each unique key is a "UNIQUE" entry."""
    found = inspect(create_engine(url, poolclass=NullPool))
    return {
        table: [(column["name"], str(column["type"]), bool(column["nullable"])) for column in found.get_columns(table)]
        + [(name, "PRIMARY", False) for name in found.get_pk_constraint(table)["constrained_columns"]]
        for table in found.get_table_names()
    }


def test_a_journal_of_version_1_continues_in_this_version(url: str) -> None:
    make_version_1(url)

    with begun(url) as store:
        found = store.load()

        assert (found.state, found.damage, found.sequence) == ({"number": 3}, "", 5)
        assert bytes_of(list(found.events)) == expected(cancelled(3, 2), 4)
        assert bytes_of(store.events(0, 10)) == expected(cancelled(0, 5))
        assert store.meta("cluster") == "c1"
        assert store.append(cancelled(5), [submission()]) == 6
        assert store.begin_incarnation() > 5
    assert loaded(url)[1] == expected(cancelled(3, 3), 4)


def test_many_events_of_version_1_are_chained(url: str) -> None:
    make_version_1(url, 2500)

    assert loaded(url)[1] == expected(cancelled(3, 2497), 4)


def test_a_migrated_journal_is_laid_out_like_a_new_one(url: str, request: pytest.FixtureRequest) -> None:
    filled(url, 1)
    new = layout(url)
    for table in new:
        execute(url, f"DROP TABLE {table}")
    make_version_1(url)

    open_store(url).close()

    assert layout(url) == new
    assert execute(url, "SELECT value FROM gavel_meta WHERE name = 'schema_version'") == [(str(CURRENT),)]


def test_a_gap_in_version_1_is_found_after_migration(url: str) -> None:
    make_version_1(url)
    execute(url, "DELETE FROM gavel_snapshots")
    harm(url, "DELETE FROM gavel_events WHERE sequence = 3")

    found, events = loaded(url)

    assert "event 3 is missing" in found.damage
    assert events == expected(cancelled(0, 2))


def test_a_scheduler_of_the_old_layout_writes_nothing_more(url: str) -> None:
    make_version_1(url)

    open_store(url).close()

    assert execute(url, "SELECT value FROM gavel_meta WHERE name = 'incarnation'") == [("6",)]


def test_a_newer_layout_is_refused_and_left_alone(url: str) -> None:
    filled(url, 2)
    row = meta_row("schema_version", "99")
    execute(url, "UPDATE gavel_meta SET value = '99', crc32 = :crc WHERE name = 'schema_version'", crc=row.crc32)

    with pytest.raises(InvalidInput, match="at most 3, got 99: a newer gavelpy has written it"):
        open_store(url)

    assert execute(url, "SELECT value FROM gavel_meta WHERE name = 'schema_version'") == [("99",)]
    assert execute(url, "SELECT count(*) FROM gavel_events") == [(2,)]


def test_a_version_that_is_no_number_is_named(postgres_url: str) -> None:
    filled(postgres_url, 1)
    execute(postgres_url, "UPDATE gavel_meta SET value = 'two' WHERE name = 'schema_version'")

    with pytest.raises(JournalCorrupt, match="schema_version must be a number from 1 to 3, got 'two'"):
        open_store(postgres_url)


def test_a_step_that_fails_leaves_the_layout_before_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half_done (x INTEGER)"))
        connection.execute(text("SELECT * FROM not_there"))

    make_version_1(url)
    step = dataclasses.replace(MIGRATIONS[0], version=CURRENT + 1, apply=fail)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, step))

    with pytest.raises(JournalFailed, match="not_there"):
        open_store(url)

    assert "half_done" not in layout(url)
    assert execute(url, "SELECT value FROM gavel_meta WHERE name = 'schema_version'") == [(str(CURRENT),)]


def test_steps_are_in_order_and_end_at_the_current_version() -> None:
    assert [step.version for step in MIGRATIONS] == list(range(2, CURRENT + 1))
    assert all(isinstance(step, Migration) and step.what for step in MIGRATIONS)

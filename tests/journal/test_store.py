"""Guarantees of the event store, in every kind of database."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import create_engine, make_url, select
from sqlalchemy.pool import NullPool

from gavelpy.errors import FencedOut, InvalidInput, JournalFailed
from gavelpy.journal.codec import encode, encode_state
from gavelpy.journal.store import EventStore, open_store
from gavelpy.journal.tables import EVENTS, event_row, insertion
from gavelpy.mechanism.events import AllocationFailed, ProgressReported
from tests.journal.stores import begun, bytes_of, cancelled, execute, expected, filled, loaded, path_of, submission


@pytest.fixture
def store(url: str) -> Iterator[EventStore]:
    with begun(url) as store:
        yield store


def take_over(url: str) -> EventStore:
    """A second scheduler's store; on SQLite without the lock, as on a network file system where it does not work."""
    Path(f"{path_of(url)}.lock").unlink(missing_ok=True)
    return begun(url)


def state(number: int) -> bytes:
    return encode_state({"number": number})


def test_a_new_journal_is_empty(store: EventStore) -> None:
    found = store.load()

    assert (found.state, list(found.events), found.damage, found.sequence) == (None, [], "", 0)


def test_events_come_back_as_they_were_appended(url: str) -> None:
    steps = np.array([1.5, np.inf, np.nan])
    records = [*cancelled(0, 3), (7.25, ProgressReported(np.arange(3), np.arange(3), steps))]
    with begun(url) as store:
        store.append(records[:1])
        last = store.append(records[1:])

    found, events = loaded(url)

    assert last == found.sequence == 4
    assert events == expected(records)
    assert found.damage == ""


def test_a_table_holds_the_rows_that_were_written(url: str) -> None:
    records = cancelled(0, 2)
    with begun(url) as store:
        store.append(records)
        incarnation = store.begin_incarnation() - 1

    with create_engine(make_url(url), poolclass=NullPool).connect() as connection:
        rows = connection.execute(select(EVENTS).order_by(EVENTS.c.sequence)).all()

    first = event_row(incarnation, 0.0, "JobCancelled", encode(records[0][1], 0.0), (1, 2, 0, 0))
    second = event_row(incarnation, 1.0, "JobCancelled", encode(records[1][1], 1.0), (2, 2, 0, first.crc32))
    assert [tuple(row) for row in rows] == [first, second]
    assert insertion(EVENTS, "qmark").endswith("VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")


def test_sequences_go_on_after_reopening(url: str) -> None:
    filled(url, 3)

    with begun(url) as store:
        assert store.append(cancelled(3)) == 4


def test_a_large_event_comes_back_whole(url: str) -> None:
    record = (1.0, AllocationFailed(1, "x" * 300_000))
    with begun(url) as store:
        store.append([record])

    assert loaded(url)[1] == expected([record])


def test_appending_nothing_says_where_the_journal_ends(store: EventStore) -> None:
    store.append(cancelled(0, 2))

    assert store.append([]) == 2


@pytest.mark.parametrize("now_s", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_refused_and_nothing_is_written(store: EventStore, now_s: float) -> None:
    with pytest.raises(InvalidInput, match="now_s must be finite"):
        store.append([*cancelled(0), (now_s, cancelled(1)[0][1])])

    assert store.append(cancelled(0)) == 1


def test_incarnations_grow_over_restarts(url: str) -> None:
    with open_store(url) as store:
        first = store.begin_incarnation()

    with open_store(url) as store:
        assert store.begin_incarnation() == first + 1


def test_an_older_incarnation_writes_nothing_more(url: str) -> None:
    old = begun(url)
    old.append(cancelled(0))

    with take_over(url) as new:
        with pytest.raises(FencedOut, match="incarnation 2 has taken over from 1"):
            old.append(cancelled(99), [submission()])
        with pytest.raises(FencedOut):
            old.save_snapshot(1, state(1))
        with pytest.raises(FencedOut):
            old.truncate(1)
        with pytest.raises(FencedOut):
            old.set_meta("epoch", "9")
        assert new.append(cancelled(1)) == 2
        assert new.submission("ann", "k") is None
    old.close()

    assert loaded(url)[1] == expected(cancelled(0, 2))


def test_an_older_incarnation_moves_nothing_aside_when_it_loads(url: str) -> None:
    old = begun(url)
    old.append(cancelled(0, 2))

    with take_over(url) as new:
        new.append(cancelled(2))
        found = old.load()
        assert (found.damage, found.sequence) == ("", 3)
        with pytest.raises(FencedOut):
            old.append(cancelled(3))
    old.close()


def test_who_has_not_begun_an_incarnation_reads_only(url: str) -> None:
    filled(url, 2)

    with open_store(url) as store:
        assert bytes_of(list(store.load().events)) == expected(cancelled(0, 2))
        with pytest.raises(AssertionError, match="begin_incarnation"):
            store.append(cancelled(2))


def test_a_submission_is_remembered_with_its_events(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0), [submission("a"), submission("b", first_job=1)])

    with begun(url) as store:
        assert store.submission("ann", "b") == submission("b", first_job=1)
        assert store.submission("bob", "b") is None


def test_a_key_that_was_used_is_refused_together_with_the_events(store: EventStore) -> None:
    store.append(cancelled(0), [submission("a")])

    with pytest.raises(InvalidInput, match="got 'a' of 'ann'"):
        store.append(cancelled(1, 5), [submission("new"), submission("a", first_job=3)])

    assert store.submission("ann", "new") is None
    assert store.submission("ann", "a") == submission("a")
    assert store.append(cancelled(1)) == 2


def test_a_key_that_comes_twice_in_one_append_is_refused(store: EventStore) -> None:
    with pytest.raises(InvalidInput, match="got 'a' of 'ann'"):
        store.append(cancelled(0), [submission("a"), submission("a")])

    assert store.append(cancelled(0)) == 1


def test_owners_have_keys_of_their_own(store: EventStore) -> None:
    store.append(cancelled(0), [submission("a", "ann"), submission("a", "bob")])

    assert store.submission("bob", "a") == submission("a", "bob")


@pytest.mark.parametrize("key", ["", "Ω ☃ 'quoted\"; DROP TABLE", "x" * 10_000, "\n\t\x01"])
def test_any_text_is_a_key(store: EventStore, key: str) -> None:
    store.append(cancelled(0), [submission(key)])

    assert store.submission("ann", key) == submission(key)


@pytest.mark.parametrize("key", ["a\0b", "\ud800"])
def test_text_that_not_every_database_keeps_is_refused(store: EventStore, key: str) -> None:
    with pytest.raises(InvalidInput, match="key must be text without NUL"):
        store.append(cancelled(0), [submission(key)])
    with pytest.raises(InvalidInput, match="key must be text without NUL"):
        store.submission("ann", key)


def test_old_submissions_are_forgotten(store: EventStore) -> None:
    store.append(cancelled(0), [submission("a")])

    assert store.forget_submissions(12.5) == 0
    assert store.forget_submissions(13.0) == 1
    assert store.submission("ann", "a") is None


def test_a_load_begins_with_the_newest_snapshot(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0, 5))
        store.save_snapshot(2, state(2))
        store.save_snapshot(4, state(4))

    found, events = loaded(url)

    assert found.state == {"number": 4}
    assert events == expected(cancelled(4), 5)


def test_two_snapshots_are_kept(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0, 5))
        store.save_snapshot(1, state(1))
        store.save_snapshot(3, state(3))
        store.save_snapshot(5, state(5))

    assert execute(url, "SELECT sequence FROM gavel_snapshots ORDER BY sequence") == [(3,), (5,)]


def test_a_snapshot_of_the_same_event_replaces_the_other(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0))
        store.save_snapshot(1, state(1))
        store.save_snapshot(1, state(2))

    assert loaded(url)[0].state == {"number": 2}


def test_a_snapshot_of_no_event_is_refused(store: EventStore) -> None:
    store.append(cancelled(0, 3))

    with pytest.raises(InvalidInput, match="must be that of an event in the journal, got 4"):
        store.save_snapshot(4, state(4))


def test_a_snapshot_before_the_first_event_is_one(url: str) -> None:
    with begun(url) as store:
        store.save_snapshot(0, state(0))
        store.append(cancelled(0))

    found, events = loaded(url)

    assert found.state == {"number": 0}
    assert events == expected(cancelled(0))


def test_truncation_leaves_what_the_older_snapshot_needs(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0, 9))
        store.save_snapshot(3, state(3))
        assert store.truncate(9) == 0, "one snapshot alone may be damaged"
        store.save_snapshot(6, state(6))
        assert store.truncate(2) == 2
        assert store.truncate(9) == 1
        assert bytes_of(store.events(0, 100)) == expected(cancelled(3, 6), 4)

    found, events = loaded(url)

    assert (found.state, found.damage) == ({"number": 6}, "")
    assert events == expected(cancelled(6, 3), 7)


def test_a_journal_of_snapshots_alone_goes_on_where_it_was(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0, 4))
        store.save_snapshot(3, state(3))
        store.save_snapshot(4, state(4))
        store.truncate(4)

    with begun(url) as store:
        assert store.load().sequence == 4
        assert store.append(cancelled(4)) == 5

    assert loaded(url)[1] == expected(cancelled(4), 5)


def test_events_are_read_in_pages(store: EventStore) -> None:
    store.append(cancelled(0, 7))

    assert bytes_of(store.events(2, 3)) == expected(cancelled(2, 3), 3)
    assert store.events(7, 3) == []


def test_a_page_of_no_events_is_refused(store: EventStore) -> None:
    with pytest.raises(InvalidInput, match="limit must be at least 1, got 0"):
        store.events(0, 0)


def test_named_values_are_kept_and_replaced(url: str) -> None:
    with open_store(url) as store:
        store.set_meta("cluster", "c1")
        store.set_meta("cluster", "c2")

    with open_store(url) as store:
        assert store.meta("cluster") == "c2"
        assert store.meta("epoch") == ""


@pytest.mark.parametrize("name", ["schema_version", "incarnation", "damage"])
def test_the_stores_own_values_are_not_for_others(store: EventStore, name: str) -> None:
    with pytest.raises(InvalidInput, match="name must not be one of"):
        store.set_meta(name, "7")


def test_a_database_that_fails_is_named_and_the_store_is_of_no_more_use(url: str, store: EventStore) -> None:
    store.load()
    execute(url, "ALTER TABLE gavel_events RENAME TO elsewhere")

    with pytest.raises(JournalFailed, match="gavel_events"):
        store.append(cancelled(0))
    with pytest.raises(JournalFailed, match="must be opened again"):
        store.meta("cluster")


def test_the_durability_that_is_promised_is_asked_for(sqlite_url: str, postgres_url: str) -> None:
    with open_store(sqlite_url) as store, store._transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2, "FULL"
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    with open_store(postgres_url) as store, store._transaction() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"

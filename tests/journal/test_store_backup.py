"""Backups of a SQLite journal: made while it is in use, verified, and merged with a damaged file in a repair."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from gavelpy.errors import EventsLost, InvalidInput, JournalCorrupt
from gavelpy.journal.sqlite import PAGE_BYTES, BackupSettings
from gavelpy.journal.store import EventStore, open_store
from tests.journal.stores import (
    bytes_of,
    cancelled,
    corrupt_header,
    execute,
    expected,
    loaded,
    path_of,
    submission,
)


def append(store: EventStore, first: int, count: int) -> None:
    """Appends events `first` to `first + count - 1`, one at a time."""
    for k in range(first, first + count):
        store.append(cancelled(k), [submission(f"key-{k}", first_job=k)])


def opened(url: str, kept: int = 2, directory: Path | None = None) -> EventStore:
    """A store with backups that does not accept loss."""
    store = open_store(url, backups=BackupSettings(kept, directory))
    store.begin_incarnation()
    return store


def backups_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.backup-*"))


def test_a_backup_of_a_journal_in_use_has_all_events_so_far(sqlite_url: str, tmp_path: Path) -> None:
    with opened(sqlite_url) as store:
        append(store, 0, 5)
        backup = store.back_up()
        append(store, 5, 2)
        assert backup == tmp_path / "journal.sqlite.backup-5"
        (tmp_path / "copy").mkdir()
        shutil.copy(backup, tmp_path / "copy" / "journal.sqlite")

    assert loaded(f"sqlite:///{tmp_path}/copy/journal.sqlite")[1] == expected(cancelled(0, 5))


def test_the_newest_backups_are_kept(sqlite_url: str, tmp_path: Path) -> None:
    with opened(sqlite_url, kept=2) as store:
        for k in range(0, 12, 3):
            append(store, k, 3)
            store.back_up()

    assert backups_in(tmp_path) == ["journal.sqlite.backup-12", "journal.sqlite.backup-9"]


def test_no_backup_is_made_unless_it_is_configured(url: str) -> None:
    with open_store(url) as store:
        store.begin_incarnation()
        append(store, 0, 2)

        assert store.back_up() is None


def test_a_backup_that_a_crash_left_unfinished_is_made_again(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite.backup-new").write_bytes(b"SQLite format 3\0 half")
    with opened(sqlite_url) as store:
        append(store, 0, 2)
        store.back_up()

    assert backups_in(tmp_path) == ["journal.sqlite.backup-2"]


def test_a_backup_is_made_while_another_thread_appends(sqlite_url: str) -> None:
    with opened(sqlite_url) as store:
        append(store, 0, 200)
        made: list[Path | None] = []
        thread = threading.Thread(target=lambda: made.append(store.back_up()))
        thread.start()
        append(store, 200, 20)
        thread.join(60.0)
        path = made[0]

    assert path is not None
    count = int(path.name.rpartition("-")[2])
    assert 200 <= count <= 220
    assert execute(f"sqlite:///{path}", "SELECT count(*) FROM gavel_events") == [(count,)]


def test_a_file_that_sqlite_cannot_open_is_rebuilt_from_a_backup_of_all_events(sqlite_url: str) -> None:
    with opened(sqlite_url) as store:
        append(store, 0, 30)
        store.set_meta("epoch", "17")
        store.back_up()
    corrupt_header(path_of(sqlite_url))

    with opened(sqlite_url) as store:
        found = store.load()

        assert bytes_of(list(found.events)) == expected(cancelled(0, 30))
        assert store.submission("ann", "key-7") == submission("key-7", first_job=7)
        assert store.meta("epoch") == "17"
    assert "file is not a database" in found.damage
    assert found.loss is None


def test_events_after_the_backup_are_reported_and_lost_only_if_accepted(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    with opened(sqlite_url) as store:
        append(store, 0, 4)
        store.back_up()
        append(store, 4, 3)
    bad = corrupt_header(path)

    with pytest.raises(EventsLost, match=r"events 5 to 7 are lost \(3\).*at most 3 jobs.*newest backup is .*backup-4"):
        open_store(sqlite_url)

    assert path.read_bytes() == bad
    found, events = loaded(sqlite_url)
    assert events == expected(cancelled(0, 4))
    assert found.loss is not None
    assert (found.loss.first, found.loss.last) == (5, 7)


@pytest.mark.parametrize("place", [0.05, 0.3, 0.6, 0.9])
def test_backup_and_file_complete_each_other(sqlite_url: str, place: float) -> None:
    path = path_of(sqlite_url)
    with opened(sqlite_url) as store:
        append(store, 0, 300)
        store.back_up()
        append(store, 300, 20)
    data = bytearray(path.read_bytes())
    at = int(place * len(data)) // PAGE_BYTES * PAGE_BYTES
    data[at : at + PAGE_BYTES] = b"\xaa" * PAGE_BYTES
    path.write_bytes(data)

    try:
        with opened(sqlite_url) as store:
            events = bytes_of(list(store.load().events))
    except EventsLost:
        assert place > 0.8, "only the pages of the newest events are not in the backup"
        return

    assert events == expected(cancelled(0, 320))


def test_a_backup_in_place_of_the_journal_is_refused_until_its_loss_is_accepted(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    with opened(sqlite_url) as store:
        append(store, 0, 4)
        backup = store.back_up()
        append(store, 4, 3)
    assert backup is not None
    backup.rename(path)

    with pytest.raises(EventsLost, match=r"events 5 to 7 are lost \(3\)"):
        open_store(sqlite_url)

    found, events = loaded(sqlite_url)
    assert events == expected(cancelled(0, 4))
    assert found.loss is not None


def test_a_backup_on_another_machine_is_refused_until_its_loss_is_accepted(sqlite_url: str, tmp_path: Path) -> None:
    with opened(sqlite_url) as store:
        append(store, 0, 4)
        backup = store.back_up()
    assert backup is not None
    (tmp_path / "other").mkdir()
    backup.rename(tmp_path / "other" / "journal.sqlite")
    url = f"sqlite:///{tmp_path}/other/journal.sqlite"

    with pytest.raises(EventsLost, match=r"events from 5 on may be lost.*marks are missing or damaged"):
        open_store(url)

    found, events = loaded(url)
    assert events == expected(cancelled(0, 4))
    assert found.loss is not None
    assert found.loss.margin > 0


def test_a_journal_whose_backups_alone_are_left_is_not_started_as_a_new_one(sqlite_url: str, tmp_path: Path) -> None:
    with opened(sqlite_url) as store:
        append(store, 0, 4)
        store.back_up()
    for suffix in ("", ".marks"):
        Path(f"{path_of(sqlite_url)}{suffix}").unlink()

    with pytest.raises(EventsLost, match="marks are missing or damaged"):
        open_store(sqlite_url)

    assert not path_of(sqlite_url).exists()
    assert loaded(sqlite_url)[1] == expected(cancelled(0, 4))


def test_a_damaged_journal_replaces_no_backup(sqlite_url: str, tmp_path: Path) -> None:
    with opened(sqlite_url, kept=1) as store:
        append(store, 0, 4)
        store.back_up()
        append(store, 4, 1)
        execute(sqlite_url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = 2")

        with pytest.raises(JournalCorrupt, match=r"no backup of it is kept: event 2 does not have its checksum"):
            store.back_up()

    assert backups_in(tmp_path) == ["journal.sqlite.backup-4"]


def test_backups_may_be_in_another_directory(sqlite_url: str, tmp_path: Path) -> None:
    other = tmp_path / "disk2"
    other.mkdir()
    with opened(sqlite_url, directory=other) as store:
        append(store, 0, 4)
        store.back_up()
    corrupt_header(path_of(sqlite_url))

    with opened(sqlite_url, directory=other) as store:
        assert bytes_of(list(store.load().events)) == expected(cancelled(0, 4))
    assert backups_in(other) == ["journal.sqlite.backup-4"]


def test_a_file_that_was_rebuilt_from_sql_can_be_put_in_place_of_the_journal(sqlite_url: str, tmp_path: Path) -> None:
    path = path_of(sqlite_url)
    with opened(sqlite_url) as store:
        append(store, 0, 40)
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(tmp_path / "rebuilt")) as rebuilt:
        rebuilt.executescript("\n".join(old.iterdump()))  # in the format of .recover and .dump
    (tmp_path / "rebuilt").replace(path)

    with opened(sqlite_url) as store:
        assert bytes_of(list(store.load().events)) == expected(cancelled(0, 40))


def test_a_missing_directory_for_backups_is_named(sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="directory of the journal's backups must exist"):
        opened(sqlite_url, directory=tmp_path / "none")

"""Damage is detected and reported; good rows are kept, and bad rows are set aside, not deleted."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from gavelpy.errors import EventsLost, InvalidInput, JournalCorrupt
from gavelpy.journal.codec import encode_state
from gavelpy.journal.store import open_store
from tests.journal.stores import (
    begun,
    bytes_of,
    cancelled,
    corrupt_header,
    execute,
    expected,
    filled,
    harm,
    loaded,
    path_of,
    submission,
)


def quarantined(url: str) -> list[tuple[str, str, list[object]]]:
    """Source, reason and columns of the rows that were set aside in the database."""
    rows = execute(url, "SELECT source, why, content FROM gavel_quarantine ORDER BY id")
    return [(source, why, msgspec.msgpack.decode(content)) for source, why, content in rows]


@pytest.mark.parametrize(
    "change",
    ["record = 'x'", "now_s = 99", "kind = 'NodeLost'", "incarnation = 5", "crc32 = 0", "previous_crc32 = 1"],
)
def test_a_changed_event_and_all_after_it_are_kept_out(postgres_url: str, change: str) -> None:
    filled(postgres_url, 5)
    execute(postgres_url, f"UPDATE gavel_events SET {change} WHERE sequence = 3")

    found, events = loaded(postgres_url)

    assert events == expected(cancelled(0, 2))
    assert "event 3 does not" in found.damage
    assert "good up to event 2" in found.damage
    assert "gavel_quarantine" in found.damage
    assert [content[0] for _, _, content in quarantined(postgres_url)] == [3, 4, 5]


@pytest.mark.parametrize(
    "change",
    ["record = 'x'", "record = 7", "now_s = 'soon'", "kind = x'ff'", "incarnation = 5", "crc32 = 'a'"],
)
def test_a_changed_event_in_a_file_and_all_after_it_are_kept_out(sqlite_url: str, change: str) -> None:
    filled(sqlite_url, 5)
    execute(sqlite_url, f"UPDATE gavel_events SET {change} WHERE sequence = 3")

    found, events = loaded(sqlite_url)

    assert events == expected(cancelled(0, 2))
    assert "good up to event 2" in found.damage
    assert "events up to 5 were seen" in found.damage
    assert f"{path_of(sqlite_url)}.damaged-1" in found.damage
    kept = sqlite_url + ".damaged-1"
    assert execute(kept, "SELECT count(*) FROM gavel_events WHERE sequence > 2") == [(3,)]


def test_a_missing_event_ends_the_journal(url: str) -> None:
    filled(url, 5)
    harm(url, "DELETE FROM gavel_events WHERE sequence = 2")

    found, events = loaded(url)

    assert events == expected(cancelled(0, 1))
    assert "event 2 is missing" in found.damage


def test_an_event_that_cannot_be_decoded_ends_the_journal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(url) as store:
        store.append(cancelled(0))
        with monkeypatch.context() as patch:
            patch.setattr("gavelpy.journal.tables.encode", lambda event, now_s: b"\xc1")
            store.append(cancelled(1))
        store.append(cancelled(2))

    found, events = loaded(url)

    assert events == expected(cancelled(0))
    assert "event 2 cannot be decoded: record is not MessagePack" in found.damage


def test_after_damage_the_journal_continues_without_faults(url: str) -> None:
    filled(url, 5)
    harm(url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = 4")
    with begun(url) as store:
        store.append(cancelled(70))

    found, events = loaded(url)

    assert events == expected([*cancelled(0, 3), *cancelled(70)])
    assert found.damage == ""


def test_damage_is_reported_until_a_new_incarnation_loads_the_journal(sqlite_url: str) -> None:
    filled(sqlite_url, 3)
    execute(sqlite_url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = 3")

    with open_store(sqlite_url, accept_loss=True) as store:
        reported = store.load().damage
        reported_again = store.load().damage

    assert "good up to event 2" in reported
    assert reported_again == reported == loaded(sqlite_url)[0].damage
    assert loaded(sqlite_url)[0].damage == ""


def test_a_load_without_an_incarnation_moves_no_row_of_a_database(postgres_url: str) -> None:
    filled(postgres_url, 3)
    execute(postgres_url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = 2")

    with open_store(postgres_url) as store:
        found = store.load()

    assert "event 2 does not have its checksum" in found.damage
    assert bytes_of(list(found.events)) == expected(cancelled(0))
    assert execute(postgres_url, "SELECT count(*) FROM gavel_events") == [(3,)]


def test_an_append_is_kept_or_lost_as_a_whole(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0, 2), [submission("first")])
        store.append(cancelled(2, 3), [submission("second", first_job=2)])
    harm(url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = 4")

    with begun(url) as store:
        found = store.load()

        assert bytes_of(list(found.events)) == expected(cancelled(0, 2))
        assert store.submission("ann", "first") == submission("first")
        assert store.submission("ann", "second") is None, "repeating it must create the jobs again"
    assert "it is of one append with the events from 3 on" in found.damage


def test_a_damaged_snapshot_gives_way_to_the_one_before(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0, 5))
        store.save_snapshot(2, encode_state({"number": 2}))
        store.save_snapshot(4, encode_state({"number": 4}))
        store.truncate(2)
    harm(url, "UPDATE gavel_snapshots SET incarnation = 7 WHERE sequence = 4")

    found, events = loaded(url)

    assert found.state == {"number": 2}
    assert events == expected(cancelled(2, 3), 3)
    assert "snapshot after event 4 does not have its checksum" in found.damage


def test_without_any_snapshot_truncated_events_are_no_journal(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0, 5))
        store.save_snapshot(2, encode_state({"number": 2}))
        store.save_snapshot(4, encode_state({"number": 4}))
        store.truncate(2)
    harm(url, "DELETE FROM gavel_snapshots")

    found, events = loaded(url)

    assert (found.state, events) == (None, [])
    assert "event 1 is missing" in found.damage


def test_a_damaged_submission_is_named_and_forgotten(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0), [submission("a"), submission("b")])
        store.append(cancelled(1))
    harm(url, "UPDATE gavel_submissions SET first_job = 7 WHERE key = 'a'")

    with begun(url) as store:
        found = store.load()

        assert "submission 'a' does not have its checksum" in found.damage
        assert bytes_of(list(found.events)) == expected(cancelled(0, 2))
        assert store.submission("ann", "a") is None
        assert store.submission("ann", "b") == submission("b")


def test_a_damaged_submission_is_never_an_answer(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0), [submission("a")])
        execute(url, "UPDATE gavel_submissions SET first_job = 7")

        with pytest.raises(JournalCorrupt, match="submission 'a' of 'ann'"):
            store.submission("ann", "a")


def test_a_damaged_value_is_named_and_forgotten(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0))
        store.set_meta("epoch", "17")
    harm(url, "UPDATE gavel_meta SET value = '18' WHERE name = 'epoch'")

    with begun(url) as store:
        assert "value 'epoch' does not have its checksum" in store.load().damage
        assert store.meta("epoch") == ""


@pytest.mark.parametrize("name", ["incarnation", "schema_version"])
def test_damage_to_the_stores_own_values_is_repaired(url: str, name: str) -> None:
    filled(url, 3)
    harm(url, "UPDATE gavel_meta SET crc32 = 7 WHERE name = :name", name=name)

    with begun(url) as store:
        assert bytes_of(list(store.load().events)) == expected(cancelled(0, 3))
        assert store.append(cancelled(3)) == 4
    assert loaded(url)[0].damage == ""


def test_incarnations_are_not_used_again_when_their_count_is_lost(url: str) -> None:
    filled(url, 1)
    with begun(url) as store:
        store.append(cancelled(1))
    harm(url, "UPDATE gavel_meta SET value = 'x' WHERE name = 'incarnation'")

    with open_store(url) as store:
        assert store.begin_incarnation() == 3


def test_the_damaged_file_is_kept_byte_for_byte(sqlite_url: str) -> None:
    filled(sqlite_url, 5)
    bad = corrupt_header(path_of(sqlite_url))

    loaded(sqlite_url)

    assert Path(f"{path_of(sqlite_url)}.damaged-1").read_bytes() == bad


def test_damaged_files_are_numbered(sqlite_url: str) -> None:
    filled(sqlite_url, 5)
    path = path_of(sqlite_url)
    corrupt_header(path)
    loaded(sqlite_url)
    bad = corrupt_header(path, b"\xbb")

    found, _ = loaded(sqlite_url)

    assert f"{path}.damaged-2" in found.damage
    assert Path(f"{path}.damaged-2").read_bytes() == bad


@pytest.mark.parametrize("content", [b"", b"round_s = 360\n", b"\x00" * 10_000, b"SQLite format 3\0" + b"\x01" * 5000])
def test_a_file_without_any_row_of_a_journal_is_left_alone(sqlite_url: str, content: bytes) -> None:
    path_of(sqlite_url).write_bytes(content)

    with pytest.raises(JournalCorrupt, match="left as it is"):
        open_store(sqlite_url)

    assert path_of(sqlite_url).read_bytes() == content


def test_another_programs_database_is_left_alone(sqlite_url: str) -> None:
    execute(sqlite_url, "CREATE TABLE gavel (x)")
    before = path_of(sqlite_url).read_bytes()

    with pytest.raises(JournalCorrupt, match="SQLite file with gavelpy's tables"):
        open_store(sqlite_url)

    assert path_of(sqlite_url).read_bytes() == before


@pytest.mark.parametrize("left", [".recovering", ".recovered"])
def test_a_crash_while_a_damaged_file_is_replaced_is_repaired(sqlite_url: str, left: str) -> None:
    filled(sqlite_url, 4)
    with begun(sqlite_url) as store:
        store.back_up()
    path = path_of(sqlite_url)
    good = path.read_bytes()
    corrupt_header(path)
    Path(f"{path}{left}").write_bytes({".recovering": good[:5000], ".recovered": good}[left])

    assert loaded(sqlite_url)[1] == expected(cancelled(0, 4))
    assert loaded(sqlite_url)[0].damage == ""
    assert Path(f"{path}.damaged-1").exists()


@pytest.mark.parametrize("size", [None, 0, 1, 99])
def test_a_file_that_is_lost_is_refused_and_its_log_is_kept(sqlite_url: str, size: int | None) -> None:
    path, log = path_of(sqlite_url), Path(f"{path_of(sqlite_url)}-wal")
    with begun(sqlite_url) as store:
        store.append(cancelled(0, 3))
        written = path.read_bytes(), log.read_bytes()
    path.unlink()
    path.write_bytes(written[0][:size]) if size is not None else None
    log.write_bytes(written[1])

    with pytest.raises(EventsLost, match=r"events 1 to 3 are lost \(3\)"):
        open_store(sqlite_url)

    assert log.read_bytes() == written[1]
    assert loaded(sqlite_url)[1] == []
    assert Path(f"{path}.damaged-1-wal").read_bytes() == written[1]


def test_a_second_process_is_refused_with_the_id_of_the_first(sqlite_url: str) -> None:
    with open_store(sqlite_url), pytest.raises(InvalidInput, match=r"journal is in use by process \d+"):
        open_store(sqlite_url)

    with open_store(sqlite_url):
        pass


def test_only_the_owner_may_read_the_files(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    with begun(sqlite_url) as store:
        store.append(cancelled(0))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}

    assert modes == {f"{path.name}{suffix}": 0o600 for suffix in ("", "-wal", "-shm", ".lock", ".marks")}


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "postgresql+psycopg2://host/db", "journal.db", ""]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"journal must be sqlite:///PATH.* or postgresql://"):
        open_store(url)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="journal's directory must exist"):
        open_store(f"sqlite:///{tmp_path / 'none' / 'x'}")

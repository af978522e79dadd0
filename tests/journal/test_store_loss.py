"""Lost events: the journal is refused and stays unchanged, and the marks show which events are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.errors import EventsLost
from gavelpy.journal.loss_detection import BLOCK, Evidence, MarkFile, Marks, Numbers, boot_id, loss_of, parsed_marks
from gavelpy.journal.store import EventStore, open_store
from tests.journal.stores import begun, cancelled, execute, filled, harm, path_of

HERE = Marks(1, 10, 10.0, 1_000_010.0, Numbers(7, 5), Numbers(1_000, 1_000), boot_id())
ELSEWHERE = Marks(1, 10, 10.0, 1_000_010.0, Numbers(7, 5), Numbers(1_000, 1_000), "another boot")


def append(store: EventStore, first: int, jobs: int) -> None:
    store.append(cancelled(first), (), Numbers(jobs, 0))


def test_a_database_with_lost_events_is_refused_and_left_as_it_is(postgres_url: str) -> None:
    filled(postgres_url, 5)
    execute(postgres_url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = 3")

    with open_store(postgres_url) as store:
        store.begin_incarnation()
        with pytest.raises(EventsLost, match=r"events 3 to 5 are lost \(3\).*event 3 does not have its checksum"):
            store.load()

    assert execute(postgres_url, "SELECT count(*) FROM gavel_events") == [(5,)]
    assert execute(postgres_url, "SELECT count(*) FROM gavel_quarantine") == [(0,)]


def test_numbers_of_a_database_continue_above_the_block_that_was_reserved(postgres_url: str) -> None:
    with begun(postgres_url) as store:
        append(store, 0, 1_250)
        append(store, 1, 1_251)
    harm(postgres_url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = 2")

    with begun(postgres_url) as store:
        loss = store.load().loss

    assert loss is not None
    assert (loss.numbers.jobs, loss.margin) == (2_000, 0)


def test_accepted_loss_is_reported_until_the_next_append(url: str) -> None:
    with begun(url) as store:
        append(store, 0, 1)
        append(store, 1, 2)
    harm(url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = 2")
    with begun(url) as store:
        first = store.load().loss

    with begun(url) as store:
        second = store.load().loss
        append(store, 1, 9)

    with begun(url) as store:
        assert store.load().loss is None
    assert first is not None
    assert second is not None
    assert second.numbers.covers(first.numbers)


def test_damage_that_reaches_no_event_is_no_loss(url: str) -> None:
    with begun(url) as store:
        append(store, 0, 1)
        store.set_meta("epoch", "17")
    harm(url, "UPDATE gavel_meta SET value = '18' WHERE name = 'epoch'")

    with open_store(url) as store:
        store.begin_incarnation()
        assert "value 'epoch' does not have its checksum" in store.load().damage


def test_a_block_of_numbers_is_on_disk_before_any_of_it_is_given_out(sqlite_url: str) -> None:
    marks = Path(f"{path_of(sqlite_url)}.marks")
    with begun(sqlite_url) as store:
        append(store, 0, 1)
        append(store, 1, BLOCK + 1)
        kept = MarkFile(marks).read()

    assert kept is not None
    assert (kept.numbers.jobs, kept.reserved.jobs) == (BLOCK + 1, 2 * BLOCK)


@pytest.mark.parametrize("slot", [0, 1])
def test_one_torn_slot_leaves_the_marks_before(tmp_path: Path, slot: int) -> None:
    file = MarkFile(tmp_path / "marks")
    file.write(HERE, durably=True)
    data = bytearray(file.path.read_bytes())
    data[slot * 4096 + 20] ^= 1
    file.path.write_bytes(data)

    assert MarkFile(file.path).read() == HERE
    file.close()


def test_marks_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "marks")
    file.path.write_bytes(b"00000000 1 {}\n")

    assert file.read() is None
    assert file.is_damaged
    assert parsed_marks(b"\xff") is None
    assert parsed_marks('{"sequence": "x"}') is None


def test_a_journal_that_reaches_its_marks_has_lost_nothing() -> None:
    assert loss_of(Evidence(end=10, end_s=10.0, seen=12, fault="a torn end"), HERE) is None
    assert loss_of(Evidence(end=12, end_s=12.0, seen=12), ELSEWHERE) is None
    assert loss_of(Evidence(end=12, end_s=12.0, seen=12), None) is None


def test_a_journal_that_ends_before_its_marks_has_lost_what_is_between() -> None:
    loss = loss_of(Evidence(end=7, end_s=6.0, seen=9, events_seen={8: False, 9: True}), HERE)

    assert loss is not None
    assert (loss.first, loss.last, loss.jobs_max, loss.numbers) == (8, 10, 2, Numbers(7, 5))
    assert loss.span == "events 8 to 10 are lost (3), after 1970-01-12T13:46:46+00:00 up to 1970-01-12T13:46:50+00:00"


def test_damage_after_the_machine_has_stopped_may_have_cost_a_block() -> None:
    loss = loss_of(Evidence(end=12, end_s=12.0, seen=12, fault="page 3 is no page"), ELSEWHERE)

    assert loss is not None
    assert (loss.jobs_max, loss.numbers) == (BLOCK, Numbers(1_000, 1_000))
    assert loss.span == "events from 13 on may be lost, after 1970-01-12T13:46:52+00:00"


def test_damage_without_marks_costs_a_margin_above_all_that_is_known() -> None:
    loss = loss_of(Evidence(end=7, end_s=6.0, seen=9, fault="event 8 is missing", numbers=Numbers(40)), None)

    assert loss is not None
    assert (loss.numbers, loss.margin) == (Numbers(40, 0), 2 + BLOCK)
    assert loss.span.startswith("events 8 to 9 are lost (2), after 6 s of the scheduler's time")

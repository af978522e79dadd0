"""Reading a whole journal: from a file, from a database in use, and after early events have left it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal.codec import encode_state
from gavelpy.journal.file import JournalWriter
from gavelpy.journal.recording import read_recording
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Event, JobsHeld, JobSubmitted, NodeJoined
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.model.job import JobId, JobSpec, NodeId
from tests.journal.stores import begun, execute


def made(count: int) -> list[tuple[float, Event]]:
    """Events that a core accepts, one a second."""
    node: list[tuple[float, Event]] = [(0.0, NodeJoined(NodeId("n"), "v100", 1))]
    jobs = [JobSpec(JobId(f"j{k}"), 10.0, rates_steps_per_s={"v100": 1.0}) for k in range(count)]
    return node + [(float(k + 1), JobSubmitted(job)) for k, job in enumerate(jobs)]


def state_after(events: list[tuple[float, Event]]) -> bytes:
    core = SchedulerCore()
    for now_s, event in events:
        core.handle(event, now_s)
    return encode_state({"core": snapshot(core), "facts": {"policy": ["fifo", "{}", ""]}})


def test_a_database_is_read_while_its_scheduler_writes(url: str) -> None:
    events = made(20)
    with begun(url) as store:
        store.append(events[:10])
        first = read_recording(url)
        store.append(events[10:])
        second = read_recording(url)

    assert [now_s for now_s, _ in first.events] == [now_s for now_s, _ in events[:10]]
    assert [now_s for now_s, _ in second.events] == [now_s for now_s, _ in events]


def test_events_in_the_archive_are_read_once(url: str) -> None:
    events = made(30)
    with begun(url) as store:
        for end in (10, 20, 30):
            store.append(events[end - 10 : end])
            store.save_snapshot(end, state_after(events[:end]))
        assert store.truncate(31, 0.0) == 20

        recording = read_recording(url)

    assert [now_s for now_s, _ in recording.events] == [now_s for now_s, _ in events[:30]]
    assert recording.core is None


def test_a_recording_begins_with_a_state_once_early_events_are_gone(url: str) -> None:
    events = made(30)
    with begun(url) as store:
        for end in (10, 20, 30):
            store.append(events[end - 10 : end])
            store.save_snapshot(end, state_after(events[:end]))
        store.truncate(31)

        recording = read_recording(url)

    assert recording.core is not None
    assert recording.policy is not None
    assert recording.policy.policy == "fifo"
    assert recording.span_s == (19.0, 29.0)
    assert [now_s for now_s, _ in recording.events] == [now_s for now_s, _ in events[20:30]]
    assert "keeps no events before 19 s" in recording.notes[0]


def test_reading_leaves_the_files_of_a_journal_as_they_are(sqlite_url: str, tmp_path: Path) -> None:
    with begun(sqlite_url) as store:
        store.append(made(5))
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}

    for name in (sqlite_url, str(path)):
        assert len(read_recording(name).events) == 6

    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    assert tmp_path in path.parents


def test_a_damaged_event_is_reported(url: str) -> None:
    with begun(url) as store:
        store.append(made(5))
    execute(url, "UPDATE gavel_events SET now_s = 99.0 WHERE sequence = 3")

    with pytest.raises(JournalCorrupt, match=r"journal .*event 3"):
        read_recording(url)


def test_a_file_of_a_simulation_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fifo.journal"
    with JournalWriter(path) as journal:
        journal.append(JobsHeld(np.array([0])), 4.0)

    assert read_recording(path).span_s == (4.0, 4.0)


@pytest.mark.parametrize(
    "text", ["{tmp}/none.sqlite", "sqlite:///{tmp}/none.sqlite", "{tmp}", "mysql://a/b", "{tmp}/text"]
)
def test_what_is_no_journal_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no journal")

    with pytest.raises(InvalidInput, match="journal"):
        read_recording(text.format(tmp=tmp_path))


def test_database_that_cannot_be_reached_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidInput, match=r"must be in a database that can be reached, got .*refused") as raised:
        read_recording("postgresql://alice:secret@127.0.0.1:1/gavel")

    assert "secret" not in str(raised.value)


def test_fifo_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(InvalidInput, match="fifo: journal must be a SQLite file"):
        read_recording(tmp_path / "fifo")


def test_a_database_without_tables_of_a_scheduler_is_refused(sqlite_url: str) -> None:
    execute(sqlite_url, "CREATE TABLE other (a INTEGER)")

    with pytest.raises(InvalidInput, match="must have the tables of a scheduler"):
        read_recording(sqlite_url)

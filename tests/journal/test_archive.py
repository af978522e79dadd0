"""The archive: what an event moves there, older events, and reading it while the store writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal.archive_reader import Selection
from gavelpy.journal.archive_tables import JOBS_A_BLOCK, Leaving, PastJob, UsageEntry
from gavelpy.journal.codec import encode_state
from gavelpy.journal.store import EventStore, open_store
from gavelpy.journal.tables import meta_row
from gavelpy.mechanism.events import Event, JobCancelled, JobsArchived
from tests.journal.stores import begun, cancelled, execute, submission


def past(job: int, owner: str = "ann", name: str = "train", state: int = 4, ended_s: float | None = None) -> PastJob:
    at_s = float(job) if ended_s is None else ended_s
    return PastJob(job, owner, name, "team", state, 0.5, at_s, {"gpu_s": {"v100": 1.5 * job}, "why": "ü" * job})


def leave(store: EventStore, *jobs: PastJob, usage: tuple[UsageEntry, ...] = (), now_s: float = 0.0) -> int:
    event: Event = JobsArchived(np.array([job.job for job in jobs], dtype=np.int64))
    return store.append([(now_s, event)], leaving=Leaving(jobs, usage))


def used(start_s: int, owner: str, gpu_type: str = "v100", gpu_s: float = 10.0) -> UsageEntry:
    return UsageEntry(start_s, 3600, owner, "team", gpu_type, gpu_s, gpu_s / 10, 2.0, 1, 1)


def test_jobs_come_back_with_their_details(url: str) -> None:
    jobs = [past(job) for job in range(3 * JOBS_A_BLOCK + 5)]
    with begun(url) as store:
        leave(store, *jobs)
        reader = store.reader()

        assert reader.jobs(Selection(), 10_000) == jobs
        assert reader.found([7, 100, 9_999]) == {7: jobs[7], 100: jobs[100]}
        assert reader.newest("ann", "train") == len(jobs) - 1
        assert reader.newest("bob", "train") == -1


def test_pages_of_a_selection(url: str) -> None:
    jobs = [past(k, owner="ann" if k % 2 else "bob", state=4 + k % 3) for k in range(40)]
    with begun(url) as store:
        leave(store, *jobs[:25])
        leave(store, *jobs[25:])
        reader = store.reader()
        which: dict[str, Any] = {"owner": "ann", "states": {4, 6}, "ended_since_s": 11.0}
        expected = [job for job in jobs if job.owner == "ann" and job.state in (4, 6) and job.ended_s >= 11.0]

        first = reader.jobs(Selection(**which), 4)
        rest = reader.jobs(Selection(first[-1].job, **which), 100)

        assert [*first, *rest] == expected


def test_usage_is_summed_by_the_database(url: str) -> None:
    rows = (used(0, "ann"), used(3600, "ann"), used(3600, "ann", "k80"), used(7200, "bob"))
    with begun(url) as store:
        leave(store, usage=rows)
        reader = store.reader()

        one, two = [10.0, 1.0, 2.0, 1.0, 1.0], [20.0, 2.0, 4.0, 2.0, 2.0]
        assert reader.usage(3600.0, ["owner"]) == {("ann",): two, ("bob",): one}
        assert reader.usage(0.0, ["gpu_type"], "ann") == {("v100",): two, ("k80",): one}
        assert reader.usage(0.0, [])[()] == [40.0, 4.0, 8.0, 4.0, 4.0]


def test_event_and_archive_are_written_together_or_not_at_all(url: str) -> None:
    with begun(url) as store:
        store.append(cancelled(0), [submission("k")])
        jobs = [past(1)]

        with pytest.raises(InvalidInput, match="key of a submission must be new"):
            store.append([(1.0, JobCancelled(0))], [submission("k")], leaving=Leaving(jobs))

        assert store.reader().jobs(Selection(), 10) == []
        assert store.load().sequence == 1


def test_what_lost_events_archived_is_archived_again(sqlite_url: str) -> None:
    """After an accepted loss the core still has the jobs of lost events: their rows must be free."""
    with begun(sqlite_url) as store:
        leave(store, past(0))
        lost = leave(store, past(1), usage=(used(0, "ann"),))
    execute(sqlite_url, "UPDATE gavel_events SET crc32 = 7 WHERE sequence = :lost", lost=lost)

    with begun(sqlite_url) as store:
        assert store.load().sequence == lost - 1
        assert [job.job for job in store.reader().jobs(Selection(), 10)] == [0]
        leave(store, past(1), usage=(used(0, "ann"),))
        assert [job.job for job in store.reader().jobs(Selection(), 10)] == [0, 1]


def test_a_repaired_file_keeps_the_archive(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    jobs = [past(job) for job in range(200)]
    with begun(sqlite_url) as store:
        leave(store, *jobs, usage=(used(0, "ann"),))
        store.back_up()
    with path.open("r+b") as file:  # the root page of a table
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096)

    with begun(sqlite_url) as store:
        store.load()
        assert store.reader().jobs(Selection(), 1000) == jobs
        assert store.reader().usage(0.0, ["owner"]) == {("ann",): [10.0, 1.0, 2.0, 1.0, 1.0]}


def test_damage_to_a_past_job_is_reported(url: str) -> None:
    with begun(url) as store:
        leave(store, past(0), past(1))
    execute(url, "UPDATE gavel_archived_jobs SET ended_s = 99.0 WHERE job = 1")

    with begun(url) as store, pytest.raises(JournalCorrupt, match="job 1 in the archive does not have its checksum"):
        store.reader().found([1])


def test_truncated_events_are_kept_in_the_archive(url: str) -> None:
    records = cancelled(0, 5_000)
    with begun(url) as store:
        for first in range(0, 5_000, 1_000):
            end = store.append(records[first : first + 1_000])
            store.save_snapshot(end, encode_state({"n": end}))

        assert store.truncate(5_000, 0.0) == 4_000

        reader = store.reader()
        assert [sequence for sequence, _, _ in reader.events(0, 9_999)] == list(range(1, 4_001))
        assert [now_s for _, now_s, _ in reader.events(1_990, 20)] == list(range(1_990, 2_010))
        state, entries = reader.replay(0.0)
        assert state is None
        assert [sequence for sequence, _, _ in entries] == list(range(1, 5_001))


def test_a_replay_begins_at_a_snapshot_once_events_are_forgotten(url: str) -> None:
    day_s = 86_400.0
    with begun(url) as store:
        for day in range(6):
            end = store.append([(day * day_s + k, JobCancelled(k)) for k in range(10)])
            store.save_snapshot(end, encode_state({"end": end}))
            store.truncate(end, max((day - 3) * day_s, 0.0))

        reader = store.reader()
        state, entries = reader.replay(3 * day_s)
        assert state == {"end": 30}
        assert [sequence for sequence, _, _ in entries] == list(range(31, 61))
        with pytest.raises(JournalCorrupt, match="event 1 is missing"):
            list(reader.replay(0.0)[1])


def test_a_journal_without_an_archive_gets_one(sqlite_url: str) -> None:
    with begun(sqlite_url) as store:
        store.append(cancelled(0))
    for table in ("jobs", "blocks", "usage", "events", "snapshots"):
        execute(sqlite_url, f"DROP TABLE gavel_archived_{table}")
    row = meta_row("schema_version", "2")
    execute(sqlite_url, "UPDATE gavel_meta SET value = '2', crc32 = :crc WHERE name = 'schema_version'", crc=row.crc32)

    with open_store(sqlite_url) as store:
        store.begin_incarnation()
        leave(store, past(0))
        assert store.reader().found([0]) == {0: past(0)}

"""The driver: acknowledged events are durable, invalid ones are refused, and no call waits on a failed journal."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput, JournalFailed
from gavelpy.journal.sqlite import BackupSettings
from gavelpy.journal.store import open_store
from gavelpy.journal.tables import EVENTS
from gavelpy.mechanism.events import JobCancelled, NodeLost, ProgressReported, SchedulerRestarted
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon import driver
from gavelpy.runtime.daemon import written as limits
from gavelpy.runtime.daemon.written import Written
from tests.runtime.daemon.harness import Running, make_config, make_spec, running


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120.0))


def journal(directory: Path) -> list[str]:
    """Kinds of events on disk."""
    with open_store(f"sqlite:///{directory}/journal.sqlite") as store:
        return [type(event).__name__ for _, _, event in store.events(0, 1_000)]


def test_many_that_come_together_share_commits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            before = cluster.scheduler.version
            await asyncio.gather(*(cluster.submit(make_spec()) for _ in range(100)))

            assert cluster.core.jobs.count == 100
            assert cluster.scheduler.version - before < 20

    run(scenario())
    assert journal(tmp_path).count("JobSubmitted") == 100


def test_callers_that_call_again_at_different_moments_share_commits(tmp_path: Path) -> None:
    async def caller(cluster: Running, turns: int) -> None:
        for _ in range(10):
            await cluster.submit(make_spec())
            for _ in range(turns):
                await asyncio.sleep(0)

    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            before = cluster.scheduler.version
            await asyncio.gather(*(caller(cluster, turns) for turns in range(8)))

            assert cluster.core.jobs.count == 80
            assert cluster.scheduler.version - before < 18  # 10 if all always share one, 20 and more if none waits

    run(scenario())


def test_what_the_core_refuses_is_refused_to_who_asked_and_again_in_replay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path), in_good_order=False) as cluster:
            with pytest.raises(InvalidInput, match="node_id must be one of"):
                await cluster.scheduler.driver.apply([NodeLost(NodeId("n7"))])
            with pytest.raises(InvalidInput, match="jobs must be in"):
                await cluster.scheduler.driver.apply([JobCancelled(3)])
            assert await cluster.submit(make_spec()) == [0]
        async with running(make_config(tmp_path)) as cluster:
            assert cluster.core.jobs.count == 1

    run(scenario())


def test_a_restart_is_the_first_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path), in_good_order=False) as cluster:
            await cluster.submit(make_spec())
            before = cluster.scheduler.driver.sequence
        async with running(make_config(tmp_path)) as cluster:
            await cluster.submit(make_spec())
            events = await cluster.scheduler.read_journal(lambda store: store.events(before, 1))
            assert isinstance(events[0][2], SchedulerRestarted)

    run(scenario())


def test_a_journal_that_fails_ends_the_scheduler_and_leaves_no_caller_waiting(tmp_path: Path) -> None:
    answers: list[object] = []

    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as vandal:
                vandal.execute(f"DROP TABLE {EVENTS.name}")
            answers.extend(await asyncio.gather(cluster.submit(make_spec()), return_exceptions=True))
            answers.extend(await asyncio.gather(cluster.submit(make_spec()), return_exceptions=True))
            answers.extend(await asyncio.gather(cluster.submit(make_spec(), key="k"), return_exceptions=True))

    with pytest.raises(JournalFailed):
        run(scenario())
    assert [repr(answer) for answer in answers] == ["Stopping('the scheduler is stopping')"] * 3


def test_a_snapshot_is_taken_when_a_restart_would_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS", 50)

    async def scenario() -> None:
        async with running(make_config(tmp_path), in_good_order=False) as cluster:
            await cluster.submit(*[make_spec()] * 60)
            await cluster.submit(make_spec())
        with open_store(f"sqlite:///{tmp_path}/journal.sqlite") as store:
            loaded = store.load()
            assert loaded.state is not None
            assert len(list(loaded.events)) < 60

    run(scenario())


def test_a_snapshot_that_had_to_wait_is_taken_though_nothing_more_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS", 50)

    async def scenario() -> None:
        async with running(make_config(tmp_path), in_good_order=False) as cluster:
            first = cluster.scheduler.driver
            first._snapshot_allowed_s = perf_counter() + 600.0
            await cluster.submit(*[make_spec()] * 60)
            assert first._written.is_much

            first._snapshot_allowed_s = perf_counter() + 0.2
            first.wake()
            await cluster.until(lambda: not first._written.is_much, "it is taken")
        with open_store(f"sqlite:///{tmp_path}/journal.sqlite") as store:
            loaded = store.load()
            assert loaded.state is not None
            assert len(list(loaded.events)) < 60

    run(scenario())


def test_what_a_restart_had_to_replay_the_next_one_need_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SNAPSHOT_REST_S", 0.0)

    async def scenario() -> None:
        async with running(make_config(tmp_path), in_good_order=False) as cluster:
            await cluster.submit(*[make_spec()] * 60)
        monkeypatch.setattr(limits, "SNAPSHOT_EVENTS", 50)
        async with running(make_config(tmp_path), in_good_order=False) as cluster:
            again = cluster.scheduler.driver
            await cluster.until(lambda: not again._written.is_much, "a snapshot is taken")
        with open_store(f"sqlite:///{tmp_path}/journal.sqlite") as store:
            assert len(list(store.load().events)) < 60

    run(scenario())


def test_the_journal_is_backed_up_with_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()

    async def scenario() -> None:
        async with running(make_config(tmp_path), backups=BackupSettings(2, tmp_path / "backups")) as cluster:
            await cluster.submit(make_spec())

    run(scenario())
    with open_store(f"sqlite:///{tmp_path}/journal.sqlite") as store:
        last = store.load().sequence
    (backup,) = (tmp_path / "backups").iterdir()
    with closing(sqlite3.connect(backup)) as connection:
        assert connection.execute(f"SELECT max(sequence) FROM {EVENTS.name}").fetchone() == (last,)


def test_a_backup_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "backups").mkdir()

    async def scenario() -> None:
        async with running(make_config(tmp_path), backups=BackupSettings(2, tmp_path / "backups")) as cluster:
            (tmp_path / "backups").rmdir()
            await cluster.submit(make_spec())

    run(scenario())
    assert "the journal could not be backed up" in caplog.text
    assert journal(tmp_path).count("JobSubmitted") == 1


def test_a_snapshot_is_due_by_the_time_that_reading_and_applying_would_take() -> None:
    slow, many, few = Written(), Written(), Written()

    slow.replay_s = limits.REPLAY_S_MAX
    many.add([(0.0, JobCancelled(1))] * round(limits.REPLAY_S_MAX / limits.READING_S))
    few.add([(0.0, JobCancelled(1))] * round(0.5 * limits.REPLAY_S_MAX / limits.READING_S))

    assert (slow.is_much, many.is_much, few.is_much) == (True, True, False)


def test_a_snapshot_is_due_until_it_is_kept() -> None:
    written = Written()
    written.add([(0.0, JobCancelled(1))] * limits.SNAPSHOT_EVENTS)

    written.keep_after(limits.SNAPSHOT_EVENTS)
    while_it_is_written = written.is_much
    written.snapshot_taken()

    assert (while_it_is_written, written.is_much) == (True, False)


def test_events_are_kept_by_their_number_and_size() -> None:
    written = Written()
    small = [(0.0, JobCancelled(1))] * 10
    steps = np.zeros(limits.BYTES_KEPT // 20)
    large = [(0.0, ProgressReported(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), steps))]

    written.add(small)
    first = written.keep_after(10)
    written.add(large)
    second = written.keep_after(11)
    written.add(large)
    third = written.keep_after(12)
    written.add(large)

    assert (first, second, third, written.keep_after(13)) == (0, 0, 0, 11)
    assert written.keep_after(limits.EVENTS_KEPT + 20) == 20

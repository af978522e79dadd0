"""What a standby has of the journal: how current it is, and what it does with a journal of a newer version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from gavelpy.errors import JournalTooNew
from gavelpy.journal import tables
from gavelpy.journal.codec import encode_state
from gavelpy.journal.database import SchedulerMember
from gavelpy.journal.leadership import Turn
from gavelpy.journal.store import EventStore, open_store
from gavelpy.journal.versions import NEWEST
from gavelpy.mechanism.events import Event, JobSubmitted
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.follower import FETCHED_AT_ONCE, Follower
from gavelpy.runtime.daemon.recovery import Replica
from gavelpy.runtime.daemon.standby import StandbyScheduler
from gavelpy.runtime.local_cluster import wait_until
from tests.runtime.daemon.harness import make_config, make_spec

LEADER = SchedulerMember("a:1", "1")


def config_of(url: str, directory: Path) -> Config:
    return make_config(directory, scheduler={"journal": url}, standby={"enabled": True, "address": "b:1"})


def submit(store: EventStore, first: int, count: int = 1) -> None:
    """Jobs as the leader journals them."""
    events = [JobSubmitted(make_spec(f"j{k}#{k}", owner="ann")) for k in range(first, first + count)]
    store.append([(float(first), event) for event in events])


def encoded_newer(_: Event, now_s: float) -> bytes:
    return msgspec.msgpack.encode([NEWEST + 1, "JobFrozen", now_s, [{"job": 3}]])


def append_newer(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that this version does not have."""
    with monkeypatch.context() as patch:
        patch.setattr(tables, "encode", encoded_newer)
        submit(store, 99)


def follow(follower: Follower) -> None:
    follower.fetch()
    asyncio.run(follower.apply())


def jobs_of(follower: Follower) -> int:
    assert follower.state is not None
    return follower.state.core.jobs.count


def test_a_follower_is_as_current_as_its_last_look_at_the_end_of_the_journal(tmp_path: Path, postgres_url: str) -> None:
    follower = Follower(config_of(postgres_url, tmp_path))
    assert follower.freshness is None
    with open_store(postgres_url, member=LEADER) as store:
        store.begin_incarnation()
        submit(store, 0, 2)
        follow(follower)
        assert follower.freshness is not None
        assert (follower.freshness.sequence, jobs_of(follower)) == (2, 2)

        submit(store, 2, FETCHED_AT_ONCE + 1)
        before_s = follower.freshness.age_s
        follow(follower)  # not to the end

        assert follower.freshness.sequence == 2 + FETCHED_AT_ONCE
        assert follower.freshness.age_s > before_s
        follow(follower)
        assert follower.freshness.sequence == jobs_of(follower) == 3 + FETCHED_AT_ONCE
    follower.end()


def test_events_that_have_left_the_journal_are_read_from_the_snapshot(tmp_path: Path, postgres_url: str) -> None:
    follower = Follower(config_of(postgres_url, tmp_path))
    with open_store(postgres_url, member=LEADER) as store:
        store.begin_incarnation()
        submit(store, 0)
        follow(follower)
        there = Replica()
        submit(store, 1, 3)
        there.follow(store.events(0, 10))
        state = encode_state({"core": snapshot(there.core), "facts": there.history.snapshot()})
        store.save_snapshot(3, state)
        store.save_snapshot(4, state)
        assert store.truncate(3) == 3

        follow(follower)
        assert follower.replica is None  # there is a gap
        assert jobs_of(follower) == 1  # reads continue with the state before
        follow(follower)

    assert (follower.sequence, jobs_of(follower)) == (4, 4)
    follower.end()


def test_reads_continue_and_get_older_where_a_newer_version_writes(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(config_of(postgres_url, tmp_path))
    with open_store(postgres_url, member=LEADER) as store:
        store.begin_incarnation()
        submit(store, 0)
        follow(follower)
        append_newer(store, monkeypatch)

        follow(follower)

        assert "a newer gavelpy has written it" in follower.refused
        assert follower.freshness is not None
        assert (follower.freshness.sequence, jobs_of(follower)) == (1, 1)
        with pytest.raises(JournalTooNew, match="event 2 of the journal"):
            follower.check_readable()
    follower.end()


def test_an_older_version_does_not_take_over_from_a_newer_one(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    standby = StandbyScheduler(config_of(postgres_url, tmp_path))
    with open_store(postgres_url, member=LEADER) as store:
        incarnation = store.begin_incarnation()
        submit(store, 0)
        assert standby._look() is Turn.WAIT
        append_newer(store, monkeypatch)
    wait_until(lambda: standby._look() is Turn.LEAD, "the leader's connection has ended at the server")

    assert standby._take_turn(Turn.LEAD) is None

    assert "this version cannot take over: upgrade it" in caplog.text
    assert standby._look() is Turn.WAIT  # for some seconds
    assert "it cannot take over: event 2 of the journal" in standby._unready()
    with open_store(postgres_url) as store:
        assert store.begin_incarnation() == incarnation + 1  # no incarnation began meanwhile
    standby._leave()
    standby._follower.end()

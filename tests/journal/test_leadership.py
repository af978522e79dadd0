"""Which scheduler leads a journal: rows in PostgreSQL, and when a standby takes over, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import FencedOut, InvalidInput, JournalFailed, JournalInUse
from gavelpy.journal.database import SchedulerMember
from gavelpy.journal.leadership import Leader, Leadership, TakeoverTimer, Turn
from gavelpy.journal.store import open_store
from gavelpy.runtime.local_cluster import wait_until
from tests.conftest import first_fast
from tests.journal.failover_world import FAILOVERS, FAULTS, LEASE_S, World
from tests.journal.stores import cancelled

A, B = SchedulerMember("a:1", "1"), SchedulerMember("b:1", "1")


def test_a_leader_renews_its_row_until_another_one_leads(postgres_url: str) -> None:
    watch = Leadership(postgres_url, B)
    assert watch.leader() == Leader(0, is_connected=False)
    with open_store(postgres_url, member=A) as store, open_store(postgres_url, take_over=True, member=B) as other:
        one = store.begin_incarnation()
        mine = Leadership(postgres_url, A)

        assert mine.renew(one) == ""
        assert watch.leader() == Leader(one, is_connected=True, address="a:1", beat=1)

        two = other.begin_incarnation(after=one)

        assert watch.leader() == Leader(two, is_connected=True, address="b:1", beat=0)
        with pytest.raises(FencedOut):
            mine.renew(one)
    wait_until(lambda: not watch.leader().is_connected, "the server has ended its connection")
    watch.close()
    mine.close()


def test_a_scheduler_without_standbys_has_no_row_and_is_never_silent(postgres_url: str) -> None:
    with open_store(postgres_url) as store:
        one = store.begin_incarnation()
        watch = Leadership(postgres_url, B)

        leader = watch.leader()

        assert leader == Leader(one, is_connected=True)
        assert not watch.hand_over(one, "b:1")
        patience = TakeoverTimer("b:1", 3.0)
        assert {patience.turn(leader, now_s) for now_s in (0.0, 100.0)} == {Turn.WAIT}
        watch.close()


def test_only_one_of_two_standbys_takes_over(postgres_url: str) -> None:
    with open_store(postgres_url, member=A) as first:
        first.begin_incarnation()
    with open_store(postgres_url, take_over=True) as one, open_store(postgres_url, take_over=True) as other:
        assert one.begin_incarnation(after=1) == 2

        with pytest.raises(JournalInUse, match="incarnation 2 has begun after 1"):
            other.begin_incarnation(after=1)

        assert one.append(cancelled(0)) == 1


def test_a_leader_learns_its_successor_and_standbys_are_listed(postgres_url: str) -> None:
    with open_store(postgres_url, member=A) as store:
        one = store.begin_incarnation()
        mine, watch = Leadership(postgres_url, A), Leadership(postgres_url, B)
        watch.stand_by(7)
        watch.stand_by(8)

        assert [(found.address, found.sequence) for found in mine.standbys()] == [("b:1", 8)]
        assert watch.hand_over(one, "b:1")
        assert mine.renew(one) == "b:1"
        watch.leave()
        assert mine.standbys() == []
        mine.close()
        watch.close()


def test_a_silent_leader_loses_its_session(postgres_url: str) -> None:
    with open_store(postgres_url, member=A) as store:
        one = store.begin_incarnation()
        watch = Leadership(postgres_url, B)

        watch.end_session(one)

        wait_until(lambda: not watch.leader().is_connected, "the server has ended it")
        with pytest.raises(JournalFailed):
            store.append(cancelled(0))
        watch.close()


def test_a_journal_in_a_file_has_no_standbys(sqlite_url: str) -> None:
    with pytest.raises(InvalidInput, match="must be postgresql"):
        Leadership(sqlite_url, A)


def test_a_standby_named_as_successor_comes_first() -> None:
    gone = Leader(3, is_connected=False, address="a:1", beat=5, successor="b:1")
    named, other = TakeoverTimer("b:1", 3.0), TakeoverTimer("c:1", 3.0)

    assert named.turn(gone, 10.0) is Turn.LEAD
    assert [other.turn(gone, now_s) for now_s in (10.0, 12.0, 13.0)] == [Turn.WAIT, Turn.WAIT, Turn.LEAD]


# In virtual time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", first_fast(range(0, 1_000, 100), 2))
def test_in_virtual_time_no_job_is_lost_and_none_runs_twice(first: int) -> None:
    for seed in range(first, first + 100):
        world = World(seed)
        world.run(60.0, faults=6)
        journal = world.database.journal
        submitted = [record.job for record in journal if record.kind == "job"]
        numbers = [record.incarnation for record in journal]

        assert world.problems == [], f"seed {seed}: {world.faults}"
        assert numbers == sorted(numbers), f"seed {seed}: an older incarnation wrote after a newer one"
        assert len(submitted) == len(set(submitted)), f"seed {seed}: a job exists twice"
        assert world.acknowledged <= set(submitted), f"seed {seed}: an acknowledged job is lost"
        assert world.database.written_s[-1] > 55.0, f"seed {seed}: no scheduler leads in the end"


@pytest.mark.parametrize("first", first_fast(range(0, 1_000, 250), 2))
def test_in_virtual_time_a_scheduler_leads_soon_after_a_fault(first: int) -> None:
    gaps_s = []
    for seed in range(first, first + 250):
        world = World(seed)
        world.run(24.0, faults=1, kinds=FAILOVERS)
        gaps_s.append(max(np.diff([0.0, *world.database.written_s, 24.0])))

    assert np.median(gaps_s) <= LEASE_S  # with the time between two writes of a leader without faults
    assert max(gaps_s) <= LEASE_S + 3.0


def test_faults_in_virtual_time_are_of_all_kinds_and_cause_takeovers() -> None:
    worlds = [World(seed) for seed in range(30)]
    for world in worlds:
        world.run(60.0, faults=6)

    assert {kind for world in worlds for kind in world.faults} == set(FAULTS)
    assert sum(world.database.newest - 1 for world in worlds) > len(worlds)
    records = [record for world in worlds for record in world.database.journal]
    assert any(record.kind == "end" and not record.until_s for record in records)  # leases that were given up

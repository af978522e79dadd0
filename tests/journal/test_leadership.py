"""Which scheduler leads a journal: rows in PostgreSQL, and when a standby takes over, in virtual time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from gavelpy.errors import FencedOut, InvalidInput, JournalFailed, JournalInUse
from gavelpy.journal.database import SchedulerMember
from gavelpy.journal.leadership import Leader, Leadership, TakeoverTimer, Turn
from gavelpy.journal.store import open_store
from gavelpy.runtime.local_cluster import wait_until
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
    assert not watch.leader().is_connected
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

LEASE_S, LOOK_S, RENEW_S = 3.0, 0.25, 0.75


@dataclass
class FakeDatabase:
    """What schedulers see of a journal: the newest incarnation, its session and its beat, and accepted writes."""

    newest: int = 0
    connected: str = ""  # who holds the session of the newest incarnation
    beat: int = 0
    writes: list[tuple[float, str, int]] = field(default_factory=list)


@dataclass
class FakeScheduler:
    """Looks, leads, renews and writes as the real one does; it may be dead, paused or cut off."""

    name: str
    leads: int = 0  # the incarnation, 0 = it stands by
    is_alive: bool = True
    acts_again_s: float = 0.0
    reaches_again_s: float = 0.0
    clock_s: float = 0.0  # difference of its clock, which may jump forward
    next_s: float = 0.0
    patience: TakeoverTimer = field(init=False)

    def __post_init__(self) -> None:
        self.patience = TakeoverTimer(self.name, LEASE_S)

    def act(self, database: FakeDatabase, now_s: float) -> None:
        """One step, if it can."""
        self.next_s = now_s + (RENEW_S if self.leads else LOOK_S)
        if now_s < self.reaches_again_s:
            return
        if self.leads:
            if database.newest == self.leads and database.connected == self.name:
                database.beat += 1
                database.writes.append((now_s, self.name, self.leads))
            else:  # fenced out, or its session was ended
                self.leads, self.patience = 0, TakeoverTimer(self.name, LEASE_S)
            return
        seen = Leader(database.newest, bool(database.connected), "x", database.beat)
        if self.patience.turn(seen, now_s + self.clock_s) is not Turn.WAIT:
            database.newest, database.connected, database.beat = database.newest + 1, self.name, 0
            self.leads = database.newest


@pytest.mark.parametrize("seed", range(0, 1000, 50))
def test_in_virtual_time_one_leads_at_a_time_and_soon_again(seed: int) -> None:
    for trial in range(seed, seed + 50):
        database = FakeDatabase()
        rng = np.random.default_rng(trial)
        members = [FakeScheduler(name) for name in "abc"]
        end_s, fault_s, longest_s = 120.0, 5.0, 0.0
        repair_s, now_s = math.inf, 0.0
        while now_s < end_s:
            now_s = round(now_s + 0.05, 2)
            if now_s >= fault_s:
                _hit(rng, database, members, now_s)
                fault_s, repair_s = now_s + rng.uniform(12.0, 20.0), now_s + 8.0
            if now_s >= repair_s:
                for one in members:
                    if not one.is_alive:
                        one.is_alive, one.leads, one.patience = True, 0, TakeoverTimer(one.name, LEASE_S)
                repair_s = math.inf
            for one in members:
                if one.is_alive and now_s >= max(one.next_s, one.acts_again_s):
                    one.act(database, now_s)
        times = [when for when, _, _ in database.writes]
        numbers = [incarnation for _, _, incarnation in database.writes]
        assert numbers == sorted(numbers), f"trial {trial}: an older incarnation wrote after a newer one"
        assert len({(name, number) for _, name, number in database.writes}) == len(set(numbers))
        longest_s = max(np.diff([0.0, *times, end_s]))
        assert longest_s <= LEASE_S + 1.5, f"trial {trial}: no leader for {longest_s} s"


def _hit(rng: np.random.Generator, database: FakeDatabase, members: list[FakeScheduler], now_s: float) -> None:
    """One fault, mostly of the leader; two schedulers remain."""
    leader = next((one for one in members if one.leads and one.name == database.connected), members[0])
    hit = leader if rng.random() < 0.7 else members[int(rng.integers(len(members)))]
    match rng.choice(["crash", "pause", "partition", "clock", "session"]):
        case "crash":
            hit.is_alive = False
            if database.connected == hit.name:
                database.connected = ""
        case "pause":
            hit.acts_again_s = now_s + rng.uniform(0.0, 10.0)
        case "partition":
            hit.reaches_again_s = now_s + rng.uniform(0.0, 10.0)
        case "clock":  # of the date, which nothing here reads, and at most a little of the other
            hit.clock_s += rng.uniform(0.0, 1.0)
        case "session":  # the database ends a session
            if database.connected == hit.name:
                database.connected = ""

"""Under any partition and any restart, no lease counts as over while it runs.

The tests run in virtual time, see `quorum_world`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gavelpy.runtime import quorum
from gavelpy.runtime.daemon.nodes.quorum_views import QuorumViews
from gavelpy.runtime.quorum import Contact, Member, MemberAnswer, View, agreeing, agrees, extended_until_clock_s
from tests.runtime.quorum_world import SCHEDULER, SETTINGS, Cluster

A, B, C = (Member(name, f"of {name}", f"{name}:1") for name in "abc")
VIEW = View(1, (A, B, C), orphan_max_s=100.0, window_s=4.0, step_s=10.0)
CONTACT = Contact(7, echoed_clock_s=50.0, heard_clock_s=51.0)
STEADY_S = 12.0
NEAR_S = 0.5  # delay, well below the window as required
LINK_CUT = [{SCHEDULER, 0, 1, 2}, {0, 1, 2, 3}]  # overlapping groups: 3 reaches all but the scheduler
AFTER_S = SETTINGS.orphan_max_s + 40.0


def answer(of: Member, heard_at_s: float, incarnation: int = 7, arrived_s: float = 60.0) -> MemberAnswer:
    return MemberAnswer(of.node_id, of.state_id, incarnation, arrived_s - heard_at_s, arrived_s)


# The rule -------------------------------------------------------------------------------------------------------------


def test_majority_that_lost_the_scheduler_together_extends() -> None:
    assert extended_until_clock_s(VIEW, A, CONTACT, [answer(B, 53.9)], 59.0) == 69.0


def test_member_with_a_later_contact_does_not_agree() -> None:
    assert not agrees(answer(B, 54.1), CONTACT, VIEW.window_s)
    assert extended_until_clock_s(VIEW, A, CONTACT, [answer(B, 54.1)], 59.0) == -math.inf


def test_a_member_that_obeyed_a_newer_scheduler_does_not_agree() -> None:
    assert not agrees(answer(B, 10.0, incarnation=8), CONTACT, VIEW.window_s)


def test_a_late_answer_makes_a_contact_later_and_extends_nothing() -> None:
    late = MemberAnswer("b", "of b", 7, heard_ago_s=10.0, arrived_clock_s=65.0)

    assert not agrees(late, CONTACT, VIEW.window_s)


def test_agent_with_a_one_way_contact_does_not_agree_with_itself() -> None:
    contact = Contact(7, echoed_clock_s=50.0, heard_clock_s=54.1)

    assert agreeing(VIEW, A, contact, [answer(B, 40.0), answer(C, 40.0)]) == 0


def test_one_member_counts_once_and_a_stranger_not_at_all() -> None:
    stranger = MemberAnswer("b", "another disk", 7, 20.0, 60.0)
    big = View(1, (A, B, C, Member("d", "", ""), Member("e", "", "")), 100.0, 4.0, 10.0)

    assert agreeing(big, A, CONTACT, [answer(B, 40.0), answer(B, 41.0), stranger]) == 2


def test_no_lease_is_extended_for_longer_than_orphans_may_live() -> None:
    assert extended_until_clock_s(VIEW, A, CONTACT, [answer(B, 50.0)], 149.0) == 150.0


def test_switched_off_nothing_is_extended() -> None:
    off = View(2, (A, B, C), orphan_max_s=0.0, window_s=4.0, step_s=10.0)

    assert extended_until_clock_s(off, A, CONTACT, [answer(B, 50.0)], 59.0) == -math.inf


@pytest.mark.parametrize("count", range(1, 12))
def test_enough_refusals_meet_every_majority(count: int) -> None:
    view = View(1, tuple(Member(str(i), "", "") for i in range(count)), 1.0, 1.0, 1.0)

    assert view.refusals + (view.majority - 1) > count - 1  # members without the silent one
    assert view.refusals + (view.majority - 1) == count  # and no more than that


# Partitions -----------------------------------------------------------------------------------------------------------


def partitions(things: list[int]) -> Iterator[list[set[int]]]:
    """All partitions of the list into groups."""
    if not things:
        yield []
        return
    for rest in partitions(things[1:]):
        yield [{things[0]}, *rest]
        for i, group in enumerate(rest):
            yield [*rest[:i], {things[0], *group}, *rest[i + 1 :]]


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as made:
        yield Path(made)


def run_partition(count: int, groups: list[set[int]], directory: Path, seed: int) -> Cluster:
    """The network is whole, then partitioned for longer than any lease, then whole again."""
    cluster = Cluster(count, directory / f"{seed}", Random(seed))
    cluster.advance(STEADY_S)
    cluster.partition(groups)
    cluster.advance(AFTER_S)
    cluster.cut = set()
    cluster.advance(STEADY_S)
    return cluster


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_no_lease_counts_as_over_while_it_runs_in_any_partition(count: int, directory: Path) -> None:
    extensions = 0
    for seed, groups in enumerate(partitions([SCHEDULER, *range(count)])):
        extensions += run_partition(count, groups, directory, seed).extensions

    assert extensions > 0


def run_return(directory: Path, seed: int) -> None:
    """The scheduler returns after a while, and one node that is still running can reach only other nodes."""
    cluster = Cluster(4, directory / f"{seed}", Random(seed))
    cluster.advance(STEADY_S)
    cluster.stop_scheduler()
    cluster.advance(20.0)
    cluster.partition(LINK_CUT)
    cluster.start_scheduler()
    cluster.advance(50.0)
    assert cluster.is_over[3]


@pytest.mark.parametrize("seed", range(5))
def test_a_node_without_a_link_to_the_scheduler_that_reaches_others_is_over_in_time(seed: int, directory: Path) -> None:
    run_partition(4, LINK_CUT, directory, seed)
    run_return(directory, seed + 100)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_without_a_scheduler_every_lease_runs_until_the_orphan_limit(count: int, directory: Path) -> None:
    cluster = Cluster(count, directory, Random(count), NEAR_S)
    cluster.advance(STEADY_S)
    cluster.stop_scheduler()

    cluster.advance(SETTINGS.orphan_max_s - 10.0)
    assert all(cluster.is_running(number) for number in range(count))

    cluster.advance(20.0)
    assert not any(cluster.is_running(number) for number in range(count))


def test_a_restarted_scheduler_finds_what_ran_on(directory: Path) -> None:
    cluster = Cluster(3, directory, Random(1), NEAR_S)
    cluster.advance(STEADY_S)
    cluster.stop_scheduler()
    cluster.advance(40.0)

    cluster.start_scheduler()
    cluster.advance(STEADY_S)

    assert all(cluster.is_running(number) for number in range(3))
    assert not any(cluster.is_over.values())


def test_agents_that_restart_while_the_scheduler_is_away_still_agree(directory: Path) -> None:
    cluster = Cluster(2, directory, Random(2), NEAR_S)
    cluster.advance(STEADY_S)
    cluster.stop_scheduler()
    cluster.advance(20.0)
    cluster.restart_agent(0)
    cluster.restart_agent(1)

    cluster.advance(25.0)

    assert cluster.is_running(0)
    assert cluster.is_running(1)


def test_a_minority_cut_off_is_over_soon_after_its_lease(directory: Path) -> None:
    cluster = Cluster(3, directory, Random(3), NEAR_S)
    cluster.advance(STEADY_S)
    cluster.partition([{SCHEDULER, 0, 1}, {2}])

    cluster.advance(35.0)

    assert cluster.is_over[2]
    assert cluster.is_running(0)


def test_a_scheduler_with_a_minority_waits_for_the_majority_that_runs_on(directory: Path) -> None:
    cluster = Cluster(3, directory, Random(4), NEAR_S)
    cluster.advance(STEADY_S)
    cluster.partition([{SCHEDULER, 0}, {1, 2}])

    cluster.advance(45.0)

    assert cluster.is_running(1)
    assert cluster.is_running(2)
    assert not cluster.is_over[1]
    assert not cluster.is_over[2]


def agree_to_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quorum, "agrees", lambda *_: True)


def be_a_majority_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "majority", property(lambda _: 1))
    patch.setattr(View, "refusals", property(lambda view: len(view.members) // 2 + len(view.members) % 2))


def count_one_refusal_too_many(patch: pytest.MonkeyPatch) -> None:
    refusals = QuorumViews._refusals
    patch.setattr(QuorumViews, "_refusals", lambda *arguments: refusals(*arguments) + 1)


def forget_the_step(patch: pytest.MonkeyPatch) -> None:
    cut_off_s = QuorumViews._cut_off_s
    patch.setattr(QuorumViews, "_cut_off_s", lambda *arguments: cut_off_s(*arguments) - 10.0)


@pytest.mark.parametrize("harm", [agree_to_anything, be_a_majority_alone, count_one_refusal_too_many, forget_the_step])
def test_a_defect_of_the_rule_is_noticed(
    harm: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    harm(monkeypatch)

    with pytest.raises(AssertionError, match="counts as over"):
        run_all(directory)


def run_all(directory: Path) -> None:
    for seed, groups in enumerate(partitions([SCHEDULER, 0, 1, 2, 3])):
        run_partition(4, groups, directory, seed)
    for seed in range(100, 110):
        run_partition(4, LINK_CUT, directory, seed)
        run_return(directory, seed + 100)


class Trouble(RuleBasedStateMachine):
    """Arbitrary faults at arbitrary times; `Cluster` checks the invariant."""

    @initialize(count=st.integers(1, 5), seed=st.integers(0, 2**20))
    def begin(self, count: int, seed: int) -> None:
        self.directory = TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.cluster = Cluster(count, Path(self.directory.name), Random(seed))
        self.cluster.advance(STEADY_S)

    @rule(seconds=st.sampled_from([1.0, 3.0, 7.0, 15.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    @rule(data=st.data())
    def the_network_falls_apart(self, data: st.DataObject) -> None:
        everyone = [SCHEDULER, *range(len(self.cluster.nodes))]
        colours = data.draw(st.lists(st.integers(0, 2), min_size=len(everyone), max_size=len(everyone)))
        named = list(zip(everyone, colours, strict=True))
        self.cluster.partition([{one for one, colour in named if colour == c} for c in range(3)])

    @rule(data=st.data())
    def one_direction_fails(self, data: st.DataObject) -> None:
        everyone = [SCHEDULER, *range(len(self.cluster.nodes))]
        pairs = list(itertools.permutations(everyone, 2))
        self.cluster.cut |= set(data.draw(st.lists(st.sampled_from(pairs), max_size=3)))

    @rule()
    def the_network_is_whole(self) -> None:
        self.cluster.cut = set()

    @rule()
    def the_scheduler_dies(self) -> None:
        self.cluster.stop_scheduler()

    @rule()
    def the_scheduler_is_back(self) -> None:
        self.cluster.start_scheduler()

    @rule(data=st.data())
    def an_agent_restarts(self, data: st.DataObject) -> None:
        self.cluster.restart_agent(data.draw(st.integers(0, len(self.cluster.nodes) - 1)))

    @rule(data=st.data())
    def a_machine_boots(self, data: st.DataObject) -> None:
        self.cluster.reboot(data.draw(st.integers(0, len(self.cluster.nodes) - 1)))

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.cleanup()


Trouble.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTrouble = Trouble.TestCase

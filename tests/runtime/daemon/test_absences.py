"""Which views nodes may have stored, and how long a lease may still run on a silent node."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gavelpy.errors import JournalCorrupt
from gavelpy.runtime.daemon.config import NodeSettings
from gavelpy.runtime.daemon.nodes.quorum_views import SETTLE_S, Absences
from gavelpy.runtime.quorum import Member

SETTINGS = NodeSettings(silent_after_s=4.0, lease_overlap_s=6.0, lease_margin_s=1.0, orphan_max_s=60.0)
STEP_S = 10.0
A, B, C = (Member(name, f"of {name}", f"{name}:1") for name in "abc")


class Bench:
    """Absences with nodes a, b and c at 10 s, all of which have stored the view of all three."""

    def __init__(self) -> None:
        self.stored = ""
        self.absences = self.restarted(0.0)
        self.update([A, B, C], 1.0)
        for number, member in enumerate((A, B, C)):
            self.absences.connected(member.node_id, member.state_id)
            self.absences.sending(member.node_id, 1, 8.0 + number / 10)
            self.absences.heard(member.node_id, 1, 1)

    def restarted(self, now_s: float) -> Absences:
        """Another scheduler with the stored state of the last one."""
        self.absences = Absences(SETTINGS, self.stored, now_s)
        self.absences.keep = self._keep
        return self.absences

    def update(self, members: list[Member], now_s: float) -> None:
        self.absences.update(members, now_s)
        self.absences.update(members, now_s + SETTLE_S)

    def acknowledge(self, node_id: str, sequence: int, sent_s: float) -> None:
        self.absences.sending(node_id, sequence, sent_s)
        self.absences.heard(node_id, sequence, 1)

    def _keep(self, text: str, done: Callable[[], None]) -> None:
        self.stored = text
        done()


def test_a_view_is_sent_until_it_is_held_and_only_after_it_is_kept() -> None:
    kept: list[Callable[[], None]] = []
    absences = Absences(SETTINGS)
    absences.keep = lambda _, done: kept.append(done)
    absences.connected("a", "of a")
    absences.update([A], 0.0)
    absences.update([A], SETTLE_S)

    before = absences.sending("a", 1, 2.0)
    kept[0]()
    sent, again = absences.sending("a", 2, 3.0), absences.sending("a", 3, 4.0)
    absences.heard("a", 3, 1)
    held = absences.sending("a", 4, 5.0)

    assert before is None
    assert sent is not None
    assert sent.members == (A,)
    assert again == sent
    assert held is None


def test_a_silent_node_without_refusals_may_run_for_as_long_as_orphans() -> None:
    bench = Bench()

    assert bench.absences.runs_until_s("c", promised_s=20.0, received_s=12.0, now_s=30.0) == 20.0 + 60.0


def test_a_silent_node_is_cut_off_when_enough_others_have_heard_the_scheduler_since() -> None:
    bench = Bench()
    bench.acknowledge("a", 2, sent_s=17.1)  # later than received, window and margin
    one = bench.absences.runs_until_s("c", 20.0, 12.0, 18.0)
    bench.acknowledge("b", 2, sent_s=16.9)
    early = bench.absences.runs_until_s("c", 20.0, 12.0, 19.0)
    bench.acknowledge("b", 3, sent_s=18.9)

    both = bench.absences.runs_until_s("c", 20.0, 12.0, 20.0)
    later = bench.absences.runs_until_s("c", 20.0, 12.0, 25.0)

    assert (one, early) == (80.0, 80.0)
    assert both == later == 20.0 + STEP_S


def test_a_lease_is_never_over_before_it_was_promised_to_be() -> None:
    bench = Bench()
    bench.acknowledge("a", 2, 18.0)
    bench.acknowledge("b", 2, 18.0)

    assert bench.absences.runs_until_s("c", 400.0, 12.0, 20.0) == 400.0


def test_after_a_restart_any_stored_view_counts_and_any_acknowledgement_refuses() -> None:
    bench = Bench()
    absences = bench.restarted(100.0)
    alone = absences.runs_until_s("c", 50.0, -math.inf, 110.0)
    for node_id, state_id in (("a", "of a"), ("b", "of b")):
        absences.connected(node_id, state_id)
        bench.acknowledge(node_id, 1, 101.0)

    assert alone == 160.0
    assert absences.runs_until_s("c", 50.0, -math.inf, 111.0) == 111.0 + STEP_S


def test_an_agent_on_a_new_disk_refuses_nothing_for_the_old_one() -> None:
    bench = Bench()
    bench.absences.connected("a", "another disk")
    bench.acknowledge("a", 1, 18.0)
    bench.acknowledge("b", 2, 18.0)

    assert bench.absences.runs_until_s("c", 20.0, 12.0, 20.0) == 80.0


def test_a_view_that_a_silent_node_may_hold_stays_until_the_node_is_heard_or_lost() -> None:
    bench = Bench()
    bench.update([A, B, C, Member("d", "of d", "d:1")], 20.0)
    for name in "ab":
        bench.absences.heard(name, 1, 2)
    bench.update([A, B, C], 30.0)
    while_silent = [view.epoch for view in bench.absences.views]
    for name in "ab":
        bench.absences.heard(name, 1, 3)

    bench.update([A, B], 40.0)

    assert while_silent == [1, 2, 3]
    assert [view.epoch for view in bench.absences.views] == [3, 4]


def test_without_agents_that_may_extend_leases_end_as_promised() -> None:
    assert Absences(SETTINGS).runs_until_s("c", 20.0, 12.0, 30.0) == 20.0


def test_damaged_views_are_refused() -> None:
    with pytest.raises(JournalCorrupt, match="views"):
        Absences(SETTINGS, "{}")

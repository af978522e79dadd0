"""Which views nodes may have stored, and how long a lease may still run on a silent node."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gavelpy.errors import JournalCorrupt
from gavelpy.runtime.daemon.config_sections import NodeSettings
from gavelpy.runtime.daemon.nodes.quorum_views import SETTLE_S, QuorumViews
from gavelpy.runtime.quorum import Member

SETTINGS = NodeSettings(silent_after_s=4.0, lease_overlap_s=6.0, lease_margin_s=1.0, orphan_max_s=60.0)
STEP_S = 10.0
A, B, C = (Member(name, f"of {name}", f"{name}:1") for name in "abc")


class Bench:
    """QuorumViews with nodes a, b and c at 10 s, all of which have stored the view of all three."""

    def __init__(self) -> None:
        self.stored = ""
        self.quorum_views = self.restarted(0.0)
        self.update([A, B, C], 1.0)
        for number, member in enumerate((A, B, C)):
            self.quorum_views.connected(member.node_id, member.state_id)
            self.quorum_views.sending(member.node_id, 1, 8.0 + number / 10)
            self.quorum_views.acknowledged(member.node_id, 1, 1)

    def restarted(self, now_s: float) -> QuorumViews:
        """Another scheduler with the stored state of the last one."""
        self.quorum_views = QuorumViews(SETTINGS, self.stored, now_s)
        self.quorum_views.keep = self._keep
        return self.quorum_views

    def update(self, members: list[Member], now_s: float) -> None:
        self.quorum_views.update(members, now_s)
        self.quorum_views.update(members, now_s + SETTLE_S)

    def acknowledge(self, node_id: str, sequence: int, sent_s: float) -> None:
        self.quorum_views.sending(node_id, sequence, sent_s)
        self.quorum_views.acknowledged(node_id, sequence, 1)

    def _keep(self, text: str, done: Callable[[], None]) -> None:
        self.stored = text
        done()


def test_a_view_is_sent_until_it_is_held_and_only_after_it_is_kept() -> None:
    kept: list[Callable[[], None]] = []
    quorum_views = QuorumViews(SETTINGS)
    quorum_views.keep = lambda _, done: kept.append(done)
    quorum_views.connected("a", "of a")
    quorum_views.update([A], 0.0)
    quorum_views.update([A], SETTLE_S)

    before = quorum_views.sending("a", 1, 2.0)
    kept[0]()
    sent, again = quorum_views.sending("a", 2, 3.0), quorum_views.sending("a", 3, 4.0)
    quorum_views.acknowledged("a", 3, 1)
    held = quorum_views.sending("a", 4, 5.0)

    assert before is None
    assert sent is not None
    assert sent.members == (A,)
    assert again == sent
    assert held is None


def test_an_unreachable_node_without_refusals_may_run_for_as_long_as_orphans() -> None:
    bench = Bench()

    assert bench.quorum_views.runs_until_s("c", promised_s=20.0, received_s=12.0, now_s=30.0) == 20.0 + 60.0


def test_an_unreachable_node_is_cut_off_when_enough_others_had_contact_with_the_scheduler_since() -> None:
    bench = Bench()
    bench.acknowledge("a", 2, sent_s=17.1)  # later than received, window and margin
    one = bench.quorum_views.runs_until_s("c", 20.0, 12.0, 18.0)
    bench.acknowledge("b", 2, sent_s=16.9)
    early = bench.quorum_views.runs_until_s("c", 20.0, 12.0, 19.0)
    bench.acknowledge("b", 3, sent_s=18.9)

    both = bench.quorum_views.runs_until_s("c", 20.0, 12.0, 20.0)
    later = bench.quorum_views.runs_until_s("c", 20.0, 12.0, 25.0)

    assert (one, early) == (80.0, 80.0)
    assert both == later == 20.0 + STEP_S


def test_a_lease_is_never_over_before_it_was_promised_to_be() -> None:
    bench = Bench()
    bench.acknowledge("a", 2, 18.0)
    bench.acknowledge("b", 2, 18.0)

    assert bench.quorum_views.runs_until_s("c", 400.0, 12.0, 20.0) == 400.0


def test_after_a_restart_any_stored_view_counts_and_any_acknowledgement_refuses() -> None:
    bench = Bench()
    quorum_views = bench.restarted(100.0)
    alone = quorum_views.runs_until_s("c", 50.0, -math.inf, 110.0)
    for node_id, state_id in (("a", "of a"), ("b", "of b")):
        quorum_views.connected(node_id, state_id)
        bench.acknowledge(node_id, 1, 101.0)

    assert alone == 160.0
    assert quorum_views.runs_until_s("c", 50.0, -math.inf, 111.0) == 111.0 + STEP_S


def test_an_agent_on_a_new_disk_refuses_nothing_for_the_old_one() -> None:
    bench = Bench()
    bench.quorum_views.connected("a", "another disk")
    bench.acknowledge("a", 1, 18.0)
    bench.acknowledge("b", 2, 18.0)

    assert bench.quorum_views.runs_until_s("c", 20.0, 12.0, 20.0) == 80.0


def test_a_view_that_an_unreachable_node_may_have_stays_until_the_node_reports_or_is_lost() -> None:
    bench = Bench()
    bench.update([A, B, C, Member("d", "of d", "d:1")], 20.0)
    for name in "ab":
        bench.quorum_views.acknowledged(name, 1, 2)
    bench.update([A, B, C], 30.0)
    while_silent = [view.epoch for view in bench.quorum_views.views]
    for name in "ab":
        bench.quorum_views.acknowledged(name, 1, 3)

    bench.update([A, B], 40.0)

    assert while_silent == [1, 2, 3]
    assert [view.epoch for view in bench.quorum_views.views] == [3, 4]


def test_without_agents_that_may_extend_leases_end_as_promised() -> None:
    assert QuorumViews(SETTINGS).runs_until_s("c", 20.0, 12.0, 30.0) == 20.0


def test_damaged_views_are_refused() -> None:
    with pytest.raises(JournalCorrupt, match="views"):
        QuorumViews(SETTINGS, "{}")

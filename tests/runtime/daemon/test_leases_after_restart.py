"""The lease table after a restart of the core, and after nodes reconnect."""

from __future__ import annotations

import pytest

from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.leases.lease import Wish
from gavelpy.runtime.daemon.leases.table import LeaseTable
from tests.runtime.daemon.table_builders import PATIENCE, Bench, ended, names, part


@pytest.mark.parametrize("is_running", [False, True])
def test_a_restarted_scheduler_orders_what_its_core_knows(is_running: bool) -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", *([part(0, 0)] if is_running else []))

    table = bench.table = LeaseTable(bench.core, PATIENCE)
    table.rebuild()

    assert bench.wishes("n0") == {0: Wish.RUN}
    assert table.leases[0].is_started is is_running


def test_a_restarted_scheduler_holds_back_what_was_held_back() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))
    bench.wake(100.0)

    bench.table = LeaseTable(bench.core, PATIENCE)
    bench.table.rebuild()
    before = bench.wishes("n0")
    bench.say("n0", ended(0, 0, steps_saved=900.0))

    assert before == {0: Wish.STOP}
    assert bench.wishes("n0") == {1: Wish.RUN}


def test_time_that_only_the_date_vouches_for_is_added_to_what_was_promised() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.table = LeaseTable(bench.core, PATIENCE)

    bench.table.rebuild(slack_s=50.0)

    assert bench.table.leases[0].promised_s == 100.0 + PATIENCE.unsaved_overlap_s + 50.0


def test_a_node_that_comes_back_is_believed_about_what_it_runs() -> None:
    bench = Bench(("n0", 2))
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))
    bench.table = LeaseTable(bench.core, PATIENCE)
    bench.table.rebuild()

    bench.say("n0", part(0, 0, steps_done=5.0))  # the other order never reached it
    event = bench.table.rejoined(NodeId("n0"))
    bench.tell(event)

    assert event.leases.tolist() == [0]
    assert event.steps_done.tolist() == [5.0]
    assert bench.core.jobs.state[:2].tolist() == [JobState.RUNNING, JobState.WAITING]
    assert bench.wishes("n0") == {0: Wish.RUN, 1: Wish.KILL}


def test_a_lease_keeps_its_gpus_when_the_core_has_given_it_up() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.table = LeaseTable(bench.core, PATIENCE)
    bench.table.rebuild()
    bench.tell(bench.table.rejoined(NodeId("n0")))  # nothing runs there: the core ends the lease

    told = bench.say("n0", part(0, 0))  # the order was in transit

    assert names(told) == ["LeaseStarted"]
    assert bench.wishes("n0") == {0: Wish.KILL}

"""Late reports about leases presumed lost: collected over all nodes of a lease, and across restarts."""

from __future__ import annotations

from gavelpy.mechanism.events import LeaseEnded, NodeLost, NodeUnreachable, Outcome
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.leases.lease import Phase, Wish
from gavelpy.runtime.daemon.leases.table import LeaseTable
from tests.runtime.daemon.table_builders import PATIENCE, Bench, ended, names, part

SURELY_OVER_S = PATIENCE.surely_over_s(100.0 + PATIENCE.overlap_s)


def make_bench(*nodes: tuple[str, int], gpus: int = 1) -> Bench:
    """A job under lease 0, which runs on n0, or on n0 and n1."""
    bench = Bench(*nodes, late_ends=True)
    bench.submit("a", gpus=gpus)
    bench.wake()
    on = ["n0", "n1"][:gpus]
    for phase in (Phase.PREPARED, Phase.RUNNING) if gpus > 1 else (Phase.RUNNING,):
        for node in on:
            bench.orders(node)
            bench.say(node, part(0, 0, phase, rendezvous_port=4711))
    return bench


def silence(bench: Bench, node: str) -> None:
    """A node is silent until its leases are certainly over."""
    bench.tell(NodeUnreachable(NodeId(node)))
    bench.wake(101.0)
    bench.now_s = SURELY_OVER_S + 1.0
    bench.table.expire(bench.now_s, [NodeId(node)])
    bench.settle()


def restart(bench: Bench) -> None:
    """Starts another scheduler on the same core."""
    bench.table = LeaseTable(bench.core, PATIENCE)
    bench.table.rebuild()


def test_a_job_that_finished_while_its_node_was_unreachable_is_finished() -> None:
    bench = make_bench(("n0", 1))
    silence(bench, "n0")

    told = bench.say("n0", ended(0, 0, Outcome.FINISHED, detail="all ranks exited with code 0"))

    assert names(told) == ["JobAnnotated", "LeaseEnded"]
    assert bench.core.jobs.state[0] == JobState.FINISHED


def test_a_node_keeps_its_record_until_the_lease_is_closed() -> None:
    bench = make_bench(("n0", 1))
    silence(bench, "n0")
    finished = ended(0, 0, Outcome.FINISHED)

    bench.table.reported(NodeId("n0"), [finished], bench.now_s)
    before = list(bench.table.forgotten(NodeId("n0")))
    bench.settle()
    again = bench.say("n0", finished)

    assert before in ([], [0])  # known, and about to be written to the journal
    assert again == []
    assert bench.table.forgotten(NodeId("n0")) == [0]


def test_a_late_finish_calls_off_the_next_lease() -> None:
    bench = make_bench(("n0", 1), ("n1", 1))
    silence(bench, "n0")
    bench.wake(bench.now_s + 1.0)
    first, other = ("n0", "n1")
    assert bench.wishes(other) == {1: Wish.RUN}
    bench.say(other, part(1, 0))

    bench.say(first, ended(0, 0, Outcome.FINISHED))

    assert bench.core.jobs.state[0] == JobState.FINISHED
    assert bench.wishes(other) == {1: Wish.KILL}


def test_a_gang_has_finished_when_every_node_has_said_so() -> None:
    bench = make_bench(("n0", 1), ("n1", 1), gpus=2)
    bench.say("n0", ended(0, 0, Outcome.FINISHED))
    silence(bench, "n1")
    assert bench.core.jobs.state[0] == JobState.WAITING
    kept = bench.say("n0", ended(0, 0, Outcome.FINISHED))

    bench.say("n1", ended(0, 0, Outcome.FINISHED))

    assert kept == []
    assert bench.core.jobs.state[0] == JobState.FINISHED


def test_a_gang_of_which_one_node_is_dead_has_not_finished() -> None:
    bench = make_bench(("n0", 1), ("n1", 1), gpus=2)
    bench.tell(NodeLost(NodeId("n1")))
    bench.table.lost(NodeId("n1"), 10.0, "dead")

    told = bench.say("n0", ended(0, 0, Outcome.FINISHED))
    restart(bench)
    told += bench.say("n0", ended(0, 0, Outcome.FINISHED))

    assert [event.outcome for event in told if isinstance(event, LeaseEnded)] == [Outcome.LOST]
    assert bench.table.forgotten(NodeId("n0")) == []


def test_a_restarted_scheduler_does_not_forget_the_node_of_a_gang_that_was_lost() -> None:
    bench = make_bench(("n0", 1), ("n1", 1), gpus=2)
    bench.tell(NodeLost(NodeId("n1")))
    restart(bench)

    told = bench.say("n0", ended(0, 0, Outcome.FINISHED))

    assert [event.outcome for event in told if isinstance(event, LeaseEnded)] == [Outcome.LOST]


def test_the_ends_of_a_lost_gang_are_collected_again_after_a_restart() -> None:
    bench = make_bench(("n0", 1), ("n1", 1), gpus=2)
    bench.say("n0", ended(0, 0, Outcome.FINISHED))
    silence(bench, "n1")
    restart(bench)

    bench.say("n1", ended(0, 0, Outcome.FINISHED))
    before = bench.core.jobs.state[0]
    bench.say("n0", ended(0, 0, Outcome.FINISHED))

    assert before == JobState.WAITING
    assert bench.core.jobs.state[0] == JobState.FINISHED


def test_what_a_node_recorded_outranks_an_inference_that_is_not_in_the_journal_yet() -> None:
    bench = make_bench(("n0", 1))
    bench.tell(NodeUnreachable(NodeId("n0")))
    bench.now_s = SURELY_OVER_S + 1.0
    bench.table.expire(bench.now_s, [NodeId("n0")])

    told = bench.say("n0", ended(0, 0, Outcome.FINISHED))

    assert [event.outcome for event in told if isinstance(event, LeaseEnded)] == [Outcome.FINISHED]


def test_what_a_node_recorded_counts_while_the_inference_is_on_its_way_into_the_journal() -> None:
    bench = make_bench(("n0", 1))
    bench.tell(NodeUnreachable(NodeId("n0")))
    bench.now_s = SURELY_OVER_S + 1.0
    bench.table.expire(bench.now_s, [NodeId("n0")])
    on_its_way = bench.table.drain()
    bench.table.reported(NodeId("n0"), [ended(0, 0, Outcome.FINISHED)], bench.now_s)

    for event in on_its_way:
        bench.tell(event)
    bench.settle()

    assert bench.core.jobs.state[0] == JobState.FINISHED


def test_a_loss_that_the_node_confirms_is_forgotten() -> None:
    bench = make_bench(("n0", 1))
    silence(bench, "n0")

    told = bench.say("n0", ended(0, 0, Outcome.LOST))

    assert told == []
    assert bench.table.forgotten(NodeId("n0")) == [0]

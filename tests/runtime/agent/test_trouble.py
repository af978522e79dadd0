"""A failing state directory: the node continues, reports the failure, and executes its orders when it can."""

from __future__ import annotations

from gavelpy.runtime.agent.connection import TROUBLE_CHARACTERS_MAX, trouble_of
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, until


def test_node_reports_a_failing_state_directory_until_it_works(peer: Peer, node: Node) -> None:
    until(lambda: peer.heard)
    obstacle = node.state / "leases" / ".new-00000042"
    obstacle.write_text("a file where a directory must be made")
    peer.order(order(42, "sleep 100"))

    told = until(lambda: peer.heard[-1].trouble)
    obstacle.unlink()

    assert told.startswith("the state directory cannot be used: Not a directory")
    peer.until_phase(42, pb.LEASE_PHASE_RUNNING)
    until(lambda: not peer.heard[-1].trouble)


def test_lease_that_the_disk_refuses_keeps_no_other_waiting(peer: Peer, node: Node) -> None:
    until(lambda: peer.heard)
    obstacle = node.state / "leases" / ".new-00000042"
    obstacle.write_text("a file where a directory must be made")

    peer.order(order(42, "sleep 100", job=1))
    peer.order(order(43, "true", job=2, gpus=(1,)))

    assert peer.until_phase(43, pb.LEASE_PHASE_ENDED).outcome == pb.LEASE_OUTCOME_FINISHED
    assert peer.heard[-1].trouble
    assert peer.report(42) is None


def test_job_that_removes_the_directory_of_its_lease_is_stopped_as_any_other(peer: Peer, node: Node) -> None:
    removes = "cd /; until test -e $GAVEL_LEASE_DIR/go; do sleep 0.05; done; rm -r $GAVEL_LEASE_DIR; exec sleep 100"
    peer.order(order(1, f"sh -c '{removes}'"))
    peer.until_phase(1, pb.LEASE_PHASE_RUNNING)
    (node.lease(1) / "go").touch()
    until(lambda: "was removed: recreated" in node.log.read_text())

    peer.wish(1, pb.LEASE_WISH_STOP)

    assert peer.until_phase(1, pb.LEASE_PHASE_ENDED).outcome == pb.LEASE_OUTCOME_STOPPED
    assert not peer.heard[-1].trouble


def test_checkpoints_that_cannot_be_read_keep_no_lease_from_ending(peer: Peer, node: Node) -> None:
    ruins = "rmdir $GAVEL_CHECKPOINT_DIR; ln -s $GAVEL_CHECKPOINT_DIR $GAVEL_CHECKPOINT_DIR"
    peer.order(order(1, f"sh -c '{ruins}'"))

    assert peer.until_phase(1, pb.LEASE_PHASE_ENDED).outcome == pb.LEASE_OUTCOME_FINISHED
    assert "cannot read checkpoints" in node.log.read_text()


def test_impossible_progress_is_not_reported(peer: Peer, node: Node) -> None:
    says = 'echo {\\"steps_done\\": -5, \\"steps_saved\\": -7} > $GAVEL_LEASE_DIR/progress.0.json; exec sleep 100'
    peer.order(order(1, f"sh -c '{says}'"))
    until(lambda: "steps_done must be in [0, 1e+15], got -5.0" in node.log.read_text())

    report = peer.until_phase(1, pb.LEASE_PHASE_RUNNING)
    peer.wish(1, pb.LEASE_WISH_STOP)
    end = peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    assert min(report.steps_done, report.steps_saved, end.steps_done, end.steps_saved) >= 0


def test_disk_error_is_reported_in_bounded_length() -> None:
    told = trouble_of(OSError(28, "No space left on device", "/a\nb" + "x" * 1_000))

    assert told.startswith("the state directory cannot be used: No space left on device ('/a\\nbxx")
    assert told.isprintable()
    assert len(told) == TROUBLE_CHARACTERS_MAX

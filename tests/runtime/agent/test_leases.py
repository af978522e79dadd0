"""A real agent with its shims and jobs, controlled by the orders of a peer."""

from __future__ import annotations

import sys

from gavelpy.runtime import lease_files
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, until

SLEEP = "sleep 100"
RUNNING, ENDED = pb.LEASE_PHASE_RUNNING, pb.LEASE_PHASE_ENDED


def test_job_that_exits_with_zero_has_finished(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, "true", job=7, steps_done=10, steps_total=50))

    report = peer.until_phase(1, ENDED)

    assert (report.job, report.outcome, report.exit_code) == (7, pb.LEASE_OUTCOME_FINISHED, 0)
    assert (report.steps_done, report.steps_saved) == (50, 10)


def test_failed_job_is_reported_with_its_exit_code(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, f"{sys.executable} -c 'raise SystemExit(3)'"))

    report = peer.until_phase(1, ENDED)

    assert (report.outcome, report.exit_code, report.detail) == (
        pb.LEASE_OUTCOME_FAILED,
        3,
        "rank 0 exited with code 3",
    )


def test_stopped_job_ends_gracefully(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, SLEEP))
    peer.until_phase(1, RUNNING)

    peer.wish(1, pb.LEASE_WISH_STOP)

    assert peer.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_STOPPED


def test_lease_that_is_not_extended_ends(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, SLEEP, seconds=1.5))

    assert peer.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_STOPPED


def test_lease_that_is_not_in_the_orders_is_killed(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, SLEEP))
    peer.until_phase(1, RUNNING)

    peer.drop(1)

    assert "killed by order" in peer.until_phase(1, ENDED).detail


def test_gpus_are_given_on_only_when_the_older_lease_has_ended(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    stubborn = f"{sys.executable} -c 'import signal, time; signal.signal(15, print); time.sleep(100)'"
    peer.order(order(1, stubborn, job=1, gpus=(0, 1), grace_s=1.0))
    peer.until_phase(1, RUNNING)
    peer.order(order(2, SLEEP, job=2, gpus=(1, 2)))
    peer.until_heard_anew()
    assert peer.report(2) is None

    peer.wish(1, pb.LEASE_WISH_STOP)
    peer.until_phase(2, RUNNING)

    assert peer.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_STOPPED


def test_unknown_working_directory_is_named(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, SLEEP, working_directory="/no/such/place"))

    report = peer.until_phase(1, ENDED)

    assert report.outcome == pb.LEASE_OUTCOME_FAILED
    assert "'/no/such/place' does not exist on node n0" in report.detail


def test_command_that_no_shell_would_take_spoils_its_lease_only(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, "echo 'unfinished", job=1))
    peer.order(order(2, "true", job=2))

    assert "quoted" in peer.until_phase(1, ENDED).detail
    assert peer.until_phase(2, ENDED).outcome == pb.LEASE_OUTCOME_FINISHED


def test_ended_lease_is_reported_until_it_is_forgotten_and_keeps_its_log(shared: tuple[Peer, Node]) -> None:
    peer, node = shared
    peer.order(order(1, "echo hello"))
    peer.until_phase(1, ENDED)
    peer.until_heard_anew()
    assert peer.report(1) is not None

    peer.drop(1)
    peer.forget = [1]
    peer.push()
    until(lambda: peer.report(1) is None)

    assert not node.lease(1).exists()
    assert "hello" in (node.state / "ended" / "00000001" / "log" / "rank-0.out").read_text()


def test_order_for_an_unknown_lease_is_answered_by_lost(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    unknown = order(1, SLEEP)
    unknown.ClearField("launch")

    peer.order(unknown)

    assert peer.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_LOST


def test_gang_is_prepared_before_it_runs(shared: tuple[Peer, Node]) -> None:
    peer, node = shared
    prepared = order(1, "env", gpus=(2, 3), wish=pb.LEASE_WISH_PREPARE, node_count=2, world_size=4)
    peer.order(prepared)
    reserved = peer.until_phase(1, pb.LEASE_PHASE_PREPARED).rendezvous_port

    prepared.launch.rendezvous_port, prepared.launch.rendezvous_address = reserved, "10.0.0.9"
    peer.wish(1, pb.LEASE_WISH_RUN)
    peer.until_phase(1, ENDED)

    assert reserved > 0
    assert f"MASTER_PORT={reserved}\n" in node.log_text(1)
    assert "MASTER_ADDR=10.0.0.9\n" in node.log_text(1)


def test_prepared_lease_that_is_called_off_frees_its_gpus(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, SLEEP, job=1, wish=pb.LEASE_WISH_PREPARE, node_count=2, world_size=2))
    peer.until_phase(1, pb.LEASE_PHASE_PREPARED)

    peer.wish(1, pb.LEASE_WISH_STOP)
    peer.order(order(2, SLEEP, job=2))

    assert peer.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_STOPPED
    peer.until_phase(2, RUNNING)


def test_ranks_get_their_rank_variables(shared: tuple[Peer, Node]) -> None:
    peer, node = shared
    peer.order(order(1, "env", gpus=(1, 3), first_rank=0, environment={"MINE": "1", "GAVEL_LEASE": "99", "RANK": "9"}))
    peer.until_phase(1, ENDED)

    first, second = (node.log_text(1, rank) for rank in (0, 1))

    assert "RANK=0\n" in first
    assert "RANK=1\n" in second
    assert "WORLD_SIZE=2\n" in second
    assert "CUDA_VISIBLE_DEVICES=1,3\n" in first
    assert "MINE=1\n" in first
    assert "GAVEL_LEASE=1\n" in first


def test_steps_of_a_job_that_does_not_report_are_estimated_from_time(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(1, SLEEP, steps_done=100, rate_steps_per_s=1000))

    until(lambda: (report := peer.report(1)) and report.steps_done > 200)

    report = peer.report(1)
    assert report is not None
    assert (report.steps_saved, report.by_time) == (100, True)


def test_job_with_a_missing_checkpoint_fails_and_names_its_directory(shared: tuple[Peer, Node]) -> None:
    peer, node = shared
    peer.order(order(1, "true", job=4, steps_done=70, resume_lease=3, resume_steps=70))

    ended = peer.until_phase(1, ENDED)

    assert (ended.outcome, ended.steps_saved) == (pb.LEASE_OUTCOME_FAILED, 70)
    assert f"with 70 steps or more in {node.checkpoints}/4/lease-00000003, where there is none" in ended.detail
    assert not (node.lease(1) / lease_files.LAUNCH_FILE).exists()

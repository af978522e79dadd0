"""Crashes, freezes, disconnects and corrupt messages: the node continues, and no job runs twice or too long."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.shim import processes
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, serving, until

SLEEP = "sleep 100"
EDGE_S = 3.0
RUNNING, ENDED, LOST = pb.LEASE_PHASE_RUNNING, pb.LEASE_PHASE_ENDED, pb.LEASE_OUTCOME_LOST


def alive(process: int) -> bool:
    return processes.process_facts(process) is not None


def test_restarted_agent_continues_with_its_leases(peer: Peer, make_node: Callable[..., Node]) -> None:
    node = make_node()
    peer.order(order(1, SLEEP, job=1))
    peer.order(order(2, "sleep 0.5", job=2, gpus=(1,)))
    peer.until_phase(1, RUNNING)
    peer.until_phase(2, RUNNING)
    before = node.shim(1)

    node.send(signal.SIGKILL)
    until(lambda: lease_files.read_end(node.lease(2)))
    node.start()
    until(lambda: len(peer.nodes) == 2)

    assert peer.until_phase(2, ENDED).outcome == pb.LEASE_OUTCOME_FINISHED
    assert peer.until_phase(1, RUNNING).shim_process == before.process
    assert node.shim(1).process == before.process
    assert [said.confirmed_dead for said in peer.nodes] == [False, True]
    peer.wish(1, pb.LEASE_WISH_STOP)
    assert peer.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_STOPPED


def test_agent_that_leaves_leaves_its_jobs_running(peer: Peer, node: Node) -> None:
    peer.order(order(1, SLEEP))
    peer.until_phase(1, RUNNING)

    assert node.send(signal.SIGTERM) == 0

    assert processes.is_shim_alive(node.shim(1))


def test_agent_that_stops_jobs_on_exit_reports_how_they_ended(peer: Peer, make_node: Callable[..., Node]) -> None:
    node = make_node("--stop-jobs-on-exit")
    peer.order(order(1, SLEEP))
    peer.until_phase(1, RUNNING)

    assert node.process is not None
    node.process.terminate()

    assert peer.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_STOPPED
    assert peer.heard[-1].draining
    peer.orders.clear()
    peer.forget = [1]
    peer.push()
    assert node.process.wait(60) == 0


def test_job_of_a_killed_shim_dies_and_is_lost(peer: Peer, node: Node) -> None:
    peer.order(order(1, f'{sys.executable} -c \'import subprocess; subprocess.run(["setsid", "sleep", "100"])\''))
    peer.until_phase(1, RUNNING)
    shim = node.shim(1)
    until(lambda: len(processes.lease_processes(shim, node.lease(1))) == 2)

    os.kill(shim.process, signal.SIGKILL)

    assert peer.until_phase(1, ENDED).outcome == LOST
    assert processes.lease_processes(shim, node.lease(1)) == ()


def test_shim_killed_while_the_agent_was_dead_is_lost_and_its_gpus_are_free(peer: Peer, node: Node) -> None:
    peer.order(order(1, SLEEP, job=1))
    peer.until_phase(1, RUNNING)
    node.send(signal.SIGKILL)

    os.kill(node.shim(1).process, signal.SIGKILL)
    node.start()
    peer.order(order(2, SLEEP, job=2))

    assert peer.until_phase(1, ENDED).outcome == LOST
    peer.until_phase(2, RUNNING)


def test_job_of_a_frozen_shim_is_killed_when_its_time_and_grace_are_over(peer: Peer, node: Node) -> None:
    peer.order(order(1, SLEEP, grace_s=0.2, seconds=EDGE_S))
    peer.until_running_on_the_edge(1, EDGE_S)
    shim = node.shim(1)

    os.kill(shim.process, signal.SIGSTOP)

    assert peer.until_phase(1, ENDED).outcome == LOST
    assert not alive(shim.process)
    assert processes.lease_processes(shim, node.lease(1)) == ()


def test_frozen_agent_starts_nothing_from_an_order_whose_time_is_over(peer: Peer, node: Node) -> None:
    until(lambda: peer.nodes)
    peer.until_heard_anew()
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)

    late = order(1, SLEEP, seconds=0.2)
    peer.order(late)
    until(lambda: lease_files.clock_s() > late.until_clock_s)
    node.process.send_signal(signal.SIGCONT)

    assert "over before it could start" in peer.until_phase(1, ENDED).detail
    assert not (node.lease(1) / lease_files.LAUNCH_FILE).exists()


def test_jobs_run_on_while_the_scheduler_is_away_and_end_with_their_leases(
    make_node: Callable[..., Node], kept_port: int
) -> None:
    first, second = Peer(), Peer()
    with serving(first, kept_port):
        node = make_node(scheduler=f"127.0.0.1:{kept_port}")
        first.order(order(1, SLEEP, seconds=EDGE_S))
        first.until_running_on_the_edge(1, EDGE_S)

    end = until(lambda: lease_files.read_end(node.lease(1)))
    second.incarnation = 2
    with serving(second, kept_port):
        assert second.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_STOPPED
    assert end.at_clock_s > first.orders[1].until_clock_s - EDGE_S / 2  # long after the scheduler was gone


def test_repeated_and_older_orders_change_nothing(peer: Peer, node: Node) -> None:
    until(lambda: peer.nodes)
    empty = peer.response()
    peer.order(order(1, SLEEP))
    peer.until_phase(1, RUNNING)
    shim = node.shim(1)

    peer.say(empty)  # would kill the lease
    peer.push()
    peer.push()
    peer.until_heard_anew(3)

    assert peer.until_phase(1, RUNNING).shim_process == shim.process


def test_orders_of_an_older_scheduler_are_ignored_even_by_a_new_agent(peer: Peer, node: Node) -> None:
    peer.incarnation = 5
    peer.order(order(1, SLEEP))
    peer.until_phase(1, RUNNING)
    node.send(signal.SIGKILL)

    peer.incarnation = 4
    peer.orders.clear()
    node.start()
    until(lambda: len(peer.nodes) == 2)
    peer.until_heard_anew(3)

    peer.until_phase(1, RUNNING)
    assert "orders of an older scheduler" in node.log.read_text()


@pytest.mark.parametrize(
    "garbage",
    [
        pb.ConnectResponse(sequence=1 << 60, incarnation=9, api_version=77),
        pb.ConnectResponse(sequence=1 << 60, incarnation=9, leases=[pb.LeaseOrder(lease=1, job=0)]),
        pb.ConnectResponse(
            sequence=1 << 60, incarnation=9, leases=[pb.LeaseOrder(lease=-1, wish=pb.LEASE_WISH_RUN, until_clock_s=1.0)]
        ),
        pb.ConnectResponse(
            sequence=1 << 60,
            incarnation=9,
            leases=[pb.LeaseOrder(lease=1, wish=pb.LEASE_WISH_RUN, until_clock_s=float("nan"))],
        ),
    ],
    ids=["version", "wish", "lease", "time"],
)
def test_message_that_breaks_the_protocol_ends_the_stream_and_nothing_else(
    garbage: pb.ConnectResponse, shared: tuple[Peer, Node]
) -> None:
    peer, _ = shared
    peer.order(order(1, SLEEP))
    peer.until_phase(1, RUNNING)
    streams = len(peer.nodes)

    peer.say(garbage)
    until(lambda: len(peer.nodes) > streams)

    peer.until_heard_anew()
    assert peer.until_phase(1, RUNNING).lease == 1


def test_scheduler_that_hangs_up_is_called_again(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    streams = len(peer.nodes)

    peer.hang_up()

    until(lambda: len(peer.nodes) > streams)


def test_damaged_lease_directory_is_put_aside(peer: Peer, make_node: Callable[..., Node]) -> None:
    node = make_node(start=False)
    damaged = node.lease(3)
    damaged.mkdir(parents=True)
    (damaged / "assignment.json").write_text("{")

    node.start()
    peer.order(order(1, "true"))

    assert peer.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_FINISHED
    assert not damaged.exists()
    assert len(list((node.state / "damaged").iterdir())) == 1


def test_garbage_in_a_lease_directory_harms_its_own_job_only(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    mess = "cd $GAVEL_LEASE_DIR; echo { > end.json; echo 7 > progress.0.json; mkfifo pipe; mv pipe shim.json; sleep 9"
    peer.order(order(1, f"sh -c '{mess}'", job=1))
    until(lambda: peer.report(1))
    peer.order(order(2, "true", job=2, gpus=(1,)))

    assert peer.until_phase(2, ENDED).outcome == pb.LEASE_OUTCOME_FINISHED
    peer.wish(1, pb.LEASE_WISH_KILL)
    peer.until_phase(1, ENDED)


def test_process_that_cannot_be_in_the_word_of_a_shim_is_no_process(shared: tuple[Peer, Node]) -> None:
    peer, node = shared
    peer.order(order(1, SLEEP, job=1))
    peer.until_phase(1, RUNNING)

    lease_files.write_shim(node.lease(1), replace(node.shim(1), process=1 << 62))
    until(lambda: "shim.json: process must be in [0, 4194304]" in node.log.read_text())
    peer.order(order(2, "true", job=2, gpus=(1,)))

    assert peer.until_phase(2, ENDED).outcome == pb.LEASE_OUTCOME_FINISHED
    peer.wish(1, pb.LEASE_WISH_KILL)
    peer.until_phase(1, ENDED)


def test_complete_checkpoint_counts_although_its_job_died_before_reporting_it(peer: Peer, node: Node) -> None:
    saves = "sh -c 'mkdir -p $GAVEL_CHECKPOINT_DIR/step-000000000082; echo saved; sleep 60'"
    peer.order(order(1, saves, steps_total=120))
    peer.until_phase(1, RUNNING)
    until(lambda: "saved" in node.log_text(1))

    os.kill(node.shim(1).process, signal.SIGKILL)

    assert peer.until_phase(1, ENDED).steps_saved == 82

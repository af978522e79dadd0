"""Nodes that are drained, cut off or lack the shared checkpoints: where their jobs run, and which steps count."""

from __future__ import annotations

import signal
import time

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.stage import Settings, Stage, StartStage

V100 = {"v100": 40.0}
MANY = 4_000.0  # more steps than the test waits for: jobs hurry at its end
QUIET_S = 6.0  # three times the time after which a single node is declared silent

FENCING: Settings = {
    "nodes": {"on_node_lost": "fence", "silent_after_s": 1.0},
    "mechanism": {"round_s": 60.0},
}


@pytest.mark.slow
def test_with_fencing_a_copy_starts_at_once_and_only_the_copy_counts(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), LocalNode("n1", "v100:1"), settings=FENCING)
    job = stage.submit_witness("fenced", MANY, V100)
    first = stage.wait_saved(job)
    [frozen] = first.node_ids
    stage.signal_node(frozen, signal.SIGSTOP)

    stage.wait(lambda: stage.job(job).lease > first.lease, "another lease is granted")
    second = stage.job(job)
    stage.wait(lambda: is_saved_by(stage, second), "the copy has saved")
    is_frozen_still_there = not stage.is_idle(frozen)
    stage.signal_node(frozen, signal.SIGCONT)
    stage.wait(lambda: stage.is_idle(frozen), "the old copy is gone")
    is_copy_at_work = stage.job(job).state == pb.JOB_STATE_RUNNING
    is_its_checkpoint_in_force = is_saved_by(stage, second)
    stage.hurry()
    stage.wait_over(job)

    assert list(second.node_ids) != [frozen]
    assert is_frozen_still_there
    assert is_copy_at_work
    assert is_its_checkpoint_in_force
    assert [line.lease for line in stage.lines(job, "finished")] == [second.lease]
    assert stage.job(job).state == pb.JOB_STATE_FINISHED
    assert stage.job(job).steps_done == MANY


def is_saved_by(stage: Stage, granted: pb.Job) -> bool:
    """Whether the checkpoint to be resumed is of this lease."""
    return f"lease-{granted.lease:08d}" in stage.explained(granted.job).checkpoint


def test_drained_node_hands_its_job_over_without_losing_a_step(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), LocalNode("n1", "v100:1"))
    job = stage.submit_witness("moved", MANY, V100)
    first = stage.wait_saved(job)
    [drained] = first.node_ids

    stage.wish(drained, pb.NODE_WISH_DRAIN)
    stage.wait_elsewhere(first)
    stage.hurry()
    stage.wait_over(job)

    lines = stage.lines(job)
    [stop] = [line for line in lines if line.kind == "stopped" and line.node == drained][-1:]
    [begin] = [line for line in lines if line.kind == "began" and line.node != drained]
    assert begin.steps == stop.steps
    assert stage.job(job).state == pb.JOB_STATE_FINISHED
    assert stage.node(drained).state == "drained"
    assert not evidence.double_jobs(evidence.stays(lines))


def test_node_without_the_checkpoints_is_no_target_for_a_job_that_has_one(start: StartStage) -> None:
    stage = start(LocalNode("n0", "k80:1"), settings={"mechanism": {"round_s": 1.0}})
    rates = {"k80": 20.0, "v100": 200.0}
    settled = stage.submit_witness("settled", MANY, rates)
    stage.wait_saved(settled)

    stage.cluster.start_agent(LocalNode("n1", "v100:1", sees_checkpoints=False))
    stage.wait(lambda: stage.cluster.nodes_up() == 2, "the faster node is up")
    round = stage.policy().round
    stage.wait(lambda: stage.policy().round >= round + 2, "two rounds have begun since")
    newcomer = stage.submit_witness("newcomer", 200.0, {"v100": 200.0})
    stage.wait_over(newcomer)
    stage.hurry()
    stage.wait_over(settled)

    assert {line.node for line in stage.lines(settled)} == {"n0"}
    assert {line.node for line in stage.lines(newcomer)} == {"n1"}
    assert stage.job(settled).state == pb.JOB_STATE_FINISHED
    assert stage.job(newcomer).state == pb.JOB_STATE_FINISHED
    assert not stage.node("n1").sees_checkpoints


@pytest.mark.slow
def test_silence_of_all_nodes_at_once_costs_no_lease(start: StartStage) -> None:
    """All agents are stopped for longer than `silent_after_s`, as when a switch or the scheduler's network fails."""
    names = ("n0", "n1")
    settings = {"nodes": {"silent_after_s": 2.0, "lease_overlap_s": 30.0}, "mechanism": {"round_s": 60.0}}
    stage = start(*(LocalNode(name, "v100:1") for name in names), settings=settings)
    jobs = [stage.submit_witness(name, MANY, V100) for name in names]
    before = [stage.wait_saved(job) for job in jobs]

    for name in names:
        stage.cluster.processes[name].send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    states = set()
    while time.monotonic() < stopped_s + QUIET_S:
        states |= {stage.node(name).state for name in names}
        time.sleep(0.2)
    for name in names:
        stage.cluster.processes[name].send_signal(signal.SIGCONT)
    stage.hurry()
    stage.wait_over(*jobs)

    assert states == {"up"}
    assert [stage.job(job).restarts for job in jobs] == [0, 0]
    assert [{line.lease for line in stage.lines(job)} for job in jobs] == [{job.lease} for job in before]


def test_a_job_that_ends_while_its_agent_is_updated_runs_once(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings={"mechanism": {"round_s": 60.0}})
    witness = stage.witnessed / "runs"
    job = stage.submit("once", f"/bin/sh -c 'echo start >> {witness}; sleep 2; echo done >> {witness}'", 20.0, V100)
    stage.wait(witness.exists, "the job runs")
    stage.wait(lambda: stage.job(job).state == pb.JOB_STATE_RUNNING, "the scheduler knows that the job runs")

    stage.cluster.processes["n0"].terminate()
    stage.cluster.processes["n0"].wait()
    stage.wait(lambda: "done" in witness.read_text(), "the job has ended without its agent")
    stage.wait(lambda: stage.is_idle("n0"), "its shim is gone")
    stage.cluster.start_agent(LocalNode("n0", "v100:1"))
    stage.wait_over(job)

    assert witness.read_text().split() == ["start", "done"]
    assert stage.job(job).state == pb.JOB_STATE_FINISHED
    assert stage.job(job).restarts == 0

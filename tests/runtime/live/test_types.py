"""One agent with whole GPUs and MIG slices: two nodes of one process, whose jobs outlive it."""

from __future__ import annotations

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.stage import StartStage

BOTH = LocalNode("n0", "a100:1,a100-1g.10gb:2", cpus=6.0, memory_gib=30.0)


def test_one_agent_runs_jobs_on_each_of_its_types_and_takes_them_over(
    start: StartStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,MIG-a,MIG-b")
    stage = start(BOTH, settings={"mechanism": {"round_s": 60.0}, "nodes": {"silent_after_s": 60.0}})

    whole, part = stage.node("n0/a100"), stage.node("n0/a100-1g.10gb")
    jobs = {name: stage.submit_witness(name.replace(".", "-"), 1e6, {name: 40.0}) for name in ("a100", "a100-1g.10gb")}
    before = {name: stage.wait_saved(job) for name, job in jobs.items()}
    stage.cluster.kill("n0")
    stage.cluster.start_agent(BOTH)
    stage.wait(lambda: stage.cluster.nodes_up() == 2, "both nodes are back")
    saved = {name: stage.job(job).steps_saved for name, job in jobs.items()}
    stage.wait(lambda: all(stage.job(job).steps_saved > saved[name] for name, job in jobs.items()), "both continue")

    assert (whole.gpu_type, whole.gpu_count, whole.cpus) == ("a100", 1, 2.0)
    assert (part.gpu_type, part.gpu_count, part.cpus) == ("a100-1g.10gb", 2, 4.0)
    assert {name: list(job.node_ids) for name, job in before.items()} == {name: [f"n0/{name}"] for name in jobs}
    assert {stage.job(job).lease for job in jobs.values()} == {job.lease for job in before.values()}
    assert {stage.lines(jobs["a100"])[0].gpus, stage.lines(jobs["a100-1g.10gb"])[0].gpus} == {("0",), ("MIG-a",)}
    assert all(stage.job(job).state == pb.JOB_STATE_RUNNING for job in jobs.values())

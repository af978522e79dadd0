"""Policies by GPUs, CPU cores and memory on three agents, with six jobs of two teams."""

from __future__ import annotations

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.stage import StartStage

NODES = [LocalNode(f"n{k}", f"{kind}:1", cpus=4.0, memory_gib=8.0) for k, kind in enumerate(("v100", "v100", "k80"))]
RATES = {"v100": 40.0, "k80": 20.0}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["drf", "capacity", "tetris", "mesos"])
def test_six_jobs_of_two_teams_end_on_three_agents(start: StartStage, policy: str) -> None:
    stage = start(*NODES, settings={"policy": {"name": policy}, "mechanism": {"round_s": 2.0}})

    jobs = [
        stage.submit_witness(
            f"j{k}", 200.0, RATES, entity="xy"[k // 3], preemptible=True,
            cpus_per_gpu=1.0 + k % 3, memory_gib_per_gpu=2.0,
        )
        for k in range(6)
    ]  # fmt: skip
    stage.wait_over(*jobs)

    assert stage.policy().policy == policy
    assert [stage.job(job).state for job in jobs] == [pb.JOB_STATE_FINISHED] * 6
    assert [stage.job(job).steps_done for job in jobs] == [200.0] * 6
    assert evidence.double_gpus(evidence.stays(evidence.read(stage.witnessed))) == []

"""Two jobs on one GPU: the end and the failure of one do not touch the other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.faults import witnesses
from tests.runtime.live.stage import Stage, StartStage

V100 = {"v100": 40.0}
TABLE = """job_type,gpus,gpu_type,rate_steps_per_s,pair_job_type,pair_rate_steps_per_s
small,1,v100,40,,
small,1,v100,36,small,36
"""


def packed(start: StartStage, tmp_path: Path) -> Stage:
    """A node with one GPU, which two jobs that need at most 8 GiB each may share."""
    table = tmp_path / "rates.csv"
    table.write_text(TABLE)
    settings = {
        "mechanism": {"round_s": 60.0, "packing": True},
        "gpu_types.v100": {"memory_gib": 16},
        "throughputs": {"file": str(table), "estimate": False},
    }
    return start(LocalNode("n0", "v100:1"), settings=settings)


def submit(stage: Stage, name: str, steps: float, gib: float) -> int:
    return stage.submit_witness(name, steps, V100, job_type="small", gpu_memory_gib=gib)


def process_of(stage: Stage, job: int) -> int:
    """The process of a witness job."""
    mark = f"GAVEL_JOB_ID={job}\0".encode()
    return next(
        number for number in witnesses(stage.cluster.directory) if mark in Path(f"/proc/{number}/environ").read_bytes()
    )


def test_two_jobs_that_fit_share_a_gpu_and_a_third_waits(start: StartStage, tmp_path: Path) -> None:
    stage = packed(start, tmp_path)
    large = submit(stage, "large", 1e6, 12.0)
    jobs = [submit(stage, name, 1e6, 8.0) for name in ("one", "two")]
    patient = pb.CancelJobsRequest(jobs=["large"])
    stage.wait_saved(large)
    with stage.cluster.client() as client:
        client.CancelJobs(patient)

    saved = [stage.wait_saved(job) for job in jobs]
    assert [list(job.co_located_with) for job in saved] in ([[jobs[1]], [jobs[0]]], [[], [jobs[0]]])
    assert list(stage.job(jobs[0]).co_located_with) == [jobs[1]]
    third = submit(stage, "three", 200.0, 8.0)
    os.kill(process_of(stage, jobs[0]), signal.SIGKILL)
    stage.wait_elsewhere(saved[0])
    with stage.cluster.client() as client:
        client.CancelJobs(pb.CancelJobsRequest(jobs=["one"]))
    stage.wait_over(third)

    stays = evidence.stays(evidence.read(stage.witnessed))
    shared = {frozenset((early.job, late.job)) for early, late in evidence.shared_gpus(stays)}
    assert frozenset(jobs) in shared
    assert evidence.crowded_gpus(stays) == []
    assert not any(large in pair for pair in shared)
    assert len(stage.lines(jobs[1], "began")) == 1, "the other job was not touched"
    assert stage.job(third).state == pb.JOB_STATE_FINISHED

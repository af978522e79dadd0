"""Two jobs on one GPU: the end and the failure of one do not touch the other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.agent import fake_mps
from tests.runtime.live import evidence
from tests.runtime.live.faults import witnesses
from tests.runtime.live.stage import Stage, StartStage

V100 = {"v100": 40.0}
TABLE = """job_type,gpus,gpu_type,rate_steps_per_s,pair_job_type,pair_rate_steps_per_s
small,1,v100,40,,
small,1,v100,36,small,36
"""


SMI = """#!/bin/sh
for process in /proc/[0-9]*; do
    if tr '\\0' ' ' < $process/cmdline 2> /dev/null | grep -q 'witness[.]py'; then
        echo "${process#/proc/}, GPU-0, 5120"
    fi
done
"""


def packed(start: StartStage, tmp_path: Path, **mechanism: object) -> Stage:
    """A node with one GPU, which two jobs that need at most 8 GiB each may share."""
    table = tmp_path / "rates.csv"
    table.write_text(TABLE)
    settings = {
        "mechanism": {"round_s": 15.0, "packing": True, **mechanism},
        "gpu_types.v100": {"memory_gib": 16},
        "throughputs": {"file": str(table), "estimate": False},
    }
    return start(LocalNode("n0", "v100:1"), settings=settings)


def submit(stage: Stage, name: str, steps: float, gib: float) -> int:
    return stage.submit_witness(name, steps, V100, job_type="small", gpu_memory_gib=gib)


def shared_by(stage: Stage) -> list[tuple[evidence.Stay, evidence.Stay]]:
    """The stays of different jobs on one GPU so far."""
    return evidence.shared_gpus(evidence.stays(evidence.read(stage.witnessed)))


def process_of(stage: Stage, job: int) -> int:
    """The process of a witness job."""
    mark = f"GAVEL_JOB_ID={job}\0".encode()
    return next(
        number for number in witnesses(stage.cluster.directory) if mark in Path(f"/proc/{number}/environ").read_bytes()
    )


def test_two_jobs_that_fit_share_a_gpu_and_a_third_waits(start: StartStage, tmp_path: Path) -> None:
    stage = packed(start, tmp_path)
    large = submit(stage, "large", 1e6, 12.0)
    stage.wait_saved(large)  # in the first round: it would lose against the two together
    jobs = [submit(stage, name, 1e6, 8.0) for name in ("one", "two")]
    patient = pb.CancelJobsRequest(jobs=["large"])
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


@pytest.mark.slow
def test_jobs_that_share_a_gpu_use_mps_until_its_daemon_ends(
    start: StartStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mps.written(tmp_path / "bin" / "nvidia-cuda-mps-control")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "node.toml").write_text("[node]\nmps = true\nmps_divides_threads = true\n")
    monkeypatch.setenv("GAVEL_NODE_CONFIG", str(tmp_path / "node.toml"))
    stage = packed(start, tmp_path, round_s=4.0)

    jobs = [submit(stage, name, 1e6, 8.0) for name in ("one", "two")]
    stage.wait(lambda: list(stage.job(jobs[0]).co_located_with) == [jobs[1]], "both share the GPU")
    saved = [stage.wait_saved(job) for job in jobs]
    environments = [Path(f"/proc/{process_of(stage, job)}/environ").read_text().split("\0") for job in jobs]
    sharing = stage.node("n0").gpu_sharing
    os.kill(fake_mps.daemon_of(stage.cluster.directory / "n0"), signal.SIGKILL)
    stage.wait(lambda: stage.node("n0").gpu_sharing != "mps", "the node reports the end of the daemon")

    wanted = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}
    assert all(wanted <= set(environment) for environment in environments)
    assert sharing == "mps"
    assert stage.node("n0").gpu_sharing == "time-slicing: nvidia-cuda-mps-control has ended"
    assert [stage.job(job).lease for job in jobs] == [job.lease for job in saved]


@pytest.mark.slow
def test_jobs_that_declared_nothing_share_a_gpu_once_both_were_measured_alone(
    start: StartStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    stage = packed(start, tmp_path, round_s=4.0, packing_measured=True)

    jobs = [submit(stage, name, 1e6, 0.0) for name in ("one", "two")]
    stage.wait(lambda: bool(shared_by(stage)), "both share the GPU")

    lines = evidence.read(stage.witnessed)
    shared_s = min(late.first_s for _, late in shared_by(stage))
    notes = [list(stage.explained(job).notes) for job in jobs]
    assert all("has used 5.0 GiB of GPU memory; it declared none (--gpu-memory)" in texts for texts in notes)
    assert {line.job for line in lines if line.at_s < shared_s} == set(jobs), "each ran alone before"
    assert evidence.crowded_gpus(evidence.stays(lines)) == []

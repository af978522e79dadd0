"""Debian's Slurm on loopback runs jobs; what its sacct prints is imported and simulated.

Slow: its jobs run for four minutes. `benchmarks/slurm_server.py` names the packages, which CI does not install.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.slurm_server import SlurmServer, missing
from gavelpy.model.cluster import Cluster
from gavelpy.simulator.compare import simulate
from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.reader import read_trace

COLUMNS = "JobID,User,Account,State,Submit,Start,End,ElapsedRaw,Elapsed,AllocTRES,ReqTRES"
RUN_S = 240.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing(accounting=True)), reason=missing(accounting=True) or "here"),
]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What sacct prints of 50 jobs on 4 GPUs: an array, one job without GPUs, one requeued, two cancelled."""
    file = tmp_path_factory.mktemp("slurm") / "history.txt"
    with tempfile.TemporaryDirectory() as folder, SlurmServer(Path(folder), ("n0", "n1"), accounting="v100") as slurm:

        def batch(*options: str) -> str:
            answer = slurm.run("sbatch", "--parsable", "-o", "/dev/null", "--chdir=/", *options)
            assert answer is not None, "sbatch was refused"
            return answer

        for i in range(36):
            batch(f"--gres=gpu:v100:{1 + i % 2}", f"--wrap=sleep {1 + i % 3}; exit {int(i == 5)}")
        batch("--array=0-9", "--gres=gpu:1", "--wrap=sleep 2")
        batch("--wrap=sleep 1")
        running = batch("--gres=gpu:1", "--requeue", "--wrap=sleep 4")
        waiting = [batch("--gres=gpu:2", "--nice=1000", "--wrap=sleep 1") for _ in range(2)]
        time.sleep(2)
        slurm.run("scancel", *waiting)
        deadline_s = time.monotonic() + RUN_S
        is_requeued = False
        while slurm.run("squeue", "-h") != "":
            assert time.monotonic() < deadline_s, "jobs do not end"
            if not is_requeued and slurm.run("squeue", "-h", "-o", "%T", "-j", running) == "RUNNING":
                time.sleep(2)
                is_requeued = slurm.run("scontrol", "requeue", running) is not None
            time.sleep(0.5)
        time.sleep(5)  # slurmctld sends the last records
        printed = slurm.run(
            "sacct", "--allusers", "-P", "--duplicates", "--starttime=2020-01-01", f"--format={COLUMNS}"
        )
    assert printed is not None, "sacct failed"
    file.write_text(printed + "\n")
    return file


def test_every_job_of_slurm_becomes_one_job_or_is_counted(history: Path) -> None:
    trace = read_trace(history, options=ReadOptions(durations=DurationRule.SECONDS))

    left_out = trace.provenance["left_out"]
    assert left_out == {"no GPU": 1}
    assert len(trace) + 1 == 50
    assert Counter(job.gpus for job in trace.jobs) == {1: 18 + 10 + 1, 2: 18 + 2}
    assert sum(at < 1e9 for at in trace.cancelled_s) == 2
    assert trace.provenance["requeued"] == 1
    assert all("v100" in job.rates_steps_per_s for job in trace.jobs)


def test_history_of_slurm_is_simulated(history: Path) -> None:
    trace = read_trace(history)

    result = simulate(trace, Cluster.of({"v100": 4}, gpus_per_node=2), "fifo")

    assert result.metrics.jobs_unfinished == 2  # those that their user cancelled
    work_s = sum(job.gpus * job.steps_total / job.rates_steps_per_s["v100"] for job in trace.jobs) / 4
    assert result.metrics.makespan_s >= work_s - float(trace.arrival_s[-1])

"""A job of a higher class takes the GPU of a lower one at once, on real nodes, and the lower one resumes after it."""

from __future__ import annotations

import sys
from pathlib import Path

from gavelpy.runtime.local_cluster import CALL_S, LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.cluster import jobs_of, submit

SETTINGS = {
    "mechanism": {"round_s": 600.0},
    "nodes": {"heartbeat_interval_s": 0.1, "grace_s": 0.5, "lease_margin_s": 0.2},
    "priorities.high": {"value": 100, "preempts": ["low"], "owners": ["local"]},
    "priorities.low": {"value": -100},
}
WAIT = f"{sys.executable} -c 'import time; time.sleep(600)'"


def described(name: str, command: str, priority: str) -> pb.JobDescription:
    return pb.JobDescription(
        name=name, command=command, working_directory="/", gpus=1, steps_total=1000.0, preemptible=True,
        rates_steps_per_s={"v100": 1.0}, priority=priority,
    )  # fmt: skip


def test_a_job_of_a_higher_class_runs_within_the_round_of_a_lower_one(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", (LocalNode("n1", "v100:1"),), SETTINGS) as cluster:
        cluster.start()
        (low,) = submit(cluster, [described("low", WAIT, "low")], "1")
        wait_until(lambda: jobs_of(cluster)[low].state == pb.JOB_STATE_RUNNING, "the low job runs")
        (normal,) = submit(cluster, [described("normal", "true", "")], "2")
        wait_until(lambda: jobs_of(cluster)[normal].reason_kind == "kept-by-class", "the normal job waits")
        (high,) = submit(cluster, [described("high", "sleep 5", "high")], "3")
        wait_until(lambda: jobs_of(cluster)[low].reason_kind == "preempted", "the low job is preempted")
        reason = jobs_of(cluster)[low].reason
        wait_until(lambda: jobs_of(cluster)[high].state == pb.JOB_STATE_FINISHED, "the high job has run")
        wait_until(lambda: jobs_of(cluster)[normal].state == pb.JOB_STATE_FINISHED, "the normal job is next")
        wait_until(lambda: jobs_of(cluster)[low].state == pb.JOB_STATE_RUNNING, "the low job runs again")
        with cluster.client() as client:
            found = client.GetJob(pb.GetJobRequest(job=str(low)), timeout=CALL_S)

    assert f"preempted by job {high} of class high" in reason
    assert any("stopped" in line and f"preempted by job {high}" in line for line in found.history)
    assert (found.job.priority, found.job.priority_rank, found.description.priority) == ("low", 2, "low")

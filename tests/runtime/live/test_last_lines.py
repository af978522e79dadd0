"""The log of a job that has just ended."""

from __future__ import annotations

from gavelpy.runtime.local_cluster import CALL_S, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.stage import StartStage

JOBS = 5


def test_the_last_lines_of_a_job_are_there_as_soon_as_it_is_over(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"))
    seen = []
    for number in range(JOBS):
        job = stage.submit(f"quick-{number}", "sh -c 'sleep 0.2; exec echo trained'", 1.0, {"v100": 1.0})
        with stage.cluster.client() as client:
            client.WaitJobs(pb.WaitJobsRequest(jobs=[str(job)], wait_s=CALL_S), timeout=2 * CALL_S)
            found = list(client.ReadLogs(pb.ReadLogsRequest(job=str(job), rank=-1), timeout=CALL_S))
        seen.append([message.text for message in found])

    assert seen == [["trained"]] * JOBS

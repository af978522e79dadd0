"""A job of several sizes on real agents: it grows when a GPU falls free, and shrinks when another job arrives."""

from __future__ import annotations

from collections import defaultdict

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.stage import Stage, StartStage

V100 = {"v100": 40.0}
BOTH = {2: pb.Rates(rates_steps_per_s={"v100": 72.0})}


def held(stage: Stage, job: int) -> int:
    """Ranks of a job that have begun under its lease, if they are as many as its GPUs; 0 = it does not run so."""
    found = stage.job(job)
    ranks = {line.rank for line in stage.lines(job, "ran") if line.lease == found.lease}
    return found.gpus if found.state == pb.JOB_STATE_RUNNING and len(ranks) == found.gpus else 0


def test_job_shrinks_for_another_one_and_grows_again(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), LocalNode("n1", "v100:1"), settings={"throughputs": {"estimate": False}})
    elastic = stage.submit_witness("elastic", 1e6, V100, sizes=[1, 2], rates_by_size=BOTH)
    stage.wait(lambda: held(stage, elastic) == 2, "the job runs on both GPUs")

    other = stage.submit_witness("other", 1e6, V100)
    stage.wait(lambda: held(stage, elastic) == 1 and held(stage, other) == 1, "each job has a GPU")
    assert list(stage.job(elastic).sizes) == [1, 2]
    with stage.cluster.client() as client:
        client.CancelJobs(pb.CancelJobsRequest(jobs=["other"]))
    stage.wait(lambda: held(stage, elastic) == 2, "the job runs on both GPUs again")

    lines = stage.lines(elastic)
    ranks = defaultdict[int, set[int]](set)
    for line in lines:
        ranks[line.lease].add(line.rank)
    assert [len(ranks[lease]) for lease in sorted(ranks)] == [2, 1, 2]
    saved = dict[int, int]()
    for line in lines:
        if line.kind == "began":
            assert line.steps == max((steps for lease, steps in saved.items() if lease < line.lease), default=0)
        elif line.kind == "saved":
            saved[line.lease] = max(saved.get(line.lease, 0), line.steps)
    stays = evidence.stays(evidence.read(stage.witnessed))
    assert evidence.double_gpus(stays) == []

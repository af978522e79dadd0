"""The scheduler is down for longer than leases last: jobs keep running, once each, and it adopts them later."""

from __future__ import annotations

import json

import pytest

from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.local_cluster import SCHEDULER, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.stage import Settings, Stage, StartStage

V100 = {"v100": 40.0}
MANY = 8_000.0  # more steps than the test waits for: jobs hurry at its end
LEASES_END: Settings = {"nodes": {"lease_overlap_s": 6.0, "unsaved_overlap_s": 6.0}, "mechanism": {"round_s": 2.0}}
AWAY_S = 11.0  # more than a round, the overlap and the grace together


def test_jobs_run_on_once_while_the_scheduler_is_away(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), LocalNode("n1", "v100:1"), settings=LEASES_END)
    jobs = [stage.submit_witness(name, MANY, V100) for name in ("left", "right")]
    before = [stage.wait_saved(job) for job in jobs]
    stage.wait(lambda: all(members(stage, node) == 2 for node in ("n0", "n1")), "both agents hold the view of both")

    stage.cluster.kill(SCHEDULER)
    gone_s = clock_s()
    stage.wait(lambda: all(last_ran_s(stage, job) > gone_s + AWAY_S for job in jobs), "the jobs run on")
    stage.cluster.start_scheduler()
    stage.hurry()
    stage.wait_over(*jobs)

    lines = [stage.lines(job) for job in jobs]
    assert [{line.lease for line in told} for told in lines] == [{job.lease} for job in before]
    assert [len([line for line in told if line.kind == "began"]) for told in lines] == [1, 1]
    assert [stage.job(job).state for job in jobs] == [pb.JOB_STATE_FINISHED] * 2
    assert not evidence.double_jobs(evidence.stays([*lines[0], *lines[1]]))


@pytest.mark.slow
def test_a_gang_over_two_nodes_runs_on_and_finishes_once_while_the_scheduler_is_away(start: StartStage) -> None:
    """The gang saves nothing: a lease that ended would lose all its work."""
    stage = start(LocalNode("n0", "v100:1"), LocalNode("n1", "v100:1"), settings=LEASES_END)
    runs, go = stage.witnessed / "runs", stage.witnessed / "go"
    script = f"echo began $RANK >> {runs}; while [ ! -e {go} ]; do sleep 0.2; done; echo done $RANK >> {runs}"
    gang = stage.submit("gang", f"/bin/sh -c '{script}'", MANY, V100, gpus=2)
    stage.wait(lambda: stage.job(gang).state == pb.JOB_STATE_RUNNING, "the gang runs")
    stage.wait(lambda: all(members(stage, node) == 2 for node in ("n0", "n1")), "both agents hold the view of both")

    stage.cluster.kill(SCHEDULER)
    gone_s = clock_s()
    stage.wait(lambda: clock_s() > gone_s + AWAY_S, "leases would have ended")
    began = sorted(runs.read_text().splitlines())
    go.touch()
    stage.wait(lambda: all(stage.is_idle(node) for node in ("n0", "n1")), "all ranks have ended")
    stage.cluster.start_scheduler()
    stage.wait_over(gang)

    assert began == ["began 0", "began 1"]
    assert sorted(runs.read_text().splitlines()) == [*began, "done 0", "done 1"]
    assert stage.job(gang).state == pb.JOB_STATE_FINISHED
    assert stage.job(gang).restarts == 0


def members(stage: Stage, node: str) -> int:
    """Number of members in the view that an agent has stored."""
    file = stage.cluster.directory / node / "view.json"
    return len(json.loads(file.read_text())["view"]["members"]) if file.exists() else 0


def last_ran_s(stage: Stage, job: int) -> float:
    """The last time at which a job was seen running."""
    return max(line.at_s for line in stage.lines(job))

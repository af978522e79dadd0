"""Jobs that are submitted without a number of steps: their programs announce it, or just end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.cli.test_main import RUN
from tests.runtime.live.stage import Stage, StartStage

ANNOUNCING = Path(__file__).with_name("announcing.py")
RATES = {"v100": 10.0}
EVERY_STEP = [f"epoch {epoch} step {step}" for epoch in range(2) for step in range(20)]


def log(stage: Stage, job: int) -> list[str]:
    environment = os.environ | {"GAVEL_SCHEDULER": stage.cluster.address}
    command = [*RUN, "logs", str(job)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_program_announces_its_steps_and_does_each_once_over_a_move(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), LocalNode("n1", "v100:1"))

    job = stage.submit("announcing", f"{sys.executable} {ANNOUNCING} 0.1", 0.0, RATES)
    before = stage.wait_saved(job)
    stage.wait(lambda: not stage.job(job).total_open, "the total is known")
    known = stage.job(job)
    stage.wish(before.node_ids[0], pb.NODE_WISH_DRAIN)
    stage.wait_elsewhere(before)
    stage.wait_over(job)
    over = stage.job(job)

    assert known.steps_total == 40.0
    assert (over.state, over.steps_done, over.steps_total) == (pb.JOB_STATE_FINISHED, 40.0, 40.0)
    assert log(stage, job) == EVERY_STEP


@pytest.mark.slow
def test_submitted_steps_that_disagree_are_corrected_by_the_program(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"))

    job = stage.submit("announcing", f"{sys.executable} {ANNOUNCING} 0.1", 1_000.0, RATES)
    stage.wait(lambda: stage.job(job).steps_total == 40.0, "the total is corrected")
    stage.wait_over(job)
    over = stage.job(job)

    assert (over.state, over.steps_done, over.total_open) == (pb.JOB_STATE_FINISHED, 40.0, False)
    assert log(stage, job) == EVERY_STEP


def test_program_that_announces_nothing_is_finished_when_it_exits(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings={"mechanism": {"round_s": 60.0}})  # few for the forecast

    job = stage.submit("plain", "sh -c 'until [ -e release ]; do sleep 0.1; done'", 0.0, RATES)
    stage.wait(lambda: stage.job(job).state == pb.JOB_STATE_RUNNING, "it runs")
    running, explained = stage.job(job), stage.explained(job)
    (stage.witnessed / "release").touch()
    stage.wait_over(job)
    over = stage.job(job)

    assert (running.total_open, running.steps_total) == (True, 36_000.0)
    assert explained.forecast.endswith("; its number of steps is not known yet, 36,000 are assumed")
    assert explained.description.steps_total == 0.0
    assert (over.state, over.total_open) == (pb.JOB_STATE_FINISHED, False)
    assert 0 < over.steps_done == over.steps_total  # by the expected rate and its running time
    assert over.restarts == 0

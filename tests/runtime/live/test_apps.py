"""Apps on real agents: losers end at rungs, winners resume, also if the scheduler is killed between the reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.cli.test_main import RUN
from tests.runtime.live.cluster import jobs_of
from tests.runtime.live.stage import Stage, StartStage

SEARCHING = Path(__file__).with_name("searching.py")
RATES = (0.9, 0.1, 0.31, 0.5)  # the third is best, then the second and the fourth (the second by order)
FILE = """
name = "tune"
schedule = "successive_halving"
eta = 2
steps_min = 20
[parameters]
lr = [{values}]
[job]
command = "{python} {script} {{lr}} {pause_s}"
steps_total = 90
rates_steps_per_s = {{v100 = 10.0}}
checkpoint_every_s = 0.5
"""
WAIT_S = 6.0


def gavel(stage: Stage, *words: str) -> dict[str, Any]:
    environment = os.environ | {"GAVEL_SCHEDULER": stage.cluster.address}
    done = subprocess.run(
        [*RUN, *words, "-o", "json"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def submit(stage: Stage, tmp_path: Path, *, pause_s: float, first: str = "") -> dict[str, Any]:
    file = tmp_path / "search.toml"
    values = ", ".join(map(str, RATES))
    text = FILE.format(values=values, python=sys.executable, script=SEARCHING, pause_s=pause_s)
    file.write_text(first + text)
    return gavel(stage, "submit", "--sweep", str(file), "--key", "search-1")


def check_ends(stage: Stage) -> None:
    """Jobs 1 to 3 of 4 lost at 20 and 40 steps; the third did all its steps."""
    over = jobs_of(stage.cluster)
    assert over[2].state == pb.JOB_STATE_FINISHED
    assert over[2].steps_done == 90
    assert [over[job].state for job in (0, 1, 3)] == [pb.JOB_STATE_CANCELLED] * 3
    details = {job: over[job].detail for job in (0, 1, 3)}
    assert details[0].startswith("ended by successive halving: rank 4 of 4 at 20 steps, loss 0.65")
    assert details[3].startswith("ended by successive halving: rank 3 of 4 at 20 steps, loss 0.25")
    assert details[1].startswith("ended by successive halving: rank 2 of 2 at 40 steps, loss 0.225")


def test_losers_end_and_the_winner_finishes(start: StartStage, tmp_path: Path) -> None:
    stage = start(LocalNode("n0", "v100:4"))

    first = submit(stage, tmp_path, pause_s=0.02)
    again = submit(stage, tmp_path, pause_s=0.02)
    stage.wait_over(0, 1, 2, 3)

    check_ends(stage)
    assert first["jobs"] == again["jobs"]
    assert again["repeated_submission"]
    (shown,) = gavel(stage, "app", "list")["apps"]
    assert (shown["jobs"], shown["over"], shown["best_job"]) == (4, 4, 2)
    members = gavel(stage, "app", "show", "tune")["members"]
    assert [one["at_step"] for one in members] == [20, 40, 90, 20]


@pytest.mark.slow
def test_a_scheduler_killed_between_reports_decides_the_same(start: StartStage, tmp_path: Path) -> None:
    stage = start(LocalNode("n0", "v100:2"))  # two jobs at once: the others come later

    submit(stage, tmp_path, pause_s=0.1)
    for kills in range(3):
        stage.wait(
            lambda kills=kills: (
                sum(job.metrics[0].step if job.metrics else 0 for job in jobs_of(stage.cluster).values())
                > 15 * (kills + 1)
            ),
            "jobs report",
        )
        stage.cluster.kill("scheduler")
        stage.cluster.start_scheduler()
    stage.wait_over(0, 1, 2, 3)

    check_ends(stage)


@pytest.mark.slow
def test_a_cancelled_app_stays_so_if_the_scheduler_is_killed_right_after_the_answer(
    start: StartStage, tmp_path: Path
) -> None:
    stage = start(LocalNode("n0", "v100:2"))  # two jobs run, two wait
    submit(stage, tmp_path, pause_s=5.0)
    stage.wait(lambda: sum(job.state == pb.JOB_STATE_RUNNING for job in jobs_of(stage.cluster).values()) == 2, "2 run")
    gavel(stage, "hold", "3")

    answer = gavel(stage, "app", "cancel", "tune")
    stage.cluster.kill("scheduler")
    stage.cluster.start_scheduler()
    stage.wait_over(0, 1, 2, 3)

    assert (answer["jobs"], answer["cancelled"]) == (4, 4)
    assert {job.state for job in jobs_of(stage.cluster).values()} == {pb.JOB_STATE_CANCELLED}
    assert gavel(stage, "app", "cancel", "tune")["cancelled"] == 0


@pytest.mark.slow
def test_a_job_that_is_held_delays_the_others_no_longer_than_the_search_allows(
    start: StartStage, tmp_path: Path
) -> None:
    stage = start(LocalNode("n0", "v100:4"))
    submit(stage, tmp_path, pause_s=0.3, first=f"rung_wait_max_s = {WAIT_S}")
    gavel(stage, "hold", "3")
    gavel(stage, "requeue", "3", "--force")
    stage.wait(lambda: jobs_of(stage.cluster)[0].reason_kind == "at-rung", "a job is at the rung")
    why = jobs_of(stage.cluster)[0].reason

    stage.wait_over(0, 1, 2, 3)

    over = jobs_of(stage.cluster)
    assert " UTC at most" in why
    assert over[2].state == pb.JOB_STATE_FINISHED
    late = f"rank 4 of 4 at 20 steps, which it did not reach within {WAIT_S:g} s of the first job"
    assert over[3].detail == f"ended by successive halving: {late}"
    assert over[0].detail.startswith("ended by successive halving: rank 3 of 4 at 20 steps, loss 0.65")

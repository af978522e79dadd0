"""Time limits and stalls of real jobs: they save, are stopped, and are over; nodes enforce the limit by themselves."""

from __future__ import annotations

import shlex
import sys

import pytest

from gavelpy.runtime.local_cluster import SCHEDULER, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.stage import StartStage

V100 = {"v100": 40.0}
GRACE_S = 2.0
SHORT = {"nodes": {"grace_s": GRACE_S}, "mechanism": {"round_s": 60.0}}
LIMIT_S = 4.0
BUSY_S = 6.0  # what a loaded machine may add
PATIENT_S = 8.0  # a limit within which even a loaded machine starts a job


def test_job_saves_and_is_over_at_its_time_limit(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings=SHORT)
    job = stage.submit_witness("endless", 1e6, V100, time_s=PATIENT_S)

    stage.wait_over(job)

    found = stage.job(job)
    assert (found.state, found.failure_class) == (pb.JOB_STATE_FAILED, "time-limit")
    assert found.failure == "time limit reached (8 s); not retried"
    assert 0 < found.steps_saved == stage.lines(job)[-1].steps
    assert found.ran_s <= PATIENT_S + GRACE_S + BUSY_S


@pytest.mark.slow
def test_script_that_ignores_sigterm_is_killed_after_its_time_limit(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings=SHORT)
    text = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    job = stage.submit("deaf", f"{sys.executable} -c {shlex.quote(text)}", 1e6, V100, time_s=LIMIT_S)

    stage.wait_over(job)

    found = stage.job(job)
    assert (found.state, found.failure_class) == (pb.JOB_STATE_FAILED, "time-limit")
    assert LIMIT_S <= found.ran_s <= LIMIT_S + GRACE_S + BUSY_S


@pytest.mark.slow
def test_time_limit_holds_while_the_scheduler_is_away(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings=SHORT)
    job = stage.submit_witness("endless", 1e6, V100, time_s=2 * LIMIT_S)
    stage.wait_saved(job)

    stage.cluster.kill(SCHEDULER)
    began_s = stage.lines(job, "began")[0].at_s
    stage.wait(lambda: bool(stage.lines(job, "stopped")), "the job has stopped without a scheduler")
    stage.cluster.start_scheduler()
    stage.wait_over(job)

    assert stage.job(job).failure_class == "time-limit"
    assert stage.lines(job, "stopped")[0].at_s - began_s <= 2 * LIMIT_S + GRACE_S + BUSY_S
    assert len(stage.lines(job, "began")) == 1


def test_job_without_progress_is_ended_with_the_reason(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings=SHORT)
    text = "import time; print('epoch 1', flush=True); time.sleep(600)"
    job = stage.submit("hung", f"{sys.executable} -c {shlex.quote(text)}", 1e6, V100, stall_s=2.0)

    stage.wait_over(job)

    found = stage.job(job)
    assert (found.state, found.failure_class, found.restarts) == (pb.JOB_STATE_FAILED, "stalled", 0)
    assert found.failure == "stalled (2 s); not retried"
    assert "no output for 2 s" in found.detail


@pytest.mark.slow
def test_job_that_makes_progress_is_not_ended(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings=SHORT)
    job = stage.submit_witness("busy", 250.0, V100, stall_s=3.0)

    stage.wait_over(job)

    assert stage.job(job).state == pb.JOB_STATE_FINISHED

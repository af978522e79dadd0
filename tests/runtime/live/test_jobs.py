"""Ordinary jobs: scripts without the iterator, cancelled jobs, and changes of the policy."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import SCHEDULER, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.cluster import patiently
from tests.runtime.live.stage import Stage, StartStage

PLAIN = Path(__file__).with_name("plain.py")
V100 = {"v100": 40.0}
COUNTS = 20  # each 0.1 s: more than a round


@pytest.mark.slow
def test_preemptible_scripts_without_the_iterator_take_turns_and_end(start: StartStage) -> None:
    turns = {"round_s": 1.0, "start_max_s": 0.0}  # otherwise a job that reports nothing counts as a slow starter
    stage = start(LocalNode("n0", "v100:1"), settings={"mechanism": turns})
    files = [stage.witnessed / "one.txt", stage.witnessed / "two.txt"]
    one = stage.submit(
        "one", f"{sys.executable} {PLAIN} {files[0]} {COUNTS} 0.1", 60.0, {"v100": 10.0}, preemptible=True
    )
    two = stage.submit(
        "two", f"{sys.executable} {PLAIN} {files[1]} {COUNTS} 0.1", 60.0, {"v100": 10.0}, preemptible=True
    )

    stage.wait_over(one, two)

    assert [stage.job(one).state, stage.job(two).state] == [pb.JOB_STATE_FINISHED] * 2
    assert [stage.job(one).steps_done, stage.job(two).steps_done] == [60.0] * 2
    told = [file.read_text().split() for file in files]
    assert [lines.count("counted") for lines in told] == [COUNTS, COUNTS]
    assert [lines[-1] for lines in told] == ["finished", "finished"]
    assert "stopped" in told[0] + told[1]


def test_scripts_that_never_save_run_once_each_whatever_their_share(start: StartStage) -> None:
    """Four of them on two GPUs, each longer than two rounds: none is preempted for another."""
    turns = {"round_s": 2.0, "lease_min_s": 0.0, "start_max_s": 0.0}
    stage = start(LocalNode("n0", "v100:2"), settings={"mechanism": turns})
    files = [stage.witnessed / f"plain-{k}.txt" for k in range(4)]
    script = f"{sys.executable} {PLAIN} {{}} {2 * COUNTS} 0.1"
    jobs = [stage.submit(file.stem, script.format(file), 60.0, {"v100": 10.0}) for file in files]
    stage.wait(lambda: files[0].exists(), "the first has begun")
    seen = stage.job(jobs[0])

    stage.wait_over(*jobs)

    assert (seen.preemptible, seen.preemptible_why) == (
        False,
        "never saved: not preemptible until its first checkpoint",
    )
    told = [file.read_text().split() for file in files]
    assert [(lines.count("began"), lines.count("stopped"), lines[-1]) for lines in told] == [(1, 0, "finished")] * 4
    assert [stage.job(job).restarts for job in jobs] == [0] * 4
    assert [stage.job(job).steps_saved for job in jobs] == [0.0] * 4


def test_cancelled_job_is_gone_and_its_gpu_is_free(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings={"mechanism": {"round_s": 60.0}})
    endless = stage.submit_witness("endless", 1e6, V100)
    stage.wait_saved(endless)
    short = stage.submit_witness("short", 20.0, V100)

    request = pb.CancelJobsRequest(jobs=["endless"])
    patiently(stage.cluster, lambda client: client.CancelJobs(request, timeout=5.0))
    stage.wait_over(short)

    assert stage.job(endless).state == pb.JOB_STATE_CANCELLED
    assert stage.job(short).state == pb.JOB_STATE_FINISHED
    assert stage.lines(endless)[-1].at_s < stage.lines(short, "began")[0].at_s


def test_policy_changed_by_sighup_stays_through_a_crash_and_disturbs_no_job(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings={"mechanism": {"round_s": 4.0}})
    job = stage.submit_witness("undisturbed", 4_000.0, V100)
    stage.wait_saved(job)
    config = stage.cluster.config
    changed = config.read_text().replace("max_min_fairness", "fifo").replace("round_s = 4.0", "round_s = 3.0")
    config.write_text(changed)

    os.kill(stage.cluster.processes[SCHEDULER].pid, signal.SIGHUP)
    stage.wait(lambda: stage.policy().policy == "fifo", "the policy has changed")
    stage.cluster.kill(SCHEDULER)
    stage.cluster.start_scheduler()
    after = stage.policy()
    stage.hurry()
    stage.wait_over(job)

    assert (after.policy, after.round_s) == ("fifo", 3.0)
    assert stage.job(job).state == pb.JOB_STATE_FINISHED
    assert len(stage.lines(job, "began")) == 1


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("no-such-command --lr 0.1", "the command 'no-such-command' cannot be run: No such file or directory"),
        pytest.param(str(PLAIN), f"the command '{PLAIN}' cannot be run: Permission denied", marks=pytest.mark.slow),
        pytest.param(
            "sh -c no-such-command", "rank 0 exited with code 127: a command was not found", marks=pytest.mark.slow
        ),
    ],
    ids=["not-found", "not-executable", "not-found-by-a-shell"],
)
def test_command_that_cannot_be_run_fails_at_once(command: str, why: str, start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"))
    job = stage.submit("typo", command, 10.0, {"v100": 10.0})

    stage.wait(lambda: stage.job(job).state == pb.JOB_STATE_FAILED, "the job has failed")

    assert (stage.job(job).failures, stage.job(job).detail.startswith(why)) == (1, True)


def script(stage: Stage, text: str) -> str:
    """A command that runs a Python script."""
    path = stage.witnessed / "script.py"
    path.write_text(text)
    return f"{sys.executable} {path}"


def test_import_error_is_a_user_error_and_not_retried(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"))
    job = stage.submit("typo", script(stage, "import nunpy\n"), 10.0, {"v100": 10.0})

    stage.wait_over(job)

    found = stage.job(job)
    assert (found.state, found.failures, found.restarts) == (pb.JOB_STATE_FAILED, 1, 0)
    assert (found.failure_class, found.failure) == ("user", "user error; not retried")
    assert "ModuleNotFoundError: No module named 'nunpy'" in found.detail
    assert any("ModuleNotFoundError" in line for line in stage.explained(job).history)


def test_out_of_memory_is_retried_once(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings={"mechanism": {"retry_s": 0.1}})
    job = stage.submit("large", script(stage, "raise MemoryError\n"), 10.0, {"v100": 10.0})

    stage.wait_over(job)

    found = stage.job(job)
    assert (found.state, found.failures, found.restarts) == (pb.JOB_STATE_FAILED, 2, 1)
    assert found.failure_class == "out-of-memory"


FLAKY = """
import pathlib, sys
tries = pathlib.Path("tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) < 4:
    raise OSError(5, "Input/output error", "/data/images")
"""


@pytest.mark.slow
def test_system_errors_are_retried_and_do_not_count(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:1"), settings={"mechanism": {"retry_s": 0.1, "failures_max": 0}})
    job = stage.submit("unlucky", script(stage, FLAKY), 10.0, {"v100": 10.0})

    stage.wait_over(job)

    found = stage.job(job)
    assert (found.state, found.failures, found.restarts) == (pb.JOB_STATE_FINISHED, 0, 3)
    assert found.failure_class == "system"
    history = "\n".join(stage.explained(job).history)
    assert history.count("[Errno 5] Input/output error: '/data/images' (exit code 1); system error") == 3

"""Commands about the order of jobs against a scheduler: hold, release, requeue, begin, after, arrays, cancel."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST, LONG, LONG_STEPS, QUICK, submit
from tests.cli.test_progress import GAVEL
from tests.runtime.client.serving import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), (LocalNode("n1", "v100:2"),), FAST) as started:
        started.start()
        yield started


@pytest.fixture
def cli(gavel: Gavel, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Gavel:
    """The command line, configured for the cluster."""
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    return gavel


def test_held_job_starts_after_its_release(cli: Gavel) -> None:
    submit(cli, "held", QUICK, "--hold")
    assert cli("wait", "held", "--for", "1").code == 124
    (job,) = cli("status", "held", "-o", "json").json["jobs"]
    assert (job["reason_kind"], job["held_by"]) == ("held", "owner")
    assert "the job is held, and starts only after its release" in cli("explain", "held").out

    assert cli("release", "held").out.endswith("\theld\twaiting\n")

    assert cli("wait", "held").code == 0
    history = cli("explain", "held").out
    assert "released" in history


def test_running_job_that_is_held_runs_on_with_a_note(cli: Gavel) -> None:
    submit(cli, "goes-on", LONG, steps=LONG_STEPS)
    until(lambda: "running" in cli("status", "goes-on").out, "it runs")

    answer = cli("hold", "goes-on")

    assert "held" in answer.out
    assert "is held as soon as it is preempted, requeued or fails" in answer.err
    assert cli("cancel", "goes-on").code == 0
    assert "it is over (cancelled): nothing changes" in cli("release", "goes-on").err


def test_job_begins_at_its_time(cli: Gavel) -> None:
    submit(cli, "later", QUICK, "--begin", "+4s")
    (job,) = cli("status", "later", "-o", "json").json["jobs"]
    assert job["reason_kind"] == "begins-later"
    assert job["reason"].startswith("begins at 20")

    assert cli("wait", "later").code == 0

    (job,) = cli("status", "later", "-o", "json").json["jobs"]
    assert job["begin_at_s"] - 0.1 <= job["started_at_s"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("cancel",), "give jobs, or a selection (--user, --state, --name or --array), got neither"),
        (("cancel", "x", "--name", "x*"), "give jobs, or a selection (--user, --state, --name or --array), got both"),
        (("submit", "--steps", "1", "--after", "no-such-job", "--", "true"), "jobs[0].after must be numbers or names"),
        (("submit", "--steps", "1", "--after", "1:later", "--", "true"), "jobs[0].after must be NUMBER or NAME"),
        (("submit", "--steps", "1", "--no-preempt", "--preemptible", "--", "true"), "exclude each other"),
        (("hold", "no-such-job"), "job must be the number or name of one of yours"),
        (("submit", "--steps", "1", "--begin", "soon", "--", "true"), "begin must be a time such as"),
    ],
)
def test_bad_orders_are_one_line_and_exit_code_2(cli: Gavel, arguments: tuple[str, ...], complaint: str) -> None:
    answer = cli(*arguments)

    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert complaint in answer.err


def test_job_starts_after_those_it_names(cli: Gavel) -> None:
    command = json.dumps([sys.executable, "-c", QUICK])
    table = f"command = {command}\nsteps_total = 1\nrates_steps_per_s = {{v100 = 10}}\n"
    file = cli.file("chain.toml", f'[[job]]\nname = "prepare"\narray = "0-1"\n{table}'
                                  f'[[job]]\nname = "train"\nafter = ["prepare"]\n{table}')  # fmt: skip

    assert cli("submit", file, "--wait").code == 0

    jobs = {job["name"]: job for job in cli("jobs", "--all", "-o", "json").json["jobs"]}
    ends_s = [jobs[f"prepare-{index}"]["ended_at_s"] for index in (0, 1)]
    assert max(ends_s) <= jobs["train"]["started_at_s"]
    assert jobs["train"]["after"] == [f"{jobs['prepare-0']['job']}:ok", f"{jobs['prepare-1']['job']}:ok"]


def test_ctrl_c_while_submit_waits_names_the_job_that_goes_on(cli: Gavel) -> None:
    command = [*GAVEL, "submit", "--name", "long", "--steps", "9", "--wait", "--", "sleep", "99"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert "1 job submitted" in waiting.stderr.readline()
        time.sleep(0.5)  # until it waits
        waiting.send_signal(signal.SIGINT)
        said = waiting.communicate(timeout=60)[1]

    (job,) = cli("status", "long", "-o", "json").json["jobs"]
    assert waiting.returncode == 130
    assert f"still submitted; wait again: gavel wait {job['job']}; end: gavel cancel {job['job']}\n" in said
    assert job["state"] in ("waiting", "starting", "running")
    cli("cancel", "long")


def test_job_further_down_in_a_file_cannot_come_first(cli: Gavel) -> None:
    table = 'command = "true"\nsteps_total = 1\n'
    file = cli.file("wrong.toml", f'[[job]]\nname = "x"\nafter = ["y"]\n{table}[[job]]\nname = "y"\n{table}')

    answer = cli("submit", file)

    assert answer.code == 2
    assert "jobs[0].after must be names of jobs further up in the same request, or older ones, got 'y'" in answer.err


def test_job_after_one_that_is_cancelled_is_cancelled_with_the_reason(cli: Gavel) -> None:
    first = submit(cli, "first", QUICK, "--hold")
    submit(cli, "second", QUICK, "--after", "first")
    submit(cli, "third", QUICK, "--after", "first:any")

    cli("cancel", "first")

    assert cli("wait", "second").code == 1
    why = f"it can never start: job {first} (first), which it comes after, was cancelled"
    assert why in cli("explain", "second").out
    assert cli("wait", "third").code == 0
    late = cli("submit", "--steps", "1", "--after", "first", "--", "true")
    assert (late.code, f"got job {first}, which is cancelled" in late.err) == (2, True)


def test_limit_of_an_array_is_kept_and_the_array_is_cancelled_at_once(cli: Gavel) -> None:
    number = submit(cli, "grid", LONG, "--array", "0-3%1", steps=LONG_STEPS)
    until(lambda: "running" in cli("status", "grid-0").out, "the first job runs")

    jobs = cli("status", "grid-1", "grid-2", "grid-3", "-o", "json").json["jobs"]
    assert {job["reason_kind"] for job in jobs} == {"array-limit"}
    seen = cli("cancel", "--array", number, "--dry-run")
    assert "would cancel 4 jobs" in seen.err
    refused = cli("cancel", "--array", number)
    assert (refused.code, "a selection needs --yes where there is no terminal" in refused.err) == (2, True)

    assert cli("cancel", "--array", number, "--yes").out.count("cancelled") == 4
    assert "no unfinished job is selected" in cli("cancel", "--array", number, "--yes").err


def test_selection_is_by_name_state_and_user(cli: Gavel) -> None:
    submit(cli, "pick-1", QUICK, "--hold")
    submit(cli, "pick-2", QUICK, "--hold")
    submit(cli, "other", QUICK, "--hold")

    assert cli("cancel", "--name", "pick-*", "--state", "running", "--yes").out == ""
    assert "no unfinished job is selected" in cli("cancel", "--user", "nobody", "--yes").err
    cancelled = cli("cancel", "--name", "pick-*", "--state", "waiting", "--user", "local", "--yes", "-o", "json")

    assert [job["name"] for job in cancelled.json["jobs"]] == ["pick-1", "pick-2"]
    assert "waiting" in cli("status", "other").out
    cli("cancel", "other")


def test_requeued_job_runs_again_from_its_start_only_by_force(cli: Gavel) -> None:
    submit(cli, "again", LONG, "--no-preempt", steps=LONG_STEPS)
    until(lambda: "running" in cli("status", "again").out, "it runs")
    assert "not preemptible: submitted so by its owner" in cli("explain", "again").out

    refused = cli("requeue", "again")
    assert cli("requeue", "again", "--force").code == 0

    assert (refused.code, "add --force to start it from scratch" in refused.err) == (2, True)
    until(lambda: cli("status", "again", "-o", "json").json["jobs"][0]["restarts"] == 1, "it has started again")
    cli("cancel", "again")
    assert "is over, and cannot be requeued: submit it again" in cli("requeue", "again").err

"""The commands against a running scheduler and node: their output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, reserved_port
from tests.cli.commands import Gavel
from tests.cli.test_main import RUN
from tests.runtime.client.serving import serving, until

QUICK = "import sys, time; print('hello from', sys.argv[1:], flush=True); time.sleep(0.2)"
LONG = "import time; print('here', flush=True); time.sleep(600)"
LONG_STEPS = "5e3"  # of LONG at 10 steps/s: 250 rounds. A forecast simulates all of them, for up to 3 s of CPU time
FAST = {
    "nodes": {
        "heartbeat_interval_s": 0.1,
        "silent_after_s": 20.0,
        "lease_overlap_s": 2.0,
        "unsaved_overlap_s": 2.0,
        "grace_s": 0.5,
    },
    "mechanism": {"round_s": 2.0, "failures_max": 2, "retry_s": 0.1, "retry_max_s": 0.2},
}
COMMANDS = (
    "submit", "jobs", "status", "explain", "logs", "cancel", "hold", "release", "requeue", "update", "wait", "nodes",
    "drain", "node lost", "node resume", "top", "policy", "policy show", "policy set", "events",
    "token create", "token list", "token revoke",
)  # fmt: skip


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


def submit(cli: Gavel, name: str, code: str = QUICK, *arguments: str, steps: str = "1") -> str:
    answer = cli("submit", "--name", name, "--steps", steps, "--rate", "v100:10", *arguments, "--",
                 sys.executable, "-c", code, name)  # fmt: skip
    assert answer.code == 0, answer.err
    return answer.out.split("\t")[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_examples(gavel: Gavel, command: str) -> None:
    answer = gavel(*command.split(), "--help")

    assert answer.code == 0
    assert "Example" in answer.out
    assert f"gavel {command}" in answer.out


def test_job_of_several_sizes_is_forecast_listed_and_explained(cli: Gavel) -> None:
    options = ("--gpus", "1,2", "--rate", "v100:10", "--efficiency", "2:0.9", "--steps", LONG_STEPS, "--preemptible")
    command = ("--", sys.executable, "-c", LONG)
    planned = cli("submit", *options, "--dry-run", "-o", "json", *command)
    assert cli("submit", "--name", "elastic", *options, *command).code == 0
    until(lambda: "2 of 1,2" in cli("jobs").out, "the job has two GPUs")

    explained = cli("explain", "elastic", "-o", "json").json
    refused = cli("policy", "set", "gandiva")

    assert planned.json["jobs"][0]["gpus"] == 2
    assert (explained["job"]["sizes"], explained["description"]["gpus"]) == ([1, 2], 1)
    assert explained["description"]["rates_by_size"] == {"2": {"rates_steps_per_s": {"v100": 18.0}}}
    assert [(size["gpus"], size["rate_steps_per_s"]) for size in explained["sizes"]] == [(1, 10.0), (2, 18.0)]
    assert "does not use sizes (`gavel policies`): gpus must be one number, got 1, 2 for job" in refused.err
    assert cli("cancel", "elastic").code == 0


def test_job_runs_in_its_snapshot_with_its_virtual_environment(cli: Gavel) -> None:
    """The directory changes after the submission; the job finds its Python by PATH."""
    (cli.folder / "env" / "bin").mkdir(parents=True)
    (cli.folder / "env" / "bin" / "python").symlink_to(sys.executable)
    (cli.folder / "code").mkdir()
    cli.file("code/run.py", "import os; print(open('data.txt').read(), os.environ['VIRTUAL_ENV'], flush=True)")
    cli.file("code/data.txt", "as submitted")

    options = ("-C", "code", "--steps", "1", "--rate", "v100:10", "--snapshot", "--venv", "env")
    planned = cli("submit", *options, "--name", "archived", "--dry-run", "--", "python", "run.py")
    submitted = cli("submit", *options, "--name", "archived", "--", "python", "run.py")
    cli.file("code/data.txt", "changed")
    waited = cli("wait", "archived")

    assert (planned.code, submitted.code, waited.code) == (0, 0, 0), waited.err
    assert cli("logs", "archived").out == f"as submitted {cli.folder}/env\n"
    explained = cli("explain", "archived", "-o", "json").json["description"]["software"]
    assert (explained["venv"], len(explained["snapshot"])) == (f"{cli.folder}/env", 64)
    assert f"Runs with venv {cli.folder}/env, snapshot {explained['snapshot']}." in cli("explain", "archived").out


def test_job_with_an_environment_that_is_missing_fails_once_with_the_reason(cli: Gavel) -> None:
    submit(cli, "bare", QUICK, "--conda", "/nowhere/env")

    assert cli("wait", "bare").code == 1
    found = cli("status", "bare", "-o", "json").json["jobs"][0]
    assert (found["state"], found["restarts"]) == ("failed", 0)
    assert "the conda environment /nowhere/env has no bin/python on node n1" in found["detail"]


def test_job_is_submitted_waited_for_and_read(cli: Gavel) -> None:
    number = submit(cli, "first")

    waited = cli("wait", "first", "--for", "60")
    read = cli("logs", number)

    assert (waited.code, waited.out) == (0, f"{number}\tfirst\tfinished\n")
    assert read.out == "hello from ['first']\n"


def submitted_at_a_terminal(*options: str) -> tuple[str, str]:
    """Submits a job with stderr on a terminal; returns both outputs."""
    terminal, inner = pty.openpty()
    command = [*RUN, "submit", *options, "--steps", "1", "--", sys.executable, "-c", ""]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=inner, check=True)
    os.write(inner, b"(end)")
    errors = os.read(terminal, 65_536).decode()
    os.close(inner)
    os.close(terminal)
    return answer.stdout.decode(), errors


def test_submit_prints_the_next_commands_on_a_terminal(cli: Gavel) -> None:
    out, errors = submitted_at_a_terminal("--name", "next")

    number = out.split("\t")[0]
    assert f"gavel logs {number} --follow" in errors
    assert f"gavel explain {number}" in errors
    assert f"gavel wait {number}" in errors


def test_submit_names_the_whole_array_in_the_next_commands(cli: Gavel) -> None:
    few, errors_of_few = submitted_at_a_terminal("--name", "few", "--array", "0-2")
    many, errors_of_many = submitted_at_a_terminal("--name", "many", "--array", "0-9")

    numbers = [line.split("\t")[0] for line in few.splitlines()]
    first, *_, last = (line.split("\t")[0] for line in many.splitlines())
    assert f"gavel wait {' '.join(numbers)}" in errors_of_few
    assert f"gavel wait $(seq {first} {last})" in errors_of_many


def test_submit_prints_no_next_commands_with_json(cli: Gavel) -> None:
    assert submitted_at_a_terminal("--name", "quiet", "-o", "json")[1] == "(end)"


def test_submit_prints_no_next_commands_into_a_pipe(cli: Gavel) -> None:
    answer = cli("submit", "--name", "piped", "--steps", "1", "--rate", "v100:10", "--", sys.executable, "-c", "")

    assert "gavel logs" not in answer.err


def test_failing_job_makes_wait_fail(cli: Gavel) -> None:
    submit(cli, "broken", "import sys; print('oh no', file=sys.stderr); sys.exit(3)")

    answer = cli("wait", "broken", "--for", "60", "-o", "json")
    read = cli("logs", "broken", "--grep", "^oh")

    assert answer.code == 1
    assert answer.json["jobs"][0]["state"] == "failed"
    assert "3" in answer.json["jobs"][0]["detail"]
    assert set(read.out.splitlines()) == {"oh no"}


def test_wait_gives_up_with_124(cli: Gavel) -> None:
    submit(cli, "endless", LONG, steps=LONG_STEPS)

    answer = cli("wait", "endless", "--for", "0.2")

    assert answer.code == 124
    assert "the jobs continue" in answer.err
    assert cli("cancel", "endless").code == 0


def test_cancelled_job_is_shown_as_cancelled(cli: Gavel) -> None:
    submit(cli, "unwanted", LONG, steps=LONG_STEPS)

    answer = cli("cancel", "unwanted")

    assert answer.out.endswith("\tunwanted\tcancelled\n")
    assert cli("wait", "unwanted").code == 1


def test_array_from_a_file_runs_with_its_indices_a_few_at_a_time(cli: Gavel) -> None:
    command = json.dumps([sys.executable, "-c", QUICK, "{index}"])
    file = cli.file("jobs.toml", f'[[job]]\nname = "sweep"\ncommand = {command}\nsteps_total = 1\n'
                                 "rates_steps_per_s = {v100 = 10}\n")  # fmt: skip

    answer = cli("submit", file, "--array", "0-2%1", "--wait", "-o", "json")

    assert answer.code == 0, answer.err
    assert [job["name"] for job in answer.json["jobs"]] == ["sweep-0", "sweep-1", "sweep-2"]
    assert cli("logs", "sweep-2").out == "hello from ['2']\n"
    assert cli("logs", "--grep", r"from \['1'\]").out == "sweep-1 hello from ['1']\n"


def test_same_key_submits_once(cli: Gavel) -> None:
    first, again = submit(cli, "keyed", QUICK, "--key", "k"), submit(cli, "keyed", QUICK, "--key", "k")

    assert first == again


def test_dry_run_shows_where_and_when(cli: Gavel) -> None:
    job = '[[job]]\ncommand = "true"\nsteps_total = 50\nrates_steps_per_s = {{{} = 10}}\n'
    file = cli.file("jobs.toml", job.format("v100") + job.format("k80"))

    answer = cli("submit", file, "--dry-run", "-o", "json")

    told, hopeless = answer.json["jobs"]
    assert (told["can_run"], told["gpu_type"], told["node_ids"]) == (True, "v100", ["n1"])
    assert told["finish_in_s"] > told["start_in_s"] >= 0
    assert hopeless["can_run"] is False


def test_running_job_is_listed_explained_and_followed(cli: Gavel, cluster: LocalCluster) -> None:
    number = submit(cli, "watched", LONG, steps=LONG_STEPS)
    until(lambda: "running" in cli("status", "watched").out, "it runs")

    explained = cli("explain", "watched")
    listed = cli("jobs", "--state", "running", "-o", "json")
    seen = cli("top", "--once")
    command, environment = [*RUN, "logs", "watched", "-f"], os.environ | {"GAVEL_SCHEDULER": cluster.address}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        first = following.stdout.readline()
        cli("cancel", "watched")
        left = following.wait(60)

    assert (first, left) == ("here\n", 0)
    assert f"job {number} (watched) of local: running on v100 of n1" in explained.out
    assert "Preemption: never saved: not preemptible until its first checkpoint; preempting it now" in explained.out
    assert "none in a checkpoint" in explained.out
    assert "History:" in explained.out
    assert "watched" in [job["name"] for job in listed.json["jobs"]]
    assert "watched" in seen.out
    assert "n1" in seen.out


def test_events_tell_what_happened(cli: Gavel) -> None:
    number = submit(cli, "told")
    cli("wait", "told")

    table = cli("events", "--job", "told")
    lines = [json.loads(line) for line in cli("events", "--job", number, "-o", "json").out.splitlines()]

    assert f"job {number} (told) submitted by local" in table.out
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "job-submitted"
    assert "lease-started" in kinds
    assert lines[-1]["json"]["outcome"] == "finished"


def test_submission_notes_that_jobs_are_not_preemptible_by_default(cli: Gavel) -> None:
    arguments = ("--steps", "1", "--rate", "v100:10")
    run = ("--", sys.executable, "-c", QUICK, "noted")

    noted = cli("submit", "--name", "noted", *arguments, *run)
    long = ("--", sys.executable, "-c", "import time; time.sleep(600)")
    allowed = cli("submit", "--name", "allowed", *arguments, "--preemptible", *long)

    number = noted.out.split("\t")[0]
    assert f"note: job {number} (noted): never saved: not preemptible until its first checkpoint" in noted.err
    assert (allowed.code, "note:" in allowed.err) == (0, False)
    assert "Preemption: preemptible: submitted so by its owner" in cli("explain", "allowed").out
    assert cli("cancel", "allowed").code == 0


def test_node_is_drained_and_resumed(cli: Gavel) -> None:
    assert "drain" in cli("drain", "n1", "--force", "-o", "json").json["nodes"][0]["state"]
    assert "drain" in cli("drain", "n1", "-o", "json").json["nodes"][0]["state"]
    assert cli("node", "resume", "n1", "-o", "json").json["nodes"][0]["state"] == "up"
    assert "n1" in cli("nodes").out
    lost = cli("node", "lost", "n1")
    assert lost.code == 2
    assert "connected" in lost.err


def test_policy_is_shown_and_set(cli: Gavel) -> None:
    changed = cli("policy", "set", "shortest_job_first", "-p", "by=total", "-o", "json")

    assert changed.json["policy"] == "shortest_job_first"
    assert json.loads(changed.json["policy_parameters"]) == {"by": "total"}
    assert "shortest_job_first" in cli("policy", "show").out
    assert cli("policy").out.splitlines()[0] == cli("policy", "show").out.splitlines()[0]  # figures change
    assert (
        cli("policy", "--timeout", "3", "show").err == "error: options must come after `policy show`, got some before\n"
    )
    assert cli("policy", "set", "max_min_fairness").code == 0
    assert cli("policy", "set", "nonsense").code == 2
    assert cli("policy", "set").code == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("status", "nobody"), "job must be the number or name of one of yours, got 'nobody'"),
        (("logs",), "logs needs a JOB, or --grep REGEX or --follow"),
        (("logs", "--grep", "["), "pattern must be a regular expression"),
        (("submit", "--steps", "0", "--", "true"), "--steps"),
        (("submit", "nowhere.toml"), "nowhere.toml: file cannot be read"),
        (("submit", "--steps", "1", "nowhere.toml"), "remove these flags: steps"),
        (("submit", "--steps", "1", "--array", "0-9%0", "--", "true"), "must end in %N with N >= 1"),
        (("submit", "--steps", "1", "--name", "a b", "--", "true"), r"jobs[0].name must be"),
        (
            ("submit", "--steps", "1", "--env", "GAVEL_X=1", "--", "true"),
            "keyed by names that do not begin with GAVEL_",
        ),
        (("jobs", "--state", "lazy"), "must be one of waiting"),
        (("drain", "n9"), "node must be one that has joined, got 'n9'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli: Gavel, arguments: tuple[str, ...], complaint: str) -> None:
    answer = cli(*arguments)

    assert answer.code == 2
    assert complaint in answer.err
    assert answer.err.count("\n") == 1


def test_scheduler_that_is_not_there_is_exit_code_3(cli: Gavel) -> None:
    with reserved_port() as port:
        answer = cli("jobs", "--scheduler", f"127.0.0.1:{port}", "--timeout", "0.3")

    assert answer.code == 3
    assert answer.err.startswith("error: the scheduler at 127.0.0.1:")
    assert answer.err.count("\n") == 1


def test_completion_offers_jobs_and_nodes(cli: Gavel, cluster: LocalCluster) -> None:
    submit(cli, "completed", LONG, steps=LONG_STEPS)
    environment = os.environ | {"GAVEL_SCHEDULER": cluster.address, "_GAVEL_COMPLETE": "complete_bash"}

    def offered(words: str) -> list[str]:
        told = environment | {"COMP_WORDS": words, "COMP_CWORD": "2"}
        return subprocess.run(RUN, env=told, capture_output=True, text=True, check=False).stdout.split()

    # Completion waits for the scheduler at most 1 s; the user may press the key again.
    until(lambda: offered("gavel status compl") == ["completed"], "the job is offered")
    until(lambda: offered("gavel drain n") == ["n1"], "the node is offered")
    cli("cancel", "completed")


def test_tokens_are_made_listed_and_revoked(gavel: Gavel) -> None:
    file = str(gavel.folder / "tokens.json")
    made = gavel("token", "create", "--name", "alice", "--expires-in", "12h", "--file", file)
    other = gavel("token", "create", "--name", "n1", "--role", "node", "--file", file, "-o", "json")

    listed = gavel("token", "list", "--file", file, "-o", "json")
    revoked = gavel("token", "revoke", other.json["id"], "--file", file)

    assert made.out.startswith("gavel_")
    assert "cannot be shown again" in made.err
    assert [(token["name"], token["role"]) for token in listed.json["tokens"]] == [("alice", "user"), ("n1", "node")]
    assert made.out.strip() not in listed.out
    assert revoked.out.endswith("\tn1\tnode\n")
    assert gavel("token", "revoke", "nobody", "--file", file).code == 2
    assert gavel("token", "create", "--name", "x", "--role", "king", "--file", file).code == 2
    assert gavel("token", "create", "--name", "x", "--expires-in", "soon", "--file", file).code == 2


def test_caller_that_is_not_known_is_exit_code_4(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    (gavel.folder / "state").mkdir()
    with serving(gavel.folder / "state", users={}) as scheduler:
        monkeypatch.setenv("GAVEL_TOKEN", "gavel_wrong")
        answer = gavel("jobs", "--scheduler", scheduler.address)

    assert answer.code == 4
    assert answer.err.startswith("error: not allowed: the token is unknown or has expired")
    assert answer.err.count("\n") == 1


def test_program_that_stops_reading_ends_the_stream(cli: Gavel, cluster: LocalCluster) -> None:
    command, environment = [*RUN, "events", "-f"], os.environ | {"GAVEL_SCHEDULER": cluster.address}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()

        process.stdout.close()
        submit(cli, "push")

        assert process.wait(60) == 141
        assert process.stderr.read() == b""

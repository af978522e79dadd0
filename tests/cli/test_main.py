"""The command line as a whole: help, exit codes, messages, streams that close, completion."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gavelpy import __version__
from gavelpy.cli import allocate
from gavelpy.cli.main import main
from gavelpy.errors import SolverFailed
from tests.cli.commands import Gavel

RUN = (sys.executable, "-c", "import sys; from gavelpy.cli.main import main; sys.exit(main())")
HEAVY = ("numpy", "rich", "pandas", "cvxpy", "highspy", "numba", "scipy", "plotly", "jinja2", "torch", "grpc")
COMMANDS = (
    (),
    ("simulate",),
    ("sweep",),
    ("whatif",),
    ("plan",),
    ("capacity",),
    ("forecast", "score"),
    ("allocate",),
    ("policies",),
    ("demo",),
    ("trace", "generate"),
    ("trace", "describe"),
    ("trace", "convert"),
    ("trace", "formats"),
    ("reproduce", "fgd"),
    ("reproduce", "fig8"),
    ("reproduce", "shockwave"),
    ("reproduce", "sia"),
    ("reproduce", "cost"),
)


def test_version_is_printed(gavel: Gavel) -> None:
    answer = gavel("--version")

    assert (answer.code, answer.out, answer.err) == (0, f"gavel {__version__}\n", "")


def test_without_a_command_the_help_is_shown(gavel: Gavel) -> None:
    answer = gavel()

    assert answer.code == 0
    assert "simulate" in answer.out
    assert "gavel demo" in answer.out


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_help_of_each_command_has_examples(gavel: Gavel, command: tuple[str, ...]) -> None:
    answer = gavel(*command, "--help")

    assert answer.code == 0
    assert "Example" in answer.out
    assert f"gavel {' '.join(command)}" in answer.out


def test_policies_are_listed_with_what_they_do(gavel: Gavel) -> None:
    answer = gavel("policies", "-o", "json")

    by_name = {entry["name"]: entry for entry in answer.json["policies"]}
    assert {"fifo", "isolated", "max_min_fairness", "min_makespan", "shortest_job_first"} <= set(by_name)
    assert by_name["max_min_fairness"]["aliases"] == ["las"]
    assert all(len(entry["summary"]) > 20 for entry in answer.json["policies"])
    assert by_name["max_min_fairness"]["guarantees"] == ["sharing_incentive", "pareto_efficient"]
    assert by_name["shortest_job_first"]["guarantees"] == []
    assert by_name["hierarchical"]["uses"] == ["weight", "entity", "pairs", "sizes", "resources"]


def test_policies_as_a_table_say_the_same(gavel: Gavel) -> None:
    answer = gavel("policies")

    assert "max_min_fairness" in answer.out
    assert "las" in answer.out
    assert "sharing incentive, Pareto efficient" in answer.out


def test_an_answer_that_cannot_be_certified_is_the_worlds_fault(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise SolverFailed("time limit", jobs=3, gpu_types=2)

    monkeypatch.setattr(allocate, "reasons", fail)

    answer = gavel("allocate", gavel.problem(), "--policy", "fifo")

    assert answer.code == 1
    assert answer.err == "error: no certified allocation (time limit) for 3 jobs on 2 GPU types\n"


def test_message_stays_one_printable_line_whatever_it_names(gavel: Gavel) -> None:
    answer = gavel("trace", "describe", "no\nsuch\x1b[31m file")

    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "\x1b" not in answer.err


def test_starting_up_loads_nothing_heavy() -> None:
    code = f"import sys, gavelpy.cli.main; sys.exit(bool(set({HEAVY}) & set(sys.modules)))"

    finished = subprocess.run([sys.executable, "-c", code], check=False)

    assert finished.returncode == 0


def test_the_installed_command_runs() -> None:
    gavel = Path(sys.executable).parent / "gavel"

    finished = subprocess.run([gavel, "--version"], capture_output=True, text=True, check=True)

    assert finished.stdout == f"gavel {__version__}\n"


def test_interrupt_ends_with_130_and_one_line(tmp_path: Path) -> None:
    pipe = tmp_path / "trace.csv"
    os.mkfifo(pipe)
    listening = RUN[2].replace("import sys;", "import signal, sys; signal.signal(2, signal.default_int_handler);")
    command = [*RUN[:2], listening, "trace", "describe", str(pipe)]  # background jobs of a shell ignore SIGINT
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    with pipe.open("wb"):  # opening succeeds once the command is reading, and keeps it reading
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)

    assert process.returncode == 130
    assert message == "interrupted\n"


def test_a_reader_that_leaves_early_is_no_disaster() -> None:
    command = [*RUN, "trace", "generate", "--jobs", "20000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None

    process.stdout.close()
    _, message = process.communicate(timeout=60)

    assert process.returncode == 141
    assert message == ""


@pytest.mark.parametrize("command", ["policies", "trace generate --jobs 3", "policies -o json", "--version"])
def test_full_disk_is_one_line(command: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        finished = subprocess.run([*RUN, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert finished.returncode == 1
    assert finished.stderr.count("\n") == 1
    assert "output cannot be written (No space left on device)" in finished.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("policies", "error: output cannot be written (stdout is closed)\n"),
        (
            "policies -o json",
            '{"version": 1, "error": {"code": "failed", "exit_code": 1, '
            '"message": "output cannot be written (stdout is closed)"}}\n',
        ),
        ("--help", "error: output cannot be written (stdout is closed)\n"),
    ],
)
def test_a_command_that_prints_to_a_closed_stdout_fails(command: str, message: str) -> None:
    call = shlex.join([*RUN, *command.split()])

    finished = subprocess.run(f"{call} >&-", shell=True, stderr=subprocess.PIPE, text=True, check=False)

    assert (finished.returncode, finished.stderr) == (1, message)


@pytest.mark.parametrize("stdout", [">&-", ">/dev/full"])
def test_a_command_without_output_needs_no_stdout(tmp_path: Path, stdout: str) -> None:
    call = shlex.join([*RUN, "trace", "generate", "--jobs", "3", "--out", str(tmp_path / "trace.csv")])

    finished = subprocess.run(f"{call} {stdout}", shell=True, stderr=subprocess.PIPE, text=True, check=False)

    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("stdout", [">&-", ">/dev/full"])
def test_an_error_after_output_that_is_lost_is_the_only_line(stdout: str) -> None:
    program = (
        "import sys; from gavelpy.cli import main, commands; from gavelpy.errors import InvalidInput\n"
        "def app(**_): sys.stdout.write('partial'); raise InvalidInput('x must be 1, got 2')\n"
        "commands.app = app; sys.exit(main.main([]))"
    )
    call = shlex.join(["env", "-u", "PYTHONUNBUFFERED", sys.executable, "-c", program])

    finished = subprocess.run(f"{call} {stdout}", shell=True, stderr=subprocess.PIPE, text=True, check=False)

    assert (finished.returncode, finished.stderr) == (2, "error: x must be 1, got 2\n")


def test_a_closed_stderr_keeps_the_exit_code() -> None:
    call = shlex.join([*RUN, "simulate", "nowhere.csv"])

    finished = subprocess.run(f"{call} 2>&-", shell=True, check=False)

    assert finished.returncode == 2


def test_characters_that_the_terminal_lacks_are_no_disaster() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}

    finished = subprocess.run([*RUN, "policies"], env=environment, capture_output=True, text=True, check=False)

    assert finished.returncode == 0
    assert finished.stderr == ""


@pytest.mark.parametrize("is_stored", [True, False])
def test_compilation_is_announced_on_a_terminal_only(is_stored: bool) -> None:
    program = (
        "import sys; from gavelpy.cli import main, commands; from gavelpy.solve.compiling import compilation_started\n"
        f"def app(**_): compilation_started(is_stored={is_stored}); compilation_started(is_stored={is_stored})\n"
        "commands.app = app; sys.exit(main.main([]))"
    )
    terminal, inner = pty.openpty()

    shown = subprocess.run([sys.executable, "-c", program], stderr=inner, check=False)
    hidden = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=False)

    message = os.read(terminal, 4_096).decode()
    os.close(terminal)
    os.close(inner)
    assert (shown.returncode, hidden.returncode, hidden.stderr) == (0, 0, b"")
    assert message.count("\n") == 1
    assert message.startswith("note: compiling kernels, once for" if is_stored else "note: compiling kernels, in each")


def test_completion_offers_the_policies() -> None:
    environment = os.environ | {"_GAVEL_COMPLETE": "complete_bash", "COMP_WORDS": "gavel simulate --policy fifo,max"}
    environment |= {"COMP_CWORD": "3"}

    finished = subprocess.run(RUN, env=environment, capture_output=True, text=True, check=False)

    assert finished.stdout.split() == [
        "fifo,max_min_fairness",
        "fifo,max_min_fairness_water_filling",
        "fifo,max_sum_throughput",
    ]


def test_main_takes_its_arguments_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gavel", "--version"])

    code = main()

    assert (code, capsys.readouterr().out) == (0, f"gavel {__version__}\n")


@pytest.mark.parametrize("option", ["-o json", "-ojson", "--output json", "--output=json"])
def test_error_under_json_is_one_object_on_stderr(gavel: Gavel, option: str) -> None:
    answer = gavel("simulate", "nowhere.csv", *option.split())

    assert (answer.code, answer.out) == (2, "")
    error = json.loads(answer.err)["error"]
    assert (error["code"], error["exit_code"], error["file"]) == ("bad_input", 2, "nowhere.csv")
    assert error["message"].startswith("nowhere.csv: ")


def test_error_of_a_job_that_prints_json_itself_is_text(gavel: Gavel) -> None:
    answer = gavel("submit", "--gpus", "0", "--", "python", "-o", "json")

    assert answer.code == 2
    assert answer.err.startswith("error: Invalid value for '--gpus'")


def test_output_option_that_meant_a_file_still_works_with_a_warning(gavel: Gavel) -> None:
    old = gavel("trace", "generate", "--jobs", "3", "-o", "old.csv")
    new = gavel("trace", "generate", "--jobs", "3", "--out", "new.csv")

    assert (old.code, new.code) == (0, 0)
    assert "-o FILE is deprecated" in old.err
    assert "deprecated" not in new.err
    assert (gavel.folder / "old.csv").read_text() == (gavel.folder / "new.csv").read_text()

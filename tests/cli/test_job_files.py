"""Job descriptions written by users: files, arrays, flags."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from gavelpy.cli.job_files import expanded, read_job_file
from gavelpy.cli.job_texts import array_and_limit, array_indices, gpu_types, pairs, rates, warning
from gavelpy.cli.times import begin, span
from gavelpy.errors import InvalidInput

GOOD = """
[[job]]
name = "train"
command = ["python", "train.py", "--note", "two words"]
steps_total = 1000
gpus = 2
[job.rates_steps_per_s]
v100 = 10
[job.environment]
SEED = "{index}"

[[job]]
command = "python other.py --seed {index}"
steps_total = 5.5
array = "1,3"
working_directory = "sub"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    return path


def test_file_is_read(tmp_path: Path) -> None:
    first, second = read_job_file(write(tmp_path, GOOD))

    assert (first.name, first.gpus, first.steps_total) == ("train", 2, 1000.0)
    assert first.command == "python train.py --note 'two words'"
    assert first.rates_steps_per_s == {"v100": 10.0}
    assert first.working_directory == str(tmp_path.resolve())
    assert second.working_directory == str((tmp_path / "sub").resolve())


def test_array_fills_in_the_index(tmp_path: Path) -> None:
    second = read_job_file(write(tmp_path, GOOD))[1]

    spread = second.expand()

    assert [job.command for job in spread] == ["python other.py --seed 1", "python other.py --seed 3"]
    assert [job.array for job in spread] == ["", ""]


def test_name_of_an_array_gets_the_index_where_it_does_not_say_where(tmp_path: Path) -> None:
    text = '[[job]]\nname = "x"\ncommand = "a"\nsteps_total = 1\narray = "0-1"\n'

    assert [job.name for job in read_job_file(write(tmp_path, text))[0].expand()] == ["x-0", "x-1"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"jobs.toml: file must have at least one table \[\[job\]\], got none"),
        ("job = 1", r"file must have at least one table"),
        ("[[job]]\n[other]\n", r"tables must be \[\[job\]\], got 'other'"),
        ("[[job]]\ncommand = 'a'\nsteps_total = 0", r"job\[0\].steps_total must be a number above 0, got 0"),
        ("[[job]]\nsteps_total = 1", r"job\[0\].command must be given"),
        ("[[job]]\nsteps = 1", r"job\[0\]: unknown field .steps.; the fields are name, command, "),
        ("[[job]]\ncommand = 'a'\nsteps_total = '1'", r"job\[0\].steps_total must be a number above 0, got '1'"),
        ("[[job]]\ncommand = 'a'\nsteps_total = nan", r"job\[0\].steps_total must be a number above 0, got nan"),
        (
            "[[job]]\ncommand = 'a'\nsteps_total = 1\ngpus = 1.5",
            r"job\[0\].gpus must be a whole number, or several such as .*, got 1.5",
        ),
        (
            "[[job]]\ncommand = 'a'\nsteps_total = 1\ngpus = true",
            r"job\[0\].gpus must be a whole number, or several such as .*, got True",
        ),
        ("[[job]]\ncommand = []\nsteps_total = 1", r"job\[0\].command must be a string or a list of strings, got \[\]"),
        ("[[job]]\ncommand = 'a'\nsteps_total = 1\nenvironment = {A = 1}", r"environment must be a table of strings"),
        (
            "[[job]]\ncommand = 'a'\nsteps_total = 1\nsecrets = ['A=']",
            r"secrets must be a list of NAME or NAME=VARIABLE",
        ),
        ("[[job]", r"jobs.toml:1: text must be TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read_job_file(write(tmp_path, text))


def test_binary_file_is_no_job_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(InvalidInput, match="text must be UTF-8"):
        read_job_file(path)


@pytest.mark.parametrize(
    ("text", "indices"), [("0-3", [0, 1, 2, 3]), ("0-9:4", [0, 4, 8]), ("5", [5]), ("1,3-4", [1, 3, 4])]
)
def test_array_is_read(text: str, indices: list[int]) -> None:
    assert array_indices(text) == indices


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-", "-1", "0-9:0", "1,1", "0-99999", "0-9999999999", "²"])
def test_array_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="array must"):
        array_indices(text)


def test_array_may_say_how_many_live_at_once() -> None:
    assert array_and_limit("0-9%4") == ("0-9", 4)
    assert array_and_limit("0-9") == ("0-9", 0)
    with pytest.raises(InvalidInput, match="must end in %N"):
        array_and_limit("0-9%0")


def test_warning_is_a_signal_and_seconds() -> None:
    assert warning("USR1@60") == warning("SIGUSR1@60") == (60.0, 10)
    with pytest.raises(InvalidInput, match="--warning must look like USR1@60"):
        warning("USR1")
    with pytest.raises(InvalidInput, match="--warning must look like USR1@60"):
        warning("NONE@nan")


def test_pairs_are_named_once() -> None:
    assert pairs("--env", ["A=1", "B=x=y"], "=") == {"A": "1", "B": "x=y"}
    with pytest.raises(InvalidInput, match="--env must name each once, got 'A' twice"):
        pairs("--env", ["A=1", "A=2"], "=")
    with pytest.raises(InvalidInput, match="--env must look like NAME=VALUE, got 'A'"):
        pairs("--env", ["A"], "=")


def test_rates_are_numbers_by_type() -> None:
    assert rates(["v100:10,k80:1.5", "p100:2"]) == {"v100": 10.0, "k80": 1.5, "p100": 2.0}
    with pytest.raises(InvalidInput, match="--rate must look like"):
        rates(["v100:fast"])


AT_NOON = datetime(2026, 5, 1, 12, 0).timestamp()  # local


@pytest.mark.parametrize(
    ("text", "later_s"),
    [
        ("+90s", 90.0), ("+2h", 7_200.0), ("now+1.5h", 5_400.0), ("+5min", 300.0), ("+1d", 86_400.0),
        ("12:00", 0.0), ("22:30", 37_800.0), ("9:00", 75_600.0), ("9:00:30", 75_630.0), ("12:00:05", 5.0),
        ("2026-05-01T13:00", 3_600.0),
        ("2026-05-02", 43_200.0), ("2026-05-01 12:01:00", 60.0),
    ],
)  # fmt: skip
def test_a_begin_is_a_date_a_time_or_a_time_from_now(text: str, later_s: float) -> None:
    assert begin(text, AT_NOON) == AT_NOON + later_s


def test_a_begin_with_an_offset_is_the_same_everywhere() -> None:
    assert begin("2026-05-01T10:00Z", 0.0) == begin("2026-05-01T12:00+02:00", 0.0) == 1777629600.0


@pytest.mark.parametrize(
    "text", ["", "soon", "2h", "+2", "+2 weeks", "25:00", "2026-13-01", "+-2h", "1e9", "9999999999"]
)
def test_a_begin_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"begin must be a time such as .*, got"):
        begin(text, AT_NOON)


@pytest.mark.parametrize("value", ["2026-05-01T12:00:00", '"2026-05-01T12:00"', '"2026-05-01 12:00"'])
def test_a_file_has_a_begin_as_a_string_or_a_date(tmp_path: Path, value: str) -> None:
    (job,) = read_job_file(write(tmp_path, f'[[job]]\ncommand = "a"\nsteps_total = 1\nhold = true\nbegin = {value}\n'))

    assert (job.begin_at_s, job.hold) == (AT_NOON, True)


def test_a_file_with_a_begin_that_is_no_time_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"job\[0\]\.begin must be a time such as"):
        read_job_file(write(tmp_path, '[[job]]\ncommand = "a"\nsteps_total = 1\nbegin = 5\n'))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5_400.0),
        ("2h", 7_200.0),
        ("1.5d", 129_600.0),
        ("45s", 45.0),
        ("1:30:00", 5_400.0),
        ("1-12:00:00", 129_600.0),
    ],
)
def test_a_span_has_a_unit_or_the_form_of_slurm(text: str, seconds: float) -> None:
    assert span("--time", text) == seconds


@pytest.mark.parametrize("text", ["", "90", "0h", "-1h", "1:30", "2 weeks", "1:99:00", "inf"])
def test_a_span_that_is_none_or_unclear_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--time must be a time span such as .*, more than 0, got"):
        span("--time", text)


def test_a_constraint_is_a_list_of_types() -> None:
    assert gpu_types("v100|p100") == ("v100", "p100")


@pytest.mark.parametrize("text", ["", "v100|", "v100|v100", "v100,p100", "v 100"])
def test_a_constraint_that_names_no_types_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"constraint must be GPU types such as v100\|p100"):
        gpu_types(text)


def test_a_file_has_limits(tmp_path: Path) -> None:
    limits = 'time = "2h"\nstall = "30m"\nconstraint = "v100|p100"\n'

    (job,) = read_job_file(write(tmp_path, f'[[job]]\ncommand = "a"\nsteps_total = 1\n{limits}'))

    assert (job.time_s, job.stall_s, job.gpu_types) == (7_200.0, 1_800.0, ("v100", "p100"))
    assert job.message().gpu_types == ["v100", "p100"]


ARRAY = """
[[job]]
name = "prepare"
command = "a"
steps_total = 1
array = "0-2%2"
[[job]]
name = "train"
command = "b"
steps_total = 1
after = ["prepare:any", "other", 7]
no_preempt = true
"""


def test_a_job_after_an_array_comes_after_each_of_its_jobs(tmp_path: Path) -> None:
    *members, train = expanded(read_job_file(write(tmp_path, ARRAY)))

    assert [job.array_position for job in members] == [0, 1, 2]
    assert {(job.array_size, job.array_limit) for job in members} == {(3, 2)}
    assert train.after == ("prepare-0:any", "prepare-1:any", "prepare-2:any", "other", "7")
    assert train.no_preempt


@pytest.mark.parametrize("after", ['"prepare"', "[]", "[1.5]"])
def test_a_file_with_an_after_that_is_no_list_names_the_field(tmp_path: Path, after: str) -> None:
    with pytest.raises(InvalidInput, match=r"job\[0\]\.after must be a list of numbers or names of jobs"):
        read_job_file(write(tmp_path, f'[[job]]\ncommand = "a"\nsteps_total = 1\nafter = {after}\n'))

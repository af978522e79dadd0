"""Jobs with several numbers of GPUs as users write them: on the command line and in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.cli.job_files import JobTemplate, read_job_file
from gavelpy.cli.job_sizes import gpus_of, size_fields
from gavelpy.cli.job_texts import efficiency, rates
from gavelpy.cli.rate_profiles import read_templates
from gavelpy.errors import InvalidInput

HEAD = "[[job]]\ncommand = 'a'\n"


def from_file(tmp_path: Path, text: str) -> JobTemplate:
    path = tmp_path / "jobs.toml"
    path.write_text(HEAD + text)
    return read_job_file(path)[0]


@pytest.mark.parametrize(
    ("text", "gpus", "sizes"), [("4", 4, ()), ("2,1,4", 2, (2, 1, 4)), ("2..4", 2, (2, 3, 4)), ("3..3", 3, ())]
)
def test_first_number_is_the_requested_one(text: str, gpus: int, sizes: tuple[int, ...]) -> None:
    assert gpus_of(text) == (gpus, sizes)


def test_plans_are_read_by_number_of_gpus(tmp_path: Path) -> None:
    job = from_file(tmp_path, 'gpus = [1, 4]\nplans = {1 = "dp1", 4 = "tp2,dp2"}\n')

    assert job.plans == {1: "dp1", 4: "tp2,dp2"}
    assert dict(job.message().plans) == {1: "dp1", 4: "tp2,dp2"}


@pytest.mark.parametrize("plans", ['{four = "x"}', "{4 = 1}", '"x"'])
def test_plans_that_mean_nothing_are_refused_by_field(tmp_path: Path, plans: str) -> None:
    with pytest.raises(InvalidInput, match=r"job\[0\]\.plans must be a table of texts by number of GPUs"):
        from_file(tmp_path, f"gpus = [1, 4]\nplans = {plans}\n")


def test_rates_and_efficiency_are_sorted_by_number_of_gpus() -> None:
    given = rates(["v100:10,k80:1", "v100@4:36"])

    found = size_fields(gpus_of("1,2,4"), given, efficiency(["2:0.95"]))

    assert found["rates_steps_per_s"] == {"v100": 10.0, "k80": 1.0}
    assert found["rates_by_size"] == {4: {"v100": 36.0}}
    assert found["efficiency"] == {2: 0.95}


def test_rate_on_the_requested_number_may_name_it() -> None:
    found = size_fields(gpus_of("2,1"), {"v100@2": 19.0, "v100@1": 10.0}, {"2": 1.0, "1": 1.1})

    assert (found["rates_steps_per_s"], found["rates_by_size"]) == ({"v100": 19.0}, {1: {"v100": 10.0}})
    assert found["efficiency"] == {1: 1.1}


def test_file_and_command_line_describe_the_same_job(tmp_path: Path) -> None:
    text = 'gpus = [1, 2, 4]\nrates_steps_per_s = {v100 = 10, "v100@4" = 36}\nefficiency = {2 = 0.95}\n'
    job = from_file(tmp_path, text)
    same = from_file(tmp_path, text.replace("[1, 2, 4]", '"1,2,4"'))

    message = job.message()

    assert job == same
    assert (message.gpus, list(message.sizes), dict(message.efficiency)) == (1, [1, 2, 4], {2: 0.95})
    assert dict(message.rates_by_size[4].rates_steps_per_s) == {"v100": 36.0}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpus = [1, 1]", r"job\[0\].gpus must be a whole number, or several"),
        ("gpus = []", r"job\[0\].gpus must be a whole number, or several"),
        ("gpus = '4..1'", r"job\[0\].gpus must be a whole number, or several"),
        ("gpus = 2\nrates_steps_per_s = {'v100@4' = 1}", r"job\[0\]: rate must be of numbers of GPUs in gpus \(2\)"),
        ("rates_steps_per_s = {'v100' = 1, 'v100@1' = 1}", "rate must name each GPU type once on 1 GPUs, got 'v100'"),
        ("gpus = [1, 2]\nefficiency = {4 = 0.9}", r"efficiency must be of numbers of GPUs in gpus \(1, 2\), got '4'"),
        ("gpus = [1, 2]\nefficiency = {2 = 0}", "efficiency of 2 GPUs must be > 0, got 0"),
        ("gpus = [1, 2]\nefficiency = {1 = 0.5}", "efficiency of 1 GPUs must be 1, as the job requests them, got 0.5"),
        ("efficiency = {two = 0.5}", "efficiency must be of numbers of GPUs in gpus"),
    ],
)
def test_wrong_size_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        from_file(tmp_path, text)


def test_profile_measures_each_number_of_gpus(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(f"{HEAD}job_type = 'lm'\ngpus = [2, 1]\nrates_steps_per_s = {{v100 = 1}}\nefficiency = {{1 = 1.1}}")

    found = read_templates([path])

    assert [(job.gpus, job.sizes, job.efficiency) for job in found] == [(2, (), {}), (1, (), {})]

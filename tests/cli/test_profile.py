"""`gavel profile` on this machine: real processes, with paced steps, so that a busy machine does not matter."""

from pathlib import Path

import pytest

from gavelpy.traces.reader import read_throughputs
from tests.cli.commands import Gavel

PACED = Path(__file__).resolve().parents[2] / "workloads" / "jobs" / "paced.py"
JOBS = f"""
[[job]]
job_type = "paced"
command = "python {PACED} --rate=100"
steps_total = 1000
"""
BROKEN = """
[[job]]
job_type = "broken"
command = "python -c 1/0"
steps_total = 1000
"""
QUICK = ("--device", "cpu", "--seconds", "0.5")
OLD = "job_type,gpus,gpu_type,rate_steps_per_s,provenance,source\npaced,1,k80,3.5,published,a paper\n"


def test_measured_rates_are_printed(gavel: Gavel) -> None:
    answer = gavel("profile", gavel.file("jobs.toml", JOBS), *QUICK, "-o", "json")

    assert answer.code == 0
    rate = answer.json["rates"][0]
    assert (rate["job_type"], rate["gpus"], rate["gpu_type"]) == ("paced", 1, "cpu")
    assert rate["rate_steps_per_s"] == pytest.approx(100, rel=0.2)
    assert "paced.py" in rate["source"]


def test_measured_rates_go_into_a_table_that_is_there(gavel: Gavel) -> None:
    table = gavel.file("rates.csv", OLD)

    answer = gavel("profile", gavel.file("jobs.toml", JOBS), *QUICK, "--table", table, "--gpu-type", "slow")

    assert answer.code == 0
    assert "1 rates written" in answer.err
    rates = read_throughputs(table).rates("paced", 1)
    assert rates["k80"] == 3.5
    assert rates["slow"] == pytest.approx(100, rel=0.2)


def test_failed_job_is_reported_and_the_others_are_measured(gavel: Gavel) -> None:
    answer = gavel("profile", gavel.file("jobs.toml", BROKEN + JOBS), *QUICK, "-o", "json")

    assert answer.code == 1
    assert "ZeroDivisionError" in answer.err
    assert "1 of 2 rates were not measured" in answer.err
    assert [rate["job_type"] for rate in answer.json["rates"]] == ["paced"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "tpu"), "--device must be one of auto, cpu"),
        (("--on", "moon"), "--on must be one of here, cluster"),
        (("--seconds", "0"), "must be a number in [0.1, 86400]"),
        (("--table", "."), "--table must be a file"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(arguments: tuple[str, str], said: str, gavel: Gavel) -> None:
    answer = gavel("profile", gavel.file("jobs.toml", BROKEN), *arguments)

    assert answer.code == 2
    assert said in answer.err


def test_table_that_is_none_is_refused_before_anything_runs(gavel: Gavel) -> None:
    answer = gavel("profile", gavel.file("jobs.toml", BROKEN), "--table", gavel.file("rates.csv", "x\n1\n"))

    assert answer.code == 2
    assert "rates.csv:1" in answer.err


def test_job_without_a_type_is_refused(gavel: Gavel) -> None:
    answer = gavel("profile", gavel.file("jobs.toml", JOBS.replace('job_type = "paced"', "")), *QUICK)

    assert answer.code == 2
    assert "job_type must be given" in answer.err


def test_job_type_that_comes_twice_is_refused(gavel: Gavel) -> None:
    answer = gavel("profile", gavel.file("jobs.toml", JOBS + JOBS), *QUICK)

    assert answer.code == 2
    assert "'paced' on 1 GPUs" in answer.err

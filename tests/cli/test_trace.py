"""`gavel trace`: generates, describes and converts traces."""

from pathlib import Path

import pytest

from gavelpy.traces.reader import read_trace
from tests.cli.commands import TRACE, Gavel

SEVEN = "A3C\tpython a.py\t--max-steps\t0\t1000\t{arrival}\t1\n"


def test_control_characters_of_a_job_type_do_not_reach_the_terminal(gavel: Gavel) -> None:
    trace = gavel.trace("id,arrival_s,steps_total,job_type\na,0,5,\x1b[31mred\n")

    answer = gavel("trace", "describe", trace)

    assert "\x1b" not in answer.out
    assert r"\x1b[31mred" in answer.out


def test_generated_trace_goes_to_stdout(gavel: Gavel) -> None:
    answer = gavel("trace", "generate", "--jobs", "4", "--seed", "3")

    assert answer.code == 0
    assert answer.err == ""
    assert [line.split(",")[0] for line in answer.out.splitlines()] == ["id", "0", "1", "2", "3"]


def test_generated_trace_goes_to_a_file_that_can_be_read(gavel: Gavel) -> None:
    answer = gavel("trace", "generate", "--jobs", "50", "--rate-per-h", "10", "--gpu-mix", "2:1", "--out", "out.csv")

    trace = read_trace("out.csv")
    assert answer.out == ""
    assert answer.err == "50 jobs written to out.csv\n"
    assert {job.gpus for job in trace.jobs} == {2}
    assert trace.arrival_s[-1] > 0


def test_options_of_the_generator_reach_it(gavel: Gavel) -> None:
    options = ("--weights", "5:1", "--deadlines", "2:1", "--mean-interarrival-s", "60", "--multi-gpu")

    gavel("trace", "generate", "--jobs", "60", *options, "--out", "out.csv")

    jobs = read_trace("out.csv").jobs
    assert {job.weight for job in jobs} == {5.0}
    assert all(job.deadline_s < float("inf") for job in jobs)
    assert len({job.gpus for job in jobs}) > 1


def test_rate_and_mean_interarrival_say_the_same(gavel: Gavel) -> None:
    by_rate = gavel("trace", "generate", "--jobs", "5", "--rate-per-h", "60").out
    by_gap = gavel("trace", "generate", "--jobs", "5", "--mean-interarrival-s", "60").out

    assert by_rate == by_gap


def test_describe_counts_jobs_and_gpus(gavel: Gavel) -> None:
    answer = gavel("trace", "describe", gavel.trace(), "-o", "json")

    assert answer.code == 0
    assert answer.json["jobs"] == 3
    assert answer.json["gpus"] == {"1": 2, "2": 1}


def test_describe_prints_the_same_as_a_table(gavel: Gavel) -> None:
    answer = gavel("trace", "describe", gavel.trace())

    assert "gpus" in answer.out
    assert "1: 2, 2: 1" in answer.out


def test_old_seven_columns_become_our_csv(gavel: Gavel) -> None:
    old = gavel.file("old.trace", SEVEN.format(arrival=0) + SEVEN.format(arrival=60))

    answer = gavel("trace", "convert", old, "new.csv")

    trace = read_trace("new.csv")
    assert answer.err == "2 jobs written to new.csv (csv)\n"
    assert trace.arrival_s.tolist() == [0, 60]
    assert trace.jobs[0].job_type == "A3C"


def test_our_csv_becomes_gavels_ten_columns(gavel: Gavel) -> None:
    gavel.trace(TRACE)

    gavel("trace", "convert", "trace.csv", "new.trace")

    assert [line.count("\t") for line in Path("new.trace").read_text().splitlines()] == [9, 9, 9]


def test_format_option_replaces_the_extension(gavel: Gavel) -> None:
    answer = gavel("trace", "convert", gavel.trace(), "new.txt", "--format", "gavel")

    assert answer.code == 0
    assert "\t" in Path("new.txt").read_text()


def test_conversion_writes_rates_of_a_table_if_asked(gavel: Gavel) -> None:
    old = gavel.file("old.trace", SEVEN.format(arrival=0))
    table = gavel.file("rates.csv", "job_type,gpus,gpu_type,rate_steps_per_s\nA3C,1,v100,7.5\n")

    gavel("trace", "convert", old, "new.csv", "--throughputs", table)

    assert read_trace("new.csv").jobs[0].rates_steps_per_s == {"v100": 7.5}


@pytest.mark.reference
@pytest.mark.parametrize("name", ["old_7_columns.trace", "debug.trace", "gen_single_lam900_seed0.trace"])
def test_reference_traces_convert(gavel: Gavel, reference_directory: Path, name: str) -> None:
    source = reference_directory / "data" / "gavel" / "traces" / name

    answer = gavel("trace", "convert", str(source), "new.csv")

    assert answer.code == 0
    assert len(read_trace("new.csv")) == len(source.read_text().splitlines())

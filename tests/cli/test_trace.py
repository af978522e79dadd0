"""`gavel trace`: generates, describes and converts traces."""

import hashlib
from pathlib import Path

import pytest

from gavelpy.traces.reader import read_trace
from tests.cli.commands import TRACE, Gavel
from tests.traces.histories import PHILLY, write_sample

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


def test_formats_are_listed_as_a_table_and_as_json(gavel: Gavel) -> None:
    listed = gavel("trace", "formats", "-o", "json").json["formats"]
    table = gavel("trace", "formats").out

    assert list(listed)[:3] == ["csv", "gavel", "philly"]
    assert all(name in table for name in listed)


def test_history_becomes_a_trace_with_its_provenance_next_to_it(gavel: Gavel) -> None:
    source = gavel.file("philly.csv", PHILLY)

    gavel("trace", "convert", source, "new.csv", "--seed", "3", "--reference-gpu-type", "p100")
    described = gavel("trace", "describe", "new.csv", "-o", "json").json["provenance"]

    assert described["format"] == "csv"
    assert described["source"]["format"] == "philly"
    assert described["source"]["seed"] == 3
    assert described["source"]["reference_gpu_type"] == "p100"
    assert described["source"]["sha256"] == hashlib.sha256(PHILLY.encode()).hexdigest()


def test_provenance_of_another_version_of_a_file_does_not_count(gavel: Gavel) -> None:
    gavel("trace", "convert", gavel.file("philly.csv", PHILLY), "new.csv")
    Path("new.csv").write_text(Path("new.csv").read_text() + "\n")

    described = gavel("trace", "describe", "new.csv", "-o", "json").json["provenance"]

    assert described["source"] == "unknown: new.csv.provenance.json is of another version of this file"


def test_simulation_of_a_history_states_its_source(gavel: Gavel) -> None:
    source = gavel.file("philly.csv", PHILLY)

    answer = gavel(
        "simulate", source, "--cluster", "v100:8", "--policy", "fifo", "--durations", "seconds", "-o", "json"
    )

    found = answer.json["parameters"]["trace_provenance"]
    assert (found["format"], found["durations"]) == ("philly", "seconds")
    assert answer.json["results"]["fifo"]["jobs_unfinished"] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--durations", "hours"), "--durations must be one of table, seconds, got 'hours'"),
        (("--durations", "seconds"), "--durations is for traces with durations"),
        (("--time-zone", "Europe/Berlin"), "--time-zone is for traces with dates"),
        (("--from", "philli"), "the format must be one of csv, gavel, philly"),
    ],
)
def test_option_without_effect_is_refused(gavel: Gavel, arguments: tuple[str, ...], expected: str) -> None:
    answer = gavel("trace", "describe", gavel.trace(), *arguments)

    assert answer.code == 2
    assert expected in answer.err


def test_rule_that_a_format_does_not_have_is_refused(gavel: Gavel) -> None:
    answer = gavel("trace", "describe", str(write_sample(gavel.folder, "azure_llm")), "--durations", "table")

    assert answer.code == 2
    assert "--durations must be seconds for traces of format azure_llm, got 'table'" in answer.err


def test_option_of_traces_is_refused_with_generated_jobs(gavel: Gavel) -> None:
    answer = gavel("simulate", "--generate", "3", "--from", "philly")

    assert "--from needs a TRACE, got 'philly' with --generate" in answer.err


def test_nodes_of_a_trace_are_written_as_node_events(gavel: Gavel) -> None:
    folder = write_sample(gavel.folder, "openb")

    answer = gavel("trace", "convert", str(folder), "new.csv")
    options = ("--cluster", "none", "--node-events", "new.csv.nodes.csv", "--policy", "fifo", "-o", "json")
    simulated = gavel("simulate", "new.csv", *options).json

    assert "1 nodes written to new.csv.nodes.csv" in answer.err
    assert simulated["results"]["fifo"]["jobs_unfinished"] == 0
    assert list(simulated["parameters"]["trace_provenance"]["node_events"]) == ["new.csv.nodes.csv"]


def test_simulation_takes_the_nodes_of_a_trace(gavel: Gavel) -> None:
    folder = write_sample(gavel.folder, "openb")

    answer = gavel("simulate", str(folder), "--cluster", "trace", "--policy", "fifo", "-o", "json")

    assert answer.json["parameters"]["cluster"] == {"v100": 2}


@pytest.mark.parametrize(("cluster", "expected"), [("trace", "needs a trace with nodes"), ("none", "--node-events")])
def test_cluster_without_nodes_is_refused(gavel: Gavel, cluster: str, expected: str) -> None:
    answer = gavel("simulate", gavel.trace(), "--cluster", cluster)

    assert answer.code == 2
    assert expected in answer.err

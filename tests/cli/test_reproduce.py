"""`gavel reproduce`: published values next to ours, as a table, as JSON and as pictures."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from gavelpy import __version__
from tests.cli.commands import Gavel
from tests.traces.samples import gavel_line


def test_a_figure_is_printed_with_its_source(gavel: Gavel) -> None:
    answer = gavel("reproduce", "fig11")

    assert answer.code == 0, answer.err
    assert "ours / published" in answer.out
    assert "source: Narayanan et al., OSDI '20, figure 11" in answer.out
    assert "differences:" in answer.out


def test_json_has_rows_and_what_repeats_them(gavel: Gavel) -> None:
    answer = gavel("reproduce", "fig8", "--rates", "0.5,0.6", "--window", "2:4", "-o", "json")

    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    assert {row["at"] for row in document["rows"]} == {"0.5 jobs/h", "0.6 jobs/h"}
    assert [row["published"] for row in document["rows"]][:2] == [16, 22]
    assert document["rows"][3]["published"] is None  # not printed in the paper
    parameters = document["parameters"]
    assert (parameters["window"], parameters["seeds"], parameters["full"]) == ([2, 4], 1, False)
    assert (parameters["version"], parameters["sha256"]) == (__version__, {})


def test_figures_are_drawn(gavel: Gavel, tmp_path: Path) -> None:
    answer = gavel("reproduce", "fig11", "--figures", str(tmp_path / "out"))

    assert answer.code == 0, answer.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"entities.csv", "entities.pdf", "entities.svg"}


def test_options_that_mean_nothing_to_a_figure_are_refused(gavel: Gavel) -> None:
    assert gavel("reproduce", "fig11", "--seeds", "3").code == 2
    assert gavel("reproduce", "makespan", "--rates", "3").code == 2


def test_bad_rates_are_named(gavel: Gavel) -> None:
    for rates in ("4,x", "", "nan", "-1", "0"):
        answer = gavel("reproduce", "fig8", "--rates", rates)

        assert answer.code == 2, rates
        assert "rates" in answer.err, answer.err


def test_strategies_place_tasks_and_their_course_is_drawn(gavel: Gavel, tmp_path: Path) -> None:
    nodes, pods, figures = tmp_path / "nodes.csv", tmp_path / "pods.csv", tmp_path / "out"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\na,32000,65536,2,P100\nb,64000,131072,4,T4\n")
    rows = [f"p{i},4000,8192,1,{milli},,LS,Running,0,10,0" for i, milli in enumerate([1000, 400, 300, 700] * 3)]
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    pods.write_text("\n".join([f"{header}scheduled_time", *rows]) + "\n")

    answer = gavel(
        *("reproduce", "fgd", "--nodes", str(nodes), "--pods", str(pods), "--load", "1.0"),
        *("--seeds", "2", "--figures", str(figures), "-o", "json"),
    )

    assert answer.code == 0, answer.err
    hashes = json.loads(answer.out)["parameters"]["sha256"]
    assert hashes == {path.name: sha256(path.read_bytes()).hexdigest() for path in (nodes, pods)}
    found = {row["strategy"]: row for row in json.loads(answer.out)["strategies"]}
    assert set(found) == {"random", "first_fit", "best_fit", "fgd"}
    assert all(0.5 < row["allocated"] <= 1 and row["published"] is None for row in found.values())
    assert {path.name for path in figures.iterdir()} == {"allocated.csv", "allocated.pdf", "allocated.svg"}


def test_shockwaves_baselines_run_on_a_trace_with_batch_sizes(gavel: Gavel, tmp_path: Path) -> None:
    trace, table = tmp_path / "two.trace", tmp_path / "rates.json"
    mode = {"job_type": "LM (batch size 40)", "total_steps": str(1492 * 13), "SLO": "-1\t9"}
    lines = [gavel_line(scale_factor=f"1\t{name}", **mode) for name in ("gns", "static")]
    trace.write_text("\n".join(lines) + "\n")
    rates = {"('LM (batch size 40)', 1)": {"null": 10.0}, "('LM (batch size 80)', 1)": {"null": 6.0}}
    table.write_text(json.dumps({"v100": rates}))
    files = ("--trace", str(trace), "--throughputs", str(table))

    hashes = {path.name: sha256(path.read_bytes()).hexdigest() for path in (trace, table)}
    answer = gavel("reproduce", "shockwave", *files, "-o", "json")
    trace.write_text(gavel_line(scale_factor="1\tstatic", **mode))
    refused = gavel("reproduce", "shockwave", *files)

    assert answer.code == 0, answer.err
    makespan_s = [row["ours"] for row in json.loads(answer.out)["rows"] if row["quantity"] == "makespan s"]
    assert json.loads(answer.out)["parameters"]["sha256"] == hashes
    assert len(makespan_s) == 10
    assert all(1492 * 13 / 10 <= found <= 1492 * 13 / 10 + 200 for found in makespan_s)
    assert refused.code == 2
    assert "must have jobs whose batch size changes" in refused.err

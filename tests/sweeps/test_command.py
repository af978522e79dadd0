"""`gavel sweep`: tables, JSON, exit codes, dry runs."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from gavelpy.sweeps.grid import grid_of
from tests.cli.commands import Gavel
from tests.conftest import PROJECT
from tests.traces.histories import PHILLY

pytest.importorskip("pyarrow")

FILE = 'generate = 6\ncluster = "v100:2,k80:2"\nrate_per_h = [2, 4]\nseed = [0, 1]\npolicy = "fifo"\n'


def test_sweep_prints_means_with_intervals_and_writes_a_table(gavel: Gavel) -> None:
    file = gavel.file("load.toml", FILE)

    answer = gavel("sweep", file, "--jobs", "1")

    assert answer.code == 0, answer.err
    titles, *rows = answer.out.splitlines()
    assert titles.split("  ")[:2] == ["rate_per_h", "seeds"]
    assert [row.split()[:2] for row in rows] == [["2.0", "2"], ["4.0", "2"]]
    assert all("[" in row for row in rows)
    assert "4 of 4 cells" in answer.err
    assert "too narrow with 2 seeds" in answer.err
    assert len(pd.read_parquet(gavel.folder / "load.sweep" / "results.parquet")) == 4


def test_json_has_rows_and_means(gavel: Gavel) -> None:
    file = gavel.file("load.toml", FILE)

    found = gavel("sweep", file, "--jobs", "1", "--out", "out", "-o", "json").json

    assert (found["version"], found["directory"], found["cells"], found["failed"]) == (1, "out", 4, 0)
    first, second = found["rows"][:2]
    mean = found["summary"][0]["means"]["avg_jct_s"]
    assert found["summary"][0]["options"] == {"rate_per_h": 2.0}
    assert mean["mean"] == pytest.approx((first["avg_jct_s"] + second["avg_jct_s"]) / 2)
    assert mean["low"] == min(first["avg_jct_s"], second["avg_jct_s"])
    assert {"error", "version", "key", "marginal_value_v100"} - set(first) == {"marginal_value_v100"}, "fifo has none"


def test_rows_state_the_source_of_a_trace_and_the_rule_of_its_durations(gavel: Gavel) -> None:
    gavel.file("philly.csv", PHILLY)
    file = gavel.file("load.toml", 'trace = "philly.csv"\ncluster = "v100:8"\nseed = [0, 7]\n')

    rows = gavel("sweep", file, "--jobs", "1", "-o", "json").json["rows"]

    found = [json.loads(row["trace_provenance"]) for row in rows]
    assert [(one["format"], one["durations"], one["seed"]) for one in found] == [
        ("philly", "table", 0),
        ("philly", "table", 7),
    ]
    assert all(one["sha256"] == row["trace_sha256"] for one, row in zip(found, rows, strict=True))


def test_failed_cells_exit_with_1_and_name_the_error(gavel: Gavel) -> None:
    gavel.file("a.csv", "id,arrival_s,steps_total,gpus,rate_v100\na,0,100,1,10\n")
    file = gavel.file("load.toml", 'trace = "a.csv"\ncluster = "v100:1"\nwindow = ["0:1", "0:9"]\n')

    answer = gavel("sweep", file, "--jobs", "1")

    assert answer.code == 1
    assert "error: 1 of 2 cells failed, such as 2: window must be A:B" in answer.err


def test_dry_run_lists_the_cells_and_runs_none(gavel: Gavel) -> None:
    file = gavel.file("load.toml", FILE)

    before = gavel("sweep", file, "--dry-run")
    gavel("sweep", file, "--jobs", "1")
    after = gavel("sweep", file, "--dry-run", "-o", "json").json

    assert "4 cells, 4 to run: about" in before.err
    assert len(before.out.splitlines()) == 5
    assert [cell["finished"] for cell in after["cells"]] == [True] * 4
    assert after["expected_cpu_s"] == 0


def test_mistake_is_one_line_and_exit_code_2(gavel: Gavel) -> None:
    answer = gavel("sweep", gavel.file("load.toml", 'generate = 6\ncluser = "v100:2"\n'))

    assert answer.code == 2
    assert answer.err.startswith(f"error: {gavel.folder}/load.toml:2: cluser is not an option of simulations; did you ")
    assert not (gavel.folder / "load.sweep").exists()


def test_example_is_a_sweep() -> None:
    assert len(grid_of(PROJECT / "examples" / "load.toml").cells) == 45

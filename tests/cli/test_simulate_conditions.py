"""`gavel simulate --conditions` and `--ablate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Gavel

TRACE = "id,arrival_s,steps_total,rate_v100\n" + "".join(f"{name},0,36000,1\n" for name in "abcd")
CONDITIONS = "[costs]\nstart = 100\n[rates]\nnoise_sigma = 0.2\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Options of a simulation under conditions."""
    trace, conditions = tmp_path / "trace.csv", tmp_path / "conditions.toml"
    trace.write_text(TRACE)
    conditions.write_text(CONDITIONS)
    return str(trace), "--cluster", "v100:4", "--policy", "fifo", "--conditions", str(conditions)


def test_without_a_cause_its_cost_is_gone_and_the_others_stay(gavel: Gavel, files: tuple[str, ...]) -> None:
    answer = gavel("simulate", *files, "--ablate", "-o", "json")

    whole, without = answer.json["results"]["fifo"], answer.json["ablation"]
    assert set(without) == {"costs", "rates"}
    assert without["rates"]["fifo"]["avg_jct_s"] == pytest.approx(36_100.0)
    assert without["costs"]["fifo"]["avg_jct_s"] == pytest.approx(whole["avg_jct_s"] - 100.0 + 15.0)
    assert answer.json["parameters"]["conditions"]["rates"] == {"noise_sigma": 0.2}


def test_the_table_names_each_cause(gavel: Gavel, files: tuple[str, ...]) -> None:
    answer = gavel("simulate", *files, "--ablate")

    lines = [line.split()[:2] for line in answer.out.splitlines() if line.strip().startswith("fifo")]
    assert lines[-3:] == [["fifo", "(none)"], ["fifo", "costs"], ["fifo", "rates"]]


def test_the_table_shows_where_the_gpu_hours_went(gavel: Gavel, files: tuple[str, ...]) -> None:
    answer = gavel("simulate", *files)

    _, header, values, *_ = answer.out[answer.out.index("GPU-hours") :].splitlines()
    assert header.split()[:3] == ["policy", "useful", "start"]
    assert values.split()[:3] == ["fifo", "35.1", "0.1"]  # fast leases count their time


def test_ablation_without_conditions_is_refused(gavel: Gavel) -> None:
    answer = gavel("simulate", "--generate", "3", "--cluster", "v100:4", "--ablate")

    assert answer.code == 2
    assert "--ablate needs conditions" in answer.err


def test_costs_are_learned_from_the_journal_of_another_run(
    gavel: Gavel, files: tuple[str, ...], tmp_path: Path
) -> None:
    jobs = "".join(f"j{k},{30 * k},3000,1,{'long' if k % 2 else 'short'}\n" for k in range(12))
    trace = tmp_path / "many.csv"
    trace.write_text("id,arrival_s,steps_total,rate_v100,job_type\n" + jobs)
    costs = tmp_path / "costs.toml"
    costs.write_text("[costs]\ncheckpoint = 7\n[costs.types.long]\nstart = 90\n[costs.types.short]\nstart = 20\n")
    options = ("--cluster", "v100:4", "--policy", "las", "--round-s", "300")
    gavel("simulate", str(trace), *options, "--conditions", str(costs), "--journal", str(tmp_path / "run"))

    answer = gavel(
        "simulate", str(trace), *options, "--costs-from", str(tmp_path / "run" / "las.journal"), "-o", "json"
    )

    types = answer.json["parameters"]["conditions"]["costs"]["types"]
    assert types["long"]["start"]["median_s"] == pytest.approx(90.0, rel=0.05)
    assert types["short"]["start"]["median_s"] == pytest.approx(20.0, rel=0.05)
    assert types["long"]["checkpoint"]["median_s"] == pytest.approx(7.0, rel=0.05)

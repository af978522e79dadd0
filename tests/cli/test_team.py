"""Teams on the command line: on a running cluster, and in `gavel allocate` and `gavel simulate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST, LONG, LONG_STEPS, submit
from tests.conftest import PROJECT
from tests.runtime.client.serving import until

TEAMS = {
    "teams.research": {"weight": 3.0},
    "teams.vision": {"parent": "research", "weight": 2.0},
    "teams.sales": {"members": ["nobody"]},
}
FILE = """
[teams.research]
weight = 3
[teams.vision]
parent = "research"
[teams.product]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = FAST | TEAMS | {"policy": {"name": "hierarchical"}}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), (LocalNode("n1", "v100:2"),), settings) as started:
        started.start()
        yield started


@pytest.fixture
def cli(gavel: Gavel, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Gavel:
    """The command line, configured for the cluster."""
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    return gavel


@pytest.fixture
def teams_file(tmp_path: Path) -> Path:
    path = tmp_path / "teams.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def running(cli: Gavel) -> list[int]:
    return [team["jobs_running"] for team in cli("team", "list", "-o", "json").json["teams"]]


def test_jobs_of_a_tree_of_teams_are_counted_and_others_refused(cli: Gavel) -> None:
    submit(cli, "seer", LONG, "--team", "vision", steps=LONG_STEPS)
    submit(cli, "thinker", LONG, "--entity", "research", steps=LONG_STEPS)
    until(lambda: running(cli) == [1, 1, 0], "both run")

    listed = cli("team", "list").out
    found = cli("team", "list", "-o", "json").json
    explained = cli("explain", "seer").out
    refused = cli("submit", "--name", "seller", "--team", "sales", "--steps", "9", "--", "true")
    none = cli("submit", "--name", "other", "--steps", "9", "--", "true")
    cli("cancel", "seer", "thinker")

    rows = [line.split() for line in listed.splitlines()]
    assert [row[:2] for row in rows if row and row[0] in ("research", "vision", "sales")] == [
        ["research", "3"],
        ["vision", "2"],
        ["sales", "1"],
    ]
    assert "\n  vision" in listed
    assert "Requests 1 GPU, weight 1, team vision, priority class normal;" in explained
    assert found["policy"] == "hierarchical"
    assert [(team["gpus_in_use"], team["gpus_owed"]) for team in found["teams"]] == [(1, 1.0), (1, 1.0), (0, 0.0)]
    assert (refused.code, none.code) == (2, 2)
    assert "team must be one of research, vision, which " in refused.err
    assert none.err.rstrip().endswith("got none")


def test_allocate_divides_by_a_file_of_teams(gavel: Gavel, teams_file: Path, tmp_path: Path) -> None:
    names = ("vision", "product", "vision")
    jobs = [{"id": f"j{k}", "rates_steps_per_s": {"v100": 1.0}, "entity": name} for k, name in enumerate(names)]
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps({"cluster": {"v100": 1}, "jobs": jobs}), encoding="utf-8")

    found = gavel("allocate", str(problem), "--policy", "hierarchical", "--teams", str(teams_file), "-o", "json").json
    problem.write_text(json.dumps({"cluster": {"v100": 1}, "jobs": [jobs[0] | {"entity": "x"}]}), encoding="utf-8")
    refused = gavel("allocate", str(problem), "--policy", "hierarchical", "--teams", str(teams_file))

    assert [found["shares"][f"j{k}"]["v100"] for k in range(3)] == pytest.approx([0.375, 0.25, 0.375])
    assert refused.code == 2
    assert "entity of job 'j0' must be a team, one of research, vision, product, got 'x'" in refused.err


def test_allocate_keeps_to_limits_in_the_problem_file(gavel: Gavel, teams_file: Path, tmp_path: Path) -> None:
    jobs = [{"id": f"j{k}", "rates_steps_per_s": {"v100": 1.0}, "entity": "ab"[k > 0]} for k in range(3)]
    teams = [{"id": "a", "guaranteed": {"v100": 1}}, {"id": "b", "quota": {"v100": 1}}]
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps({"cluster": {"v100": 3}, "jobs": jobs, "entities": teams}), encoding="utf-8")

    found = gavel("allocate", str(problem), "--policy", "max_min_fairness", "-o", "json").json
    refused = gavel("allocate", str(problem), "--policy", "gandiva")
    twice = gavel("allocate", str(problem), "--policy", "hierarchical", "--teams", str(teams_file))

    assert [found["shares"][f"j{k}"]["v100"] for k in range(3)] == pytest.approx([1.0, 0.5, 0.5])
    assert found["resource_prices"]["v100"]["GPU of the quota of b"] == pytest.approx(0.5)
    assert "cannot keep to quotas and guaranteed GPUs of teams" in refused.err
    assert "--teams must not be given with a problem file in which entities have quotas" in twice.err


def test_simulate_divides_by_a_file_of_teams(gavel: Gavel, teams_file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{k},0,36000,1,{'vision' if k % 2 else 'product'},1" for k in range(8)]
    trace.write_text("id,arrival_s,steps_total,gpus,entity,rate_v100\n" + "\n".join(rows) + "\n", encoding="utf-8")
    options = ("--cluster", "v100:4", "--policy", "hierarchical", "--teams", str(teams_file))

    found = gavel("simulate", str(trace), *options, "-o", "json").json
    refused = gavel("simulate", str(PROJECT / "workloads/demo_trace.csv"), *options)
    missing = gavel("simulate", str(trace), *options[:-1], str(trace))

    assert [team["name"] for team in found["parameters"]["teams"]] == ["research", "vision", "product"]
    assert (refused.code, missing.code) == (2, 2)
    assert "entity of job '0' must be a team, one of research, vision, product, got none" in refused.err
    assert f"{trace}:" in missing.err

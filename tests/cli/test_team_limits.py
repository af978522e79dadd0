"""Quotas and guaranteed GPUs of three levels of teams on a running cluster, against `gavel allocate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST, LONG, LONG_STEPS, submit
from tests.runtime.client.serving import until

TEAMS: dict[str, dict[str, Any]] = {  # tables of TOML
    "teams.company.quota": {"v100": 4, "h100": 8},
    "teams.research": {"parent": "company", "weight": 3.0},
    "teams.research.quota": {"v100": 2},
    "teams.vision": {"parent": "research"},
    "teams.vision.guaranteed": {"v100": 1},
    "teams.product": {"parent": "company"},
    "teams.product.guaranteed": {"v100": 1},
}
ORDER = ("research", "research", "vision", "product", "company")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = FAST | TEAMS | {"policy": {"name": "hierarchical"}}
    settings["mechanism"] = {**settings.get("mechanism", {}), "keep_unsaved": False, "round_s": 2.0}
    with LocalCluster(tmp_path / "cluster", (LocalNode("n1", "v100:4"),), settings) as started:
        started.start()
        yield started


def test_shares_of_a_running_cluster_are_those_of_allocate_and_leases_keep_to_the_limits(
    gavel: Gavel, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    teams = gavel.file("teams.toml", "\n".join(f"[{name}]\n{_toml(fields)}" for name, fields in TEAMS.items()))
    problem: dict[str, Any] = {"cluster": {"v100": 4}, "jobs": []}

    def shares() -> dict[str, float]:
        return {job["name"]: job["share"] for job in gavel("jobs", "-o", "json").json["jobs"]}

    def expected() -> dict[str, float]:
        path = gavel.file("problem.json", json.dumps(problem))
        found = gavel("allocate", path, "--policy", "hierarchical", "--teams", teams, "-o", "json").json
        return {job: share["v100"] for job, share in found["shares"].items()}

    for k, team in enumerate(ORDER):
        submit(gavel, f"j{k}", LONG, "--team", team, steps=LONG_STEPS)
        problem["jobs"].append({"id": f"j{k}", "rates_steps_per_s": {"v100": 10.0}, "entity": team})
        found = expected()
        until(lambda: shares() == pytest.approx(found, abs=1e-6), "the shares of the same problem")  # noqa: B023 now
    until(lambda: _held(gavel) == {"company": 4, "research": 2, "vision": 1, "product": 1}, "all GPUs are in use")

    listed, waiting = (
        gavel("team", "list").out,
        [j for j in gavel("jobs", "-o", "json").json["jobs"] if not j["node_ids"]],
    )
    explained = gavel("explain", waiting[0]["name"]).out
    refused = gavel("policy", "set", "gandiva")

    assert {job["reason_kind"] for job in waiting} == {"team-quota"}
    assert "team research holds 2 of its quota of 2 v100" in explained
    assert "The cluster has no GPUs of type h100." in listed
    assert refused.code == 2
    assert "cannot keep to quotas and guaranteed GPUs of teams" in refused.err


def _held(gavel: Gavel) -> dict[str, int]:
    teams = gavel("team", "list", "-o", "json").json["teams"]
    return {team["name"]: next(one["held"] for one in team["limits"] if one["gpu_type"] == "v100") for team in teams}


def _toml(fields: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())

"""Simulations with a scheduler's configuration, and the defaults of both."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gavelpy.cli.scheduler_config import read_scheduler_file
from gavelpy.policies.base import policy_from
from gavelpy.runtime.daemon.config import parse_config
from gavelpy.simulator.settings import SimulationSettings, preset
from tests.cli.commands import Gavel

POLICIES = ("fifo", "max_min_fairness", "finish_time_fairness", "shortest_job_first", "gandiva", "min_cost:slos=true")
FILE = """
[scheduler]
state_directory = "state"
listen = "0.0.0.0:7077"

[security]
tls_certificate = "cert.pem"
tls_key = "key.pem"
tokens = "tokens.json"

[policy]
name = "shortest_job_first"
parameters = { by = "total" }
blind = true
blind_view = "ones"

[mechanism]
round_s = 60
move_lag_s = 90
lease_min_s = 20
keep_unsaved = true

[prices]
usd_per_gpu_h = { v100 = 3.0, h100 = 9.0 }

[teams.vision]
weight = 2
"""
# Why each differs: see default_mechanism, docs/decisions/0010 and _OF_REAL_JOBS
VIRTUAL = {"settled_rounds_max", "solve_interval_s", "keep_unsaved", "late_ends", "finish_grace_s", "loss_nodes_max"}
MECHANISMS = [
    "",
    "round_s = 30",
    "round_s = 30\nmove_lag_s = 0",
    "solve_at_least_every_s = 77\nfill_leftover = false",
    "lag_half_life_s = 600",
    "retry_s = 900",
    "settled_rounds_max = 3\nsolve_interval_s = 360",
    "packing = true\n[gpu_types.v100]\nmemory_gib = 16",
]


def differing(one: Any, other: Any) -> set[str]:  # Any: MechanismSettings
    mine, theirs = asdict(one), asdict(other)
    return {name for name in mine if mine[name] != theirs[name]}


@pytest.mark.parametrize("policy", POLICIES[:5])
def test_by_default_a_simulation_has_the_mechanism_of_a_scheduler(policy: str) -> None:
    config = parse_config('[scheduler]\nstate_directory = "x"')
    chosen = policy_from(policy)

    simulated = SimulationSettings().for_policy(chosen).mechanism

    assert differing(simulated, config.for_policy(config.mechanism, chosen)) <= VIRTUAL


@pytest.mark.parametrize("policy", POLICIES[:5])
@pytest.mark.parametrize("text", MECHANISMS)
def test_the_mechanism_of_a_file_is_that_of_its_scheduler(tmp_path: Path, text: str, policy: str) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text(f"[mechanism]\n{text}")
    config = parse_config(f'[scheduler]\nstate_directory = "x"\n[mechanism]\n{text}')
    chosen = policy_from(policy)

    simulated = read_scheduler_file(file).settings(preset("default")).for_policy(chosen).mechanism

    real = {"keep_unsaved", "late_ends", "finish_grace_s", "settled_rounds_max"}
    assert differing(simulated, config.for_policy(config.mechanism, chosen)) <= real


def test_teams_of_the_file_hold_for_the_jobs(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), "--cluster", "v100:2", "--scheduler-config", gavel.file("s.toml", FILE))

    assert answer.code == 2
    assert "entity" in answer.err  # the jobs have no team of the file


def test_options_win_over_the_file(gavel: Gavel) -> None:
    file = gavel.file("s.toml", FILE.partition("[teams")[0])
    command = ["simulate", gavel.trace(), "--cluster", "v100:2,k80:2", "--scheduler-config", file, "-o", "json"]

    whole, given = gavel(*command), gavel(*command, "--policy", "fifo", "--round-s", "30", "--prices", "v100:1")

    found = whole.json["parameters"]
    assert found["policies"] == ["shortest_job_first:by=total@blind"]
    assert (found["round_s"], found["move_lag_s"], found["lease_min_s"]) == (60.0, 90.0, 20.0)
    assert found["prices_usd_per_gpu_h"] == {"v100": 3.0, "k80": 0.45}
    assert found["scheduler_config"]["not_simulated"] == [
        "scheduler.state_directory",
        "scheduler.listen",
        "security.tls_certificate",
        "security.tls_key",
        "security.tokens",
        "mechanism.keep_unsaved",
    ]
    assert "not simulated: scheduler.state_directory, " in whole.err
    won = given.json["parameters"]
    assert (won["policies"], won["round_s"], won["lease_min_s"]) == (["fifo"], 30.0, 20.0)
    assert won["prices_usd_per_gpu_h"]["v100"] == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mechanism]\nround_ss = 1", "s.toml:2: mechanism.round_ss is not known; allowed are round_s, "),
        ("[mechanism]\nround_s = 0", "s.toml:2: mechanism.round_s must be in [1, 86400], got 0"),
        ("[mechanisms]\n", "s.toml:1: [mechanisms] is not known; allowed are scheduler, "),
        ('[policy]\nname = "fastest"', "s.toml:2: policy.name"),
        ("[mechanism", "must be TOML"),
    ],
)
def test_what_is_wrong_in_a_file_has_its_line(gavel: Gavel, text: str, message: str) -> None:
    answer = gavel("simulate", gavel.trace(), "--scheduler-config", gavel.file("s.toml", text))

    assert answer.code == 2
    assert message in answer.err


def test_a_preset_and_a_file_exclude_each_other(gavel: Gavel) -> None:
    file = gavel.file("s.toml", "")

    answer = gavel("simulate", gavel.trace(), "--scheduler-config", file, "--preset", "gavel-osdi20")

    assert answer.code == 2
    assert "--preset and --scheduler-config exclude each other" in answer.err

"""Kills of any process at any moment: no acknowledged job is lost or runs twice, and no GPU has two leases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.live.crash import Trial, run
from tests.runtime.live.faults import Fault

SHORT = {Fault.SCHEDULER: 3, Fault.AGENT: 2, Fault.SHIM: 1, Fault.JOB: 1}
FEW = {Fault.SCHEDULER: 3, Fault.AGENT: 1, Fault.JOB: 1}
LONG = {Fault.SCHEDULER: 50, Fault.AGENT: 20, Fault.SHIM: 10, Fault.JOB: 20, Fault.FREEZE: 1}


def test_jobs_survive_some_deaths(tmp_path: Path) -> None:
    trial = Trial(seed=1, jobs=4, steps=120.0, faults=SHORT, within_s=6.0, patience_s=300.0)

    found = run(trial, tmp_path / "cluster")

    assert found.complaints == [], f"seed {trial.seed}"


@pytest.mark.slow
def test_jobs_survive_some_deaths_with_a_journal_in_postgresql(postgres_url: str, tmp_path: Path) -> None:
    trial = Trial(seed=2, jobs=4, steps=120.0, faults=FEW, within_s=5.0, patience_s=300.0, journal=postgres_url)

    found = run(trial, tmp_path / "cluster")

    assert found.complaints == [], f"seed {trial.seed}"
    assert found.done[Fault.SCHEDULER] == FEW[Fault.SCHEDULER]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
def test_jobs_survive_a_hundred_deaths(seed: int, tmp_path: Path) -> None:
    trial = Trial(seed=seed, jobs=12, steps=1500.0, faults=LONG, within_s=240.0, patience_s=400.0)

    found = run(trial, tmp_path / "cluster")

    assert found.complaints == [], f"seed {seed}"
    assert found.done[Fault.SCHEDULER] == LONG[Fault.SCHEDULER]


@pytest.mark.slow
def test_jobs_that_share_gpus_survive_two_hundred_deaths(tmp_path: Path) -> None:
    faults = {Fault.SCHEDULER: 100, Fault.AGENT: 40, Fault.SHIM: 20, Fault.JOB: 60}  # some find no job to kill
    trial = Trial(seed=31, jobs=16, steps=4000.0, faults=faults, within_s=480.0, patience_s=400.0, is_packed=True)

    found = run(trial, tmp_path / "cluster")

    assert found.complaints == [], f"seed {trial.seed}"
    assert sum(found.done.values()) >= 200
    assert found.shared > 0

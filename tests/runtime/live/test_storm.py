"""Kills, pauses, updates and hung storage together: each acknowledged job ends once, and bystanders are unaffected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.live.hanging import why_not
from tests.runtime.live.storm import IN_USE_S, KILLS, Fault, Storm, run

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be mounted")

LIGHT = {Fault.SCHEDULER: 2, Fault.AGENT: 2, Fault.SHIM: 1, Fault.JOB: 1, Fault.UPDATE: 2, Fault.PAUSE: 3}
FULL = {
    Fault.SCHEDULER: 40,
    Fault.AGENT: 35,
    Fault.SHIM: 20,
    Fault.JOB: 25,
    Fault.UPDATE: 30,
    Fault.PAUSE: 60,
    Fault.HANG: 3,
}


@pytest.mark.slow
def test_light_storm_touches_no_bystander(tmp_path: Path) -> None:
    storm = Storm(seed=5, faults=LIGHT, witnesses=4, bystanders=6, steps=200.0, bystander_s=6.0, between_s=0.3)

    found = run(storm, tmp_path / "cluster")

    assert found.complaints == []
    assert found.in_use_s < IN_USE_S


@pytest.mark.slow
def test_jobs_survive_a_hundred_and_fifty_kills_sixty_pauses_and_hung_storage(tmp_path: Path) -> None:
    storm = Storm(seed=21, faults=FULL, witnesses=40, bystanders=50, steps=600.0, bystander_s=10.0, between_s=1.0)

    found = run(storm, tmp_path / "cluster")

    assert found.complaints == []
    assert found.in_use_s < IN_USE_S
    assert sum(found.done[kill] for kill in KILLS) >= 145  # a shim or a job can only be killed where one runs
    assert found.done[Fault.PAUSE] >= 55  # a lease can only be paused where one runs
    assert found.done[Fault.HANG] == 3

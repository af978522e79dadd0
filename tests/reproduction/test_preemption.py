"""The overhead of preemption: by hand, and against a new lease in each round."""

from __future__ import annotations

import math

import pytest

from gavelpy.reproduction import preemption
from gavelpy.reproduction.preemption import OVERHEAD, PREEMPTION, RESTARTS, TO_RESTARTS, overhead
from gavelpy.reproduction.published import FigureSize
from gavelpy.simulator.settings import Costs
from tests.simulator.builders import make_job, make_settings, make_trace, run

COSTS = Costs(checkpoint_s=5.0, restart_s=15.0, migration_s=5.0)


def test_a_job_alone_has_the_overhead_of_its_start() -> None:
    result = run(make_trace(make_job("a", steps=600.0)), settings=make_settings(COSTS))

    assert overhead(result.metrics) == pytest.approx(100.0 * 15.0 / 615.0)


def test_a_run_without_leases_has_none() -> None:
    result = run(make_trace(make_job("a", rates={"v100": 0.0})), settings=make_settings(COSTS))

    assert math.isnan(overhead(result.metrics))


def test_extended_leases_cost_less_than_a_new_one_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "ROUNDS_S", (360.0, 1440.0))
    monkeypatch.setattr(preemption, "SMALL_JOBS", 30)
    monkeypatch.setattr(preemption, "CLUSTER", "v100:2,p100:2,k80:2")

    found = PREEMPTION.reproduce(FigureSize())

    restarts = [row.ours for row in found.rows if row.run == RESTARTS]
    assert restarts == pytest.approx([100.0 * 20.0 / 360.0, 100.0 * 20.0 / 1440.0])
    extended = [row for row in found.rows if row.run != RESTARTS and row.quantity == OVERHEAD]
    assert len(extended) == 4
    osdi20, default = ([row.ours for row in extended if row.run.endswith(name)] for name in ("osdi20", "default"))
    assert 0.0 < default[0] < osdi20[0] < restarts[0]
    assert all(row.ours < 1.0 for row in found.rows if row.quantity == TO_RESTARTS)

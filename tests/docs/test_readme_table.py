"""The table in the README has the figures of the demo's simulations."""

from __future__ import annotations

import re

import pytest

from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.simulator.compare import compare
from gavelpy.simulator.settings import preset
from gavelpy.traces.reader import read_trace
from tests.conftest import PROJECT

ROW = re.compile(r"^    ([a-z_]+)(@blind)? +([\d.,]+) h +([\d.,]+) h +([\d.]+) %$", re.MULTILINE)


@pytest.mark.slow
def test_the_table_is_that_of_the_demo() -> None:
    stated = {
        PolicyRun(name, bool(blind)): [float(figure.replace(",", "")) for figure in figures]
        for name, blind, *figures in ROW.findall((PROJECT / "README.md").read_text(encoding="utf-8"))
    }
    trace = read_trace(PROJECT / "workloads" / "demo_trace.csv")

    results = compare(trace, Cluster.parse("v100:36,p100:36,k80:36"), list(stated), settings=preset("default"))

    assert len(stated) == 6
    for result, figures in zip(results.values(), stated.values(), strict=True):
        found = result.metrics
        in_units = found.avg_jct_s / 3600, found.makespan_s / 3600, 100 * found.utilization
        assert in_units == pytest.approx(figures, abs=0.15)  # rounded, and the last digit depends on the processor

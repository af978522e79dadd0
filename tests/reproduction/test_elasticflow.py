"""ElasticFlow's claim, by direction, against schedulers that keep the number of GPUs; its jobs, and a trace's rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.job import Trace
from gavelpy.policies.base import Policy
from gavelpy.reproduction import elasticflow
from gavelpy.reproduction.elasticflow import DEADLINES_MET, ELASTIC, RIGID, compared, drawn, recorded, with_sizes
from gavelpy.reproduction.published import FigureSize


@pytest.mark.slow
def test_asplos23_more_jobs_meet_deadlines_than_under_schedulers_without_sizes(reference_directory: Path) -> None:
    found = DEADLINES_MET.reproduce(FigureSize(trace=reference_directory / "data/elasticflow/cluster01.csv"))

    met = {row.run: row.ours for row in found.rows if row.quantity == "deadlines met"}
    assert met["elasticflow"] > max(met[name] for name in RIGID)
    assert met["elasticflow"] > 1.46 * met["edf, as requested"]


def test_all_policies_run_on_a_few_jobs_and_ratios_are_those_of_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    fast: dict[str, str | Policy] = {name: policy for name, policy in ELASTIC.items() if name != "pollux"}
    monkeypatch.setattr(elasticflow, "ELASTIC", fast)

    found = compared([_short(drawn(12, 0))], 8, FigureSize())

    met = {row.run: row.ours for row in found.rows if row.quantity == "deadlines met"}
    assert set(met) == {*fast, *RIGID}
    others = [count for name, count in met.items() if name not in ("elasticflow", "srtf")]
    ratios = {row.quantity: row.ours for row in found.rows if row.quantity.startswith("ratio")}
    assert ratios == {
        "ratio, least": met["elasticflow"] / max(others),
        "ratio, most": met["elasticflow"] / max(min(others), 1),
    }
    assert [len(curve.y) for curve in found.figures[0].curves] == list(met.values())


def test_sizes_double_the_rate_less_five_percent() -> None:
    job = next(job for job in with_sizes(drawn(50, 0)).jobs if job.gpus == 1)

    assert job.sizes == (1, 2, 4, 8)
    assert job.rates_by_size[2]["v100"] == pytest.approx(1.9)
    assert job.rates_by_size[8]["v100"] == pytest.approx(1.9**3)


def test_drawn_deadlines_are_half_to_one_and_a_half_run_times() -> None:
    trace = drawn(5000, 0)

    part = np.array([job.deadline_s / job.steps_total for job in trace.jobs])
    assert 0.5 <= part.min() < 0.51
    assert 1.49 < part.max() <= 1.5
    assert np.median([job.steps_total for job in trace.jobs]) == pytest.approx(8287, rel=0.05)


def test_a_trace_must_have_enough_jobs_with_deadlines() -> None:
    with pytest.raises(InvalidInput, match=r"trace must have 640 jobs or more, all with deadlines .* got 600 jobs"):
        recorded(drawn(600, 0), 40)


def test_seeds_with_a_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="seeds must not be given with a trace"):
        DEADLINES_MET.reproduce(FigureSize(seeds=2, trace=tmp_path / "cluster01.csv"))


def _short(trace: Trace) -> Trace:
    """The same jobs in a twentieth of the time, on at most 8 GPUs."""
    jobs = tuple(
        replace(job, gpus=min(job.gpus, 8), steps_total=job.steps_total / 20, deadline_s=job.deadline_s / 20)
        for job in trace.jobs
    )
    return Trace(jobs, trace.arrival_s / 20, trace.name)

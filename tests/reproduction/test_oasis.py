"""OASiS' claim, by direction, where jobs are small and GPUs scarce; the values of its jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.completion_value import CompletionValue
from gavelpy.model.job import Trace
from gavelpy.reproduction.comparisons import DrawnSize
from gavelpy.reproduction.oasis import (
    BASELINES,
    ELASTIC,
    FULL_SLOT_POLICIES,
    RIGID,
    SLOT_POLICIES,
    TOTAL_VALUES,
    compared,
    in_slots,
    value_of,
    valued,
)
from gavelpy.reproduction.published import FigureSize
from gavelpy.traces.workloads import published_throughputs


@pytest.mark.slow
def test_infocom18_the_total_value_of_small_jobs_is_higher_than_under_all_baselines() -> None:
    found = TOTAL_VALUES.reproduce(FigureSize())

    ratios = {row.run: row.ours for row in found.rows if row.at == "100 jobs of 1 GPU on 8" and "ratio" in row.quantity}
    assert min(ratios[f"oasis / {name}"] for name in BASELINES) > 1.5
    gangs = {row.run: row.ours for row in found.rows if "of 1 to 8 GPUs" in row.at and "ratio" in row.quantity}
    assert min(gangs["oasis / fifo"], gangs["oasis / drf"]) > 1.2


@pytest.mark.slow
def test_infocom18_in_its_setting_the_total_value_is_higher_than_under_its_baselines() -> None:
    ratios = {row.run: row.ours for row in in_slots(3) if "ratio" in row.quantity}

    assert set(ratios) == {f"oasis / {name}" for name in SLOT_POLICIES[1:]}
    assert min(ratios["oasis / fifo"], ratios["oasis / drf"]) > 1.5
    assert ratios["oasis / rrh"] > 1.0


def test_dorm_runs_in_its_setting_and_the_ratio_is_that_of_the_values() -> None:
    found = {(row.run, row.quantity): row.ours for row in in_slots(1, ("oasis", "dorm"), jobs=6)}

    assert found["dorm", "jobs that end"] > 0
    assert found["oasis / dorm", "ratio of total value"] == (
        found["oasis", "total value"] / found["dorm", "total value"]
    )
    assert (*SLOT_POLICIES, "dorm") == FULL_SLOT_POLICIES


def test_all_policies_run_on_a_few_gangs_and_ratios_are_those_of_the_values() -> None:
    trace = _short(valued(DrawnSize(8, 8, 8.0), 0, published_throughputs(), gangs=True))

    rows, figure = compared([trace], 8, FigureSize(), gangs=True)

    total = {row.run: row.ours for row in rows if row.quantity == "total value"}
    assert set(total) == {*ELASTIC, *RIGID}
    assert rows[-4].run == "oasis / fifo"
    assert rows[-4].ours == total["oasis"] / total["fifo"]
    assert [curve.y[-1] for curve in figure.curves] == pytest.approx(list(total.values()))


def test_values_are_those_of_the_sigmoids_and_nothing_for_jobs_that_do_not_end() -> None:
    trace = valued(DrawnSize(3, 8, 8.0), 0, published_throughputs(), gangs=False)
    target = CompletionValue.parse(trace.jobs[0].completion_value)

    found = value_of(trace, np.array([target.time_s, np.inf, 0.0]))

    assert found[0] == pytest.approx(target.worth / 2)
    assert found[1] == 0
    last = CompletionValue.parse(trace.jobs[2].completion_value)
    assert found[2] == pytest.approx(last.worth / (1 + np.exp(-last.decay_per_s * last.time_s)))


def _short(trace: Trace) -> Trace:
    """The same jobs in a fifth of the time."""
    jobs = tuple(replace(job, steps_total=job.steps_total / 5) for job in trace.jobs)
    return Trace(jobs, trace.arrival_s / 5, trace.name)

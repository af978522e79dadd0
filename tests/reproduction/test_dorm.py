"""Dorm's claim, by direction: more of the GPUs are used than with static partitions; its jobs and its measure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.job import Trace
from gavelpy.reproduction.comparisons import DrawnSize
from gavelpy.reproduction.dorm import AGAINST_PARTITIONS, BUSY, DEFAULT, DORMS, compared, elastic, partitioned
from gavelpy.reproduction.published import FigureSize
from gavelpy.traces.workloads import published_throughputs


@pytest.mark.slow
def test_smartcomp17_more_of_the_gpus_are_used_than_with_static_partitions() -> None:
    found = AGAINST_PARTITIONS.reproduce(FigureSize())

    at, low = dict.fromkeys(row.at for row in found.rows)
    used = {row.run: row.ours for row in found.rows if row.quantity == BUSY and row.at == at}
    assert min(used[name] for name in DORMS) > max(used[name] for name in used if name not in DORMS)
    assert used[DEFAULT] > 1.3 * used["1 GPU each"]
    slower = {row.run: row.ours for row in found.rows if row.quantity == "ratio of average JCT" and row.at == low}
    assert 1 / slower[f"{DEFAULT} / 1 GPU each"] > 2
    assert [figure.name for figure in found.figures] == ["utilisation", "utilisation_low"]


def test_policies_run_on_a_few_jobs_and_ratios_are_those_of_their_values() -> None:
    trace = _short(elastic(DrawnSize(8, 4, 20.0), 0, published_throughputs()))

    found = compared([trace], 4, FigureSize())

    values = {(row.run, row.quantity): row.ours for row in found.rows}
    assert all(0 < values[name, BUSY] <= 100 for name in (*DORMS, "1 GPU each", "2 GPUs each", "4 GPUs each"))
    ratio = values[f"{DEFAULT} / 1 GPU each", "ratio of utilisation until the last arrival"]
    assert ratio == values[DEFAULT, BUSY] / values["1 GPU each", BUSY]
    assert all(np.isfinite(curve.y).all() for curve in found.figures[0].curves)


def test_a_partition_gives_each_job_at_most_its_gpus_with_the_rate_of_the_table() -> None:
    table = published_throughputs()
    trace = elastic(DrawnSize(30, 4, 20.0), 0, table)

    jobs = partitioned(trace, 4).jobs

    assert {job.gpus for job in jobs} <= {1, 2, 4}
    assert all(job.sizes == () for job in jobs)
    assert all(job.rates_steps_per_s["v100"] == table.rates(job.job_type, job.gpus)["v100"] for job in jobs)


def _short(trace: Trace) -> Trace:
    """The same jobs in a tenth of the time."""
    jobs = tuple(replace(job, steps_total=job.steps_total / 10) for job in trace.jobs)
    return Trace(jobs, trace.arrival_s / 10, trace.name)

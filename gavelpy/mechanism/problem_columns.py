"""Reads the columns of an allocation problem from the table of jobs, and books isolated time.

A shell may replace `columns_of` by a compiled twin: see `selection.WakeupSteps`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gavelpy.mechanism import sizes
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Bools, Floats, Ints, row_sums


class ProblemColumns(NamedTuple):
    """What a problem states of its jobs, as in `AllocationProblem`; axes (K,), and (K, T) of rates."""

    rate_steps_per_s: Floats  # 0 where the job cannot run
    gpus: Ints
    gpus_asked: Floats
    weight: Floats
    steps_remaining: Floats
    steps_total: Floats
    age_s: Floats
    isolated_s: Floats
    deadline_s: Floats
    attained_gpu_s: Floats
    restart_s: Floats
    entity: Ints
    gpu_type_held: Ints
    job_type: Ints
    owner: Ints


def columns_of(jobs: JobTable, rows: Ints, usable: Bools, now_s: float) -> ProblemColumns:
    """The columns of the jobs in these rows; `usable` (K, T): where they could run."""
    (gpus, rate), steps_total = sizes.requested(jobs, rows), jobs.steps_total[rows]
    return ProblemColumns(
        rate_steps_per_s=np.where(usable, rate, 0.0),
        gpus=gpus,
        gpus_asked=gpus.astype(np.float64),
        weight=jobs.weight[rows],
        steps_remaining=np.maximum(steps_total - jobs.steps_done[rows], steps_total * 1e-12),
        steps_total=steps_total,
        age_s=now_s - np.maximum(jobs.submitted_s[rows], jobs.begin_at_s[rows]),
        isolated_s=jobs.isolated_s[rows],
        deadline_s=jobs.deadline_at_s[rows] - now_s,
        attained_gpu_s=jobs.attained_gpu_s[rows],
        restart_s=np.maximum(jobs.worked_s[rows] - jobs.began_s[rows], 0.0),
        entity=jobs.entity[rows],
        gpu_type_held=jobs.lease_type[rows],
        job_type=jobs.job_type[rows],
        owner=jobs.owner[rows],
    )


def book_isolated(jobs: JobTable, rows: Ints, counts: Ints) -> None:
    """Adds the time that the steps since the last problem take on 1/n of each GPU type. Gavel §4.2, Themis."""
    gpus, rate = sizes.requested(jobs, rows)
    steps, before = jobs.steps_done[rows], jobs.isolated_rate[rows]
    progressed = steps - jobs.isolated_steps[rows]
    more_s = np.divide(progressed, before, out=np.zeros(len(rows)), where=before > 0)
    jobs.isolated_s[rows] += np.maximum(more_s, 0.0)
    jobs.isolated_steps[rows] = steps
    share = counts[None, :] / (len(rows) * gpus)[:, None]
    share /= np.maximum(row_sums(share), 1.0)[:, None]
    jobs.isolated_rate[rows] = row_sums(share * np.where(np.isnan(rate), 0.0, rate))

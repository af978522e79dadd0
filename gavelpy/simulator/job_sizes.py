"""Jobs of a trace that can run on several numbers of GPUs: which runs refuse them, and their true rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.settings import Rules
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import Policy
from gavelpy.policies.refusals import refuse_sizes


def check_sizes(jobs: Sequence[JobSpec], policy: Policy, rules: Rules) -> None:
    """Raises InvalidInput if some job has several sizes and the run cannot use them."""
    several = next((job for job in jobs if job.sizes), None)
    if several is None:
        return
    refuse_sizes(policy, [several])
    got = f"got {', '.join(map(str, several.sizes))} for job {several.id!r}"
    if not rules.allows_sizes:
        raise InvalidInput(f"queues by GPU type and whole steps exclude sizes: gpus must be one number, {got}")


def true_rates_by_size(
    jobs: Sequence[JobSpec], table: ThroughputTable | None, gpu_types: tuple[str, ...]
) -> dict[int, dict[int, Floats]]:
    """Steps/s of jobs with several sizes on each type, by row and number of GPUs; 0 where neither job nor table knows.

    Rates that a job was submitted with come before those of the table.
    """
    found: dict[int, dict[int, Floats]] = {}
    for row, job in enumerate(jobs):
        for size in job.sizes:
            rates = job.rates_on(size)
            if not rates and table is not None:
                rates = table.rates(job.job_type, size)
            found.setdefault(row, {})[size] = np.array([rates.get(name, 0.0) for name in gpu_types])
    return found


def as_requested(trace: Trace) -> Trace:
    """The trace with each job on the GPUs that it requested only."""
    if not any(job.sizes for job in trace.jobs):
        return trace
    jobs = tuple(replace(job, sizes=(), rates_by_size={}) if job.sizes else job for job in trace.jobs)
    return replace(trace, jobs=jobs)

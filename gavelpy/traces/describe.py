"""Statistics of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gavelpy.model.job import JobSpec, Trace

_PERCENTILES = (0, 10, 50, 90, 99, 100)


def describe(trace: Trace) -> dict[str, Any]:
    """Statistics of a trace as JSON values. Run times are on the fastest type for which a job has a rate.

    jobs, span_s (first to last arrival), arrival_rate_jobs_per_h (None if all arrive at once), gpus and job_types
    (number of jobs of each), steps and duration_s (percentiles), load_gpu_h (sum of GPUs x run time), weighted_share
    (fraction of jobs with a weight other than 1), deadline_share, entities, jobs_without_rates.
    """
    J = len(trace)
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0]) if J else 0.0
    runnable = [job for job in trace.jobs if _fastest_rate(job) > 0]
    durations_s = [job.steps_total / _fastest_rate(job) for job in runnable]
    load_gpu_s = sum(job.gpus * d for job, d in zip(runnable, durations_s, strict=True))
    return {
        "name": trace.name,
        "jobs": J,
        "span_s": span_s,
        "arrival_rate_jobs_per_h": (J - 1) / span_s * 3600.0 if span_s > 0 else None,
        "gpus": dict(sorted(Counter(job.gpus for job in trace.jobs).items())),
        "job_types": dict(Counter(job.job_type for job in trace.jobs).most_common()),
        "steps": _percentiles([job.steps_total for job in trace.jobs]),
        "duration_s": _percentiles(durations_s),
        "load_gpu_h": load_gpu_s / 3600.0,
        "weighted_share": _share(sum(job.weight != 1.0 for job in trace.jobs), J),
        "deadline_share": _share(sum(bool(np.isfinite(job.deadline_s)) for job in trace.jobs), J),
        "entities": len({job.entity for job in trace.jobs if job.entity}),
        "jobs_without_rates": J - len(runnable),
    }


def _fastest_rate(job: JobSpec) -> float:
    return max(job.rates_steps_per_s.values(), default=0.0)


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    """`{"p50": ...}`; empty without values."""
    if not values:
        return {}
    found = np.percentile(np.array(values), _PERCENTILES).tolist()
    return {f"p{p}": value for p, value in zip(_PERCENTILES, found, strict=True)}


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0

"""Sia's workloads as elastic jobs: goodput by GPU type and number of GPUs, with the best batch size at each point.

The profiles state, for each batch size M, how far training is after how many iterations (`validation`): progress
counts iterations of the smallest batch, so that all batch sizes end at the same progress. Between two points of
progress, a job on n GPUs of a type takes the least over M of  iterations_M x step time(type, n, M).  The sum over all
points is its time T there, and progress / T its rate: that of a job which adapts its batch size as it trains. So a rate
is a mean over progress; a policy sees the same goodput at the beginning of a job as at its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobSpec, Trace
from gavelpy.traces.sia import CLUSTERS, ITERATIONS, VALIDATION, SiaProfiles

# Numbers of GPUs by type: within a node powers of two, then whole nodes (Sia, section 3.1), 6 x 4, 3 x 8 and 2 x 8 GPUs
CONFIGURATIONS = {"t4": (1, 2, 4, 8, 12, 16, 20, 24), "rtx2080ti": (1, 2, 4, 8, 16, 24), "a100": (1, 2, 4, 8, 16)}
POINTS = 100  # of progress


def elastic(trace: Trace, workload: Path) -> Trace:
    """The trace with each job on all of Sia's configurations, at the goodput of its profiles; steps are progress.

    A job requests one GPU. Raises InvalidInput if an application has no profile.
    """
    profiles = SiaProfiles(workload)
    jobs: dict[str, JobSpec] = {}
    found = []
    for job in trace.jobs:
        application = job.job_type.partition(" ")[0]
        if application not in jobs:
            jobs[application] = _elastic_job(job, application, profiles)
        found.append(replace(jobs[application], id=job.id))
    return replace(trace, jobs=tuple(found))


def rigid(trace: Trace) -> Trace:
    """The trace with job types that name the application only, and no GPU type that is not in the cluster."""
    jobs = []
    for job in trace.jobs:
        rates = {name: rate for name, rate in job.rates_steps_per_s.items() if name in CONFIGURATIONS}
        jobs.append(replace(job, job_type=job.job_type.partition(" ")[0], rates_steps_per_s=rates))
    return replace(trace, jobs=tuple(jobs))


def slowed(trace: Trace, slowdown: Mapping[str, float]) -> Trace:
    """The trace with the rates of each job divided by the slowdown of its job type; 1 for types that it lacks."""
    jobs = []
    for job in trace.jobs:
        part = 1.0 / slowdown.get(job.job_type, 1.0)
        alone = {name: rate * part for name, rate in job.rates_steps_per_s.items()}
        by_size = {
            gpus: {name: rate * part for name, rate in rates.items()} for gpus, rates in job.rates_by_size.items()
        }
        jobs.append(replace(job, rates_steps_per_s=alone, rates_by_size=by_size))
    return replace(trace, jobs=tuple(jobs))


def _elastic_job(job: JobSpec, application: str, profiles: SiaProfiles) -> JobSpec:
    by_gpus: dict[int, dict[str, float]] = {}
    end, iterations = segments(application, profiles)
    for gpu_type, counts in CONFIGURATIONS.items():
        for gpus in counts:
            try:
                step_s = {m: profiles.step_s(application, CLUSTERS[gpu_type], gpus, m) for m in iterations if m >= gpus}
            except FileNotFoundError:
                break
            spent_s = np.array([iterations[m] * seconds for m, seconds in step_s.items()])
            by_gpus.setdefault(gpus, {})[gpu_type] = end / float(spent_s.min(axis=0).sum())
    if 1 not in by_gpus:
        raise InvalidInput(f"application must have profiles on one of {', '.join(CONFIGURATIONS)}, got {application!r}")
    return JobSpec(
        job.id,
        end,
        gpus=1,
        job_type=application,
        rates_steps_per_s=by_gpus.pop(1),
        sizes=(1, *sorted(by_gpus)),
        rates_by_size=by_gpus,
    )


def segments(application: str, profiles: SiaProfiles) -> tuple[float, dict[int, Floats]]:
    """The progress at the end of training, and by batch size the iterations between equally spaced points of it."""
    names = profiles.directory.glob(f"{application}-validation-*.csv")
    sizes = sorted(int(found[1]) for name in names if (found := re.search(r"-validation-(\d+)\.csv$", name.name)))
    tables = {m: profiles.table(f"{application}-validation-{m}.csv", VALIDATION, ITERATIONS) for m in sizes}
    if not tables:
        raise InvalidInput(f"application must have a profile {application}-validation-*.csv, got none")
    end = float(tables[sizes[0]]["progress"][-1])
    points = np.linspace(0.0, 1.0, POINTS + 1)
    found_: dict[int, Floats] = {}
    for m, table in tables.items():
        progress = np.concatenate([[0.0], table["progress"]]) / table["progress"][-1]
        done = np.concatenate([[0.0], table["iteration"]])
        found_[m] = np.diff(np.interp(points, progress, done))
    return end, found_

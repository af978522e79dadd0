"""Searches as in Themis' trace: apps of many jobs, which end early by HyperBand, on nodes that slow gangs down.

ρ of an app is its completion time, until its last job has ended, over that alone on C / N GPUs: C GPUs of the cluster,
N apps on average over the run under `themis`. Alone it needs the time of its longest job, and that of all the work that
it did, whichever is longer. Which jobs end early depends on their metrics at the rungs only, so the work of an app is
the same under each policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from gavelpy.model.apps import AppRole, HalvingSchedule
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.cluster import Cluster, ClusterNode
from gavelpy.model.halving import hyperband
from gavelpy.model.job import JobId, JobSpec, NodeId, Trace
from gavelpy.model.metric_curve import CurveShape, MetricCurve
from gavelpy.model.throughput import Provenance, ThroughputTable

GPU_TYPE = "v100"
ETA = 3.0
LONGEST = (1.0, 3.0, 9.0, 27.0)
"""Steps of the longest job of an app over those of its first comparison: 1, 5, 17 and 49 jobs by HyperBand.

The paper has 1 to 98 jobs, 23 at the median, as recalled from it.
"""
MEDIAN_S, SPREAD = (59 * 60.0, 123 * 60.0), 0.5
"""Median run times of short and long apps, as recalled from the paper; the deviation of their logarithm is ours."""
GPUS, GPUS_SHARE = (2, 4), (0.2, 0.8)
"""GPUs of the jobs of an app: "most" 4 in the paper, as recalled."""
APART = {"Transformer (batch size 64)": {2: 0.441, 4: 0.538}, "ResNet-50 (batch size 32)": {2: 0.828, 4: 0.933}}
"""Rate on several nodes over that on one, by job type and GPUs. Source: Gavel's simulation_throughputs.json, v100."""
TYPE_SHARE = (0.6, 0.4)
"""Apps that depend on the network, and others, as recalled from the paper."""
NODES = ((4, 10), (2, 4), (1, 2))
"""GPUs of a node, and nodes with so many, for 50 GPUs: a mix as in the paper, the numbers are ours."""


@dataclass(frozen=True)
class AppsSize:
    """How many apps on how many GPUs, and how often one arrives."""

    apps: int
    gpus: int
    rate_apps_per_h: float


def cluster_of(gpus: int) -> Cluster:
    """Nodes of 4, 2 and 1 GPUs in the proportions of `NODES`."""
    whole = sum(size * count for size, count in NODES)
    counts = [size for size, count in NODES for _ in range(round(count * gpus / whole))]
    counts += [1] * (gpus - sum(counts))
    nodes = (ClusterNode(NodeId(f"{GPU_TYPE}-{k}"), GPU_TYPE, count) for k, count in enumerate(counts))
    return Cluster(tuple(nodes), (GPU_TYPE,))


def rates_apart() -> ThroughputTable:
    """One step per second on one node, and the rates of `APART` on several."""
    keys = [(name, gpus) for name, of_type in APART.items() for gpus in of_type]
    rates = np.array([[1.0, APART[name][gpus]] for name, gpus in keys])
    sources = ("Gavel's simulation_throughputs.json",) * len(keys)
    types = (GPU_TYPE, f"{GPU_TYPE}_unconsolidated")
    return ThroughputTable(tuple(keys), types, rates, np.full(rates.shape, Provenance.MEASURED), sources)


def drawn_apps(setting: AppsSize, seed: int) -> Trace:
    """Searches that arrive at random; all jobs of one have the same owner, GPUs and steps, one step per second."""
    rng = np.random.default_rng(seed)
    gaps_s = rng.exponential(3600.0 / setting.rate_apps_per_h, setting.apps)
    gaps_s[0] = 0.0
    searches = [_drawn_app(f"app{number}", rng) for number in range(setting.apps)]
    jobs = tuple(job for search, _ in searches for job in search)
    curves = {job_id: curve for _, of_app in searches for job_id, curve in of_app.items()}
    arrival_s = np.repeat(np.cumsum(gaps_s), [len(search) for search, _ in searches])
    return Trace(jobs, arrival_s, f"apps, seed {seed}", curves=curves)


def _drawn_app(name: str, rng: np.random.Generator) -> tuple[list[JobSpec], dict[JobId, MetricCurve]]:
    steps = float(round(rng.choice(MEDIAN_S) * math.exp(SPREAD * rng.standard_normal())))
    brackets = hyperband(steps / float(rng.choice(LONGEST)), steps, ETA)
    gpus = int(rng.choice(GPUS, p=GPUS_SHARE))
    job_type = str(rng.choice(list(APART), p=TYPE_SHARE))
    count = sum(bracket.jobs for bracket in brackets)
    of_job = [which for which, bracket in enumerate(brackets) for _ in range(bracket.jobs)]
    roles = [
        AppRole(name, at, count, schedule=HalvingSchedule.HYPERBAND, bracket=which, rungs=brackets[which].rungs)
        for at, which in enumerate(of_job)
    ]
    jobs, curves = list[JobSpec](), dict[JobId, MetricCurve]()
    for role in roles:
        job_id, rates = JobId(f"{name}-{role.at}"), {GPU_TYPE: 1.0}
        jobs.append(JobSpec(job_id, steps, gpus, job_type=job_type, rates_steps_per_s=rates, owner=name, app=role.text))
        floor, speed = float(rng.uniform(0.0, 1.0)), float(rng.uniform(1.0, 100.0)) / steps
        curves[job_id] = MetricCurve(CurveShape.RECIPROCAL, 2.0, floor, speed)
    return jobs, curves


def app_of(trace: Trace) -> Ints:
    """The number of the app of each job, (J,); the jobs of an app are next to each other."""
    return np.cumsum([AppRole.parse(job.app).at == 0 for job in trace.jobs]) - 1


def arrivals_of_apps_s(trace: Trace) -> Floats:
    """When each app arrives, (A,)."""
    return np.asarray(trace.arrival_s[np.unique(app_of(trace), return_index=True)[1]])


def steps_done(trace: Trace) -> Floats:
    """Steps of each job until it finishes or loses at a rung, (J,): the best values at a rung continue."""
    done = np.array([job.steps_total for job in trace.jobs])
    roles = [AppRole.parse(job.app) for job in trace.jobs]
    for _, rows in groupby(range(len(roles)), key=lambda row: (roles[row].name, roles[row].bracket)):
        left = list(rows)
        for steps, keep in roles[left[0]].rungs:
            ranked = sorted(left, key=lambda row: (trace.curves[trace.jobs[row].id].at(steps), row))
            done[ranked[keep:]] = steps
            left = ranked[:keep]
    return done


def completion_of_apps_s(trace: Trace, finish_s: Floats) -> Floats:
    """Seconds from the arrival of each app to the end of its last job, (A,); infinite if no job finished.

    `finish_s` is NaN for jobs that lost; the jobs that did not lose must finish.
    """
    app, done = app_of(trace), steps_done(trace)
    total = np.array([job.steps_total for job in trace.jobs])
    end_s = np.where(np.isnan(finish_s), np.where(done < total, -math.inf, math.inf), finish_s)
    last_s = np.full(app[-1] + 1, -math.inf)
    np.maximum.at(last_s, app, end_s)
    return np.asarray(last_s - arrivals_of_apps_s(trace))


def ratios_of_apps(trace: Trace, jct_s: Floats, part: float) -> Floats:
    """ρ of each app, (A,): the time that it took over that alone on `part` GPUs."""
    app, run_s = app_of(trace), steps_done(trace)
    work_gpu_s = np.bincount(app, weights=run_s * np.array([job.gpus for job in trace.jobs]))
    longest_s = np.zeros(len(work_gpu_s))
    np.maximum.at(longest_s, app, run_s)
    return np.asarray(jct_s / np.maximum(longest_s, work_gpu_s / part))

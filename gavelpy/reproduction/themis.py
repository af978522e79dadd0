"""Themis against Tiresias and Gandiva: the worst finish-time ratio ρ.

ρ of a job is its completion time over that alone on an equal part of the cluster, T. Jobs have one size, so T is the
run time on the GPUs requested, or longer if those are more than C / N: C GPUs of the cluster, N jobs on average over
the run. A policy with a long queue has a large N; all policies are measured with the N of the run under `themis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.report.plots import Figure
from gavelpy.reproduction.comparisons import (
    FULL_SEEDS,
    DrawnSize,
    completion_s,
    distribution,
    rows_of,
    settings_with,
    simulated,
)
from gavelpy.reproduction.published import FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.traces.generator import Durations, GeneratorOptions, generate

if TYPE_CHECKING:
    from gavelpy.model.arrays import Floats
    from gavelpy.model.throughput import ThroughputTable

GPU_TYPE, ROUND_S, HOUR_S = "v100", 120.0, 3600.0
THEMIS, BASELINES = "themis", ("tiresias", "gandiva", "gandiva_introspective")
POLICIES = {name: name for name in (THEMIS, *BASELINES)}
PUBLISHED = 2.25
"""Fairness is improved more than this many times over other schedulers (abstract, which does not name them)."""
SMALL, FULL = DrawnSize(50, 16, 3.0), DrawnSize(200, 50, 9.0)


def drawn(setting: DrawnSize, seed: int, table: ThroughputTable) -> Trace:
    """Generated jobs of 1 to 8 GPUs and half an hour to 17 hours."""
    options = GeneratorOptions(
        setting.jobs,
        rate_jobs_per_h=setting.rate_jobs_per_h,
        multi_gpu=True,
        durations=Durations(long_share=0.0),
    )
    return generate(options, table, np.random.default_rng(seed))


def run_s(trace: Trace) -> Floats:
    """Seconds that each job runs on the GPUs that it requests, (J,)."""
    return np.array([job.steps_total / job.rates_steps_per_s[GPU_TYPE] for job in trace.jobs])


def jobs_on_average(trace: Trace, jct_s: Floats) -> float:
    """Mean number of jobs that are submitted and not finished, from the first arrival to the last finish."""
    last_s = float((trace.arrival_s + jct_s).max())
    return float(jct_s.sum()) / (last_s - float(trace.arrival_s[0]))


def ratios(trace: Trace, jct_s: Floats, gpus: int, jobs: float) -> Floats:
    """ρ of each job, (J,): the time that it took over that on `gpus` / `jobs` GPUs, at most those that it requests."""
    asked = np.array([job.gpus for job in trace.jobs], dtype=np.float64)
    found: Floats = jct_s / (run_s(trace) * np.maximum(asked / (gpus / jobs), 1.0))
    return found


def compared(traces: list[Trace], gpus: int, size: FigureSize) -> Reproduction:
    """Worst and mean ρ and average completion times by policy, means over the traces, and ratios to Themis."""
    cluster, settings = Cluster.parse(f"{GPU_TYPE}:{gpus}"), settings_with(ROUND_S)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in POLICIES}
    figures = list[Figure]()
    for trace in traces:
        results = simulated(trace, cluster, POLICIES, settings, size, trace.name)
        jct_s = {name: completion_s(result, trace) for name, result in results.items()}
        jobs = jobs_on_average(trace, jct_s[THEMIS])
        rho = {name: ratios(trace, times_s, gpus, jobs) for name, times_s in jct_s.items()}
        for name, values in rho.items():
            found[name].append((float(values.max()), float(values.mean()), float(jct_s[name].mean()) / HOUR_S))
        if not figures:
            figures.append(distribution("rho", "Finish-time ratios", "ρ", rho))
    means = {name: np.mean(values, axis=0).tolist() for name, values in found.items()}
    at = f"{sum(map(len, traces))} jobs"
    rows = rows_of(at, means, ("worst ρ", "mean ρ", "average JCT h"))
    best = means[THEMIS][0]
    rows += [Row(at, f"{name} / {THEMIS}", "ratio of worst ρ", PUBLISHED, means[name][0] / best) for name in BASELINES]
    used = {"cluster": f"{GPU_TYPE}:{gpus}", "round_s": ROUND_S, "traces": len(traces)}
    return Reproduction(tuple(rows), tuple(figures), used)


def worst_ratios(size: FigureSize) -> Reproduction:
    """Themis and other policies on generated traces."""
    setting, seeds = (FULL, size.seeds or FULL_SEEDS) if size.is_full else (SMALL, size.seeds or 1)
    return compared([drawn(setting, seed, size.table) for seed in range(seeds)], setting.gpus, size)


WORST_RATIOS = PublishedFigure(
    "themis",
    "Themis against Tiresias and Gandiva: the worst finish-time ratio",
    "Mahajan et al., NSDI '20, abstract: fairness improved by more than 2.25 times over other schedulers",
    "jobs are Gavel's, one to an app; its apps search hyper-parameters with many jobs each, from a trace that is not"
    " published, and are slower where their GPUs are far apart",
    worst_ratios,
)

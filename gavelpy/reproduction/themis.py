"""Themis against Tiresias and Gandiva: the worst finish-time ratio ρ, of searches with many jobs and of single jobs.

*Searches* are apps as in the paper (`themis_apps`). *Single jobs*: each app is one job of a fixed number of GPUs, as
fast on any nodes. ρ of a job is its completion time over that alone on an equal part of the cluster, T: the run time on
the GPUs requested, or longer if those are more than C / N, for C GPUs of the cluster and N jobs on average over the
run. A policy with a long queue has a large N; all policies are measured with the N of the run under `themis`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.reproduction.themis_apps import (
    AppsSize,
    arrivals_of_apps_s,
    cluster_of,
    completion_of_apps_s,
    drawn_apps,
    rates_apart,
    ratios_of_apps,
)
from gavelpy.simulator.conditions.causes import Locality
from gavelpy.simulator.conditions.spec import Conditions
from gavelpy.traces.generator import Durations, GeneratorOptions, generate

if TYPE_CHECKING:
    from gavelpy.model.arrays import Floats
    from gavelpy.model.throughput import ThroughputTable

GPU_TYPE, ROUND_S, HOUR_S = "v100", 120.0, 3600.0
THEMIS, BASELINES = "themis", ("tiresias", "gandiva", "gandiva_introspective")
BY_OWNER = "gandiva_fair"  # not in the paper: equal parts for apps, where the baselines see jobs
RESERVING = "themis:reserve=1"  # not in the paper: gangs that wait get GPUs together
OF_APPS = (THEMIS, *BASELINES, BY_OWNER)
OF_JOBS = (THEMIS, RESERVING, *BASELINES)
PUBLISHED = 2.25
"""Fairness is improved more than this many times over other schedulers (abstract, which does not name them)."""
SMALL, FULL = DrawnSize(50, 16, 3.0), DrawnSize(200, 50, 9.0)
SMALL_APPS, FULL_APPS = AppsSize(12, 16, 0.5), AppsSize(40, 50, 1.5)

Times = Mapping[str, "Floats"]  # completion times in s by policy


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


def on_average(arrival_s: Floats, jct_s: Floats) -> float:
    """Mean number of jobs or apps that have arrived and not finished, from the first arrival to the last finish."""
    last_s = float((arrival_s + jct_s).max())
    return float(jct_s.sum()) / (last_s - float(arrival_s[0]))


def ratios(trace: Trace, jct_s: Floats, part: float) -> Floats:
    """ρ of each job, (J,): the time that it took over that alone on `part` GPUs, at most those that it requests."""
    asked = np.array([job.gpus for job in trace.jobs], dtype=np.float64)
    found: Floats = jct_s / (run_s(trace) * np.maximum(asked / part, 1.0))
    return found


def jobs_compared(trace: Trace, gpus: int, size: FigureSize) -> tuple[Times, Times]:
    """ρ and completion times of single jobs by policy."""
    cluster, policies = Cluster.parse(f"{GPU_TYPE}:{gpus}"), {name: name for name in OF_JOBS}
    results = simulated(trace, cluster, policies, settings_with(ROUND_S), size, trace.name)
    jct_s = {name: completion_s(result, trace) for name, result in results.items()}
    part = gpus / on_average(trace.arrival_s, jct_s[THEMIS])
    return {name: ratios(trace, times_s, part) for name, times_s in jct_s.items()}, jct_s


def apps_compared(trace: Trace, gpus: int, size: FigureSize) -> tuple[Times, Times]:
    """ρ and completion times of searches by policy, where gangs on several nodes are slower."""
    policies = {name: name for name in OF_APPS}
    settings = replace(settings_with(ROUND_S), conditions=Conditions(locality=Locality(by_table=True)))
    results = simulated(trace, cluster_of(gpus), policies, settings, size, trace.name, rates_apart())
    jct_s = {
        name: completion_of_apps_s(trace, result.history.finish_s[: len(trace)]) for name, result in results.items()
    }
    part = gpus / on_average(arrivals_of_apps_s(trace), jct_s[THEMIS])
    return {name: ratios_of_apps(trace, times_s, part) for name, times_s in jct_s.items()}, jct_s


def compared(
    traces: Sequence[Trace],
    gpus: int,
    size: FigureSize,
    run: Callable[[Trace, int, FigureSize], tuple[Times, Times]],
    at: str,
) -> tuple[list[Row], Figure]:
    """Worst and mean ρ and average completion times by policy, means over the traces, and ratios to Themis."""
    runs = [run(trace, gpus, size) for trace in traces]
    names = list(runs[0][0])
    means = {
        name: np.mean(
            [(rho[name].max(), rho[name].mean(), jct_s[name].mean() / HOUR_S) for rho, jct_s in runs], axis=0
        ).tolist()
        for name in names
    }
    rows = rows_of(at, means, ("worst ρ", "mean ρ", "average JCT h"))
    for name in names[1:]:
        label, published = f"{name} / {THEMIS}", PUBLISHED if name in BASELINES else UNKNOWN
        rows.append(Row(at, label, "ratio of worst ρ", published, means[name][0] / means[THEMIS][0]))
        if len(runs) > 1:
            of_one = [float(rho[name].max() / rho[THEMIS].max()) for rho, _ in runs]
            rows.append(Row(at, label, "least of one trace", UNKNOWN, min(of_one)))
            rows.append(Row(at, label, "most of one trace", UNKNOWN, max(of_one)))
    first = runs[0][0]
    return rows, distribution(f"rho_{at.split()[0]}", f"Finish-time ratios: {at}", "ρ", first)


def worst_ratios(size: FigureSize) -> Reproduction:
    """Themis and other policies on searches and on single jobs."""
    seeds = range(size.seeds or (FULL_SEEDS if size.is_full else 1))
    apps, jobs = (FULL_APPS, FULL) if size.is_full else (SMALL_APPS, SMALL)
    searches = [drawn_apps(apps, seed) for seed in seeds]
    single = [drawn(jobs, seed, size.table) for seed in seeds]
    rows, figure = compared(searches, apps.gpus, size, apps_compared, f"searches on {apps.gpus} GPUs")
    more, other = compared(single, jobs.gpus, size, jobs_compared, f"single jobs on {jobs.gpus} GPUs")
    used = {
        "gpus": {"searches": apps.gpus, "jobs": jobs.gpus},
        "apps": {"searches": [apps.apps] * len(searches), "jobs": [len(trace) for trace in single]},
        "jobs_of_searches": [len(trace) for trace in searches],
        "round_s": ROUND_S,
    }
    return Reproduction((*rows, *more), (figure, other), used)


WORST_RATIOS = PublishedFigure(
    "themis",
    "Themis against Tiresias and Gandiva: the worst finish-time ratio",
    "Mahajan et al., NSDI '20, abstract: fairness improved by more than 2.25 times over other schedulers",
    "its trace is not published: searches are drawn, and details of it are recalled; Gavel's measured rates on several"
    " nodes; our Tiresias and Gandiva treat each job of an app as an app of its own",
    worst_ratios,
)

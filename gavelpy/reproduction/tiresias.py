"""Tiresias against FIFO and YARN's capacity queues on Philly: average completion times.

Jobs are drawn from the Philly trace, run time and number of GPUs together, and arrive at random at a load of 1: the
GPU time of all jobs, spread over the time of the arrivals, is that of the cluster. Without a trace, run times are
log-normal with the trace's median and mean. With --full the cluster is that of the paper's testbed, 60 GPUs in nodes
of 4; and, with a trace, the jobs of the virtual cluster 7f04ca, which need 63 GPUs on average, arrive as recorded, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.report.plots import Figure
from gavelpy.reproduction.comparisons import FULL_SEEDS, DrawnSize, completion_s, distribution, settings_with, simulated
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.reader import read_trace

GPU_TYPE, ROUND_S = "p100", 360.0
POLICIES = {
    "fifo": "fifo",
    "capacity": "capacity",
    "tiresias": "tiresias",
    "tiresias:order=gittins": "tiresias:order=gittins",
    "srsf": "srsf",
}
BASELINES, TIRESIAS = ("fifo", "capacity"), ("tiresias", "tiresias:order=gittins")
PUBLISHED = 5.5
"""Average JCT of a resource manager based on YARN over that of Tiresias, at most (abstract)."""
RECORDED = "7f04ca"  # Philly's name of a virtual cluster
MEDIAN_S, MEAN_S = 1144.0, 13136.0  # run times of the trace
GPU_COUNTS = {1: 76627, 2: 1818, 4: 1870, 8: 1643}  # jobs of the trace, all but 0.35 %


SMALL, FULL = DrawnSize(300, 16), DrawnSize(1200, 60)


def log_normal(jobs: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """Run times in s and numbers of GPUs, (J,), independent of each other."""
    spread = math.sqrt(2.0 * math.log(MEAN_S / MEDIAN_S))
    counts = np.array(list(GPU_COUNTS.values()), dtype=np.float64)
    gpus: Ints = rng.choice(np.array(list(GPU_COUNTS)), size=jobs, p=counts / counts.sum())
    return np.maximum(MEDIAN_S * np.exp(spread * rng.standard_normal(jobs)), 1.0), gpus


def drawn(setting: DrawnSize, seed: int, philly: Trace | None) -> Trace:
    """Jobs that arrive at random at a load of 1, drawn from a trace if one is given."""
    rng = np.random.default_rng(seed)
    if philly is None:
        run_s, gpus = log_normal(setting.jobs, rng)
    else:
        fit = [job for job in philly.jobs if job.gpus <= max(GPU_COUNTS)]
        chosen = [fit[k] for k in rng.integers(len(fit), size=setting.jobs).tolist()]
        run_s, gpus = np.array([job.steps_total for job in chosen]), np.array([job.gpus for job in chosen])
    gaps_s = rng.exponential(1.0, setting.jobs)
    gaps_s[0] = 0.0
    arrival_s = np.cumsum(gaps_s) * float(run_s @ gpus) / setting.gpus / setting.jobs
    specs = (
        JobSpec(JobId(str(k)), steps, gpus=count, rates_steps_per_s={GPU_TYPE: 1.0})
        for k, (steps, count) in enumerate(zip(run_s.tolist(), gpus.tolist(), strict=True))
    )
    return Trace(tuple(specs), arrival_s, f"seed {seed}")


def recorded(philly: Trace, name: str = RECORDED) -> Trace:
    """The jobs of one virtual cluster, as they arrived. Raises InvalidInput if there are none."""
    rows = [k for k, job in enumerate(philly.jobs) if job.entity == name]
    if not rows:
        clusters = sorted({job.entity for job in philly.jobs if job.entity})
        shown = ", ".join(clusters[:3]) or "none"
        raise InvalidInput(f"trace must have jobs of Philly's virtual cluster {name}, got clusters: {shown}")
    jobs = tuple(replace(philly.jobs[k], entity="", rates_steps_per_s={GPU_TYPE: 1.0}) for k in rows)
    return Trace(jobs, philly.arrival_s[rows] - philly.arrival_s[rows[0]], f"cluster {name}")


def compared(traces: Sequence[Trace], gpus: int, size: FigureSize) -> Reproduction:
    """Average and median completion times of each policy, and ratios to those of Tiresias, by trace."""
    cluster, settings = Cluster.parse(f"{GPU_TYPE}:{gpus}", gpus_per_node=4), settings_with(ROUND_S)
    rows, figures = list[Row](), list[Figure]()
    for trace in traces:
        at = f"{trace.name}: {len(trace)} jobs"
        results = simulated(trace, cluster, POLICIES, settings, size, trace.name)
        hours = {name: completion_s(result, trace) / 3600.0 for name, result in results.items()}
        for name, of_jobs in hours.items():
            rows.append(Row(at, name, "average JCT h", UNKNOWN, float(of_jobs.mean())))
            rows.append(Row(at, name, "median JCT h", UNKNOWN, float(np.median(of_jobs))))
        for ours in TIRESIAS:
            for name in (*BASELINES, "srsf"):
                published = PUBLISHED if name in BASELINES else UNKNOWN
                ratio = float(hours[name].mean() / hours[ours].mean())
                rows.append(Row(at, f"{name} / {ours}", "ratio of average JCT", published, ratio))
        figures.append(distribution(f"jct{len(figures) or ''}", f"Completion times, {at}", "h", hours))
    used = {"cluster": f"{GPU_TYPE}:{gpus}", "round_s": ROUND_S, "traces": [trace.name for trace in traces]}
    return Reproduction(tuple(rows), tuple(figures), used | {"jobs": [len(trace) for trace in traces]})


def against_queues(size: FigureSize) -> Reproduction:
    """Tiresias and queues on drawn jobs, and with a trace and the full size on recorded arrivals."""
    setting, seeds = (FULL, size.seeds or FULL_SEEDS) if size.is_full else (SMALL, size.seeds or 1)
    philly, arrived = None, list[Trace]()
    if size.trace is not None:
        philly = read_trace(size.trace, from_format="philly", options=ReadOptions(durations=DurationRule.SECONDS))
        arrived = [recorded(philly)] if size.is_full else []
    return compared([*(drawn(setting, seed, philly) for seed in range(seeds)), *arrived], setting.gpus, size)


TIRESIAS_ON_PHILLY = PublishedFigure(
    "tiresias",
    "Tiresias against FIFO and capacity queues: completion times",
    "Gu et al., NSDI '19, abstract: average JCT up to 5.5 times shorter than under a manager based on YARN, and"
    " comparable to that of policies with perfect knowledge",
    "the published value is the largest, ours are of one trace each; the load of drawn jobs is ours, and placement does"
    " not slow jobs down",
    against_queues,
)

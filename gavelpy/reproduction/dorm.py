"""Dorm against static partitions: utilisation of GPUs and completion times.

Each job can run on those of 1, 2, 4 and 8 GPUs for which the throughput table has a rate. A static partition is the
same trace with a fixed number of GPUs for each job, in the order of arrival. Utilisation is that until the last job
arrives, and that of the whole run, which ends with few jobs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobSpec, Trace
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve, Scale
from gavelpy.reproduction.comparisons import FULL_SEEDS, DrawnSize, completion_s, rows_of, settings_with, simulated
from gavelpy.reproduction.published import FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.traces.generator import Durations, GeneratorOptions, generate

if TYPE_CHECKING:
    from gavelpy.model.arrays import Floats
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.simulator.metrics import SimulationResult

GPU_TYPE, ROUND_S, SIZES, PARTITIONS = "v100", 360.0, (1, 2, 4, 8), (1, 2, 4)
DORMS = {
    "dorm-1": "dorm:unfairness=0.2:adjusted=0.1",
    "dorm-2": "dorm:unfairness=0.1:adjusted=0.1",
    "dorm-3": "dorm:unfairness=0.1:adjusted=0.2",
}
DEFAULT = "dorm-3"  # the defaults of the policy
BUSY, WHOLE, JCT = "utilisation until the last arrival %", "utilisation %", "average JCT h"
PUBLISHED = {BUSY: 2.32, JCT: 2.72}
"""Utilisation under Dorm over that of static partitions, and their time over that under Dorm, at most (abstract)."""


SMALL, FULL = DrawnSize(60, 32, 20.0), DrawnSize(240, 64, 40.0)
LOW = DrawnSize(60, 32, 2.5)  # few jobs at a time, where partitions leave GPUs free


def elastic(setting: DrawnSize, seed: int, table: ThroughputTable) -> Trace:
    """Jobs of half an hour to 17 hours on one GPU, with all sizes that the table has."""
    options = GeneratorOptions(
        setting.jobs, rate_jobs_per_h=setting.rate_jobs_per_h, durations=Durations(long_share=0.0)
    )
    trace = generate(options, table, np.random.default_rng(seed))
    return replace(trace, jobs=tuple(_with_sizes(job, table) for job in trace.jobs))


def _with_sizes(job: JobSpec, table: ThroughputTable) -> JobSpec:
    rates = {size: table.rates(job.job_type, size) for size in SIZES}
    known = {size: {GPU_TYPE: found[GPU_TYPE]} for size, found in rates.items() if found.get(GPU_TYPE, 0.0) > 0}
    own = known.pop(1)
    return replace(job, rates_steps_per_s=own, sizes=(1, *known) if known else (), rates_by_size=known)


def partitioned(trace: Trace, gpus: int) -> Trace:
    """The same jobs, each on this number of GPUs or the most below it that it can run on."""
    return replace(
        trace, jobs=tuple(_on(job, max((g for g in job.sizes if g <= gpus), default=1)) for job in trace.jobs)
    )


def _on(job: JobSpec, gpus: int) -> JobSpec:
    return replace(job, gpus=gpus, rates_steps_per_s=job.rates_on(gpus), sizes=(), rates_by_size={})


def utilisation(result: SimulationResult, gpus: int, until_s: float) -> float:
    """The part of the GPU time under lease from 0 to `until_s`."""
    _, held, _, starts, ends = result.history.leased_intervals()
    used_s = np.minimum(ends, until_s) - np.minimum(starts, until_s)
    return float(used_s @ held) / (gpus * until_s)


def compared(traces: list[Trace], gpus: int, size: FigureSize, load: str = "") -> Reproduction:
    """Each policy's means over the traces, and Dorm's ratios to each partition."""
    cluster, settings = Cluster.parse(f"{GPU_TYPE}:{gpus}"), settings_with(ROUND_S)
    found: dict[str, list[tuple[float, float, float]]] = {}
    first: dict[str, SimulationResult] = {}
    for trace in traces:
        results = simulated(trace, cluster, DORMS, settings, size, trace.name)
        for count in PARTITIONS:
            label = f"{count} GPU{'s' * (count > 1)} each"
            results |= simulated(partitioned(trace, count), cluster, {label: "fifo"}, settings, size, trace.name)
        first = first or results
        for name, result in results.items():
            busy, whole = (utilisation(result, gpus, t) for t in (float(trace.arrival_s[-1]), result.history.now_s))
            jct_h = float(completion_s(result, trace).mean()) / 3600.0
            found.setdefault(name, []).append((100.0 * busy, 100.0 * whole, jct_h))
    means = {name: np.mean(values, axis=0).tolist() for name, values in found.items()}
    at = f"{sum(map(len, traces))} jobs{load}"
    rows = rows_of(at, means, (BUSY, WHOLE, JCT))
    for label in (name for name in means if name not in DORMS):
        busy, whole, slower = (means[DEFAULT][k] / means[label][k] for k in range(3))
        for quantity, published, ratio in (
            ("ratio of utilisation until the last arrival", PUBLISHED[BUSY], busy),
            ("ratio of utilisation", PUBLISHED[BUSY], whole),
            ("ratio of average JCT", 1.0 / PUBLISHED[JCT], slower),
        ):
            rows.append(Row(at, f"{DEFAULT} / {label}", quantity, published, ratio))
    used = {"cluster": f"{GPU_TYPE}:{gpus}", "round_s": ROUND_S, "traces": len(traces), "sizes": SIZES}
    return Reproduction(tuple(rows), (_over_time(first, gpus),), used)


def _over_time(results: dict[str, SimulationResult], gpus: int) -> Figure:
    """The part of the GPUs under lease over time, for one trace."""
    curves = []
    for i, (name, result) in enumerate(results.items()):
        frame = result.utilization
        share: Floats = frame.to_numpy()[:, 0]
        curves.append(PlotCurve(name, frame.index.to_numpy() / 3600.0, share, POLICY_COLOURS[i % len(POLICY_COLOURS)]))
    title = f"GPUs under lease, of {gpus}"
    return Figure("utilisation", title, Axis("h"), Axis("utilisation", Scale.PERCENT), tuple(curves))


def against_partitions(size: FigureSize) -> Reproduction:
    """Dorm and static partitions on generated traces, with more jobs than GPUs and with few."""
    setting, seeds = (FULL, size.seeds or FULL_SEEDS) if size.is_full else (SMALL, size.seeds or 1)
    busy, low = (
        compared(
            [elastic(one, seed, size.table) for seed in range(seeds)],
            one.gpus,
            size,
            f", {one.rate_jobs_per_h:g} an hour on {one.gpus}",
        )
        for one in (setting, LOW)
    )
    curves = replace(low.figures[0], name="utilisation_low")
    used = {**busy.parameters, "low_load": {"jobs": LOW.jobs, "gpus": LOW.gpus, "rate_per_h": LOW.rate_jobs_per_h}}
    return Reproduction((*busy.rows, *low.rows), (*busy.figures, curves), used)


AGAINST_PARTITIONS = PublishedFigure(
    "dorm",
    "Dorm against static partitions: utilisation",
    "Sun et al., SMARTCOMP '17, abstract: utilisation up to 2.32 times, applications up to 2.72 times as fast",
    "the published values are the largest; its applications and partitions are not available here, and utilisation is"
    " that of GPUs only",
    against_partitions,
)

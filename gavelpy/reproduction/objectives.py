"""Makespan and cost, aware of GPU types against the baselines of the paper: Gavel's sections on end objectives.

The paper states one factor for each, the best of its sweep; there are no printed curves to read values from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.load import CLUSTER, FULL_SEEDS, HOUR_S
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.simulator.compare import compare
from gavelpy.simulator.settings import preset
from gavelpy.traces.generator import GAVEL_DEADLINES, Durations, GeneratorOptions, generate
from gavelpy.traces.workloads import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gavelpy.simulator.metrics import RunMetrics, SimulationResult
    from gavelpy.simulator.settings import SimulationSettings

MAKESPAN_FACTOR, COST_FACTOR = 2.5, 1.4
_HEADLINES = "Narayanan et al., OSDI '20, section 7: the factor that the paper states, the best of its sweep"

MAKESPAN_RUNS = (
    PolicyRun("min_makespan"),
    PolicyRun("min_makespan", True),
    PolicyRun("max_min_fairness", True),
    PolicyRun("fifo", True),
)
FULL_JOBS, SMALL_JOBS = (100, 200, 300, 400, 500), (100, 200)

COST_RUNS = (PolicyRun("max_sum_throughput"), PolicyRun("min_cost"), PolicyRun("min_cost:deadlines=true"))
COST_TYPES = ("ResNet-50", "A3C")
COST_DURATIONS = Durations((2.86, 2.86), (3.46, 4.06), 0.6)  # 12 hours, or 2 to 8 days
FULL_COST_PER_H, SMALL_COST_PER_H = (0.5, 1.0, 2.0, 4.0), (1.0, 4.0)
FULL_COST_JOBS, SMALL_COST_JOBS = 500, 150


def makespans(size: FigureSize) -> Reproduction:
    """Jobs of 1 to 8 GPUs that all arrive at once; the time until the last has finished, by number of jobs."""
    counts = FULL_JOBS if size.is_full else SMALL_JOBS
    options = [GeneratorOptions(count, multi_gpu=True) for count in counts]
    cluster = Cluster.parse(CLUSTER)
    found = _simulated(size, cluster, MAKESPAN_RUNS, options, [f"{n} jobs" for n in counts], preset("gavel-osdi20"))
    rows: list[Row] = []
    first = MAKESPAN_RUNS[0].label
    for count, runs in zip(counts, found, strict=True):
        hours = {run.label: _mean(runs, run, lambda metrics: metrics.makespan_s / HOUR_S) for run in MAKESPAN_RUNS}
        at = f"{count} jobs"
        rows += [Row(at, label, "makespan, h", UNKNOWN, value) for label, value in hours.items()]
        for run in MAKESPAN_RUNS[1:]:
            published = MAKESPAN_FACTOR if run.policy == "fifo" else UNKNOWN
            rows.append(
                Row(at, f"{run.label} / {first}", "ratio of makespans", published, hours[run.label] / hours[first])
            )
    curve = _curves(MAKESPAN_RUNS, counts, found, lambda metrics: metrics.makespan_s / HOUR_S)
    figure = Figure("makespan", "Makespan of jobs that arrive at once", Axis("jobs"), Axis("makespan, h"), curve)
    return Reproduction(tuple(rows), (figure,), {"cluster": CLUSTER, "preset": "gavel-osdi20", "seeds": _seeds(size)})


def costs(size: FigureSize) -> Reproduction:
    """Two job types, one of which gains little on fast GPUs; the price of all leases, by load."""
    rates = size.rates_per_h or (FULL_COST_PER_H if size.is_full else SMALL_COST_PER_H)
    jobs = FULL_COST_JOBS if size.is_full else SMALL_COST_JOBS
    options = [
        GeneratorOptions(
            jobs,
            rate_jobs_per_h=rate,
            deadlines=dict(GAVEL_DEADLINES),
            durations=COST_DURATIONS,
            job_types=COST_TYPES if size.throughputs is None else (),
        )
        for rate in rates
    ]
    known = catalogue()
    prices = {name: known[name].price_usd_per_gpu_h for name in Cluster.parse(CLUSTER).gpu_types}
    cluster = Cluster.parse(CLUSTER, price_usd_per_gpu_h=prices)
    names = [f"{rate:g} jobs/h" for rate in rates]
    found = _simulated(size, cluster, COST_RUNS, options, names, preset("default"))
    rows: list[Row] = []
    first = COST_RUNS[0].label
    for at, runs in zip(names, found, strict=True):
        usd = {run.label: _mean(runs, run, lambda metrics: metrics.cost_usd) for run in COST_RUNS}
        misses = {run.label: _mean(runs, run, lambda metrics: metrics.deadline_misses) for run in COST_RUNS}
        rows += [Row(at, label, "cost, USD", UNKNOWN, value) for label, value in usd.items()]
        rows += [Row(at, label, "deadlines missed, %", UNKNOWN, 100 * value / jobs) for label, value in misses.items()]
        for run in COST_RUNS[1:]:
            published = UNKNOWN if "deadlines" in run.policy else COST_FACTOR
            rows.append(Row(at, f"{first} / {run.label}", "ratio of costs", published, usd[first] / usd[run.label]))
    curve = _curves(COST_RUNS, rates, found, lambda metrics: metrics.cost_usd)
    figure = Figure("cost", "Cost of all jobs over load", Axis("jobs per hour"), Axis("cost, USD"), curve)
    parameters = {"cluster": CLUSTER, "preset": "default", "jobs": jobs, "prices": prices, "seeds": _seeds(size)}
    return Reproduction(tuple(rows), (figure,), parameters)


def _seeds(size: FigureSize) -> int:
    return size.seeds or (FULL_SEEDS if size.is_full else 1)


def _simulated(
    size: FigureSize,
    cluster: Cluster,
    runs: Sequence[PolicyRun],
    options: Sequence[GeneratorOptions],
    names: Sequence[str],
    settings: SimulationSettings,
) -> list[list[dict[str, SimulationResult]]]:
    """The results of each seed, for each of the options."""
    table = size.table
    return [
        [
            compare(
                generate(one, table, np.random.default_rng(seed)),
                cluster,
                runs,
                settings=settings,
                throughputs=table,
                seed=seed,
                progress=size.progress_of(f"{name}, seed {seed}"),
            )
            for seed in range(_seeds(size))
        ]
        for one, name in zip(options, names, strict=True)
    ]


def _mean(runs: Sequence[dict[str, SimulationResult]], run: PolicyRun, value: Callable[[RunMetrics], float]) -> float:
    return float(np.mean([value(results[run.label].metrics) for results in runs]))


def _curves(
    runs: Sequence[PolicyRun],
    at: Sequence[float],
    found: Sequence[Sequence[dict[str, SimulationResult]]],
    value: Callable[[RunMetrics], float],
) -> tuple[PlotCurve, ...]:
    x = np.array(at, dtype=np.float64)
    return tuple(
        PlotCurve(run.label, x, np.array([_mean(each, run, value) for each in found]), POLICY_COLOURS[i], run.blind)
        for i, run in enumerate(runs)
    )


MAKESPAN = PublishedFigure(
    "makespan",
    "Gavel: makespan of jobs that arrive at once",
    _HEADLINES,
    "the factor is against the original's FIFO, which gives V100s to several jobs at the same time; our blind FIFO "
    "keeps each job on the type where it started, which is slower",
    makespans,
)
COST = PublishedFigure(
    "cost",
    "Gavel: cost of all jobs, with and without deadlines",
    _HEADLINES,
    "ResNet-50 and A3C at list prices, with the preset default: under the original's rules, idle V100s are filled "
    "with jobs that have no share on them, which costs more than the policy wants",
    costs,
)

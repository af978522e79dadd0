"""Average completion time over the arrival rate, aware of GPU types and blind to them: Gavel's figures 8, 9 and 10.

The setting is the original's: 36 GPUs of each type, Poisson arrivals, the preset gavel-osdi20, and a window of jobs in
steady state. The small form measures earlier jobs and fewer rates; before a queue has built up, high loads look better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.simulator.compare import compare
from gavelpy.simulator.settings import preset
from gavelpy.traces.generator import GeneratorOptions, generate

if TYPE_CHECKING:
    from gavelpy.model.arrays import Floats
    from gavelpy.model.job import Trace
    from gavelpy.simulator.metrics import SimulationResult

CLUSTER = "v100:36,p100:36,k80:36"
JCT = "average JCT, h"
RATIO = "average JCT, blind / aware"
HOUR_S = 3600.0
FULL_WINDOW, SMALL_WINDOW = (4000, 5000), (300, 500)
FULL_SEEDS = 3
ARRIVING_H = 1000.0  # jobs arrive for so long after the window

_READ = (
    "Narayanan et al., OSDI '20; values read off the printed figures by a replication study "
    "(Turquoise-T/cs244c-GPU_fragment, paper_reference_curves.json), to about 1 h"
)
_RATES = (
    "without --throughputs, jobs have the rates that ship with gavel: seven job types, some recalled from the paper's "
    "figure 1, where the original measured 26; blindness to types has the original's definition"
)


@dataclass(frozen=True)
class Published:
    """A printed figure: average JCT in hours by jobs per hour; NaN where it cannot be read."""

    policy: str
    rates_per_h: tuple[float, ...]
    aware_h: tuple[float, ...]
    blind_h: tuple[float, ...]
    small_rates_per_h: tuple[float, ...]
    multi_gpu: bool = False

    def jct_h(self, rate_per_h: float, blind: bool) -> float:
        """The printed value at a rate, NaN if there is none."""
        if rate_per_h not in self.rates_per_h:
            return UNKNOWN
        return (self.blind_h if blind else self.aware_h)[self.rates_per_h.index(rate_per_h)]


_ = UNKNOWN
LAS_SINGLE = Published(
    "max_min_fairness",
    (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5),
    (16, 18, 17, 17, 16, 15, 15, 15, 14, 20, 30, 46, 99),
    (22, 24, 23, _, 23, 22, 22, 22, 24, 61, 92, 99, _),
    (1.0, 3.0, 4.0, 5.0),
)
_MULTI_PER_H = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4)
LAS_MULTI = Published(
    "max_min_fairness",
    (*_MULTI_PER_H, 2.6, 2.8, 3.0),
    (17, 17, 17, 17, 16, 17, 17, 17, 17, 18, 19, 26, 31, 46, 100),
    (25, 23, 24, 23, 23, 23, 25, 23, 23, 25, 30, 41, 94, _, _),
    (0.6, 1.4, 2.0, 2.4),
    multi_gpu=True,
)
FINISH_TIMES = Published(
    "finish_time_fairness",
    (*_MULTI_PER_H, 2.5, 2.6, 2.8, 2.9, 3.0, 3.1, 3.3),
    (17, 16, 17, 16, 16, 16, 17, 16, 18, 18, 19, 22, _, 28, 36, _, 47, 64, 92),
    (24, 23, 25, 24, 24, 24, 23, 24, 25, 26, 25, 36, 47, 62, 81, 100, _, _, _),
    (0.6, 1.4, 2.0, 2.4),
    multi_gpu=True,
)


def over_load(printed: Published, size: FigureSize) -> Reproduction:
    """Simulates the policy, aware and blind, at each rate with each seed, and compares average JCTs."""
    rates = size.rates_per_h or (printed.rates_per_h if size.is_full else printed.small_rates_per_h)
    seeds = size.seeds or (FULL_SEEDS if size.is_full else 1)
    window = size.window or (FULL_WINDOW if size.is_full else SMALL_WINDOW)
    runs = (PolicyRun(printed.policy), PolicyRun(printed.policy, True))
    traces = {(rate, seed): trace_of(printed, size, rate, seed, window[1]) for rate in rates for seed in range(seeds)}
    found = {
        rate: [_simulated(printed, size, traces[rate, seed], seed, window) for seed in range(seeds)] for rate in rates
    }
    jct_h = {
        (run.label, rate): [results[run.label].metrics.avg_jct_s / HOUR_S for results in found[rate]]
        for run in runs
        for rate in rates
    }
    rows = []
    for rate in rates:
        at = f"{rate:g} jobs/h"
        printed_h = {run.label: printed.jct_h(rate, run.blind) for run in runs}
        mean_h = {run.label: float(np.mean(jct_h[run.label, rate])) for run in runs}
        rows += [Row(at, run.label, JCT, printed_h[run.label], mean_h[run.label]) for run in runs]
        aware, blind = (run.label for run in runs)
        rows.append(Row(at, "", RATIO, printed_h[blind] / printed_h[aware], mean_h[blind] / mean_h[aware]))
    return Reproduction(
        tuple(rows),
        (_curves(printed, runs, rates, jct_h), _distribution(printed, runs, rates, found)),
        {"cluster": CLUSTER, "window": list(window), "seeds": seeds, "preset": "gavel-osdi20"},
        _remarks(traces, found),
    )


def trace_of(printed: Published, size: FigureSize, rate_per_h: float, seed: int, measured_end: int) -> Trace:
    jobs = measured_end + math.ceil(rate_per_h * ARRIVING_H)
    options = GeneratorOptions(jobs, rate_jobs_per_h=rate_per_h, multi_gpu=printed.multi_gpu)
    trace = generate(options, size.table, np.random.default_rng(seed))
    return replace(trace, name=f"{rate_per_h:g} jobs/h, seed {seed}")


def _simulated(
    printed: Published, size: FigureSize, trace: Trace, seed: int, window: tuple[int, int]
) -> dict[str, SimulationResult]:
    return compare(
        trace,
        Cluster.parse(CLUSTER),
        [PolicyRun(printed.policy), PolicyRun(printed.policy, True)],
        settings=preset("gavel-osdi20"),
        throughputs=size.table,
        seed=seed,
        window=window,
        progress=size.progress_of(trace.name),
    )


def _remarks(
    traces: dict[tuple[float, int], Trace], found: dict[float, list[dict[str, SimulationResult]]]
) -> tuple[str, ...]:
    return tuple(
        f"{trace.name}, {label}: jobs of the window were left when arrivals ended, {ARRIVING_H:g} h after it; this "
        "load is not sustained, and the average is too low"
        for (rate, seed), trace in traces.items()
        for label, result in found[rate][seed].items()
        if result.history.now_s > float(trace.arrival_s[-1])
    )


def _curves(
    printed: Published,
    runs: tuple[PolicyRun, ...],
    rates: tuple[float, ...],
    jct_h: dict[tuple[str, float], list[float]],
) -> Figure:
    curves = []
    for run in runs:
        published = np.array([printed.jct_h(rate, run.blind) for rate in printed.rates_per_h], dtype=np.float64)
        is_known = np.isfinite(published)
        known_per_h = np.array(printed.rates_per_h)[is_known]
        colour = POLICY_COLOURS[int(run.blind)]
        curves.append(PlotCurve(f"{run.label}, published", known_per_h, published[is_known], colour, True))
        ours = np.array([float(np.mean(jct_h[run.label, rate])) for rate in rates])
        curves.append(PlotCurve(run.label, np.array(rates), ours, colour))
    return Figure("jct_over_load", "Average completion time over load", Axis("jobs per hour"), Axis(JCT), tuple(curves))


def _distribution(
    printed: Published,
    runs: tuple[PolicyRun, ...],
    rates: tuple[float, ...],
    found: dict[float, list[dict[str, SimulationResult]]],
) -> Figure:
    rate = rates[-1]
    curves = []
    for run in runs:
        hours: Floats = np.sort(np.concatenate([_jct_h(results[run.label]) for results in found[rate]]))
        part = np.arange(1, len(hours) + 1) / max(len(hours), 1)
        curves.append(PlotCurve(run.label, hours, part, POLICY_COLOURS[int(run.blind)], run.blind))
    title = f"Completion times under {printed.policy} at {rate:g} jobs per hour"
    return Figure("jct_distribution", title, Axis("JCT, h"), Axis("part of the jobs"), tuple(curves))


def _jct_h(result: SimulationResult) -> Floats:
    jobs = result.jobs
    values: Floats = jobs["jct_s"][jobs["measured"]].dropna().to_numpy(dtype=np.float64) / HOUR_S
    return values


FIG8 = PublishedFigure(
    "fig8",
    "Gavel: max-min fairness over load, jobs of one GPU",
    f"{_READ}; figure 9a in the proceedings, 8 in the artifact",
    _RATES,
    lambda size: over_load(LAS_SINGLE, size),
)
FIG9 = PublishedFigure(
    "fig9",
    "Gavel: max-min fairness over load, jobs of 1 to 8 GPUs",
    f"{_READ}; figure 10a in the proceedings, 9 in the artifact",
    _RATES,
    lambda size: over_load(LAS_MULTI, size),
)
FIG10 = PublishedFigure(
    "fig10",
    "Gavel: finish-time fairness over load, jobs of 1 to 8 GPUs",
    f"{_READ}; figure 11a in the proceedings, 10 in the artifact",
    f"{_RATES}; the optimum of each solve is exact, where the original stops at a solver's tolerance",
    lambda size: over_load(FINISH_TIMES, size),
)

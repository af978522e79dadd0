"""The overhead of preemption: GPU time that starts and stops take, where leases are extended and where they are not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.reproduction.rounds import ROUNDS_S
from gavelpy.simulator.compare import compare
from gavelpy.simulator.metrics import RunMetrics
from gavelpy.simulator.settings import SimulationSettings, preset
from gavelpy.traces.generator import GeneratorOptions, generate

RUN = PolicyRun("max_min_fairness")
CLUSTER = "v100:8,p100:16,k80:24"  # as the paper's physical cluster
FULL_RATES_PER_H, SMALL_RATES_PER_H = (4.0, 8.0), (8.0,)
FULL_JOBS, SMALL_JOBS = 500, 120
OVERHEAD = "GPU time of starts and stops, %"
TO_RESTARTS = "overhead / overhead of restarts"
RESTARTS = "a new lease in each round"
_COSTLY = ("start", "restore", "migration", "checkpoint")
_UNLEASED = ("capacity", "idle", "closed", "down")


def overhead(metrics: RunMetrics) -> float:
    """GPU time that starts and stops took, in percent of leased GPU time; NaN without leases."""
    hours = metrics.gpu_hours
    leased = math.fsum(value for name, value in hours.items() if name not in _UNLEASED)
    return 100.0 * math.fsum(hours[name] for name in _COSTLY) / leased if leased else math.nan


def over_rounds(size: FigureSize) -> Reproduction:
    """Simulates max-min fairness with the rules of the original and by default, with rounds of several lengths."""
    rates = size.rates_per_h or (FULL_RATES_PER_H if size.is_full else SMALL_RATES_PER_H)
    jobs, seeds = (FULL_JOBS if size.is_full else SMALL_JOBS), size.seeds or (3 if size.is_full else 1)
    costs, names = preset("default").costs, ("gavel-osdi20", "default")
    restarts = [100.0 * (costs.checkpoint_s + costs.restart_s) / round_s for round_s in ROUNDS_S]
    rows, curves = [], [PlotCurve(RESTARTS, np.array(ROUNDS_S), np.array(restarts), "#808080", True)]
    for rate in rates:
        for name in names:
            found = [_mean(size, name, round_s, rate, jobs, seeds) for round_s in ROUNDS_S]
            label = f"{RUN.label}, {name}"
            for round_s, ours, restart in zip(ROUNDS_S, found, restarts, strict=True):
                at = f"{rate:g} jobs/h, round_s {round_s:g}"
                rows.append(Row(at, label, OVERHEAD, UNKNOWN, ours))
                rows.append(Row(at, label, TO_RESTARTS, UNKNOWN, ours / restart))
            colour = POLICY_COLOURS[len(curves) % len(POLICY_COLOURS)]
            curves.append(PlotCurve(f"{label}, {rate:g} jobs/h", np.array(ROUNDS_S), np.array(found), colour))
    rows += [Row(f"round_s {s:g}", RESTARTS, OVERHEAD, UNKNOWN, one) for s, one in zip(ROUNDS_S, restarts, strict=True)]
    figure = Figure(
        "preemption", "Overhead of preemption over the length of a round", Axis("s"), Axis(OVERHEAD), tuple(curves)
    )
    parameters = {"cluster": CLUSTER, "jobs": jobs, "seeds": seeds, "checkpoint_s": costs.checkpoint_s}
    parameters |= {"restart_s": costs.restart_s, "migration_s": costs.migration_s}
    return Reproduction(tuple(rows), (figure,), parameters)


def _mean(size: FigureSize, name: str, round_s: float, rate_per_h: float, jobs: int, seeds: int) -> float:
    """Overhead with a preset and the costs of the default one, the mean over seeds."""
    settings = _settings(name, round_s)
    return float(np.mean([_overhead(size, settings, name, round_s, rate_per_h, jobs, seed) for seed in range(seeds)]))


def _settings(name: str, round_s: float) -> SimulationSettings:
    base = preset(name)
    mechanism = (
        replace(base.mechanism, round_s=round_s) if name == "gavel-osdi20" else base.mechanism.with_round(round_s)
    )
    return replace(base, mechanism=mechanism, costs=preset("default").costs)


def _overhead(
    size: FigureSize, settings: SimulationSettings, name: str, round_s: float, rate_per_h: float, jobs: int, seed: int
) -> float:
    trace = generate(GeneratorOptions(jobs, rate_jobs_per_h=rate_per_h), size.table, np.random.default_rng(seed))
    part = f"{rate_per_h:g} jobs/h, {name}, round_s {round_s:g}, seed {seed}"
    result = compare(
        trace,
        Cluster.parse(CLUSTER),
        [RUN],
        settings=settings,
        throughputs=size.table,
        seed=seed,
        progress=size.progress_of(part),
    )[RUN.label]
    return overhead(result.metrics)


PREEMPTION = PublishedFigure(
    "preemption",
    "Gavel: GPU time that starts and stops take, with and without extended leases, over the length of a round",
    "Narayanan et al., OSDI '20, section 7: the overhead of preemption by model on a physical cluster, with and "
    "without renewed leases; its values are not available to this project",
    "ours is simulated: a stop takes 5 s, a start 15 s and a move to other GPUs 5 s more, for all job types",
    over_rounds,
)

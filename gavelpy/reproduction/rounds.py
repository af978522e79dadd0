"""The round mechanism against shares that are delivered exactly, over the length of a round: Gavel's figure 13."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.load import CLUSTER, HOUR_S, JCT
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.simulator.compare import compare
from gavelpy.simulator.settings import preset
from gavelpy.traces.generator import GeneratorOptions, generate

RUN = PolicyRun("max_min_fairness")
ROUNDS_S = (360.0, 720.0, 1440.0, 2880.0)
FULL_RATES_PER_H, SMALL_RATES_PER_H = (2.0, 4.0, 5.0), (4.0,)
FULL_JOBS, SMALL_JOBS = 1000, 200
TO_IDEAL = "average JCT / ideal"
WITHIN = 1.1  # at 360 s


def over_rounds(size: FigureSize) -> Reproduction:
    """Simulates max-min fairness with rounds of several lengths; the ideal solves at each arrival and finish."""
    rates = size.rates_per_h or (FULL_RATES_PER_H if size.is_full else SMALL_RATES_PER_H)
    jobs, seeds = (FULL_JOBS if size.is_full else SMALL_JOBS), size.seeds or (3 if size.is_full else 1)
    rows, curves = [], []
    for i, rate in enumerate(rates):
        found = np.array([_jcts_h(size, rate, jobs, seed) for seed in range(seeds)]).mean(axis=0)
        ideal_h, at = float(found[-1]), f"{rate:g} jobs/h"
        rows.append(Row(at, f"{RUN.label}, ideal", JCT, UNKNOWN, ideal_h))
        for round_s, jct_h in zip(ROUNDS_S, found.tolist(), strict=False):
            label = f"{RUN.label}, round_s {round_s:g}"
            rows.append(Row(at, label, JCT, UNKNOWN, jct_h))
            rows.append(Row(at, label, TO_IDEAL, WITHIN if round_s == ROUNDS_S[0] else UNKNOWN, jct_h / ideal_h))
        curves.append(PlotCurve(at, np.array(ROUNDS_S), found[:-1], POLICY_COLOURS[i % len(POLICY_COLOURS)]))
        level = np.full(len(ROUNDS_S), ideal_h)
        curves.append(PlotCurve(f"{at}, ideal", np.array(ROUNDS_S), level, curves[-1].colour, True))
    figure = Figure("rounds", "Average completion time over the length of a round", Axis("s"), Axis(JCT), tuple(curves))
    return Reproduction(
        tuple(rows), (figure,), {"cluster": CLUSTER, "preset": "gavel-osdi20", "jobs": jobs, "seeds": seeds}
    )


def _jcts_h(size: FigureSize, rate_per_h: float, jobs: int, seed: int) -> list[float]:
    """Average JCT with each length of a round, then that of the ideal."""
    table = size.table
    trace = generate(GeneratorOptions(jobs, rate_jobs_per_h=rate_per_h), table, np.random.default_rng(seed))
    osdi20, cluster = preset("gavel-osdi20"), Cluster.parse(CLUSTER)
    hours, ideal_h = [], UNKNOWN
    for round_s in ROUNDS_S:
        result = compare(
            trace,
            cluster,
            [RUN],
            settings=replace(osdi20, mechanism=replace(osdi20.mechanism, round_s=round_s)),
            throughputs=table,
            seed=seed,
            progress=size.progress_of(f"{rate_per_h:g} jobs/h, round_s {round_s:g}, seed {seed}"),
            ideal=round_s == ROUNDS_S[0],
        )[RUN.label]
        hours.append(result.metrics.avg_jct_s / HOUR_S)
        if round_s == ROUNDS_S[0]:
            ideal_h = result.metrics.ideal_avg_jct_s / HOUR_S
    return [*hours, ideal_h]


FIG13 = PublishedFigure(
    "fig13",
    "Gavel: the round mechanism against ideal shares, over the length of a round",
    "Narayanan et al., OSDI '20, section 7.5 and figure 13: at most 10 % above the ideal with rounds of 360 s",
    "all jobs of a trace are measured, from an empty cluster on; the ideal solves at each arrival and finish, the "
    "mechanism every 1,920 s as the original does",
    over_rounds,
)

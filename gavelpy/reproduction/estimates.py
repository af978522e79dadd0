"""Co-location with true and with estimated rates, and without it, over load: Gavel's figure 14.

The paper's scheduler estimates how fast two jobs run on one GPU; ours knows no rate of any job at first, alone or
co-located, and learns them from the progress of running jobs. The jobs and the cluster are the same in all three runs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.load import HOUR_S, JCT
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.simulator.compare import compare
from gavelpy.simulator.estimation import Learning
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.traces.generator import GeneratorOptions, generate

POLICY = "max_min_fairness"
CLUSTER = "v100:12,p100:12,k80:12"
ORACLE, ESTIMATED, ALONE = f"{POLICY}, true rates", f"{POLICY}, estimated rates", f"{POLICY}, no co-location"
RUNS = (ORACLE, ESTIMATED, ALONE)
TO_ORACLE = "average JCT / with true rates"
FULL_RATES_PER_H, SMALL_RATES_PER_H = (2.0, 4.0, 6.0, 8.0), (8.0,)
FULL_JOBS, SMALL_JOBS = 1000, 200


def over_load(size: FigureSize) -> Reproduction:
    """Simulates max-min fairness three times at each rate with each seed, and compares average JCTs."""
    if not len(size.table.pair_rows):
        raise InvalidInput("fig14 needs --throughputs FILE with rates of pairs (Gavel's JSON), got a table without")
    rates = size.rates_per_h or (FULL_RATES_PER_H if size.is_full else SMALL_RATES_PER_H)
    jobs, seeds = (FULL_JOBS if size.is_full else SMALL_JOBS), size.seeds or (3 if size.is_full else 1)
    rows, found = [], np.zeros((len(rates), len(RUNS)))
    for i, rate in enumerate(rates):
        found[i] = np.mean([_jcts_h(size, rate, jobs, seed) for seed in range(seeds)], axis=0)
        at = f"{rate:g} jobs/h"
        rows += [Row(at, label, JCT, UNKNOWN, jct_h) for label, jct_h in zip(RUNS, found[i].tolist(), strict=True)]
        ratios = (found[i] / found[i, 0]).tolist()
        rows += [Row(at, label, TO_ORACLE, UNKNOWN, ratio) for label, ratio in zip(RUNS[1:], ratios[1:], strict=True)]
    x = np.array(rates)
    curves = tuple(PlotCurve(label, x, found[:, k], POLICY_COLOURS[k]) for k, label in enumerate(RUNS))
    figure = Figure(
        "estimates", "Average completion time with estimated rates", Axis("jobs per hour"), Axis(JCT), curves
    )
    return Reproduction(tuple(rows), (figure,), {"cluster": CLUSTER, "preset": "default", "jobs": jobs, "seeds": seeds})


def _jcts_h(size: FigureSize, rate_per_h: float, jobs: int, seed: int) -> list[float]:
    """Average JCT of each run."""
    trace = generate(GeneratorOptions(jobs, rate_jobs_per_h=rate_per_h), size.table, np.random.default_rng(seed))
    alone = SimulationSettings()
    packing = replace(alone, mechanism=replace(alone.mechanism, packing=True))
    found = []
    for label in RUNS:
        results = compare(
            trace,
            Cluster.parse(CLUSTER),
            [PolicyRun(POLICY)],
            settings=alone if label == ALONE else packing,
            throughputs=size.table,
            seed=seed,
            learning=Learning() if label == ESTIMATED else None,
            progress=size.progress_of(f"{rate_per_h:g} jobs/h, seed {seed}, {label}"),
        )
        found.append(results[POLICY].metrics.avg_jct_s / HOUR_S)
    return found


FIG14 = PublishedFigure(
    "fig14",
    "Gavel: co-location with estimated rates, with true ones, and no co-location, over load",
    "Narayanan et al., OSDI '20, figure 14; this project has neither its values nor a reading of its curves",
    "our estimator starts without any rates, also of jobs alone, where the original's knows those and profiles pairs "
    "with some reference jobs; cluster and loads are our choice; all jobs are measured, with the preset default, since "
    "gavel-osdi20 has no co-location",
    over_load,
)

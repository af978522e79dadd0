"""Sia, Pollux and Gavel on Sia's workloads with its profiles: a part of its table 3.

The cluster is that of the table, 6 nodes of 4 T4, 3 of 8 RTX 2080 Ti and 2 of 8 A100. `sia` and `pollux` run elastic
jobs at the goodput of the profiles (`sia_goodput`), in rounds of 60 s, `pollux_unaware` by the rules of the authors'
simulator for Pollux (`sia_pollux`); `max_sum_throughput` (the paper's Gavel) and
`max_min_fairness` run the rigid jobs of the workload, at the tuned number of GPUs and batch size, in rounds of 360 s by
the rules of the original Gavel. Slowdowns, times of starts and rules of rounds are those of the authors' simulator
(siasosp23/artifacts, sia-simulator), named at each constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.comparisons import simulated
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.reproduction.sia_goodput import elastic, rigid, slowed
from gavelpy.reproduction.sia_pollux import PolluxUnaware
from gavelpy.simulator.compare import compare
from gavelpy.simulator.conditions.job_costs import CostsOfType, JobCosts
from gavelpy.simulator.conditions.spec import Conditions
from gavelpy.simulator.settings import Costs, SimulationSettings, preset
from gavelpy.traces.reader import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gavelpy.model.arrays import Floats
    from gavelpy.model.job import Trace

NODES = {"t4": (6, 4), "rtx2080ti": (3, 8), "a100": (2, 8)}  # nodes of each type, and the GPUs of each
FEW_JOBS = 40  # of the small form
GAVEL = "max_sum_throughput"  # the default of their Gavel: simulator_config.py, gavel_default_policy
RIGID = (GAVEL, "max_min_fairness")
UNAWARE = "pollux_unaware"  # `sia_pollux`, the rules of their simulator for Pollux
BY_GOODPUT = ("sia", "pollux", UNAWARE)  # they weigh restarts themselves, so no running job is protected
POLICIES = (*BY_GOODPUT, *RIGID, "bounded_lag")  # the last two are not in the paper
START_S: Mapping[str, float] = {
    "ncf": 15, "deepspeech2": 25, "cifar10": 50, "yolov3": 80, "bert": 120, "imagenet": 250
}  # fmt: skip
"""Seconds that a start takes, by application. Source: applications.py, rescale_time."""
OTHER_START_S = 30.0
SLOWDOWN: Mapping[str, float] = {
    "cifar10": 1.8, "ncf": 1.5, "deepspeech2": 1.2, "yolov3": 1.2, "bert": 1.2, "imagenet": 1.2
}  # fmt: skip
"""Time of training over that of the profiles, which they fitted to runs on real GPUs. Source: simulator_config.py."""


def _both(*values: float) -> dict[str, tuple[float, ...]]:
    return dict.fromkeys(("pollux", UNAWARE), values)


JCT, TAIL, MAKESPAN = "average JCT h", "99th percentile of JCT h", "makespan h"
PUBLISHED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "philly": {"sia": (0.6, 9.5, 14.2), **_both(1.0, 14.9, 24.5), GAVEL: (1.9, 30.0, 33.8)},
    "newtrace": {"sia": (0.7, 4.6, 52.2), **_both(1.5, 10.3, 62.3), GAVEL: (11.3, 98.1, 110.0)},
}
"""Average JCT, its 99th percentile and makespan in hours, by kind of workload and policy. Source: Sia, table 3."""


def sia_settings(policy: str) -> SimulationSettings:
    """Rounds of 60 s, for rigid jobs the original rules and rounds of 360 s; starts by application.

    As in their simulator, GPUs change jobs at the ends of rounds only (cluster.py, step), and under `sia` a job that
    starts keeps its GPUs until it trains (simulator_config.py, preserve_ckpt_allocs).
    """
    starts = JobCosts(types={name: CostsOfType(start=start_s) for name, start_s in START_S.items()})
    base = preset("gavel-osdi20") if policy in RIGID else SimulationSettings()
    changes: dict[str, float | bool] = {"round_s": 360.0}
    if policy not in RIGID:
        changes = {"round_s": 60.0, "solve_interval_s": 60.0, "solve_within_round": False, "fill_within_round": False}
    if policy in BY_GOODPUT:
        changes |= {"lease_min_s": 0.0, "move_lag_s": 0.0}
    if policy == "sia":
        changes |= {"lease_min_s": 1.0}  # starting jobs are protected (`start_max_s`), others for 1 s
    return replace(
        base,
        mechanism=replace(base.mechanism, **changes),  # type: ignore[arg-type]  # fields of two types
        mechanism_given=frozenset({"solve_interval_s"}),
        costs=Costs(0.0, OTHER_START_S, 0.0),
        conditions=Conditions(costs=starts),
    )


def cluster() -> Cluster:
    """The cluster of the table."""
    of_type = [Cluster.of({name: count * gpus}, gpus_per_node=gpus) for name, (count, gpus) in NODES.items()]
    return Cluster(tuple(node for one in of_type for node in one.nodes), tuple(NODES))


def table(size: FigureSize) -> Reproduction:
    """Simulates the policies on the workload, or on all of its kind next to it."""
    if size.trace is None:
        raise InvalidInput("workload must be given: a file of Sia's workloads, with `profiles` next to their directory")
    kind = size.trace.name.partition("-")[0]
    paths = sorted(size.trace.parent.glob(f"{kind}-workload-*.csv")) if size.is_full else [size.trace]
    makespans_h: dict[str, list[float]] = {name: [] for name in POLICIES}
    times: dict[str, list[Floats]] = {name: [] for name in POLICIES}
    for path in paths:
        trace = read_trace(path)
        trace = trace if size.is_full else first_jobs(trace, FEW_JOBS)
        for name in POLICIES:
            jct_h, makespan_h = _run(name, trace, path, size)
            makespans_h[name].append(makespan_h)
            times[name].append(jct_h)
    at = f"{kind}: {len(paths)} workload{'s' * (len(paths) > 1)}"
    unknown = (UNKNOWN,) * 3
    rows = [
        Row(at, name, quantity, published, ours)
        for name in POLICIES
        for quantity, published, ours in zip(
            (JCT, TAIL, MAKESPAN),
            PUBLISHED.get(kind, {}).get(name, unknown),
            (*_mean_and_tail(np.concatenate(times[name])), float(np.mean(makespans_h[name]))),
            strict=True,
        )
    ]
    remarks = () if size.is_full else (f"only the first {FEW_JOBS} jobs; --full has the workloads of the paper",)
    used = {
        "workloads": [path.name for path in paths],
        "nodes": NODES,
        "start_s": dict(START_S),
        "slowdown": dict(SLOWDOWN),
    }
    return Reproduction(tuple(rows), (_figure(times),), used, remarks)


def first_jobs(trace: Trace, count: int) -> Trace:
    """The jobs that arrive first."""
    columns = {name: getattr(trace, name)[:count] for name in ("jobs", "arrival_s", "cancelled_s")}
    return replace(trace, **columns)


def _mean_and_tail(jct_h: Floats) -> tuple[float, float]:
    """Mean and 99th percentile over the jobs of all workloads, by the rule of their print_run_stats.py."""
    return float(jct_h.mean()), float(np.sort(jct_h)[int(0.99 * len(jct_h))])


def _run(name: str, trace: Trace, path: Path, size: FigureSize) -> tuple[Floats, float]:
    """JCT of each job, and the makespan, in hours."""
    jobs = slowed(rigid(trace) if name in RIGID else elastic(trace, path), SLOWDOWN)
    settings, progress = sia_settings(name), size.progress_of(path.stem)
    if name == UNAWARE:
        result = simulated(jobs, cluster(), {name: PolluxUnaware()}, settings, size, path.stem)[name]
    else:
        result = compare(jobs, cluster(), [PolicyRun(name)], settings=settings, progress=progress)[name]
    finish_s = result.history.finish_s[: len(jobs)]
    return (finish_s - jobs.arrival_s) / 3600.0, float(finish_s.max()) / 3600.0


def _figure(times: Mapping[str, list[Floats]]) -> Figure:
    curves = []
    for (name, parts), colour in zip(times.items(), POLICY_COLOURS, strict=False):
        jct_h = np.sort(np.concatenate(parts))
        curves.append(PlotCurve(name, jct_h, np.arange(1, len(jct_h) + 1) / len(jct_h), colour))
    return Figure("jct", "Completion times on Sia's workloads", Axis("JCT (h)"), Axis("jobs"), tuple(curves))


SIA = PublishedFigure(
    "sia",
    "Sia: completion times on 64 GPUs of three types",
    "Subramanya et al., SOSP '23, table 3 (GPU types and numbers of GPUs by goodput; tuned rigid jobs for Gavel)",
    "goodput is known from the start and a mean over each job's progress: see docs/reproduction.md",
    table,
)

"""Comparisons of policies with those of other papers: simulations of one trace, and distributions over its jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.engine import Engine
from gavelpy.policies.base import planned_over_rounds, policy_from
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve, Scale
from gavelpy.reproduction.published import UNKNOWN, Row
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation

if TYPE_CHECKING:
    from gavelpy.model.arrays import Floats
    from gavelpy.model.cluster import Cluster
    from gavelpy.model.job import Trace
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.policies.base import Policy
    from gavelpy.reproduction.published import FigureSize
    from gavelpy.simulator.metrics import SimulationResult

FULL_SEEDS = 3


@dataclass(frozen=True)
class DrawnSize:
    """How many jobs on how many GPUs, and how often one arrives (0 = as the figure states)."""

    jobs: int
    gpus: int
    rate_jobs_per_h: float = 0.0


def settings_with(round_s: float) -> SimulationSettings:
    """The simulator's defaults with rounds of this length."""
    settings = SimulationSettings()
    return replace(settings, mechanism=settings.mechanism.with_round(round_s))


def simulated(
    trace: Trace,
    cluster: Cluster,
    policies: Mapping[str, str | Policy],
    settings: SimulationSettings,
    size: FigureSize,
    part: str = "",
    throughputs: ThroughputTable | None = None,
) -> dict[str, SimulationResult]:
    """The result of each policy by label, on the same trace.

    `part`: what of a figure this is, for the progress. `throughputs`: the true rates; None = those of the jobs.
    """
    progress = size.progress_of(part) if part else size.progress
    found: dict[str, SimulationResult] = {}
    for label, given in policies.items():
        policy = policy_from(given) if isinstance(given, str) else given
        mechanism = settings.for_policy(policy).mechanism
        policy = planned_over_rounds(policy, mechanism.round_s, settings.costs.turn_s, mechanism.move_lag_s)
        found[label] = Simulation(
            trace, cluster, Engine(policy), settings, label=label, progress=progress, throughputs=throughputs
        ).run()
    return found


def completion_s(result: SimulationResult, trace: Trace) -> Floats:
    """Seconds from arrival to finish of each job of the trace, (J,); infinite if it did not finish."""
    jct_s = result.history.finish_s[: len(trace)] - trace.arrival_s
    found: Floats = np.where(np.isnan(jct_s), math.inf, jct_s)
    return found


def rows_of(at: str, values: Mapping[str, Sequence[float]], quantities: Sequence[str]) -> list[Row]:
    """A row for each quantity of each policy, without a published value."""
    return [
        Row(at, name, quantity, UNKNOWN, value)
        for name, of_policy in values.items()
        for quantity, value in zip(quantities, of_policy, strict=True)
    ]


def distribution(
    name: str, title: str, x: str, values: Mapping[str, Sequence[float] | Floats], scale: Scale = Scale.LOG
) -> Figure:
    """The part of the jobs with at most each value, one curve for each policy."""
    curves = []
    for i, (label, of_jobs) in enumerate(values.items()):
        ascending = np.sort(np.asarray(of_jobs, dtype=np.float64))
        part = np.arange(1, len(ascending) + 1) / len(ascending)
        curves.append(PlotCurve(label, ascending, part, POLICY_COLOURS[i % len(POLICY_COLOURS)]))
    return Figure(name, title, Axis(x, scale), Axis("jobs", Scale.PERCENT), tuple(curves))

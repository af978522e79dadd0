"""SLAQ against a fair scheduler: losses over time, and when jobs have lost most of their loss.

The setting is that of its evaluation as far as it is described: jobs arrive at random, 15 s apart on average, at a
cluster of 640 cores (here: GPUs), and are given cores again every few seconds. Its jobs are training algorithms of
MLlib; ours have losses of the two families that it names, in equal parts, and a speed-up of g^0.9 on g GPUs. How far
jobs train is not known: speeds are drawn so that 1 to 10 % of the fall is left at the last step, and in further parts
0.1 to 1 % and 0.01 to 0.1 %, where most of a job's steps lower its loss little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gavelpy.engine import Engine
from gavelpy.mechanism.events import Event, MetricsReported
from gavelpy.model.arrays import Floats
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.metric_curve import MetricCurve
from gavelpy.policies.base import policy_from
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.simulator.settings import Costs, SimulationSettings
from gavelpy.simulator.simulate import Simulation

FAIR, POLICIES = "max_min_fairness", ("max_min_fairness", "slaq")
ROUND_S, NOISE, SPEED_UP = 10.0, 0.02, 0.9
LOSS, DELAY = "average normalised loss", "s to {:g} % of the fall"
PARTS = (0.25, 0.9, 0.95)
WINDOWS = 10  # of equal length, until the last arrival
LOWEST = f"{LOSS}, the lowest of {WINDOWS} windows"
PUBLISHED: Mapping[str, float] = {LOWEST: 1 - 0.73, DELAY.format(90.0): 1 - 0.44}
"""Relative to fair: quality improved by up to 73 %, delays reduced by up to 44 % (abstract)."""


@dataclass(frozen=True)
class Setting:
    """How many jobs on how many GPUs."""

    jobs: int
    gpus: int
    between_s: float  # arrivals, on average
    sizes: tuple[int, ...]
    left: tuple[float, float] = (1e-2, 1e-1)  # of the fall from the start to the floor, at the last step


DEEPER = ((1e-3, 1e-2), (1e-4, 1e-3))  # jobs that train further into the tail
SMALL, FULL = Setting(40, 64, 60.0, (1, 2, 4, 8, 16)), Setting(160, 640, 15.0, (1, 2, 4, 8, 16, 32))


def trace_of(setting: Setting, seed: int) -> Trace:
    """Random jobs with losses; work of 20 to 200 GPU-minutes at the rate of one GPU."""
    rng, jobs, curves = np.random.default_rng(seed), list[JobSpec](), dict[JobId, MetricCurve]()
    exponents = np.log10(setting.left).tolist()
    for k in range(setting.jobs):
        rate, left = 10.0 ** rng.uniform(-1, 1), 10.0 ** rng.uniform(*exponents)
        steps, start = rate * rng.uniform(1200.0, 12000.0), 10.0 ** rng.uniform(-1, 2)
        is_geometric = k % 2 == 1
        speed = -np.expm1(np.log(left) / steps) if is_geometric else (1.0 / left - 1.0) / steps
        rates = {gpus: {"v100": rate * gpus**SPEED_UP} for gpus in setting.sizes}
        job = JobSpec(JobId(f"j{k}"), steps, rates_steps_per_s=rates.pop(1), sizes=setting.sizes, rates_by_size=rates)
        jobs.append(job)
        curves[job.id] = MetricCurve.parse(
            f"{'geometric' if is_geometric else 'reciprocal'}:start={start!r}:floor={start * rng.uniform(0, 0.5)!r}"
            f":speed={float(speed)!r}:noise={NOISE}:seed={k}"
        )
    arrival_s = np.cumsum(rng.exponential(setting.between_s, setting.jobs))
    return Trace(tuple(jobs), arrival_s - arrival_s[0], curves=curves)


class _Losses:
    """Observes at which time each job has done how many steps, and what is left of its fall then."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.points: list[list[tuple[float, float]]] = [[(float(at), 1.0)] for at in trace.arrival_s]

    def __call__(self, event: Event, now_s: float) -> None:
        if isinstance(event, MetricsReported):
            for job, step in zip(event.jobs.tolist(), event.metric_steps.tolist(), strict=True):
                self.points[job].append((now_s, self.left(job, step)))

    def left(self, job: int, step: float) -> float:
        """The part of the fall from the first to the last step that is left, without noise."""
        spec = self._trace.jobs[job]
        curve = self._trace.curves[spec.id]
        start, end = curve.at(0.0), curve.at(spec.steps_total)
        return (curve.at(step) - end) / (start - end)


def _run(trace: Trace, setting: Setting, name: str, size: FigureSize) -> tuple[Floats, Floats, list[float]]:
    """Times, the average normalised loss of the unfinished jobs then, and the average delays to `PARTS`."""
    settings = SimulationSettings()
    mechanism = replace(settings.mechanism, round_s=ROUND_S, solve_interval_s=ROUND_S)
    mechanism = replace(mechanism, lease_min_s=0.0, move_lag_s=0.0, start_max_s=0.0)  # GPUs may change in each round
    settings = replace(settings, mechanism=mechanism, costs=Costs(0.0, 0.0, 0.0))
    losses, cluster = _Losses(trace), Cluster.parse(f"v100:{setting.gpus}")
    run = Simulation(
        trace, cluster, Engine(policy_from(name)), settings, observers=[losses], label=name, progress=size.progress
    )
    finish_s = run.run().history.finish_s[: len(trace)]
    times_s = np.arange(0.0, float(finish_s.max()), ROUND_S)
    total, count, delays = np.zeros(len(times_s)), np.zeros(len(times_s)), np.zeros((len(trace), len(PARTS)))
    for job, points in enumerate(losses.points):
        at_s, left = np.array([*points, (float(finish_s[job]), 0.0)]).T
        lives = (times_s >= trace.arrival_s[job]) & (times_s < finish_s[job])
        total[lives] += left[np.searchsorted(at_s, times_s[lives], side="right") - 1]
        count += lives
        delays[job] = [at_s[np.argmax(left <= 1.0 - part)] - trace.arrival_s[job] for part in PARTS]
    return times_s, total / np.maximum(count, 1.0), [float(total.sum() / count.sum()), *delays.mean(axis=0).tolist()]


def over_time(size: FigureSize) -> Reproduction:
    """Simulates both policies; each quantity in its unit, and of SLAQ relative to the fair scheduler."""
    setting, seeds = FULL if size.is_full else SMALL, size.seeds or (3 if size.is_full else 1)
    rows, figures = list[Row](), list[Figure]()
    for left in (setting.left, *DEEPER):
        more, figure = compared(replace(setting, left=left), seeds, size)
        rows += more
        figures.append(figure)
    used = {"cluster": f"v100:{setting.gpus}", "jobs": setting.jobs, "between_s": setting.between_s}
    used |= {"round_s": ROUND_S, "seeds": seeds, "left": [setting.left, *DEEPER]}
    return Reproduction(tuple(rows), tuple(figures), used)


def compared(setting: Setting, seeds: int, size: FigureSize) -> tuple[list[Row], Figure]:
    """Means over traces of one setting, with the ratios, and the average loss over time on the first trace."""
    quantities = [LOSS, *(DELAY.format(100 * part) for part in PARTS)]
    found = {name: list[list[float]]() for name in POLICIES}
    curves, lowest = list[PlotCurve](), list[float]()
    for seed in range(seeds):
        trace, averages = trace_of(setting, seed), list[Floats]()
        for i, name in enumerate(POLICIES):
            times_s, average, values = _run(trace, setting, name, size)
            found[name].append(values)
            averages.append(average)
            if not seed:
                curves.append(PlotCurve(name, times_s, average, POLICY_COLOURS[i]))
        lowest.append(lowest_ratio(averages[0], averages[1], int(trace.arrival_s[-1] / ROUND_S)))
    means = {name: np.mean(values, axis=0) for name, values in found.items()}
    least, most = setting.left
    at = f"{setting.jobs} jobs, {100 * least:g} to {100 * most:g} % left"
    rows = [
        Row(at, name, quantity, UNKNOWN, float(value))
        for name in POLICIES
        for quantity, value in zip(quantities, means[name], strict=True)
    ]
    for quantity, ratio in zip(quantities, (means["slaq"] / means[FAIR]).tolist(), strict=True):
        rows.append(Row(at, "slaq / fair", quantity, PUBLISHED.get(quantity, UNKNOWN), ratio))
    rows.append(Row(at, "slaq / fair", LOWEST, PUBLISHED[LOWEST], float(np.mean(lowest))))
    title = f"Average normalised loss over time, {100 * least:g} to {100 * most:g} % left"
    return rows, Figure(f"losses_{least:g}", title, Axis("s"), Axis("loss"), tuple(curves))


def lowest_ratio(fair: Floats, slaq: Floats, count: int) -> float:
    """The lowest ratio of the mean losses over `WINDOWS` windows of the first `count` rounds.

    >>> lowest_ratio(np.ones(20), np.repeat([0.5, 0.2, 0.8, 1.0], 5), 20)
    0.2
    """
    bounds = np.linspace(0, min(count, len(fair), len(slaq)), WINDOWS + 1).astype(int)
    ratios = [slaq[a:b].mean() / fair[a:b].mean() for a, b in pairwise(bounds.tolist()) if fair[a:b].any()]
    return float(min(ratios, default=UNKNOWN))


SLAQ = PublishedFigure(
    "slaq",
    "SLAQ against a fair scheduler: losses over time",
    "Zhang et al., SoCC '17, abstract: quality improved by up to 73 %, delays reduced by up to 44 %",
    "the published values are the largest, ours averages, or of the best of ten windows; jobs are generated curves, not"
    " training runs, and rounds take 10 s",
    over_time,
)

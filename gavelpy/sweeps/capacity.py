"""The highest load that a cluster sustains for a target: bisection over jobs per hour, with equal seeds at each load.

The load is bracketed, then halved in its logarithm until met and missed loads differ by the tolerance. The mean over
seeds decides. The interval comes from resamples of the seeds: each gives a curve of the metric over the simulated
loads, and the load at which that curve first misses the target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.statistics import MeanInterval, mean_interval, paired_difference, percentiles, resampled
from gavelpy.sweeps.cells import Cell, Scalar
from gavelpy.sweeps.trials import NEVER, Target, Trials

WIDENINGS_MAX: Final = 8  # of the range, each by a factor of two, if the user gives none


@dataclass(frozen=True)
class LoadPoint:
    """A load that was simulated: the metric by seed, its mean, and whether the mean meets the target."""

    rate_per_h: float
    values: tuple[float, ...]
    mean: MeanInterval
    is_met: bool
    is_sure: bool  # the whole interval is on one side of the limit


@dataclass(frozen=True)
class Capacity:
    """The answer. NaN: the target is met nowhere, or missed nowhere, in the range."""

    target: Target
    points: tuple[LoadPoint, ...]  # by load
    highest_met: float  # of the loads simulated, below the first one that misses
    lowest_missed: float
    low: float  # of the 95 % interval over seeds
    high: float
    exceptions: tuple[tuple[float, float, bool], ...]  # missed at one load and met at a higher one; whether it is noise
    longer: MeanInterval | None = None  # the metric at `highest_met` with twice the jobs

    @property
    def grows(self) -> bool:
        """Whether the target is missed with twice the jobs: the queue has not settled in the trace."""
        return self.longer is not None and not self.target.is_met(self.longer.mean)


def capacity(
    base: Mapping[str, Scalar],
    target: Target,
    *,
    rates: tuple[float, float] | None = None,
    seeds: int = 5,
    tolerance: float = 0.05,
    trials: Trials | None = None,
) -> Capacity:
    """The highest load for the target; `base`: options of cells. `rates`: the range; default: found by doubling."""
    with trials or Trials(base, seeds) as runs:
        curve = _Curve(runs, target)
        low, high = _bracket(curve, rates or (), runs)
        while curve.is_met(low) and not curve.is_met(high) and high / low > 1 + tolerance:
            middle = math.sqrt(low * high)
            curve.add([middle])
            low, high = (middle, high) if curve.is_met(middle) else (low, middle)
        answer = _answer(curve) if rates else _widened(curve)
        if math.isnan(answer.highest_met) or "generate" not in runs.base:
            return answer
        twice = {"rate_per_h": answer.highest_met, "generate": 2 * int(runs.base["generate"])}
        longer = mean_interval(runs.values(target.metric, [twice])[0])
        return Capacity(**{**vars(answer), "longer": longer})


class _Curve:
    """The metric over load."""

    def __init__(self, trials: Trials, target: Target) -> None:
        self.trials, self.target = trials, target
        self.values: dict[float, Floats] = {}  # by load: (seeds,)

    def add(self, rates: Sequence[float]) -> None:
        new = [rate for rate in rates if rate not in self.values]
        found = self.trials.values(self.target.metric, [{"rate_per_h": rate} for rate in new])
        self.values |= dict(zip(new, found, strict=True))

    def is_met(self, rate: float) -> bool:
        return bool(self.target.is_met(self.values[rate].mean()))


def _bracket(curve: _Curve, rates: tuple[float, float] | tuple[()], trials: Trials) -> tuple[float, float]:
    """Loads at which the target is met and missed; if there are none, the ends of the range."""
    if rates:
        if not 0 < rates[0] < rates[1]:
            raise InvalidInput(f"--rates must be LOW:HIGH with 0 < LOW < HIGH, got {rates[0]:g}:{rates[1]:g}")
        curve.add(rates)
        return rates
    low, high = 0.5 * (full := full_load(trials)), full
    curve.add([low, high])
    for _ in range(WIDENINGS_MAX):
        if curve.is_met(low) and not curve.is_met(high):
            break
        low, high = (low, 2 * high) if curve.is_met(high) and curve.is_met(low) else (low / 2, low)
        curve.add([low, high])
    return low, high


def full_load(trials: Trials) -> float:
    """Jobs per hour whose work fills the cluster, if each runs at its mean rate over the GPUs that it can use."""
    experiment = Cell.of({**trials.base, "seed": trials.seeds[0]}).experiment()
    counts = dict(zip(experiment.cluster.gpu_types, experiment.cluster.gpu_counts.tolist(), strict=True))
    work_gpu_s = 0.0
    for job in experiment.trace.jobs:
        usable = {name: rate for name, rate in job.rates_steps_per_s.items() if rate > 0 and counts.get(name)}
        gpus = sum(counts[name] for name in usable)
        if gpus:
            work_gpu_s += job.gpus * job.steps_total * gpus / sum(rate * counts[name] for name, rate in usable.items())
    if not work_gpu_s:
        raise InvalidInput("the trace must have jobs that can run on the cluster, got none")
    return float(3600.0 * sum(counts.values()) * len(experiment.trace) / work_gpu_s)


def _widened(curve: _Curve) -> Capacity:
    """The answer after more loads where its interval ends at the lowest or the highest of those simulated."""
    answer = _answer(curve)
    for _ in range(WIDENINGS_MAX):
        ends = (answer.points[0].rate_per_h, answer.points[-1].rate_per_h)
        more = [ends[0] / 1.5] * (answer.low <= ends[0]) + [ends[1] * 1.5] * (answer.high >= ends[1])
        if not more:
            break
        curve.add(more)
        answer = _answer(curve)
    return answer


def _answer(curve: _Curve) -> Capacity:
    rates = np.array(sorted(curve.values))
    matrix = np.column_stack([curve.values[rate] for rate in rates])  # (seeds, loads)
    target, means = curve.target, matrix.mean(axis=0)
    met = target.is_met(means)
    points = tuple(_point(rate, matrix[:, i], target) for i, rate in enumerate(rates.tolist()))
    first_miss = int(np.argmin(met)) if not met.all() else len(rates)
    low = high = math.nan
    if 0 < first_miss < len(rates) and len(matrix) > 1:
        low, high = percentiles(first_missed(rates, resampled(matrix), target), len(matrix))
    exceptions = []
    for missed, found in ((i, j) for i in range(first_miss, len(rates)) for j in range(i + 1, len(rates))):
        if not met[missed] and met[found]:
            difference = paired_difference(matrix[:, missed], matrix[:, found])
            exceptions.append((float(rates[missed]), float(rates[found]), not difference.excludes_zero))
    return Capacity(
        target,
        points,
        float(rates[first_miss - 1]) if first_miss else math.nan,
        float(rates[first_miss]) if first_miss < len(rates) else math.nan,
        low,
        high,
        tuple(exceptions),
    )


def first_missed(rates: Floats, means: Floats, target: Target) -> Floats:
    """Load at which each curve (row of means, (m, loads)) first misses the target, between loads by interpolation.

    The lowest load if it misses there, the highest if it misses nowhere.
    """
    missed = ~target.is_met(means)
    column = np.where(missed.any(axis=1), missed.argmax(axis=1), len(rates) - 1)
    before = np.maximum(column - 1, 0)
    rows = np.arange(len(means))
    here, there = means[rows, before], means[rows, column]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.clip((target.limit - here) / (there - here), 0.0, 1.0)
    part = np.where(missed.any(axis=1) & (column > 0), np.nan_to_num(part), 1.0)
    logs = np.log(rates)
    crossed: Floats = np.exp(logs[before] + part * (logs[column] - logs[before]))
    return crossed


def _point(rate: float, values: Floats, target: Target) -> LoadPoint:
    never = np.abs(values) >= NEVER
    mean = mean_interval(values) if not never.any() else MeanInterval(math.inf, math.nan, math.nan, int((~never).sum()))
    is_met = bool(target.is_met(values.mean()))
    ends = np.array([mean.low, mean.high])
    is_sure = bool(np.isfinite(ends).all() and (target.is_met(ends) == is_met).all()) or bool(never.any())
    return LoadPoint(rate, tuple(values.tolist()), mean, is_met, is_sure)

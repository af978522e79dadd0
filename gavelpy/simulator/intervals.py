"""Intervals of forecasts from how earlier forecasts turned out: conformal prediction with censored outcomes.

A forecast: something happens in p seconds; it happens in a. Of past forecasts with a similar p, the ratios a / p have
quantiles; those of 10 % and 90 %, times p, are an interval of 80 %. That is split conformal prediction with the ratio
as the score (Vovk et al., Algorithmic Learning in a Random World, 2005; Romano et al., Conformalized quantile
regression, NeurIPS 2019), without any assumption on the forecast but that its errors stay alike.

Three corrections:

- Outcomes of long waits are known last: to use known ones only would count short ones too often. What has not happened
  after c seconds has a ratio above c / p, and the Kaplan-Meier estimator (1958) has the quantiles of such data.
- Forecasts of one job err alike. Each job counts once, with all of its forecasts together.
- Errors change, with load for example. So the level follows the coverage of past intervals: it moves outwards after
  each miss and inwards after each hit (adaptive conformal inference: Gibbs and Candes, NeurIPS 2021), whose long-run
  coverage is the target for any sequence. A miss counts as soon as the interval has passed, not when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Floats, Ints

COVERAGE = 0.8
LEAST = 30  # past forecasts with a known outcome, without which there is no interval
LEAST_JOBS = 10  # of so many jobs
SIMILAR = 200  # past forecasts with the nearest horizons
OFFSET_S = 10.0  # added to both times of a ratio, so that a forecast of 0 s has one
GROUP = 0.02  # of the logarithm of a horizon: forecasts so near to each other have the same past ones in lists
STEP = 0.01  # of the level, after a hit or a miss
CAUTION = 0.05  # by which the level begins above the coverage
LEVEL_MIN, LEVEL_MAX = 0.3, 0.995  # of the coverage aimed at


Row = tuple[float, int, float, bool, bool, float, float]
"""A forecast as plain values: predicted, subject, outcome, is known, is counted, ends of its interval; NaN = none."""


@dataclass(frozen=True)
class Interval:
    """Seconds from the time of the forecast; infinite = without an upper end."""

    low_s: float
    high_s: float

    def contains(self, seconds: float) -> bool:
        """Whether it happened in the interval."""
        return self.low_s <= seconds <= self.high_s


class IntervalModel:
    """Forecasts of one kind, with their outcomes as they become known."""

    def __init__(self, coverage: float = COVERAGE) -> None:
        if not 0.0 < coverage < 1.0:
            raise InvalidInput(f"coverage must be in (0, 1), got {coverage!r}")
        self.coverage, self.level = coverage, min(coverage + CAUTION, LEVEL_MAX)
        self._predicted: list[float] = []
        self._subject: list[int] = []
        self._outcome: list[float] = []  # seconds up to now for what has not happened
        self._is_known: list[bool] = []
        self._interval: list[Interval | None] = []
        self._is_counted: list[bool] = []  # as a hit or a miss
        self._known = 0
        self._forgotten = 0  # forecasts before the first one that is kept

    def __len__(self) -> int:
        return len(self._predicted)

    def add(self, predicted_s: float, subject: int) -> int:
        """A new forecast of a job, with the interval that past ones give it; returns its number."""
        interval = self.interval(predicted_s)
        self._interval.append(interval)
        self._predicted.append(predicted_s)
        self._subject.append(subject)
        self._outcome.append(0.0)
        self._is_known.append(False)
        self._is_counted.append(interval is None)
        return self._forgotten + len(self._predicted) - 1

    def forget(self, keep: int) -> None:
        """Drops the oldest forecasts, so that `keep` are left; later calls with their numbers have no effect."""
        drop = max(len(self._predicted) - keep, 0)
        self._known -= sum(self._is_known[:drop])
        for column in (self._predicted, self._subject, self._outcome, self._is_known, self._interval, self._is_counted):
            del column[:drop]
        self._forgotten += drop

    def wait(self, number: int, seconds: float) -> None:
        """What a forecast predicted has not happened in this time."""
        number -= self._forgotten
        if number < 0 or self._is_known[number]:
            return
        self._outcome[number] = seconds
        interval = self._interval[number]
        if interval is not None and seconds > interval.high_s:
            self._count(number, is_miss=True)

    def happen(self, number: int, seconds: float) -> None:
        """What a forecast predicted happened after this time."""
        number -= self._forgotten
        if number < 0 or self._is_known[number]:
            return
        self._outcome[number], self._is_known[number] = seconds, True
        self._known += 1
        interval = self._interval[number]
        if interval is not None:
            self._count(number, is_miss=not interval.contains(seconds))

    def _count(self, number: int, *, is_miss: bool) -> None:
        if not self._is_counted[number]:
            self._is_counted[number] = True
            level = self.level + STEP * ((1.0 if is_miss else 0.0) - (1.0 - self.coverage))
            self.level = min(max(level, LEVEL_MIN), LEVEL_MAX)

    def made(self, number: int) -> Interval | None:
        """The interval of a forecast when it was made; None if too few were known then."""
        number -= self._forgotten
        return self._interval[number] if number >= 0 else None

    def interval(self, predicted_s: float) -> Interval | None:
        """The interval of a forecast that is made now; None if too few outcomes are known."""
        if not math.isfinite(predicted_s) or self._known < LEAST:
            return None
        return _scaled(predicted_s, self._ratios(math.log(predicted_s + OFFSET_S), self._past()))

    def intervals(self, predicted_s: Sequence[float]) -> list[Interval | None]:
        """As `interval`, of many: those with similar horizons are scaled from the same past forecasts."""
        if self._known < LEAST:
            return [None] * len(predicted_s)
        past, groups, found = self._past(), dict[int, tuple[float, float] | None](), list[Interval | None]()
        for seconds in predicted_s:
            if not math.isfinite(seconds):
                found.append(None)
                continue
            group = round(math.log(seconds + OFFSET_S) / GROUP)
            if group not in groups:
                groups[group] = self._ratios(group * GROUP, past)
            found.append(_scaled(seconds, groups[group]))
        return found

    def _past(self) -> tuple[Floats, Floats, Bools, Ints]:
        columns = np.log(np.array(self._predicted) + OFFSET_S), np.log(np.array(self._outcome) + OFFSET_S)
        return *columns, np.array(self._is_known), np.array(self._subject, dtype=np.int64)

    def _ratios(self, horizon: float, past: tuple[Floats, Floats, Bools, Ints]) -> tuple[float, float] | None:
        """Logarithms of actual over expected time at both ends of an interval; None if too few outcomes are known."""
        horizons, outcomes, is_known, subjects = past
        near = np.argsort(np.abs(horizons - horizon), kind="stable")[:SIMILAR]
        known = is_known[near]
        _, job, count = np.unique(subjects[near], return_inverse=True, return_counts=True)
        if known.sum() < LEAST or len(count) < LEAST_JOBS:
            return None
        tail = (1.0 - self.level) / 2.0
        ratios = outcomes[near] - horizons[near]
        low, high = kaplan_meier(ratios, known, [tail, 1.0 - tail], 1.0 / count[job])
        return low, high

    def rows(self) -> list[Row]:
        """The forecasts that are kept, oldest first, from number `first` on."""
        ends = [(math.nan, math.nan) if one is None else (one.low_s, one.high_s) for one in self._interval]
        columns = self._predicted, self._subject, self._outcome, self._is_known, self._is_counted
        return [(*values, *both) for *values, both in zip(*columns, ends, strict=True)]

    @property
    def first(self) -> int:
        """Number of the oldest forecast that is kept."""
        return self._forgotten

    @staticmethod
    def restored(rows: Sequence[Row], first: int, level: float) -> IntervalModel:
        """The model that had these rows, first number and level."""
        found = IntervalModel()
        found.level, found._forgotten = min(max(level, LEVEL_MIN), LEVEL_MAX), first
        for predicted_s, subject, outcome_s, is_known, is_counted, low_s, high_s in rows:
            found._predicted.append(predicted_s)
            found._subject.append(subject)
            found._outcome.append(outcome_s)
            found._is_known.append(is_known)
            found._is_counted.append(is_counted)
            found._interval.append(None if math.isnan(low_s) else Interval(low_s, high_s))
        found._known = sum(found._is_known)
        return found


def _scaled(predicted_s: float, ratios: tuple[float, float] | None) -> Interval | None:
    if ratios is None:
        return None
    low_s, high_s = ((predicted_s + OFFSET_S) * math.exp(ratio) - OFFSET_S for ratio in ratios)
    return Interval(max(low_s, 0.0), high_s)


def kaplan_meier(values: Floats, known: Bools, levels: Sequence[float], weights: Floats | None = None) -> list[float]:
    """Quantiles of values of which those that are not `known` are lower bounds; infinite where they show none.

    With n values the share below the k-th is k / (n + 1), so that a new value is below it with this probability. The
    weights of n independent groups of values sum to n.
    """
    order = np.lexsort((~known, values))
    values, known = values[order], known[order]
    weight = np.ones(len(values)) if weights is None else weights[order]
    at_risk = np.maximum(weight.sum() + 1.0 - np.concatenate([[0.0], np.cumsum(weight)[:-1]]), weight)
    below = 1.0 - np.cumprod(np.where(known, 1.0 - weight / at_risk, 1.0))
    found = []
    for level in levels:
        reached = np.flatnonzero(known & (below >= level - 1e-12))
        found.append(float(values[reached[0]]) if len(reached) else math.inf)
    return found

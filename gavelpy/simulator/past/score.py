"""Forecasts of starts and ends, computed again from the states of a journal and compared with what happened.

At chosen times the core is where the scheduler's was, and the forecast is the one of `gavel explain`. The intervals use
only what was known then: outcomes of earlier forecasts up to that time.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.recording import Recording, read_recording
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import PolicyChanged, SchedulerRestarted
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.snapshot import copied, restore
from gavelpy.model.problem import BlindView
from gavelpy.policies.base import planned_over_rounds
from gavelpy.simulator.expected import Expected
from gavelpy.simulator.forecast import COSTS, Forecast
from gavelpy.simulator.intervals import COVERAGE, IntervalModel
from gavelpy.simulator.past.change import Change, policy_of
from gavelpy.simulator.past.ledger import Ledger, ObservedJob

if TYPE_CHECKING:
    import pandas as pd

TIMES = 200  # at which forecasts are computed
HORIZON_S = 30 * 86_400.0
WALL_S = 3.0  # as `gavel explain`
START, END = "start", "end"


@dataclass(slots=True)
class ScoredForecast:
    """One forecast of one job, in seconds from the time when it was made."""

    at_s: float
    job: int
    what: str  # start or end
    expected_s: float
    low_s: float  # NaN: no interval yet
    high_s: float
    happened_s: float = math.nan  # NaN: not by itself, or not yet


@dataclass(frozen=True)
class Score:
    """How well forecasts of one kind did."""

    forecasts: int  # with an interval and an outcome
    coverage: float  # share of outcomes in their intervals
    median_error: float  # median of |happened / expected - 1|
    bias: float  # median of happened / expected - 1: positive = later than expected
    median_width: float  # of the high end / the low end
    without_interval: int  # because too few outcomes were known
    without_outcome: int  # of jobs that were cancelled, or had not ended

    def to_json(self) -> dict[str, Any]:
        """The documented object; NaN becomes null."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}


@dataclass(frozen=True, eq=False)
class ForecastScores:
    """All forecasts of a journal."""

    journal: str
    target: float  # coverage
    forecasts: Sequence[ScoredForecast]
    journal_sha256: str = ""
    journal_events: int = 0

    @property
    def all(self) -> Score:
        """Of all forecasts."""
        return self._score(self.forecasts)

    @property
    def by_kind(self) -> dict[str, Score]:
        """Of starts and of ends."""
        return {what: self._score([one for one in self.forecasts if one.what == what]) for what in (START, END)}

    @cached_property
    def frame(self) -> pd.DataFrame:
        """at_s job what expected_s low_s high_s happened_s, one row a forecast."""
        import pandas as pd

        names = list(ScoredForecast.__dataclass_fields__)
        return pd.DataFrame([[getattr(one, name) for name in names] for one in self.forecasts], columns=names)

    def to_json(self) -> dict[str, Any]:
        """The documented object."""
        kinds = {what: one.to_json() for what, one in self.by_kind.items()}
        source = {name: getattr(self, name) for name in ("journal", "journal_sha256", "journal_events")}
        return {**source, "target": self.target, "all": self.all.to_json(), **kinds}

    def _score(self, forecasts: Sequence[ScoredForecast]) -> Score:
        ended = [one for one in forecasts if not math.isnan(one.happened_s)]
        scored = [one for one in ended if not math.isnan(one.low_s)]
        if not scored:
            return Score(0, math.nan, math.nan, math.nan, math.nan, len(ended), len(forecasts) - len(ended))
        inside = [one.low_s <= one.happened_s <= one.high_s for one in scored]
        ratio = np.array([one.happened_s / one.expected_s - 1.0 for one in scored if one.expected_s > 0] or [math.nan])
        width = np.array([one.high_s / max(one.low_s, 1.0) for one in scored])
        return Score(
            len(scored), float(np.mean(inside)), float(np.median(np.abs(ratio))), float(np.median(ratio)),
            float(np.median(width)), len(ended) - len(scored), len(forecasts) - len(ended),
        )  # fmt: skip


def score_forecasts(
    journal: str | os.PathLike[str] | Recording,
    *,
    times: int = TIMES,
    recorded_policy: str = "",
    coverage: float = COVERAGE,
    progress: Callable[[float], None] | None = None,
) -> ForecastScores:
    """Computes forecasts at `times` instants of a journal, evenly in time, and scores them.

    `recorded_policy` was in force if the journal names none, as those of `gavel simulate`.
    """
    if not 1 <= times <= 1_000_000:
        raise InvalidInput(f"times must be in [1, 1000000], got {times!r}")
    recording = journal if isinstance(journal, Recording) else read_recording(journal)
    in_force = recording.policy or (PolicyChanged(recorded_policy, "") if recorded_policy else None)
    core = SchedulerCore() if recording.core is None else restore(recording.core)
    ledger, scorer = Ledger(), _Scorer(coverage)
    ledger.adopt(core, core.now_s)
    first_s, last_s = recording.span_s
    due_s = deque(np.linspace(first_s, last_s, times + 2)[1:-1].tolist())
    for now_s, event in recording.events:
        while due_s and due_s[0] < now_s:
            at_s = due_s.popleft()
            scorer.look(ledger, at_s)
            scorer.forecast(core, ledger, in_force, at_s)
            if progress is not None:
                progress(at_s)
        try:
            commands = core.handle(event, now_s)
        except InvalidInput:  # it was refused then, too
            continue
        ledger.apply(core, event, now_s, commands)
        in_force = event if isinstance(event, PolicyChanged) else in_force
    scorer.look(ledger, last_s)
    return ForecastScores(recording.name, coverage, scorer.made, recording.sha256, len(recording.events))


class _Scorer:
    """Forecasts so far, and the models of their intervals."""

    def __init__(self, coverage: float) -> None:
        self.made: list[ScoredForecast] = []
        self._models = {what: IntervalModel(coverage) for what in (START, END)}
        self._open: list[tuple[ScoredForecast, int]] = []  # without an outcome, with their numbers in the models

    def look(self, ledger: Ledger, now_s: float) -> None:
        """Notes what has happened by now of what was predicted."""
        still = []
        for one, number in self._open:
            job, model = ledger.jobs[one.job], self._models[one.what]
            moment_s = _moment(job, one.what)
            if not math.isnan(moment_s):
                one.happened_s = moment_s - one.at_s
                model.happen(number, one.happened_s)
            elif not job.end:
                model.wait(number, now_s - one.at_s)
                still.append((one, number))
        self._open = still

    def forecast(self, core: SchedulerCore, ledger: Ledger, in_force: PolicyChanged | None, now_s: float) -> None:
        """Forecasts all jobs that are not over."""
        if not len(core.jobs.active):
            return
        serials = core.jobs.ids.of_rows(core.jobs.active)
        expected = _expected(core, ledger, in_force, now_s)
        for row, serial in zip(core.jobs.active.tolist(), serials.tolist(), strict=True):
            found = expected.get(row, Expected())
            waits = core.jobs.state[row] == JobState.WAITING and math.isnan(ledger.jobs[serial].first_start_s)
            for what, seconds in ((START, found.start_in_s), (END, found.finish_in_s)):
                if math.isfinite(seconds) and (waits or what == END):
                    number = self._models[what].add(seconds, serial)
                    interval = self._models[what].made(number)
                    low_s, high_s = (math.nan, math.nan) if interval is None else (interval.low_s, interval.high_s)
                    one = ScoredForecast(now_s, serial, what, seconds, low_s, high_s)
                    self.made.append(one)
                    self._open.append((one, number))


def _moment(job: ObservedJob, what: str) -> float:
    """When it happened, by itself; NaN = it did not."""
    if what == START:
        return job.first_start_s
    return job.end_s if job.end in ("finished", "failed") else math.nan


def _expected(core: SchedulerCore, ledger: Ledger, in_force: PolicyChanged | None, now_s: float) -> dict[int, Expected]:
    """The forecast of each living job, by row."""
    copy = copied(core)
    copy.jobs.ids.in_rows = True
    copy.jobs.specs = list(core.jobs.specs)
    settings = core.settings
    policy = planned_over_rounds(policy_of(in_force, Change()), settings.round_s, COSTS.turn_s, settings.move_lag_s)
    blind = BlindView(in_force.blind) if in_force is not None and in_force.blind else None
    rates = {row: rate for row in core.jobs.leased.tolist() if (rate := _measured(core, ledger, row)) > 0}
    for row in core.jobs.leased[core.jobs.state[core.jobs.leased] == JobState.RUNNING].tolist():
        copy.jobs.steps_done[row] = _steps(core, ledger, row, rates.get(row, 0.0), now_s)
    future = Forecast(copy, Engine(policy, blind), rates, (), now_s)
    future.handle(SchedulerRestarted(copy.incarnation + 1))
    future.run(copy.jobs.active.tolist(), HORIZON_S, WALL_S)
    return dict(future.expected)


def _steps(core: SchedulerCore, ledger: Ledger, row: int, measured: float, now_s: float) -> float:
    """Steps of a running job by now: journals of simulations have reports only where a decision needs them."""
    jobs, lease = core.jobs, ledger.leases.get(int(core.jobs.lease[row]))
    done, total = float(jobs.steps_done[row]), float(jobs.steps_total[row])
    if lease is None:
        return done
    rate = measured or float(np.nan_to_num(jobs.rate[row, jobs.lease_type[row]]))
    since_s, since = lease.readings[-1] if lease.readings else (lease.ready_s + COSTS.restart_s, lease.steps_before)
    return min(max(done, since + rate * max(now_s - since_s, 0.0)), total)


def _measured(core: SchedulerCore, ledger: Ledger, row: int) -> float:
    """Steps/s of a running job since its first report under its lease; 0 = unknown."""
    lease = ledger.leases.get(int(core.jobs.lease[row]))
    if lease is None or len(lease.readings) < 2:
        return 0.0
    (first_s, first), (last_s, last) = lease.readings[0], lease.readings[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

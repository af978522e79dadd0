"""Intervals of live forecasts: learned from outcomes in the scheduler's history, shown as calibrated, bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.daemon.engine.forecast_record import JOBS_AT_ONCE, ForecastRecord
from gavelpy.runtime.daemon.engine.forecasts import Forecasts, Times
from gavelpy.simulator.forecast import Expected


@dataclass
class World:
    """A scheduler of which only jobs' states, starts and ends exist."""

    now: float = 0.0
    state: dict[int, JobState] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    forecasts: Forecasts = field(default_factory=Forecasts)

    @property
    def scheduler(self) -> Any:  # Any: stands for SchedulerState
        ids = SimpleNamespace(has=lambda jobs: np.array([job in self.state for job in jobs]))
        jobs = SimpleNamespace(ids=ids, by_serial=SimpleNamespace(state=self.state))
        history = SimpleNamespace(
            started_s=lambda job: self.started.get(job, math.nan), ended_s=lambda job: self.ended.get(job, math.nan)
        )
        core = SimpleNamespace(jobs=jobs)
        return SimpleNamespace(core=core, history=history, forecasts=self.forecasts, now_s=lambda: self.now)

    def record(self) -> ForecastRecord:
        return ForecastRecord(self.scheduler, None)  # type: ignore[arg-type]  # nothing is forecast here

    def run(self, record: ForecastRecord, job: int, expected_s: float, actual_s: float) -> None:
        """A job that waits, starts at once when it should, and ends `actual_s` after the forecast."""
        self.state[job] = JobState.WAITING
        record.note({job: Expected(0.0, expected_s)}, self.now)
        self.started[job], self.ended[job] = self.now, self.now + actual_s
        self.state[job] = JobState.FINISHED
        self.now += actual_s
        record.look()


def test_an_interval_contains_four_of_five_ends_of_jobs_like_those_before() -> None:
    world, rng = World(), np.random.default_rng(4)
    record = world.record()

    hits = []
    for job in range(400):
        expected_s = float(rng.uniform(300.0, 3_000.0))
        actual_s = expected_s * float(np.exp(rng.normal(0.2, 0.4)))
        times = world.forecasts.times(Expected(0.0, expected_s))
        hits += [times.finish_low_s <= actual_s <= times.finish_high_s] if times.finish_low_s >= 0 else []
        world.run(record, job, expected_s, actual_s)

    assert len(hits) == 400 - 30
    assert np.mean(hits) == pytest.approx(0.8, abs=0.04)


def test_there_is_no_interval_before_thirty_outcomes() -> None:
    world = World()
    record = world.record()

    for job in range(29):
        world.run(record, job, 100.0, 120.0)
    before = world.forecasts.times(Expected(0.0, 100.0))
    world.run(record, 29, 100.0, 120.0)
    after = world.forecasts.times(Expected(0.0, 100.0))

    assert before == Times(0.0, 100.0, 0.0, 0.0, -1.0, -1.0)
    assert (after.finish_low_s, after.finish_high_s) == pytest.approx((120.0, 120.0))


def test_cancelled_and_archived_jobs_are_no_outcomes() -> None:
    world = World()
    record = world.record()
    for job in range(60):
        world.state[job] = JobState.WAITING
        record.note({job: Expected(50.0, 100.0)}, 0.0)

    for job in range(30):
        world.state[job], world.ended[job] = JobState.CANCELLED, 10.0
    for job in range(30, 60):
        del world.state[job]
    world.now = 1_000.0
    record.look()

    assert world.forecasts.interval("end", 100.0) is None
    assert world.forecasts.interval("start", 50.0) is None


def test_jobs_that_were_noted_least_often_come_first() -> None:
    world = World(state=dict.fromkeys(range(30), JobState.RUNNING), started=dict.fromkeys(range(30), 0.0))
    record = world.record()
    seen = {job: Expected(0.0, 100.0) for job in range(30)}

    record.note(seen, 0.0)
    first = set(record._noted)
    record.note(seen, 600.0)

    assert first == set(range(JOBS_AT_ONCE))
    assert [record._noted[job] for job in range(30)] == [2] * 10 + [1] * 20


def test_a_time_that_is_now_or_unknown_has_no_interval() -> None:
    world = World()

    assert world.forecasts.times(Expected(0.0, math.inf)) == Times(0.0, -1.0, 0.0, 0.0, -1.0, -1.0)
    assert world.forecasts.times(Expected()) == Times()

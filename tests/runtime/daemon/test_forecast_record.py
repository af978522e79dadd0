"""Intervals of live forecasts: learned from outcomes in the scheduler's history, shown as calibrated, bounded."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.daemon.engine.forecast import Ahead
from gavelpy.runtime.daemon.engine.forecast_record import JOBS_AT_ONCE, ForecastRecord
from gavelpy.runtime.daemon.engine.forecasts import Forecasts, Times
from gavelpy.simulator.expected import Expected


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
        jobs = SimpleNamespace(ids=ids, by_serial=SimpleNamespace(state=self.state), active=list(self.state))
        history = SimpleNamespace(
            started_s=lambda job: self.started.get(job, math.nan), ended_s=lambda job: self.ended.get(job, math.nan)
        )
        core = SimpleNamespace(jobs=jobs)
        none = SimpleNamespace(leases={})
        return SimpleNamespace(
            core=core, history=history, forecasts=self.forecasts, now_s=lambda: self.now, choice=None, leases=none
        )

    def record(self) -> ForecastRecord:
        return ForecastRecord(self.scheduler, None)  # type: ignore[arg-type]  # nothing is forecast here

    def run(self, record: ForecastRecord, job: int, expected_s: float, actual_s: float) -> None:
        """A job that waits, starts at once when it should, and ends `actual_s` after the forecast."""
        self.state[job] = JobState.WAITING
        note(record, {job: Expected(0.0, expected_s)}, self.now)
        self.started[job], self.ended[job] = self.now, self.now + actual_s
        self.state[job] = JobState.FINISHED
        self.now += actual_s
        record.look()


def note(record: ForecastRecord, seen: Mapping[int, Expected], at_s: float) -> list[int]:
    """Notes forecasts that were made at a time; returns the jobs."""
    return list(record.noting(seen, at_s))


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
        note(record, {job: Expected(50.0, 100.0)}, 0.0)

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

    note(record, seen, 0.0)
    first = set(record._noted)
    note(record, seen, 600.0)

    assert first == set(range(JOBS_AT_ONCE))
    assert [record._noted[job] for job in range(30)] == [2] * 10 + [1] * 20


def test_a_time_that_is_now_or_unknown_has_no_interval() -> None:
    world = World()

    assert world.forecasts.times(Expected(0.0, math.inf)) == Times(0.0, -1.0, 0.0, 0.0, -1.0, -1.0)
    assert world.forecasts.times(Expected()) == Times()


class Asked:
    """In place of the process of forecasts: it has these answers, in order."""

    def __init__(self, *answers: Ahead) -> None:
        self._answers = iter(answers)

    async def ask(self, *_: Any, **__: Any) -> Ahead:  # Any: a forecaster's arguments
        return next(self._answers)


def test_lists_keep_the_last_forecast_that_has_jobs_and_it_is_renewed_only_while_they_are_read() -> None:
    world = World(state={0: JobState.WAITING})
    answers = Ahead((), "", {0: Expected(0.0, 50.0)}), Ahead((), "the forecast failed", {})
    record = ForecastRecord(world.scheduler, Asked(*answers))  # type: ignore[arg-type]  # stands for a forecaster

    before = record._is_stale
    asyncio.run(record.renew())
    world.now = 100.0
    unread = record._is_stale
    shown = world.forecasts.of(0)
    read = record._is_stale
    record._took_s = 8.0
    slow = record._is_stale  # a twentieth of the time at most: after 160 s
    world.now = 161.0
    later = record._is_stale
    asyncio.run(record.renew())

    assert shown == Times(0.0, 50.0, 0.0, 0.0)
    assert (before, unread, read, slow, later) == (False, False, True, False, True)
    assert (world.forecasts.of(0), world.forecasts.at_s) == (shown, 0.0)
    assert not record._is_stale, "a forecast that fails is not asked for again at once"

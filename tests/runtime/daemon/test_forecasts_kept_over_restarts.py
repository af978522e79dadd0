"""The record of forecasts survives restarts: the same intervals, outcomes of what was open, at bounded size."""

from __future__ import annotations

import asyncio
import logging
import math

import numpy as np
import pytest

from gavelpy.errors import JournalFailed
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.daemon.engine.forecast_record import KEPT, ForecastRecord
from gavelpy.runtime.daemon.engine.forecasts import END, START, Forecasts, OpenForecast, of_text, text_of
from gavelpy.simulator.expected import Expected
from gavelpy.simulator.intervals import GROUP, IntervalModel, Row
from tests.runtime.daemon.test_forecast_record import World, note


class Shelf:
    """A keeper in memory."""

    def __init__(self, text: str = "", *, is_broken: bool = False) -> None:
        self.text, self._is_broken = text, is_broken

    async def load(self) -> str:
        return self.text

    async def store(self, text: str) -> None:
        if self._is_broken:
            raise JournalFailed("disk full")
        self.text = text


def filled(count: int, seed: int = 5) -> IntervalModel:
    """A model with outcomes of twice as many forecasts as jobs; every seventh is open."""
    rng, model = np.random.default_rng(seed), IntervalModel()
    for k in range(count):
        expected_s = float(np.exp(rng.uniform(2, 12)))
        number = model.add(expected_s, k // 2)
        actual_s = expected_s * float(np.exp(rng.normal(0.2, 0.5)))
        model.wait(number, actual_s / 2) if k % 7 == 0 else model.happen(number, actual_s)
    return model


def restarted(world: World, shelf: Shelf) -> ForecastRecord:
    """A new record, as after a restart, with what was kept."""
    world.forecasts = Forecasts()
    record = ForecastRecord(world.scheduler, None, shelf)  # type: ignore[arg-type]  # nothing is forecast here
    asyncio.run(record.load())
    return record


@pytest.mark.parametrize("seed", range(2))
def test_a_record_that_restarts_between_any_two_steps_gives_the_same_intervals(seed: int) -> None:
    rng, shelf = np.random.default_rng(seed), Shelf()
    world, other = World(), World()
    steady, restarting = world.record(), restarted(other, shelf)

    for job in range(70):
        expected_s = float(np.exp(rng.uniform(3, 8)))
        actual_s = expected_s * float(np.exp(rng.normal(0.3, 0.5)))
        stays = rng.random() < 0.2  # it is open over some restarts
        for one, record in ((world, steady), (other, restarting)):
            one.state[job] = JobState.WAITING
            note(record, {job: Expected(expected_s / 3, expected_s)}, one.now)
            if not stays:
                one.started[job], one.ended[job] = one.now + actual_s / 3, one.now + actual_s
                one.state[job] = JobState.FINISHED
            one.now += actual_s
            record.look()
        if rng.random() < 0.3:
            asyncio.run(restarting.keep())
            restarting = restarted(other, shelf)

    for what in (START, END):
        mine, its = world.forecasts.models[what], other.forecasts.models[what]
        assert (len(mine), mine.level) == (len(its), pytest.approx(its.level))
        for seconds in (5.0, 300.0, 4_000.0):
            ours, theirs = mine.interval(seconds), its.interval(seconds)
            assert ours is not None
            assert theirs is not None
            assert (theirs.low_s, theirs.high_s) == pytest.approx((ours.low_s, ours.high_s), rel=0.01, abs=0.2)
    assert [(one.what, one.job) for one in steady._open] == [(one.what, one.job) for one in restarting._open]
    assert steady._noted == restarting._noted


def test_what_ended_while_the_scheduler_was_away_is_an_outcome() -> None:
    world, shelf = World(), Shelf()
    record = restarted(world, shelf)
    world.state[0] = JobState.WAITING
    note(record, {0: Expected(0.0, 100.0)}, 0.0)
    asyncio.run(record.keep())

    world.state[0], world.started[0], world.ended[0], world.now = JobState.FINISHED, 1.0, 150.0, 200.0
    record = restarted(world, shelf)
    record.look()

    assert [row[2:4] for row in world.forecasts.models[END].rows()] == [(150.0, True)]
    assert not record._open


def test_the_text_is_bounded_whatever_was_noted() -> None:
    longest_s, high_s = 30 * 86_400.0 - 0.123, (math.inf, 1e8 / 3, math.nan)
    rows: list[Row] = [
        (longest_s, 10**9 + k, 1e7 / 3, False, k % 2 == 0, math.nan if k % 3 == 2 else 1e6 / 3, high_s[k % 3])
        for k in range(KEPT + 500)
    ]
    models = {what: IntervalModel.restored(rows, 10**6, 0.85) for what in (START, END)}
    for model in models.values():
        model.forget(KEPT)
    opened = [OpenForecast(END, 10**9 + k, 1e9 / 3, 10**6 + k) for k in range(KEPT)]
    noted = dict.fromkeys(range(10**9, 10**9 + KEPT), 100)

    text = text_of(models, opened, noted)
    again, still, counts = of_text(text)

    assert len(text) < 1_000_000
    assert text_of(again, still, counts) == text
    assert (again[END].first, len(again[END]), counts) == (10**6 + 500, KEPT, noted)


NOT_IN_MODEL = text_of({START: IntervalModel(), END: IntervalModel()}, [OpenForecast(END, 7, 1.0, 3)], {})


@pytest.mark.parametrize(
    "text", ["{", '{"version": 2}', '{"version":2,"models":{},"open":[],"noted":[]}', "[]", NOT_IN_MODEL]
)
def test_a_text_that_cannot_be_read_begins_the_record_again_with_a_warning(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()

    with caplog.at_level(logging.WARNING):
        restarted(world, Shelf(text))

    assert "intervals of forecasts begin again" in caplog.text
    assert len(world.forecasts.models[END]) == 0


def test_a_journal_that_cannot_be_written_costs_the_record_only(caplog: pytest.LogCaptureFixture) -> None:
    record = restarted(World(), Shelf(is_broken=True))

    asyncio.run(record.keep())

    assert "forecasts not kept" in caplog.text


def test_intervals_of_many_are_those_of_each_up_to_the_width_of_a_group() -> None:
    model = filled(300)
    horizons = [*np.exp(np.random.default_rng(1).uniform(1, 13, 30)).tolist(), math.inf]

    many = model.intervals(horizons)

    assert many[-1] is None
    for seconds, one in zip(horizons[:-1], many[:-1], strict=True):
        nearest = model.intervals([seconds])[0]
        assert one == nearest, "it does not depend on the others"
        group = math.exp(round(math.log(seconds + 10) / GROUP) * GROUP) - 10
        exact = model.interval(group)
        assert one is not None
        assert exact is not None
        scale = (seconds + 10) / (group + 10)
        assert one.high_s + 10 == pytest.approx(scale * (exact.high_s + 10))
    assert IntervalModel().intervals([1.0, 2.0]) == [None, None]

"""Intervals of forecasts from how this scheduler's earlier ones turned out: the method of `gavel forecast score`, live.

Every ten minutes the scheduler forecasts its living jobs and notes when some of them should start and end. Once they
have, the errors give intervals (`simulator.intervals`). The jobs noted are those that were noted least often, whatever
their forecast. The record is kept in memory and begins with the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.leases.lease import measured_rates
from gavelpy.simulator.forecast import Expected
from gavelpy.simulator.intervals import Interval, IntervalModel

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState

logger = logging.getLogger(__name__)
EVERY_S: Final = 600.0
JOBS_AT_ONCE: Final = 20  # noted each time
KEPT: Final = 4_000  # forecasts of each kind
START, END = "start", "end"
_UNKNOWN_S: Final = -1.0


@dataclass(frozen=True)
class Times:
    """When a job should start and end, from now, with intervals of 80 %; -1 = unknown, or without an upper end."""

    start_in_s: float = _UNKNOWN_S
    finish_in_s: float = _UNKNOWN_S
    start_low_s: float = _UNKNOWN_S
    start_high_s: float = _UNKNOWN_S
    finish_low_s: float = _UNKNOWN_S
    finish_high_s: float = _UNKNOWN_S


@dataclass(frozen=True)
class _Open:
    """A forecast of which the outcome is not known yet."""

    what: str
    job: int
    at_s: float
    number: int  # in its model


class ForecastRecord:
    """Notes forecasts and their outcomes. Close it at the end."""

    def __init__(self, state: SchedulerState, forecaster: Forecaster, *, every_s: float = EVERY_S) -> None:
        self._state, self._forecaster, self._every_s = state, forecaster, every_s
        self._models = {START: IntervalModel(), END: IntervalModel()}
        self._open: list[_Open] = []
        self._noted = Counter[int]()  # times that a living job was noted
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to note forecasts, in a task of the running event loop."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(_raised)

    async def close(self) -> None:
        """Ends the task."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def times(self, expected: Expected) -> Times:
        """A forecast that is made now, with its intervals."""
        start, end = (_known(seconds) for seconds in (expected.start_in_s, expected.finish_in_s))
        start_low, start_high = _ends(self.interval(START, expected.start_in_s)) if start > 0 else (start, start)
        return Times(start, end, start_low, start_high, *_ends(self.interval(END, expected.finish_in_s)))

    def interval(self, what: str, seconds: float) -> Interval | None:
        """The interval of a forecast that is made now; None if too few outcomes of similar ones are known."""
        return self._models[what].interval(seconds)

    async def renew(self) -> None:
        """Notes what has happened, and new forecasts."""
        self.look()
        state = self._state
        if not len(state.core.jobs.active):
            return
        now_s = state.now_s()
        rates = measured_rates(state.core, state.leases.leases.values())
        ahead = await self._forecaster.ask(state.core, now_s, state.choice, wanted=(), rates=rates, everything=True)
        self.note(ahead.seen, now_s)

    def note(self, seen: Mapping[int, Expected], at_s: float) -> None:
        """Adds forecasts that were made at a time, of the jobs that were noted least often."""
        jobs, history = self._state.core.jobs, self._state.history
        living = [job for job in seen if self._is_alive(job)]
        for job in sorted(living, key=lambda job: (self._noted[job], job))[:JOBS_AT_ONCE]:
            self._noted[job] += 1
            waits = jobs.by_serial.state[job] == JobState.WAITING and math.isnan(history.started_s(job))
            for what, seconds in ((START, seen[job].start_in_s), (END, seen[job].finish_in_s)):
                if math.isfinite(seconds) and (waits or what == END):
                    self._open.append(_Open(what, job, at_s, self._models[what].add(seconds, job)))
        for model in self._models.values():
            model.forget(KEPT)

    def look(self) -> None:
        """Notes what has happened by now of what was predicted. What was cancelled, or has left, never happens."""
        now_s, still = self._state.now_s(), list[_Open]()
        for one in self._open:
            model = self._models[one.what]
            moment_s = self._moment(one)
            if math.isfinite(moment_s):
                model.happen(one.number, max(moment_s - one.at_s, 0.0))
            elif self._is_alive(one.job):
                model.wait(one.number, max(now_s - one.at_s, 0.0))
                still.append(one)
        self._open = still[-KEPT:]
        living = {one.job for one in still}
        self._noted = Counter({job: count for job, count in self._noted.items() if job in living})

    def _moment(self, one: _Open) -> float:
        """When it happened, by itself; NaN = it did not."""
        jobs, history = self._state.core.jobs, self._state.history
        if not self._is_there(one.job):
            return math.nan
        if one.what == START:
            return history.started_s(one.job)
        by_itself = jobs.by_serial.state[one.job] in (JobState.FINISHED, JobState.FAILED)
        return history.ended_s(one.job) if by_itself else math.nan

    def _is_there(self, job: int) -> bool:
        return bool(self._state.core.jobs.ids.has(np.array([job]))[0])

    def _is_alive(self, job: int) -> bool:
        return self._is_there(job) and bool(self._state.core.jobs.by_serial.state[job] <= ALIVE[-1])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.renew()


def _known(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else _UNKNOWN_S


def _ends(interval: Interval | None) -> tuple[float, float]:
    return (_UNKNOWN_S, _UNKNOWN_S) if interval is None else (interval.low_s, _known(interval.high_s))


def _raised(task: asyncio.Task[None]) -> None:
    """Logs why forecasts are not noted any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("no more forecasts are noted for intervals", extra={"detail": repr(error)})

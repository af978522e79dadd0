"""Intervals of forecasts from how this scheduler's earlier ones turned out: the method of `gavel forecast score`, live.

Every ten minutes the scheduler forecasts its living jobs and notes when some of them should start and end. Once they
have, the errors give intervals (`simulator.intervals`). The jobs noted are those that were noted least often, whatever
their forecast. The record is then kept in the journal's database: a restart loses what was noted since. Lists of jobs
show the last forecast; while they are read, it is renewed more often, within a share of the time.

Encoding and intervals of many jobs are computed in threads, so that heartbeats are not delayed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from gavelpy.errors import GavelError
from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.runtime.daemon.engine.forecast import Ahead, Forecaster
from gavelpy.runtime.daemon.engine.forecasts import END, START, OpenForecast, of_text, text_of
from gavelpy.runtime.daemon.leases.lease import measured_rates
from gavelpy.simulator.expected import Expected

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState

logger = logging.getLogger(__name__)
FIRST_S: Final = 60.0  # after the start
EVERY_S: Final = 600.0
READ_EVERY_S: Final = 60.0  # while lists are read
READ_LOAD: Final = 20.0  # the same, as a multiple of the time that a forecast takes
LOOK_S: Final = 5.0
JOBS_AT_ONCE: Final = 20  # noted each time
KEPT: Final = 4_000  # forecasts of each kind


class Keeper(Protocol):
    """Keeps the record over restarts. Both methods raise GavelError."""

    async def load(self) -> str:
        """The text that was stored last; empty = none."""

    async def store(self, text: str) -> None:
        """Stores a text durably."""


class ForecastRecord:
    """Notes forecasts and their outcomes in the state's `forecasts`. Close it at the end."""

    def __init__(
        self, state: SchedulerState, forecaster: Forecaster, keeper: Keeper | None = None, *,
        first_s: float = FIRST_S, every_s: float = EVERY_S,
    ) -> None:  # fmt: skip
        self._state, self._forecaster, self._keeper = state, forecaster, keeper
        self._first_s, self._every_s = first_s, every_s
        self._open: list[OpenForecast] = []
        self._noted = Counter[int]()  # times that a living job was noted
        self._asked_s, self._took_s = math.inf, 0.0  # time of the last forecast of all jobs, and how long it took
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

    async def renew(self) -> None:
        """Notes what has happened, and new forecasts; keeps the record."""
        self.look()
        now_s = self._state.now_s()
        if len(self._state.core.jobs.active):
            ahead = await self._ahead(now_s)
            for _ in self.noting(ahead.seen, now_s):
                await asyncio.sleep(0)
        await self.keep()

    def noting(self, seen: Mapping[int, Expected], at_s: float) -> Iterator[int]:
        """Adds forecasts that were made at a time, of the jobs that were noted least often; yields after each job."""
        jobs, history, models = self._state.core.jobs, self._state.history, self._state.forecasts.models
        living = [job for job in seen if self._is_alive(job)]
        for job in sorted(living, key=lambda job: (self._noted[job], job))[:JOBS_AT_ONCE]:
            if not self._is_alive(job):
                continue
            self._noted[job] += 1
            waits = jobs.by_serial.state[job] == JobState.WAITING and math.isnan(history.started_s(job))
            for what, seconds in ((START, seen[job].start_in_s), (END, seen[job].finish_in_s)):
                if math.isfinite(seconds) and (waits or what == END):
                    self._open.append(OpenForecast(what, job, at_s, models[what].add(seconds, job)))
            yield job
        for model in models.values():
            model.forget(KEPT)

    def look(self) -> None:
        """Notes what has happened by now of what was predicted. What was cancelled, or has left, never happens."""
        now_s, still = self._state.now_s(), list[OpenForecast]()
        for one in self._open:
            model = self._state.forecasts.models[one.what]
            moment_s = self._moment(one)
            if math.isfinite(moment_s):
                model.happen(one.number, max(moment_s - one.at_s, 0.0))
            elif self._is_alive(one.job):
                model.wait(one.number, max(now_s - one.at_s, 0.0))
                still.append(one)
        self._open = still[-KEPT:]
        living = {one.job for one in still}
        self._noted = Counter({job: count for job, count in self._noted.items() if job in living})

    async def load(self) -> None:
        """Takes over the record that was kept; without one that can be read, it begins again."""
        if self._keeper is None:
            return
        try:
            text = await self._keeper.load()
            if text:
                models, self._open, noted = await asyncio.to_thread(of_text, text)
                self._state.forecasts.models, self._noted = models, Counter(noted)
        except GavelError as error:
            logger.warning("intervals of forecasts begin again", extra={"detail": str(error)})

    async def keep(self) -> None:
        """Keeps the record."""
        if self._keeper is None:
            return
        models = self._state.forecasts.models  # this task alone changes them
        try:
            await self._keeper.store(await asyncio.to_thread(text_of, models, self._open, self._noted))
        except GavelError as error:  # the scheduler stops, or the driver fails, too
            logger.warning("forecasts not kept", extra={"detail": str(error)})

    async def _ahead(self, now_s: float) -> Ahead:
        """A forecast of all living jobs, which lists show from now on."""
        state, began_s = self._state, asyncio.get_running_loop().time()
        self._asked_s = now_s
        rates = measured_rates(state.core, state.leases.leases.values())
        ahead = await self._forecaster.ask(state.core, now_s, state.choice, wanted=(), rates=rates, everything=True)
        if ahead.seen or not ahead.why_not:
            state.forecasts.show(await asyncio.to_thread(state.forecasts.times_of, ahead.seen), now_s)
        self._took_s = asyncio.get_running_loop().time() - began_s
        return ahead

    @property
    def _is_stale(self) -> bool:
        """Whether lists are read and show an old forecast."""
        age_s = self._state.now_s() - self._asked_s
        has_jobs = len(self._state.core.jobs.active) > 0
        return self._state.forecasts.is_read and has_jobs and age_s > max(READ_EVERY_S, READ_LOAD * self._took_s)

    def _moment(self, one: OpenForecast) -> float:
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
        await self.load()
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._first_s
        while True:
            await asyncio.sleep(min(max(due_s - loop.time(), 0.0), LOOK_S))
            if loop.time() >= due_s:
                await self.renew()
                due_s = loop.time() + self._every_s
            elif self._is_stale:
                await self._ahead(self._state.now_s())


def _raised(task: asyncio.Task[None]) -> None:
    """Logs why forecasts are not noted any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("no more forecasts are noted for intervals", extra={"detail": repr(error)})

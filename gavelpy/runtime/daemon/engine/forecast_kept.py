"""Caches forecasts of single jobs: with few living jobs they are computed on request, else shared by all callers.

A simulation takes seconds with many thousands of jobs. One background simulation then covers all jobs that start in
it; callers receive the last result, with its age.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.engine.forecast_values import Ahead, Expected
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice

AT_ONCE_MAX = 500  # living jobs; with more, a forecast takes longer than a caller should wait
KEPT_S = 30.0
COMPUTING = "the forecast of {jobs} living jobs is being computed: explain again in some seconds"


@dataclass(frozen=True)
class Outlook:
    """Forecast of one job, counted from now."""

    expected: Expected
    why_not: str = ""  # why it is incomplete; empty = it is complete
    age_s: float = 0.0


@dataclass(frozen=True)
class _Kept:
    ahead: Ahead
    at_s: float  # the scheduler's time of its core
    jobs: int  # number of jobs in it


class Outlooks:
    """Close it at the end."""

    def __init__(self, forecaster: Forecaster, *, at_once_max: int = AT_ONCE_MAX, kept_s: float = KEPT_S) -> None:
        self._forecaster = forecaster
        self._at_once_max, self._kept_s = at_once_max, kept_s
        self._kept: _Kept | None = None
        self._task: asyncio.Task[None] | None = None

    async def of(
        self, job: int, core: SchedulerCore, now_s: float, choice: PolicyChoice, rates: Mapping[int, float]
    ) -> Outlook:
        """Forecast of a living job."""
        living = len(core.jobs.active)
        if living <= self._at_once_max:
            ahead = await self._forecaster.ask(core, now_s, choice, wanted=[job], rates=rates)
            return Outlook(ahead.expected[0], ahead.why_not)
        kept = self._kept
        if self._task is None and (kept is None or now_s > kept.at_s + self._kept_s or job >= kept.jobs):
            self._task = asyncio.create_task(self._renew(core, now_s, choice, rates))
            self._task.add_done_callback(self._renewed)
        if kept is None or job >= kept.jobs:
            return Outlook(Expected(), COMPUTING.format(jobs=living))
        age_s = max(now_s - kept.at_s, 0.0)
        found = kept.ahead.seen.get(job, Expected())
        why_not = "" if math.isfinite(found.finish_in_s) else kept.ahead.why_not
        return Outlook(_later(found, age_s), why_not, age_s)

    async def close(self) -> None:
        """Cancels a running forecast."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _renew(self, core: SchedulerCore, now_s: float, choice: PolicyChoice, rates: Mapping[int, float]) -> None:
        jobs = core.jobs.count
        ahead = await self._forecaster.ask(core, now_s, choice, wanted=(), rates=rates, everything=True)
        self._kept = _Kept(ahead, now_s, jobs)

    def _renewed(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.result()


def _later(expected: Expected, age_s: float) -> Expected:
    """The same times, counted from `age_s` later."""
    return replace(
        expected,
        start_in_s=max(expected.start_in_s - age_s, 0.0),
        finish_in_s=max(expected.finish_in_s - age_s, 0.0),
    )

"""Forecasts starts and ends of jobs: a separate process simulates a copy of the core, within a limit of CPU time.

The copy is made between two events, so it is consistent; a thread pickles it in pieces, so heartbeats are not delayed.
One forecast runs at a time and at most WAITING_MAX wait; further requests are refused. A forecast ends WALL_S after its
request with what it has by then, and the reason, before its callers give up.

With few living jobs a forecast is computed on request. A simulation takes seconds with many thousands of jobs: one
background simulation then covers all jobs that start in it, and callers receive the last result, with its age.
"""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Event
from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.mechanism.snapshot import copied
from gavelpy.model.job import JobId, JobSpec
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
from gavelpy.runtime.daemon.engine.worker_process import WorkerFailed, WorkerProcess
from gavelpy.simulator.expected import Expected

logger = logging.getLogger(__name__)
WORKER = "gavelpy.runtime.daemon.engine.forecast_worker:forecast"
HORIZON_S = 30 * 86_400.0
CPU_S = 3.0
WALL_S = 15.0  # from the request, with its wait for earlier ones
STARTING_S = 20.0  # for the process to start and to read the request
NICE = 5  # below the scheduler, but people wait for a forecast
WAITING_MAX = 8
_SPECS_A_PART = 200
_OVER = JobSpec(JobId("over"), 1.0)  # in place of jobs that are over
AT_ONCE_MAX = 500  # living jobs; with more, a forecast takes longer than a caller should wait
KEPT_S = 30.0
COMPUTING = "the forecast of {jobs} living jobs is being computed: explain again in some seconds"


@dataclass(frozen=True, eq=False)
class LookAhead:
    """Request: a copy of the core, with its specs in separate pickled parts, and the wanted jobs, by row."""

    core: SchedulerCore
    specs: Sequence[bytes]
    now_s: float
    choice: PolicyChoice
    submitted: Sequence[JobSpec]  # in addition to the core's jobs; their serials follow
    wanted: Sequence[int]
    rates: Mapping[int, float]  # measured, by job
    horizon_s: float
    cpu_s: float
    everything: bool = False  # every living job is wanted, and the answer is in `Ahead.seen`
    supposed: Sequence[Event] = ()  # that happen first: nodes that join, another policy
    until_s: float = math.inf  # by time.monotonic(), when it stops with what it has


@dataclass(frozen=True)
class Ahead:
    """Forecasts of the wanted jobs, in order, and why they are incomplete (empty = they are complete)."""

    expected: tuple[Expected, ...]
    why_not: str
    seen: Mapping[int, Expected] = field(default_factory=dict)  # by job, those that start; of `everything` only


class Forecaster:
    """Close it at the end."""

    def __init__(self, *, horizon_s: float = HORIZON_S, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> None:
        self._horizon_s, self._cpu_s, self._wall_s = horizon_s, cpu_s, wall_s
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._worker = WorkerProcess(nice=NICE)

    @property
    def process_id(self) -> int:
        """Process id; 0 = no process."""
        return self._worker.process_id

    async def ask(
        self,
        core: SchedulerCore,
        now_s: float,
        choice: PolicyChoice,
        *,
        wanted: Sequence[int],
        submitted: Sequence[JobSpec] = (),
        rates: Mapping[int, float] | None = None,
        everything: bool = False,
        supposed: Sequence[Event] = (),
    ) -> Ahead:
        """Forecasts the wanted jobs, or `everything`, if `submitted` arrive now and nothing else happens.

        `supposed` events happen first; a change of the policy is in `choice`, too.
        """
        nothing = tuple(Expected() for _ in wanted)
        if self._waiting >= WAITING_MAX:
            return Ahead(nothing, "too many forecasts are requested at once")
        self._waiting += 1
        until_s = time.monotonic() + self._wall_s
        try:
            async with self._turn:
                if time.monotonic() >= until_s:
                    return Ahead(nothing, f"earlier forecasts took the {self._wall_s:g} s that one may take")
                bare, parts = without_specs(core)
                ids, count = bare.jobs.ids, bare.jobs.count
                rows = [ids.row(job) if job < ids.next_serial else job - ids.next_serial + count for job in wanted]
                measured = {ids.row(job): rate for job, rate in (rates or {}).items()}
                serials = ids.serials
                specs = await asyncio.to_thread(_pickled, parts)
                question = LookAhead(
                    bare, specs, now_s, choice, submitted, rows, measured,
                    self._horizon_s, self._cpu_s, everything, supposed, until_s,
                )  # fmt: skip
                ahead: Ahead = await self._worker.call(WORKER, question, timeout_s=self._cpu_s + STARTING_S)
                seen = {int(serials[row]): expected for row, expected in ahead.seen.items() if row < count}
                return replace(ahead, seen=seen)
        except WorkerFailed as error:
            logger.warning("forecast failed", extra={"detail": str(error)})
            return Ahead(nothing, f"the forecast failed: {error}")
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Ends the process."""
        self._worker.kill()


def without_specs(core: SchedulerCore) -> tuple[SchedulerCore, list[list[JobSpec]]]:
    """A copy of the core without its specs, and the specs in parts. Jobs that are over have a placeholder."""
    over = (core.jobs.state[: core.jobs.count] > ALIVE[-1]).tolist()
    specs = [_OVER if gone else spec for gone, spec in zip(over, core.jobs.specs, strict=True)]
    bare = copied(core)
    bare.jobs.ids.in_rows = True  # the process that runs it sends rows
    bare.jobs.specs, bare.jobs.serial_of = [], {}
    return bare, [specs[k : k + _SPECS_A_PART] for k in range(0, len(specs), _SPECS_A_PART)]


def _pickled(parts: Sequence[list[JobSpec]]) -> list[bytes]:
    return [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in parts]


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
        jobs = core.jobs.ids.next_serial
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

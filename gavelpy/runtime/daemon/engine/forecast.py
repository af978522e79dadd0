"""Forecasts starts and ends of jobs: a separate process simulates a copy of the core, for a bounded time.

The copy is made between two events, so it is consistent; a thread pickles it in pieces, so heartbeats are not delayed.
One forecast runs at a time and at most WAITING_MAX wait; further requests are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.model.ids import JobId
from gavelpy.model.job import JobSpec
from gavelpy.runtime.daemon.core_copy import copied
from gavelpy.runtime.daemon.engine.forecast_values import Ahead, Expected, LookAhead
from gavelpy.runtime.daemon.engine.pipe_messages import LENGTH, send
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice

logger = logging.getLogger(__name__)
HORIZON_S = 30 * 86_400.0
WALL_S = 3.0
STARTING_S = 20.0  # for the worker to start and to read the request
WAITING_MAX = 8
_SPECS_A_PART = 200
_NOBODY = JobSpec(JobId("over"), 1.0)  # in place of jobs that are over


class Forecaster:
    """Close it at the end."""

    def __init__(self, *, horizon_s: float = HORIZON_S, wall_s: float = WALL_S) -> None:
        self._horizon_s, self._wall_s = horizon_s, wall_s
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._process: asyncio.subprocess.Process | None = None

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
    ) -> Ahead:
        """Forecasts the wanted jobs, or `everything`, if `submitted` arrive now and nothing else happens."""
        nothing = tuple(Expected() for _ in wanted)
        if self._waiting >= WAITING_MAX:
            return Ahead(nothing, "too many forecasts are requested at once")
        self._waiting += 1
        try:
            async with self._turn:
                bare, parts = without_specs(core)
                question = LookAhead(
                    bare, (), now_s, choice, submitted, wanted, rates or {}, self._horizon_s, self._wall_s, everything
                )
                data = await asyncio.to_thread(_packed, question, parts)
                return await self._answer(data)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            await self._end()
            late = isinstance(error, TimeoutError)
            why = "the forecast took too long" if late else "the process that computes forecasts died"
            logger.warning("forecast failed", extra={"detail": why})
            return Ahead(nothing, why)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Ends the process."""
        await self._end()

    async def _answer(self, data: bytes) -> Ahead:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gavelpy.runtime.daemon.engine.forecast_worker",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        process = self._process
        try:
            return await asyncio.wait_for(_asked(process, data), self._wall_s + STARTING_S)
        except asyncio.CancelledError:  # the caller has left, and the next one must not read this answer
            with contextlib.suppress(ProcessLookupError):  # it may have ended
                process.kill()
            self._process = None
            raise

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def without_specs(core: SchedulerCore) -> tuple[SchedulerCore, list[list[JobSpec]]]:
    """A copy of the core without its specs, and the specs in parts. Jobs that are over have a placeholder."""
    over = (core.jobs.state[: core.jobs.count] > ALIVE[-1]).tolist()
    specs = [_NOBODY if gone else spec for gone, spec in zip(over, core.jobs.specs, strict=True)]
    bare = copied(core)
    bare.jobs.specs, bare.jobs.serial_of = [], {}
    return bare, [specs[k : k + _SPECS_A_PART] for k in range(0, len(specs), _SPECS_A_PART)]


def _packed(question: LookAhead, parts: Sequence[list[JobSpec]]) -> bytes:
    specs = [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in parts]
    values: dict[str, Any] = {**vars(question), "specs": specs}  # Any: fields of several types
    return pickle.dumps(LookAhead(**values), pickle.HIGHEST_PROTOCOL)


async def _asked(process: asyncio.subprocess.Process, data: bytes) -> Ahead:
    assert process.stdin is not None, "the worker has pipes"
    assert process.stdout is not None, "the worker has pipes"
    await send(process.stdin, data)
    size = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))[0]
    answer = pickle.loads(await process.stdout.readexactly(size))
    assert isinstance(answer, Ahead), f"not an answer: {answer!r}"
    return answer

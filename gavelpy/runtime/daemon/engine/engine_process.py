"""Runs the engine in a separate process, so that solving delays no heartbeat and a policy cannot crash the scheduler.

One request is pending at a time. If the process dies or times out, it is restarted and the request is repeated once;
after the second failure the request fails, and the allocation in force stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np

from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, ThroughputEstimated
from gavelpy.runtime.daemon.engine.measuring import EstimationChoice, LearnRates, RatesLearned
from gavelpy.runtime.daemon.engine.pipe_messages import LENGTH, send
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice

logger = logging.getLogger(__name__)
Question = SolveAllocation | EstimateThroughput | LearnRates
Answer = AllocationSolved | AllocationFailed | ThroughputEstimated | RatesLearned
ATTEMPTS_MAX = 2
ANSWER_BYTES_MAX = 1 << 30
PAUSE_S = 0.5  # before a dead process is restarted; doubled at each consecutive failure
PAUSE_S_MAX = 10.0
# Matrices are small: several BLAS threads on busy cores slow a fit down. The scheduler's environment overrides this.
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class EngineProcess:
    """`answered` receives each answer and its duration in seconds."""

    def __init__(
        self,
        choice: PolicyChoice,
        answered: Callable[[Answer, float], None],
        *,
        estimation: EstimationChoice | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        self.choice = choice
        self.estimation = estimation or EstimationChoice()
        self.timeout_s = timeout_s
        self.restarts = 0
        self.shadow_prices: dict[str, float] = {}  # of one more GPU, by type, in units of the policy's objective
        self._answered = answered
        self._questions: deque[Question] = deque()
        self._attempts = 0  # for the first of them
        self._deaths = 0  # consecutive, without an answer
        self._work = asyncio.Event()
        self._stopping = False
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process_id(self) -> int:
        """Process id; 0 = no process."""
        return self._process.pid if self._process is not None else 0

    def ask(self, question: Question) -> None:
        """Sends a request; `answered` receives the answer. Replaces a pending request of the same type."""
        first, *rest = self._questions or (None,)
        kept = [first] if first is not None else []
        kept += [other for other in rest if type(other) is not type(question)]
        self._questions = deque([*kept, question])
        self._work.set()

    def change(self, choice: PolicyChoice) -> None:
        """Changes the policy from the next request."""
        self.choice = replace(choice, round_s=self.choice.round_s)

    def plan_over(self, round_s: float) -> None:
        """Sets the round length that the policy plans with, from the next request."""
        self.choice = replace(self.choice, round_s=round_s)

    def stop(self) -> None:
        """Ends the process; `run` returns."""
        self._stopping = True
        self._work.set()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def run(self) -> None:
        """Runs until stopped."""
        while not self._stopping:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gavelpy.runtime.daemon.engine.engine_worker",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=ONE_BLAS_THREAD | os.environ,
            )  # fmt: skip
            try:
                await self._converse(self._process)
            except (asyncio.IncompleteReadError, TimeoutError, OSError) as error:
                self._failed(error)
            finally:
                await _end(self._process)
                self._process = None
            if not self._stopping:
                self.restarts += 1
                await asyncio.sleep(min(PAUSE_S * 2**self._deaths, PAUSE_S_MAX))
                self._deaths += 1

    async def _converse(self, process: asyncio.subprocess.Process) -> None:
        sent: PolicyChoice | None = None
        await self._send(process, self.estimation)
        while True:
            while not self._questions and not self._stopping:
                self._work.clear()
                if sent is None:
                    sent = await self._send_choice(process, self.choice)  # it warms up before the first request
                await _either(self._work.wait(), process.wait())
                if process.returncode is not None:
                    raise asyncio.IncompleteReadError(b"", None)
            if self._stopping:
                return
            if sent != self.choice:
                sent = await self._send_choice(process, self.choice)
            question, began_s = self._questions[0], time.monotonic()
            self._attempts += 1
            await self._send(process, question)
            answer, self.shadow_prices = await asyncio.wait_for(_read(process), self.timeout_s)
            self._questions.popleft()
            self._attempts = self._deaths = 0
            self._answered(answer, time.monotonic() - began_s)

    async def _send_choice(self, process: asyncio.subprocess.Process, choice: PolicyChoice) -> PolicyChoice:
        await self._send(process, choice)
        return choice

    async def _send(self, process: asyncio.subprocess.Process, message: object) -> None:
        assert process.stdin is not None, "the engine has a pipe"
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        await asyncio.wait_for(send(process.stdin, data), self.timeout_s)

    def _failed(self, error: Exception) -> None:
        if self._stopping:
            return
        why = f"no answer within {self.timeout_s:g} s" if isinstance(error, TimeoutError) else "its process died"
        logger.error("engine failed", extra={"detail": why, "attempts": self._attempts})
        if self._attempts >= ATTEMPTS_MAX:
            self._attempts = 0
            self._answered(_failure(self._questions.popleft(), why), 0.0)


def _failure(question: Question, why: str) -> Answer:
    if isinstance(question, SolveAllocation):
        return AllocationFailed(question.epoch, f"the engine failed: {why}")
    if isinstance(question, LearnRates):
        return RatesLearned()
    return ThroughputEstimated(question.jobs, np.full((len(question.jobs), len(question.gpu_types)), np.nan))


async def _read(process: asyncio.subprocess.Process) -> tuple[Answer, dict[str, float]]:
    assert process.stdout is not None, "the engine has a pipe"
    size = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))[0]
    if size > ANSWER_BYTES_MAX:
        raise OSError(f"an answer of {size} bytes")
    answer, prices = pickle.loads(await process.stdout.readexactly(size))
    assert isinstance(answer, Answer), f"not an answer: {answer!r}"
    return answer, prices


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()

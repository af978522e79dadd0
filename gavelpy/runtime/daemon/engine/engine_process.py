"""Runs the engine in a separate process, so that solving delays no heartbeat and a policy cannot crash the scheduler.

One request is pending at a time. If the process dies or times out, it is replaced and the request is repeated once;
after the second failure the request fails, and the allocation in force stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gavelpy.estimator.learning_loop import LearnRates, RatesLearned
from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, ThroughputEstimated
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.runtime.daemon.engine.policy_choice import EstimationChoice, PolicyChoice
from gavelpy.runtime.daemon.engine.worker_process import WorkerFailed, WorkerProcess

logger = logging.getLogger(__name__)
Question = SolveAllocation | EstimateThroughput | LearnRates
Answer = AllocationSolved | AllocationFailed | ThroughputEstimated | RatesLearned
WORKER = "gavelpy.runtime.daemon.engine.engine_worker"
ATTEMPTS_MAX = 2
PAUSE_S = 0.5  # before a dead process is replaced; doubled at each consecutive failure
PAUSE_S_MAX = 10.0


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
        self.shadow_prices: dict[str, float] = {}  # of one more GPU, by type, in units of the policy's objective
        self.resource_prices: dict[tuple[str, str], float] = {}  # of more CPU cores or memory, by type and resource
        self._answered = answered
        self._questions: deque[Question] = deque()
        self._attempts = 0  # for the first of them
        self._failures = 0  # consecutive, without an answer
        self._work = asyncio.Event()
        self._stopping = False
        self._worker = WorkerProcess()

    @property
    def process_id(self) -> int:
        """Process id; 0 = no process."""
        return self._worker.process_id

    @property
    def restarts(self) -> int:
        """Number of times that the process was replaced."""
        return max(self._worker.starts - 1, 0)

    def ask(self, question: Question) -> None:
        """Sends a request; `answered` receives the answer. Replaces a pending request of the same type."""
        first, *rest = self._questions or (None,)
        kept = [first] if first is not None else []
        kept += [other for other in rest if type(other) is not type(question)]
        self._questions = deque([*kept, question])
        self._work.set()

    def change(self, choice: PolicyChoice) -> None:
        """Changes the policy from the next request."""
        self.choice = replace(choice, round_s=self.choice.round_s, move_lag_s=self.choice.move_lag_s)

    def plan_within(self, settings: MechanismSettings) -> None:
        """Sets the mechanism's settings that the policy plans with, from the next request."""
        self.choice = self.choice.within(settings)

    def stop(self) -> None:
        """Ends the process; `run` returns."""
        self._stopping = True
        self._work.set()
        self._worker.kill()

    async def run(self) -> None:
        """Runs until stopped."""
        while not self._stopping:
            try:
                await self._converse()
            except WorkerFailed as error:
                await self._failed(error)

    async def _converse(self) -> None:
        if not self._questions:
            self._work.clear()
            await self._call("prepare")
            await self._work.wait()
        while self._questions and not self._stopping:
            question, began_s = self._questions[0], time.monotonic()
            self._attempts += 1
            answer, self.shadow_prices, self.resource_prices = await self._call("answer", question)
            self._questions.popleft()
            self._attempts = self._failures = 0
            self._answered(answer, time.monotonic() - began_s)

    async def _call(self, function: str, *arguments: object) -> Any:  # Any: what the function returns
        return await self._worker.call(
            f"{WORKER}:{function}", self.choice, self.estimation, *arguments, timeout_s=self.timeout_s
        )

    async def _failed(self, error: WorkerFailed) -> None:
        if self._stopping:
            return
        logger.error("engine failed", extra={"detail": str(error), "attempts": self._attempts}, exc_info=error)
        if self._attempts >= ATTEMPTS_MAX:
            self._attempts = 0
            self._answered(_failure(self._questions.popleft(), str(error)), 0.0)
        await asyncio.sleep(min(PAUSE_S * 2**self._failures, PAUSE_S_MAX))
        self._failures += 1


def _failure(question: Question, why: str) -> Answer:
    if isinstance(question, SolveAllocation):
        return AllocationFailed(question.epoch, f"the engine failed: {why}")
    if isinstance(question, LearnRates):
        return RatesLearned()
    return ThroughputEstimated(question.jobs, np.full((len(question.jobs), len(question.gpu_types)), np.nan))

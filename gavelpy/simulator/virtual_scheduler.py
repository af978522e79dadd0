"""A core, an engine and a virtual cluster in virtual time: the part that simulations and forecasts share."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

import numpy as np

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.mechanism.commands import (
    Command,
    EstimateThroughput,
    KillLease,
    QueryAgent,
    Report,
    RoundPlan,
    SolveAllocation,
)
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationFailed,
    AllocationSolved,
    Event,
    NodeDraining,
    NodeJoined,
    NodeLost,
    ThroughputEstimated,
    WakeupDue,
)
from gavelpy.simulator.cluster import VirtualCluster

if TYPE_CHECKING:
    from gavelpy.simulator.conditions.run import DelayedAnswers

NUMBA_IN_USE = "gavelpy.solve.prices.numba_kernels"  # loaded for large problems: see wakeup_kernels
MUCH_WORK = 1_000_000  # jobs, summed over wake-ups, after which the time to load numba is soon regained
NodeEvent = NodeJoined | NodeLost | NodeDraining


class VirtualScheduler:
    """Owns the core. Set `agents` before the first event that makes the core grant a lease."""

    agents: VirtualCluster | None
    answers: DelayedAnswers | None = None  # None: allocations arrive at once

    def __init__(self, core: SchedulerCore, engine: Engine, now_s: float = 0.0) -> None:
        self.core, self.engine, self.now_s = core, engine, now_s
        self.agents = None
        self._work = 0  # jobs, summed over wake-ups

    @property
    def next_s(self) -> float:
        """Time of the next event of the cluster or wake-up of the core; infinite if there is none."""
        cluster_s = math.inf if self.agents is None else self.agents.next_s
        answer_s = math.inf if self.answers is None else self.answers.next_s
        return min(cluster_s, self.wakeup_s, answer_s)

    @property
    def wakeup_s(self) -> float:
        """When the core is woken next."""
        return self.core.wakeup_s

    def advance(self) -> bool:
        """Handles the events of the cluster up to now and a wake-up that is due; returns whether there were events."""
        assert self.agents is not None, "time passes on a cluster"
        has_events = self.agents.next_s <= self.now_s
        while self.agents.next_s <= self.now_s:
            for event in self.agents.pop():
                self.handle(event)
        while self.answers is not None and self.answers.next_s <= self.now_s:
            self.handle(self.answers.pop())
        if self.wakeup_s <= self.now_s:
            self._compile()
            if self.core.needs_progress(self.now_s):
                agents, now_s = self.agents, self.now_s
                for report in (agents.reported_metrics(now_s), agents.progress(now_s), agents.checkpoints(now_s)):
                    if report is not None:
                        self.handle(report)
            self.handle(self.before_wakeup())
        return has_events

    def handle(self, event: Event) -> None:
        """Applies one event and executes the commands that follow from it."""
        if self.agents is not None and isinstance(event, NodeLost):
            saved = self.agents.checkpoints(self.now_s)
            if saved is not None:
                self.handle(saved)
        self.observe(event)
        if self.agents is not None and isinstance(event, NodeLost):
            self.agents.lose(self.core.pool.on(event.node_id), self.now_s)
        commands = self.core.handle(event, self.now_s)
        self.applied(event, commands)
        if self.agents is not None and isinstance(event, NodeJoined):
            self._join(self.agents)
        for command in sorted(commands, key=lambda one: isinstance(one, SolveAllocation)):
            self._execute(command)  # answers to requests come later than the plans of the same instant

    def observe(self, event: Event) -> None:
        """Called with each event before the core."""

    def applied(self, event: Event, commands: Sequence[Command]) -> None:
        """Called with each event after the core, and with the commands that follow from it."""

    def before_wakeup(self) -> WakeupDue:
        """Called when a wake-up is due; returns it."""
        return WakeupDue()

    def solve(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        """The allocation, or why there is none."""
        return self.engine.solve(question)

    def estimate(self, request: EstimateThroughput) -> ThroughputEstimated:
        """The rates of jobs that were submitted without any."""
        return self.engine.estimate(request)

    def _compile(self) -> None:
        """Has the core use kernels once numba is loaded for the policy, or there is enough work to load it for."""
        if self.core.jobs.kernels is None:
            self._work += len(self.core.jobs.active)
            if self._work > MUCH_WORK or NUMBA_IN_USE in sys.modules:
                from gavelpy.simulator.wakeup_kernels import WakeupKernels

                self.core.jobs.kernels = WakeupKernels()

    def _execute(self, command: Command) -> None:
        match command:
            case SolveAllocation():
                answer = self.solve(command)
                if self.answers is None:
                    self.handle(answer)
                else:
                    self.answers.send(answer, len(command.jobs), self.now_s)
            case RoundPlan():
                assert self.agents is not None, "plans are for a cluster"
                self.agents.apply(command, self.now_s)
            case EstimateThroughput():
                self.handle(self.estimate(command))
            case KillLease():
                assert self.agents is not None, "leases are on a cluster"
                self.agents.kill(command, self.now_s)
            case Report() | QueryAgent():  # for people, and for agents that outlive a scheduler
                pass
            case _:
                assert_never(command)

    def _join(self, agents: VirtualCluster) -> None:
        gpu_type_of = self.core.pool.type_of
        if np.any(gpu_type_of >= agents.true_rate.shape[1]):
            raise InvalidInput(f"a node that joins later must have a GPU type of {self.core.pool.gpu_types[:-1]}")
        agents.add_gpus(gpu_type_of[len(agents.gpu_type_of) :].copy())

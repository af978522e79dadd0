"""Short builders of a core with a lease table, and of the reports that nodes send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gavelpy.mechanism import sizes
from gavelpy.mechanism.commands import Command, KillLease, RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, Event, JobSubmitted, LeaseEnded, NodeJoined, Outcome, WakeupDue
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.job import JobId, JobSpec, NodeId
from gavelpy.runtime.daemon.leases.lease import Order, PartReport, Patience, Phase, Wish
from gavelpy.runtime.daemon.leases.table import LeaseTable

PATIENCE = Patience(overlap_s=20.0, unsaved_overlap_s=300.0, grace_s=10.0, margin_s=5.0)


class Bench:
    """A core with a lease table; its requests are answered at once, with equal shares for all, on the largest size."""

    def __init__(self, *nodes: tuple[str, int], **settings: Any) -> None:
        self.core = SchedulerCore(MechanismSettings(**{"round_s": 100.0, **settings}))
        self.table = LeaseTable(self.core, PATIENCE)
        self.now_s = 0.0
        self.together: tuple[int, int] | None = None  # the jobs that the policy co-locates; the others get nothing
        for node, gpus in nodes:
            self.tell(NodeJoined(NodeId(node), "v100", gpus))

    def tell(self, event: Event) -> None:
        """Applies an event and executes the resulting commands."""
        commands = self.core.handle(event, self.now_s)
        check(self.core)
        if isinstance(event, LeaseEnded):
            self.table.applied(event)
        for command in commands:
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case RoundPlan():
                self.table.plan(command)
            case KillLease():
                self.table.kill(command.lease)
            case SolveAllocation():
                if self.together is not None:
                    pair = {"pair_jobs": np.array([self.together]), "pair_gpu_type": np.array([0])}
                    none = np.zeros(0, dtype=np.int64)
                    self.tell(AllocationSolved(command.epoch, none, none, np.zeros(0), **pair, pair_share=np.ones(1)))
                    return
                rows = command.jobs
                share = np.full(len(rows), 1.0 / len(rows))
                types = np.zeros(len(rows), dtype=np.int64)
                largest = sizes.largest(self.core.jobs, rows) if self.core.jobs.sizes else types[:0]
                self.tell(AllocationSolved(command.epoch, rows, types, share, sizes=largest))

    def submit(self, *names: str, gpus: int = 1, **options: Any) -> None:
        """Submits jobs that run for about a day."""
        for name in names:
            self.tell(JobSubmitted(JobSpec(JobId(name), 1e6, gpus=gpus, rates_steps_per_s={"v100": 10.0}, **options)))

    def wake(self, now_s: float | None = None) -> None:
        """Sends WakeupDue if the core's timer is due."""
        self.now_s = self.now_s if now_s is None else now_s
        self.settle()
        if self.core.wakeup_s <= self.now_s:
            self.tell(WakeupDue())

    def settle(self) -> list[Event]:
        """Applies all pending events of the table; returns them."""
        told: list[Event] = []
        while self.table.has_events:
            events = self.table.drain()
            told += events
            for event in events:
                self.tell(event)
        return told

    def say(self, node: str, *reports: PartReport, **options: Any) -> list[Event]:
        """Delivers a node's report of all its leases."""
        self.table.reported(NodeId(node), reports, self.now_s, **options)
        return self.settle()

    def orders(self, node: str) -> list[Order]:
        """The orders for a node."""
        return self.table.orders(NodeId(node))

    def wishes(self, node: str) -> dict[int, Wish]:
        """The kinds of these orders, by lease."""
        return {order.lease: order.wish for order in self.orders(node)}


def part(lease: int, job: int, phase: Phase = Phase.RUNNING, **fields: Any) -> PartReport:
    """A report about one lease."""
    return PartReport(lease, job, phase, **fields)


def ended(lease: int, job: int, outcome: Outcome = Outcome.STOPPED, **fields: Any) -> PartReport:
    """A report that the lease has ended."""
    return PartReport(lease, job, Phase.ENDED, outcome=outcome, **fields)


def names(events: Sequence[Event]) -> list[str]:
    """The kinds of the events."""
    return [type(event).__name__ for event in events]

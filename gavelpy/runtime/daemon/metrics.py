"""Prometheus metrics of the scheduler.

Counters and histograms are updated as events are applied, and start at zero with each start of the scheduler; gauges
are read from the core at each scrape (`state_metrics`). Jobs are no labels, because their number is unbounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from gavelpy import __version__
from gavelpy.journal.codec import journal_name
from gavelpy.mechanism.commands import RoundPlan
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, Event, LeaseEnded, LeaseStarted, Outcome
from gavelpy.mechanism.lifecycle import JobState, NodeState
from gavelpy.runtime.daemon.job_history import JobHistory
from gavelpy.runtime.daemon.leases.lease import Lease
from gavelpy.runtime.daemon.state_metrics import OTHER, ScrapeReading, StateMetrics

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

_NAMES = {"commit": "journal_commit", "plan": "round_planning"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_WAITS_S = (1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
_PATHS_MAX = 20  # labels of the solver's path; further ones count as other
PREEMPTIONS = ("other_jobs", "higher_class", "move", "drain", "node_lost")
_LOST = NodeState.LOST
_OVER = (JobState.FINISHED, JobState.CANCELLED)


class SchedulerMetrics:
    """Metrics in their own registry, so that two schedulers in one process are independent."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the series of counters
        self.registry = registry = CollectorRegistry()
        build = Gauge("gavel_build_info", "Version of the scheduler.", ["version"], registry=registry)
        build.labels(__version__).set(1)
        self._events = Counter("gavel_events", "Events applied, by kind.", ["kind"], registry=registry)
        self._of_kind: dict[type[Event], Counter] = {}
        self.heartbeats = Counter("gavel_heartbeats", "Messages of agents.", registry=registry)
        self._preemptions = Counter("gavel_preemptions", "Leases taken back before their jobs were over, by reason.",
                                    ["reason"], registry=registry)  # fmt: skip
        self._ends = Counter("gavel_leases_ended", "Leases that ended, by outcome.", ["outcome"], registry=registry)
        self._lost_steps = Counter("gavel_lost_steps", "Steps that jobs must repeat, as no checkpoint has them.",
                                   registry=registry)  # fmt: skip
        for reason in PREEMPTIONS:
            self._preemptions.labels(reason)
        for outcome in Outcome:
            self._ends.labels(outcome.name.lower())
        self._waits = Histogram("gavel_wait_seconds", "Time from the submission of a job to its first start.",
                                buckets=_WAITS_S, registry=registry)  # fmt: skip
        texts = {
            "commit": "Time to write a batch of events to the journal.",
            "plan": "Time the core and the lease table took over one wakeup.",
            "snapshot": "Time to write a snapshot.",
        }
        self._seconds = {
            what: Histogram(f"gavel_{_NAMES.get(what, what)}_seconds", text, buckets=_SECONDS, registry=registry)
            for what, text in texts.items()
        }
        self._solves = Histogram("gavel_solve_seconds", "Time from a request to the engine's answer, by the solver's "
                                 "path.", ["path"], buckets=_SECONDS, registry=registry)  # fmt: skip
        self._paths: set[str] = set()
        self._state = StateMetrics()

    def measured(self, what: str, seconds: float) -> None:
        """Records the duration of a commit, plan or snapshot."""
        self._seconds[what].observe(seconds)

    def answered(self, answer: object, seconds: float) -> None:
        """Records the duration of an answer of the engine."""
        match answer:
            case AllocationSolved():
                label = _short(answer.path)
            case AllocationFailed():
                label = "failed"
            case _:
                label = "estimate"
        if label not in self._paths and len(self._paths) >= _PATHS_MAX:
            label = OTHER
        self._paths.add(label)
        self._solves.labels(label).observe(seconds)

    def count_event(self, event: Event) -> None:
        """An event was applied."""
        kind = type(event)
        if kind not in self._of_kind:
            self._of_kind[kind] = self._events.labels(journal_name(event))
        self._of_kind[kind].inc()

    def leases_started(self, event: LeaseStarted, core: SchedulerCore, history: JobHistory, now_s: float) -> None:
        """Records how long jobs waited that started for the first time. The history has the event."""
        for job in event.jobs.tolist():
            if history.starts(job) == 1:
                self._waits.observe(max(now_s - float(core.jobs.by_serial.submitted_s[job]), 0.0))

    def leases_ended(self, event: LeaseEnded, core: SchedulerCore, leases: Iterable[Lease | None]) -> None:
        """Counts the end of leases and the steps that are lost with them. The core has applied the event."""
        outcome = Outcome(event.outcome)
        self._ends.labels(outcome.name.lower()).inc(len(event.jobs))
        if outcome is Outcome.LOST:
            alive = core.jobs.by_serial.state[event.jobs] <= JobState.RUNNING
            self._preemptions.labels("node_lost").inc(int(alive.sum()))
        for lease in leases:
            if lease is not None and core.jobs.by_serial.state[lease.job] not in _OVER:
                self._lost_steps.inc(max(lease.steps_done - float(core.jobs.by_serial.steps_saved[lease.job]), 0.0))

    def planned(self, plan: RoundPlan, core: SchedulerCore) -> None:
        """Counts the leases that a plan takes back, by reason: their GPUs drain, the job moves, or others need them."""
        if not len(plan.revoke_jobs):
            return
        pool = core.pool
        first = core.jobs.by_serial.stopping_first[plan.revoke_jobs]
        is_draining = np.array([state is NodeState.DRAINING for state in pool.node_state], dtype=np.bool_)
        drains = (first >= 0) & is_draining[pool.node_of[first]]
        moves = ~drains & np.isin(plan.revoke_jobs, plan.grant_jobs)
        self._preemptions.labels("drain").inc(int(drains.sum()))
        self._preemptions.labels("move").inc(int(moves.sum()))
        outranked = ~drains & ~moves & (core.jobs.by_serial.taken_by[plan.revoke_jobs] >= 0)
        self._preemptions.labels("higher_class").inc(int(outranked.sum()))
        self._preemptions.labels("other_jobs").inc(int((~drains & ~moves & ~outranked).sum()))

    def read(self, reading: ScrapeReading) -> bytes:
        """The metrics in Prometheus' text format."""
        state = "".join(family.lines for family in self._state.families(reading))
        return generate_latest(self.registry) + state.encode()


def _short(path: str) -> str:
    """The last method of a certificate's path without counts: `prices` for `prices after classes+prices x 3`."""
    return re.sub(r"\s+x \d+", "", path.partition(" after ")[0])[:60] or OTHER


def scraped(scheduler: Scheduler) -> bytes:
    """The metrics of a scheduler now."""
    return scheduler.metrics.read(_reading(scheduler))


def _reading(scheduler: Scheduler) -> ScrapeReading:
    now_s, pool = scheduler.now_s(), scheduler.core.pool
    living = {node_id for node_id, state in zip(pool.node_ids, pool.node_state, strict=True) if state is not _LOST}
    return ScrapeReading(
        core=scheduler.core,
        now_s=now_s,
        leases=len(scheduler.leases.leases),
        engine_restarts=scheduler.engine.restarts,
        incarnation=scheduler.incarnation,
        is_ready=scheduler.is_ready.is_set(),
        started_at_s=scheduler.wall_s(scheduler.began_s),
        report_age_s=max((node.age_s(now_s) for node in scheduler.nodes if node.node_id in living), default=0.0),
    )

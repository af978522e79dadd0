"""Applies what people order: submit, cancel, hold, release, requeue and change of class of jobs; other settings.

Orders on jobs that are over change nothing. An order takes effect in the next decision of the core: it marks the
allocation as out of date where the jobs that compete for GPUs change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

import numpy as np

from gavelpy.mechanism import (
    booking,
    competition,
    consolidation,
    eligibility,
    gpu_memory,
    non_preemptible,
    priority_classes,
    reservations,
    sizes,
    windows,
)
from gavelpy.mechanism.commands import Command, KillLease
from gavelpy.mechanism.domains import can_run_somewhere
from gavelpy.mechanism.eligibility import Hold
from gavelpy.mechanism.events import JobCancelled, JobsHeld, JobsReleased, JobsRequeued, JobSubmitted, PriorityChanged
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobFact
from gavelpy.mechanism.settings import MechanismSettings

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

JobOrder = JobSubmitted | JobCancelled | JobsHeld | JobsReleased | JobsRequeued | PriorityChanged


def apply(core: SchedulerCore, order: JobOrder) -> list[Command]:
    """Applies one order and returns the commands for shells."""
    match order:
        case JobSubmitted():
            _submitted(core, order)
            return []
        case JobCancelled():
            return _cancelled(core, order.job)
        case JobsHeld():
            if len(eligibility.hold(core.jobs, order.jobs, Hold(order.by_admin))):
                core.disturb()
            return []
        case JobsReleased():
            if len(rows := eligibility.release(core.jobs, order.jobs, Hold(order.by_admin))):
                windows.released(core, rows)
                core.disturb()
            return []
        case JobsRequeued():
            rows = np.intersect1d(order.jobs, core.jobs.leased)
            rows = rows[~non_preemptible.is_finishing(core.jobs, rows)]  # their work is done: it would be repeated
            if not len(rows):
                return []
            core.disturb()
            plan = core.revoked(rows)
            core.end_idle_round()
            return [plan]
        case PriorityChanged():
            jobs = core.jobs
            for row in np.intersect1d(order.jobs, jobs.active).tolist():
                jobs.specs[row] = replace(jobs.specs[row], priority=order.priority)
            priority_classes.rank_jobs(jobs, core.settings)
            core.disturb()
            return []
        case _:
            assert_never(order)


def blockers_ended(core: SchedulerCore) -> None:
    """Makes jobs eligible that come after jobs which are over now, and cancels those that can never start."""
    while core.jobs.ended_blockers:
        any_ready, never = eligibility.blockers_ended(core.jobs)
        _cancel_unmet(core, never)
        if any_ready:
            core.disturb()


def _cancel_unmet(core: SchedulerCore, never: list[tuple[int, int]]) -> None:
    """Cancels jobs that can never start, each with the job that it comes after. They have no leases."""
    for row, other in never:
        if core.jobs.state[row] <= LAST_ALIVE:
            core.jobs.change(np.array([row]), JobFact.CANCELLED)
            core.unmet_jobs.append((row, other))


def reconfigure(core: SchedulerCore, settings: MechanismSettings) -> None:
    """Puts other settings of the core in force."""
    jobs = core.jobs
    core.settle()  # books the time up to now under the old settings
    core.settings = core.leases.settings = settings
    booking.limit_lag(jobs, settings.rules.lag_max_s(settings))  # lags count up to the new limit
    priority_classes.rank_jobs(jobs, settings)
    if not settings.lease_min_s and jobs.any_held:
        reservations.release(jobs, slice(jobs.count))
    if jobs.any_gated:
        eligibility.shorten(jobs, settings, core.now_s)
        core.retry_due_s = eligibility.due_s(jobs, core.now_s)
    if not settings.consolidate_s:
        consolidation.end_patience(jobs, core.now_s)
    gpu_memory.part(core)
    core.disturb()


def _submitted(core: SchedulerCore, order: JobSubmitted) -> None:
    row = core.jobs.add(order.spec, core.pool.gpu_types, core.now_s)
    priority_classes.rank_jobs(core.jobs, core.settings, row)
    if order.spec.reservation:
        windows.assign(core, row)
    if received_s := core.settings.rules.newcomer_received_s(core.settings):
        core.jobs.received_s[row] = received_s
        core.jobs.lists.time_passes(row)
    begin_s = float(core.jobs.begin_at_s[row])
    if begin_s > core.now_s:
        core.retry_due_s = min(core.retry_due_s, begin_s)
    if order.spec.after_ok or order.spec.after_any:
        _cancel_unmet(core, eligibility.add_dependencies(core.jobs, row))
    if not order.spec.rates_steps_per_s or (order.spec.sizes and sizes.any_unknown(core.jobs, row)):
        core.throughput.want([row])
        core.attention_s = core.now_s
    if can_run_somewhere(core.jobs, core.pool, row) and not competition.is_behind(core):
        core.disturb()


def _cancelled(core: SchedulerCore, job: int) -> list[Command]:
    jobs = core.jobs
    if jobs.state[job] > LAST_ALIVE:
        return []
    row, held = np.array([job]), {int(jobs.stopping[job]), int(jobs.lease[job])} - {NONE}
    if jobs.lease[job] >= 0:
        core.leases.revoke(row, core.now_s)
    jobs.change(row, JobFact.CANCELLED)
    core.disturb()
    core.end_idle_round()
    return [KillLease(job, lease) for lease in sorted(held)]

"""Ends losing jobs of apps early: compares the jobs of a bracket at each rung, as synchronous successive halving does.

A job reaches a rung when it has done, saved or reported a metric at so many steps. If other jobs of its bracket have
not reached it yet, its lease is stopped in order, and it competes for no GPUs until all have, or are over. Then jobs
are ranked by their metric: the last value reported up to the rung, else the first one after it; a job that reported
none ranks last; equal values rank by order of submission. The best `keep` continue from their checkpoints, the others
end as cancelled, with the reason.

An app may limit this wait (`rung_wait_max_s`). So long after the first job of a bracket has come to a rung, the next
wake-up decides it. Jobs that have not come rank behind all that have, those with more steps first; those among the
best `keep` run on. After a restart of the scheduler, jobs have at least a round to report.

All that is compared comes from events of the journal, so a restarted scheduler replays the same decisions, and one that
died between a report and the decision makes it when it replays the report.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import non_preemptible
from gavelpy.mechanism.app_table import next_rung, role_of
from gavelpy.mechanism.commands import Command, KillLease
from gavelpy.mechanism.events import NO_INTS, CheckpointSaved, LeaseEnded, MetricsReported, ProgressReported
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import JobFact
from gavelpy.model.apps import AppRole, Direction
from gavelpy.model.arrays import Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore
    from gavelpy.mechanism.jobs import JobTable

MOVES = (CheckpointSaved, LeaseEnded, MetricsReported, ProgressReported)
_NAMES = {"successive_halving": "successive halving", "hyperband": "HyperBand"}


def advance(core: SchedulerCore, rows: Ints = NO_INTS) -> list[Command]:
    """Takes brackets further: those that are marked, and those of these jobs, on which one of `MOVES` reports."""
    table = core.jobs.apps
    come: list[int] = []
    for row in dict.fromkeys(rows.tolist()):
        if row in table.members and _arrives(core, row):
            come.append(row)
            table.touched[table.members[row]] = None
    commands: list[Command] = []
    while table.touched:
        key = next(iter(table.touched))
        del table.touched[key]
        if key in table.rungs and table.arrived[key] == table.living[key]:
            commands += _decided(core, key)
    return [*commands, *_stopped(core, [row for row in come if row in table.at_rung])]


def end_waits(core: SchedulerCore) -> list[Command]:
    """Decides the rungs at which jobs have waited as long as their apps allow."""
    table = core.jobs.apps
    due = [key for key, due_s in table.due_s.items() if due_s <= core.now_s]
    return [command for key in due for command in _decided(core, key)]


def _arrives(core: SchedulerCore, row: int) -> bool:
    """Whether a member has newly come to its rung, which is booked."""
    jobs = core.jobs
    table, rung, role = jobs.apps, next_rung(jobs, row), role_of(jobs, row)
    if rung is None or row in table.at_rung or _steps(jobs, row, role) < rung.steps:
        return False
    due_s = core.now_s + role.rung_wait_max_s if role.rung_wait_max_s else math.inf
    table.arrive(row, table.curve(row, role.metric).at(rung.steps), due_s)
    jobs.any_gated = True
    return True


def _decided(core: SchedulerCore, key: str) -> list[Command]:
    """Ends the losers of a bracket at its rung. Nothing before the whole app was submitted."""
    jobs, table = core.jobs, core.jobs.apps
    rows = [row for row, bracket in table.members.items() if bracket == key]
    role = role_of(jobs, rows[0])
    if jobs.ids.next_serial < int(key.partition("/")[0]) + role.jobs:
        if table.due_s.get(key, math.inf) <= core.now_s:
            table.due_s[key] = core.now_s + role.rung_wait_max_s
        return []
    rung = role.rungs[table.rungs[key]]
    ranked = sorted(rows, key=lambda row: _order(jobs, row, role))
    commands: list[Command] = []
    for place, row in enumerate(ranked[rung.keep :], rung.keep + 1):
        table.ended[row] = (
            f"ended by {_NAMES[role.schedule]}: rank {place} of {len(rows)} at {rung.steps:g} steps"
            f"{_in_words(role, table.at_rung.get(row))}"
        )
        commands += _ended(core, row)
    core.disturb()
    table.due_s.pop(key, None)
    is_last = table.rungs[key] + 1 == len(role.rungs)
    table.rungs[key] += 1
    for row in sorted(ranked[: rung.keep]):
        table.depart(row)
        if is_last:
            table.leave(row)
        elif _arrives(core, row):  # its steps are beyond the next rung already
            table.touched[key] = None
            commands += _stopped(core, [row])
    return commands


def _steps(jobs: JobTable, row: int, role: AppRole) -> float:
    """The furthest step that is known of a job."""
    reported = jobs.apps.curve(row, role.metric).steps[-1:]
    return max(float(jobs.steps_done[row]), float(jobs.steps_saved[row]), *reported)


def _order(jobs: JobTable, row: int, role: AppRole) -> tuple[int, float, int]:
    """Best first: jobs with a value at the rung, those there without one, and those that have not come."""
    value = jobs.apps.at_rung.get(row)
    if value is None:
        return 2, -_steps(jobs, row, role), row
    sign = 1.0 if role.direction is Direction.MIN else -1.0
    return (1, 0.0, row) if math.isnan(value) else (0, sign * value, row)


def _stopped(core: SchedulerCore, rows: list[int]) -> list[Command]:
    """Stops the leases of jobs that wait at a rung; a job that has done its last step ends by itself."""
    jobs = core.jobs
    leased = np.array([row for row in rows if jobs.lease[row] >= 0], dtype=np.int64)
    if len(leased):
        leased = leased[~non_preemptible.is_finishing(jobs, leased)]
    if not len(leased):
        return []
    core.disturb()
    plan = core.revoked(leased)
    core.end_idle_round()
    return [plan]


def _ended(core: SchedulerCore, row: int) -> list[Command]:
    """Ends a job that lost, with its lease."""
    jobs, at = core.jobs, np.array([row])
    held = {int(jobs.stopping[row]), int(jobs.lease[row])} - {NONE}
    if jobs.lease[row] >= 0:
        core.leases.revoke(at, core.now_s)
    jobs.change(at, JobFact.CANCELLED)
    core.unmet_jobs.append((row, row))
    core.end_idle_round()
    return [KillLease(row, lease) for lease in sorted(held)]


def _in_words(role: AppRole, value: float | None) -> str:
    if value is None:
        return f", which it did not reach within {role.rung_wait_max_s:g} s of the first job"
    return f", with no {role.metric} reported" if math.isnan(value) else f", {role.metric} {value:.6g}"

"""Ends losing jobs of apps early: compares the jobs of a bracket at each rung, as synchronous successive halving does.

A job reaches a rung when it has done, saved or reported a metric at so many steps. If other jobs of its bracket have
not reached it yet, its lease is stopped in order, and it competes for no GPUs until all have, or are over. Then jobs
are ranked by their metric: the last value reported up to the rung, else the first one after it; a job that reported
none ranks last; equal values rank by order of submission. The best `keep` continue from their checkpoints, the others
end as cancelled, with the reason.

All that is compared comes from events of the journal, so a restarted scheduler replays the same decisions, and one that
died between a report and the decision makes it when it replays the report.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import non_preemptible
from gavelpy.mechanism.app_table import role_of
from gavelpy.mechanism.commands import Command, KillLease
from gavelpy.mechanism.events import (
    CheckpointSaved,
    IdsReserved,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    MetricsReported,
    ProgressReported,
)
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import JobFact
from gavelpy.model.apps import AppRole, Direction

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore
    from gavelpy.mechanism.jobs import JobTable

MOVES = (
    CheckpointSaved, IdsReserved, JobCancelled, JobSubmitted, LeaseEnded, MetricsReported, ProgressReported,
)  # fmt: skip
_NAMES = {"successive_halving": "successive halving", "hyperband": "HyperBand"}


def advance(core: SchedulerCore) -> list[Command]:
    """Takes the brackets as far as their jobs have come, after one of the events `MOVES`."""
    brackets: dict[str, list[int]] = {}
    for row, key in core.jobs.apps.members.items():
        brackets.setdefault(key, []).append(row)
    for key in core.jobs.apps.rungs.keys() - brackets.keys():
        del core.jobs.apps.rungs[key]  # all its jobs are over
    commands: list[Command] = []
    for key, rows in brackets.items():
        commands += _advance(core, key, rows)
    return commands


def _advance(core: SchedulerCore, key: str, rows: list[int]) -> list[Command]:
    jobs, table = core.jobs, core.jobs.apps
    commands: list[Command] = []
    role = role_of(jobs, rows[0])
    is_complete = jobs.ids.next_serial >= int(key.partition("/")[0]) + role.jobs
    while True:
        rung = role.rungs[table.rungs[key]]
        for row in rows:
            if row not in table.at_rung and _steps(jobs, row, role) >= rung.steps:
                table.at_rung[row] = table.curve(row, role.metric).at(rung.steps)
                jobs.any_gated = True
        if not is_complete or any(row not in table.at_rung for row in rows):
            return commands + _stopped(core, [row for row in rows if row in table.at_rung])
        ranked = sorted(rows, key=lambda row: _order(table.at_rung[row], row, role))
        for place, row in enumerate(ranked[rung.keep :], rung.keep + 1):
            table.ended[row] = (
                f"ended by {_NAMES[role.schedule]}: rank {place} of {len(rows)} at {rung.steps:g} steps"
                f"{_in_words(role.metric, table.at_rung[row])}"
            )
            commands += _ended(core, row)
        rows = sorted(ranked[: rung.keep])
        for row in rows:
            del table.at_rung[row]
        core.disturb()
        table.rungs[key] += 1
        if table.rungs[key] == len(role.rungs):
            del table.rungs[key]
            for row in rows:
                del table.members[row]
            return commands


def _steps(jobs: JobTable, row: int, role: AppRole) -> float:
    """The furthest step that is known of a job."""
    reported = jobs.apps.curve(row, role.metric).steps[-1:]
    return max(float(jobs.steps_done[row]), float(jobs.steps_saved[row]), *reported)


def _order(value: float, row: int, role: AppRole) -> tuple[bool, float, int]:
    """Best first."""
    sign = 1.0 if role.direction is Direction.MIN else -1.0
    return math.isnan(value), 0.0 if math.isnan(value) else sign * value, row


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


def _in_words(metric: str, value: float) -> str:
    return f", with no {metric} reported" if math.isnan(value) else f", {metric} {value:.6g}"

"""Grants free GPUs to waiting jobs within a round, up to its end.

In general this is a plan of all classes (see `class_planning`), which passes over the waiting jobs some twenty times.
Where GPU types and shares alone decide, a compiled step chooses in one pass, with the same result: with 10,000 waiting
jobs and an event every few seconds, nothing else costs a simulation as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import class_planning, competition, named_round, priority_classes, turn_costs
from gavelpy.mechanism.events import NO_INTS
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.planning import joined
from gavelpy.mechanism.selection import WakeupSteps, alone, select_leftover
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.taking import Chosen
from gavelpy.model.arrays import Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.commands import Command
    from gavelpy.mechanism.core import SchedulerCore


def plan(core: SchedulerCore) -> list[Command]:
    """The leases that are granted now; empty without any."""
    jobs, settings = core.jobs, core.settings
    is_ranked = bool(settings.priorities) and priority_classes.is_ranked(settings)
    free = core.pool.free_counts
    most = max(free.tolist(), default=0)
    if most or is_ranked:
        core.settle()
        if jobs.kernels is not None and _is_simple(core):
            chosen = by_share(jobs, core.pool.usable_counts, free, settings, jobs.kernels)
            return [core.granted(chosen, NO_INTS, NO_INTS)] if len(chosen.jobs) else []
        rows = competition.with_turn(core)
        rows = rows if is_ranked else rows[jobs.lease[rows] < 0]
        if is_ranked or (len(rows) and may_fill(jobs, settings, rows, most, core.question.next_round)):
            planner = core.planner
            chosen, leaving = class_planning.filled(planner, rows[core.runnable(rows)])
            return [core.granted(chosen, NO_INTS, leaving, planner)] if len(chosen.jobs) else []
    if settings.keep_unsaved:
        core.planner.reserve()
    return []


def _is_simple(core: SchedulerCore) -> bool:
    """Whether GPU types and shares alone decide: any waiting job may have any free GPUs on which it runs."""
    jobs, settings = core.jobs, core.settings
    is_limited = settings.limits_users or settings.keep_unsaved or jobs.any_gated or core.pool.limits_jobs
    return not (is_limited or core.windows or len(core.fixed)) and competition.is_by_type(core)


def by_share(jobs: JobTable, usable: Ints, free: Ints, settings: MechanismSettings, steps: WakeupSteps) -> Chosen:
    """Waiting jobs that get these free GPUs (T,): those with shares by merit, then any others if shares leave GPUs."""
    left = free.copy()
    new_weight = turn_costs.new_weight(jobs) if settings.move_lag_s else 0.0
    chosen = alone(jobs, steps.fill(jobs, usable, left, settings.move_lag_s, settings.round_s, new_weight))
    if not settings.fill_leftover or not left.any():
        return chosen
    rest = jobs.active[(jobs.lease[jobs.active] < 0) & (jobs.gpus[jobs.active] <= left.max())]
    rest = rest[~jobs.marks(chosen.jobs)[rest]] if len(chosen.jobs) else rest
    return joined(chosen, select_leftover(jobs, rest, left, move_lag_s=settings.move_lag_s))


def may_fill(jobs: JobTable, settings: MechanismSettings, waiting: Ints, free: int, named: Ints) -> bool:
    """Whether any of these jobs could get free GPUs, of which there are at most `free` of a domain."""
    fits = jobs.gpus[waiting] <= free
    if named_round.is_named(named):
        fits &= named_round.has_turn(jobs, settings, named, waiting).any(axis=1)
    elif not settings.fill_leftover and not jobs.claims.count:
        fits &= (jobs.target[waiting] > 0).any(axis=1)
    return bool(np.count_nonzero(fits))

"""Moves of running jobs within a round, to a faster GPU type of which GPUs have fallen free.

Where jobs have whole shares, as under `fifo`, the end of a job can give an older one a share of a faster type. Without
`move_within_round`, the older job moves at the end of the round. With it, it moves at once if the allocation in force
answers for the jobs that there are, enough GPUs of that type are free, and the move pays: a stop and a start cost the
job c seconds (as measured, else `REFERENCE_S`), and it has L steps left at its last report, so that

    L / (rate on the new type) + c  <  L / (rate on the old type)

A lease that no round would end stays: a protected one, a job that is not preempted, a held job. So do all leases while
GPUs are reserved for gangs, and where a plan depends on more than GPU types: co-location, sizes, classes, teams,
checkpoint directories, sets of nodes, their resources and their closeness. There jobs move at the end of the round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import competition, turn_costs
from gavelpy.mechanism.events import NO_INTS
from gavelpy.mechanism.lifecycle import IS_RUNNING
from gavelpy.mechanism.planning import ALL_TIME
from gavelpy.mechanism.taking import NONE_CHOSEN, Chosen, chosen_of
from gavelpy.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.commands import RoundPlan
    from gavelpy.mechanism.core import SchedulerCore

NOT_HELD = -1


def plan(core: SchedulerCore) -> list[RoundPlan]:
    """The moves that are made now; empty without any."""
    if not core.settings.move_within_round or not _may_move(core):
        return []
    chosen = moves(core)
    if not len(chosen.jobs):
        return []
    core.settle()
    return [core.granted(chosen, NO_INTS, chosen.jobs)]


def _may_move(core: SchedulerCore) -> bool:
    """Whether plans depend on GPU types only, and the allocation in force is up to date."""
    return core.question.is_answered and competition.is_by_type(core)


def moves(core: SchedulerCore) -> Chosen:
    """Running jobs that move to GPUs, free or left by an older one, of the type on which all of their time is."""
    jobs, free = core.jobs, core.pool.free_counts.copy()
    if not free.any():
        return NONE_CHOSEN
    rows = jobs.leased[jobs.state[jobs.leased] == IS_RUNNING]
    target = jobs.target[rows].argmax(axis=1)
    is_due = (jobs.target[rows, target] >= ALL_TIME) & (target != jobs.lease_type[rows])
    is_due &= (jobs.hold[rows] == NOT_HELD) & (jobs.stopping[rows] < 0)
    rows, target = rows[is_due], target[is_due]
    if not len(rows):
        return NONE_CHOSEN
    stays = np.concatenate([core.fixed, core.planner.protected.jobs])
    found: list[tuple[int, int, int, int]] = []
    may = saved_s(core, rows, target) > 0
    for row, kind in zip(rows[may].tolist(), target[may].tolist(), strict=True):
        gpus = jobs.gpus.item(row)
        if gpus <= free[kind] and row not in stays:
            free[kind] -= gpus
            free[jobs.lease_type[row]] += gpus  # for those after it
            found.append((row, kind, -1, gpus))
    return chosen_of(found)


def saved_s(core: SchedulerCore, rows: Ints, gpu_types: Ints) -> Floats:
    """How much sooner these leased jobs would end on these GPU types (K,), with the time that the move costs, (K,)."""
    jobs = core.jobs
    left = jobs.steps_total[rows] - jobs.steps_done[rows]
    cost_s = turn_costs.turn_s(jobs, rows)
    rate, rate_there = jobs.rate[rows, jobs.lease_type[rows]], jobs.rate[rows, gpu_types]
    is_known = (rate > 0) & (rate_there > 0)
    now_s = np.divide(left, rate, out=np.zeros(len(rows)), where=is_known)
    there_s = np.divide(left, rate_there, out=np.zeros(len(rows)), where=is_known)
    return np.asarray(now_s - there_s - np.where(cost_s > 0, cost_s, turn_costs.REFERENCE_S))

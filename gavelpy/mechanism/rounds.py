"""Computes the length of a round from the jobs that run in it."""

from __future__ import annotations

import math

import numpy as np

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.selection import Chosen
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Floats, Ints

ALL_TIME = 1 - 2.0**-20  # a share this large is all of a job's time


def is_settled(jobs: JobTable, settings: MechanismSettings, chosen: Chosen, fixed: Ints) -> bool:
    """Whether the following rounds would be equal to this one until something changes.

    Each chosen job has a share of 1 on its type and with its partner; waiting jobs have none. The leases of `fixed`
    jobs continue in any case.
    """
    if settings.settled_rounds_max == 1 or not settings.rules.may_merge_rounds:
        return False
    active = jobs.active
    waiting = active[~jobs.marks(np.concatenate([chosen.jobs, fixed]))[active]]
    return bool((_share(jobs, chosen) >= ALL_TIME).all() and not jobs.share[waiting].any())


def settled_length_s(settings: MechanismSettings, asked_s: float, now_s: float) -> float:
    """Length of a settled round: whole rounds, until the allocation requested at `asked_s` is too old."""
    if not settings.solve_at_least_every_s:
        return settings.settled_rounds_max * settings.round_s
    left_s = asked_s + settings.solve_at_least_every_s - now_s
    return settings.round_s * min(settings.settled_rounds_max, max(1, math.ceil(left_s / settings.round_s)))


def _share(jobs: JobTable, chosen: Chosen) -> Floats:
    """Share of each chosen job, alone or with its partner, (K,)."""
    share = jobs.target[chosen.jobs, chosen.domains]
    paired = np.flatnonzero(chosen.partner >= 0)
    if len(paired):
        rows = jobs.pairs.find(chosen.jobs[paired], chosen.partner[paired], chosen.domains[paired])
        share[paired] = jobs.pairs.target[rows]
    return share

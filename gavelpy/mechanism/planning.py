"""Plans the jobs of a round, or of free GPUs within a round, and whether a round may last longer than `round_s`.

Combines `selection` (by urgency), `lease_protection` (of recent leases) and `reservations` (of GPUs for gangs).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gavelpy.mechanism import lease_protection, reservations
from gavelpy.mechanism.gpus import NONE, Domains
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.non_preemptible import NonPreemptible
from gavelpy.mechanism.selection import Chosen, Reserved
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Floats, Ints

ALL_TIME = 1 - 2.0**-20  # a share this large is all of a job's time


@dataclass(frozen=True, eq=False)
class Planner:
    """The tables and rules of one plan."""

    leases: LeaseBook
    settings: MechanismSettings
    exempt: NonPreemptible  # jobs that are not preempted
    type_order: Ints  # of the queues by type; empty = in the order of type numbers
    is_solved: bool  # the allocation in force is up to date
    now_s: float

    def round(self, rows: Ints, capacity: Ints) -> tuple[Chosen, bool]:
        """Jobs among `rows` that run in the coming round, and whether they were chosen by urgency alone.

        `capacity` (L,): GPUs of each domain that may be allocated.
        """
        jobs = self.leases.jobs
        wanted = chosen = lease_protection.unguarded(self.leases, rows, capacity, self._select)
        if self.settings.lease_min_s:
            protected = lease_protection.protected_leases(self.leases, self.settings, self.now_s, self.exempt.jobs)
            chosen = lease_protection.planned(self.leases, rows, capacity, wanted, protected, self._select)
        else:
            jobs.held_type[: jobs.count] = lease_protection.NOT_HELD
        self.reserve()
        jobs.held_type[chosen.jobs] = lease_protection.NOT_HELD
        return chosen, chosen is wanted

    def filled(self, waiting: Ints) -> Chosen:
        """Waiting jobs that get free GPUs within a round."""
        pool = self.leases.pool
        free = pool.domain_counts(pool.usable & (pool.job == NONE))
        chosen = lease_protection.filled(self.leases, waiting, free, self._select)
        self.reserve()
        self.leases.jobs.held_type[chosen.jobs] = lease_protection.NOT_HELD
        return chosen

    def reserve(self) -> None:
        """Marks gangs with reserved GPUs, so that they come first when they can start."""
        if self.reserved is not None:
            reservations.mark(self.leases, self.exempt, self.reserved, is_solved=self.is_solved)

    @cached_property
    def reserved(self) -> Reserved | None:
        """GPUs that only some jobs may take."""
        return reservations.reserved(self.leases, self.settings, self.exempt, self.now_s, is_solved=self.is_solved)

    def _select(self, rows: Ints, free: Ints) -> Chosen:
        jobs, pool, settings = self.leases.jobs, self.leases.pool, self.settings
        rows = settings.rules.candidates(jobs, rows)
        if pool.any_unreachable:
            rows = rows[~jobs.marks(leases_on(jobs, pool, pool.unreachable))[rows]]
        by_domain = None if pool.shares_checkpoints else Domains(jobs, pool)
        return settings.rules.select(jobs, rows, free, settings, self.type_order, by_domain, self.reserved)


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

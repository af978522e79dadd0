"""Plans the jobs of a round, or of free GPUs within a round.

Combines `selection` (by urgency), `guard` (protects recent leases) and `reservations` (reserves GPUs for gangs).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gavelpy.mechanism import guard, reservations
from gavelpy.mechanism.domains import Domains
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.selection import Chosen, Reserved
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.unsaved import Kept
from gavelpy.model.arrays import Ints


@dataclass(frozen=True, eq=False)
class Planner:
    """The tables and rules of one plan."""

    leases: LeaseBook
    settings: MechanismSettings
    kept: Kept  # jobs that are not preempted
    type_order: Ints  # of the queues by type; empty = in the order of type numbers
    is_solved: bool  # the allocation in force is up to date
    now_s: float

    def round(self, rows: Ints, capacity: Ints) -> tuple[Chosen, bool]:
        """Jobs among `rows` that run in the coming round, and whether they were chosen by urgency alone.

        `capacity` (L,): GPUs of each domain that may be allocated.
        """
        jobs = self.leases.jobs
        wanted = chosen = guard.unguarded(self.leases, rows, capacity, self._select)
        if self.settings.lease_min_s:
            young = guard.kept(self.leases, self.settings, self.now_s, self.kept.jobs)
            chosen = guard.planned(self.leases, rows, capacity, wanted, young, self._select)
        else:
            jobs.held_type[: jobs.count] = guard.NOT_HELD
        self.reserve()
        jobs.held_type[chosen.jobs] = guard.NOT_HELD
        return chosen, chosen is wanted

    def filled(self, waiting: Ints) -> Chosen:
        """Waiting jobs that get free GPUs within a round."""
        pool = self.leases.pool
        free = pool.domain_counts(pool.usable & (pool.job == NONE))
        chosen = guard.filled(self.leases, waiting, free, self._select)
        self.reserve()
        self.leases.jobs.held_type[chosen.jobs] = guard.NOT_HELD
        return chosen

    def reserve(self) -> None:
        """Marks gangs with reserved GPUs, so that they come first when they can start."""
        if self.reserved is not None:
            reservations.mark(self.leases, self.kept, self.reserved, is_solved=self.is_solved)

    @cached_property
    def reserved(self) -> Reserved | None:
        """GPUs that only some jobs may take."""
        return reservations.reserved(self.leases, self.settings, self.kept, self.now_s, is_solved=self.is_solved)

    def _select(self, rows: Ints, free: Ints) -> Chosen:
        jobs, pool, settings = self.leases.jobs, self.leases.pool, self.settings
        rows = settings.rules.candidates(jobs, rows)
        if pool.any_silent:
            rows = rows[~jobs.marks(leases_on(jobs, pool, pool.silent))[rows]]
        by_domain = None if pool.shares_checkpoints else Domains(jobs, pool)
        return settings.rules.select(jobs, rows, free, settings, self.type_order, by_domain, self.reserved)

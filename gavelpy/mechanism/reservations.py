"""Reserves GPUs for gangs that wait behind jobs which are not preempted, so that smaller jobs cannot starve them.

Theory of operation. Jobs that never saved a checkpoint keep their GPUs until they end: see `non_preemptible`. A gang
that could run on the cluster, but not on the GPUs that these jobs leave, waits until enough of them have ended. Without
a reservation, each GPU that becomes free goes to the next small job, which may not be preemptible either. (The other
reservations for gangs, those against jobs that started recently, are in `lease_protection`.)

So each domain of GPUs (see `gpus`) may be reserved for one gang. The oldest gang chooses first: the domain where the
fewest GPUs are missing, then the one where it is fastest. Jobs that are not preemptible start there only on GPUs beyond
the size of the gang. Jobs that are preemptible may use the reserved GPUs, as they leave them when the gang can start.
The number of missing GPUs therefore never grows while nodes stay up, and each end of an exempt job lowers it.

When enough GPUs are open, the gang is in the problem of the policy again. It comes before other jobs in the next plan,
by its mark in `held_type` (see `lease_protection`). If the policy gives it no share of time, its reservation ends.

Reservations are worked out from the tables for each plan. A gang that is in a pause after a failure, or that may still
run on an unreachable node, has none.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism import non_preemptible
from gavelpy.mechanism.gpus import NOT_PINNED, NOT_THERE, can_run, pinned_directory
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.non_preemptible import NonPreemptible
from gavelpy.mechanism.selection import Reserved
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Ints

NO_GANG = -1
NOT_HELD = -1


def reserved(
    leases: LeaseBook, settings: MechanismSettings, exempt: NonPreemptible, now_s: float, *, is_solved: bool
) -> Reserved | None:
    """What is reserved now; None where nothing is.

    `is_solved`: the allocation in force answers for the jobs and GPUs that there are.
    """
    if not settings.keep_unsaved:
        return None
    gangs = _waiting_gangs(leases, exempt, now_s, is_solved)
    if not len(gangs):
        return None
    jobs, pool = leases.jobs, leases.pool
    open_gpus = pool.usable_counts if exempt.open_gpus is None else pool.domain_counts(exempt.open_gpus)
    gang_of = np.full(len(pool.domain_type), NO_GANG)
    for row in gangs.tolist():
        domain = _best_lot(leases, row, open_gpus, gang_of == NO_GANG)
        if domain != NOT_THERE:
            gang_of[domain] = row
        if (gang_of != NO_GANG).all():
            break
    gpus = np.where(gang_of == NO_GANG, 0, jobs.gpus[gang_of])
    barred = np.zeros(jobs.count, dtype=np.bool_)
    barred[jobs.active] = ~non_preemptible.is_preemptible(jobs, jobs.active)
    return Reserved(gpus, gang_of, barred)


def mark(leases: LeaseBook, exempt: NonPreemptible, reserved: Reserved, *, is_solved: bool) -> None:
    """Marks the gangs with reservations in `held_type`, so that they come first as soon as they can start.

    A gang that could start is marked until the policy has answered for it.
    """
    jobs, pool = leases.jobs, leases.pool
    taken = np.flatnonzero(reserved.gang != NO_GANG)
    rows, types = reserved.gang[taken], pool.domain_type[taken]
    waits = jobs.lease[rows] < 0
    if is_solved:
        waits &= ~can_run(jobs, pool, rows, exempt.open_gpus).any(axis=1)
    jobs.held_type[rows[waits]] = types[waits]


def _waiting_gangs(leases: LeaseBook, exempt: NonPreemptible, now_s: float, is_solved: bool) -> Ints:
    """Gangs that have or deserve a reservation, the oldest first."""
    jobs, pool = leases.jobs, leases.pool
    active = jobs.active
    rows = active[(jobs.lease[active] < 0) & (jobs.gpus[active] > 1)]
    if not len(exempt.jobs):
        rows = rows[jobs.held_type[rows] != NOT_HELD]
    rows = rows[non_preemptible.may_begin(jobs, rows, now_s)]
    if pool.any_unreachable:
        rows = rows[~jobs.marks(leases_on(jobs, pool, pool.unreachable))[rows]]
    fits = can_run(jobs, pool, rows).any(axis=1)
    is_next = jobs.held_type[rows] != NOT_HELD
    if is_solved:
        is_next &= jobs.total("target")[rows].any(axis=1)
    is_blocked = ~can_run(jobs, pool, rows, exempt.open_gpus).any(axis=1)
    return np.asarray(rows[fits & (is_blocked | is_next)])


def _best_lot(leases: LeaseBook, row: int, open_gpus: Ints, is_left: Bools) -> int:
    """The domain that a gang waits for, or NOT_THERE if others have reserved all domains in which it could run."""
    jobs, pool = leases.jobs, leases.pool
    home = int(pinned_directory(jobs, np.array([row]))[0])
    is_able = is_left & (jobs.rate[row, pool.domain_type] > 0) & (pool.usable_counts >= jobs.gpus[row])
    if home != NOT_PINNED:
        is_able &= pool.domain_directory == home
    found = np.flatnonzero(is_able)
    if not len(found):
        return NOT_THERE
    missing = np.maximum(jobs.gpus[row] - open_gpus[found], 0)
    return int(found[np.lexsort((found, -jobs.rate[row, pool.domain_type[found]], missing))[0]])

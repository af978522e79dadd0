"""Reserves GPUs for gangs that wait, so that smaller jobs cannot starve them.

A gang waits while its GPUs become free one by one; without a reservation each of them goes to the next small job. The
mark of a gang in `held_type` puts it first in the next plan, and no new job starts on GPUs that it lacks. There are two
cases:

- *Leases that started recently* (`planning` protects them). A gang with a share that lost GPUs to protection is marked
  (`hold`): free GPUs of that type are kept (`less_held`), and in the next round the gang comes first. It waits until
  the protected leases are old enough, and then at most for the rest of the round.
- *Jobs that are not preempted* (`non_preemptible`), or not by the gang's priority class: they keep their GPUs until
  they end. A gang that could run on the cluster, but not on the GPUs that these jobs leave, waits until enough of them
  have ended.

In the second case each domain of GPUs (see `domains`) may be reserved for one gang. The oldest gang of the highest
priority class chooses first: the domain where the fewest GPUs are missing, then the one where it is fastest. Jobs that
are not preemptible start there only on GPUs beyond the size of the gang; those of higher classes on all. Jobs that are
preemptible may use the reserved GPUs, as they leave them when the gang can start. The number of missing GPUs therefore
never grows while nodes stay up, and each end of an exempt job lowers it. When enough GPUs are open, the gang is in the
problem of the policy again, and it is marked. If the policy gives it no share of time, its reservation ends. A gang
that is in a pause after a failure, or that may still run on an unreachable node, has none, and neither has one that
limits of teams keep from ever running. What is guaranteed to a team is not reserved for gangs of others.

Reservations are worked out from the tables for each plan.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism import non_preemptible
from gavelpy.mechanism.domains import NOT_PINNED, NOT_THERE, can_run, pinned_directory
from gavelpy.mechanism.events import NO_INTS
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.node_sets import NodeSets
from gavelpy.mechanism.non_preemptible import NonPreemptible
from gavelpy.mechanism.priority_classes import can_run_in_class, is_ranked
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.taking import Chosen, Reserved
from gavelpy.mechanism.team_plan import can_ever_hold
from gavelpy.model.arrays import Bools, Ints

NO_GANG = -1
NOT_HELD = -1


def reserved(
    leases: LeaseBook, settings: MechanismSettings, exempt: NonPreemptible, gangs: Ints, sets: NodeSets | None
) -> Reserved | None:
    """What is reserved now for these gangs, the first come first; None where nothing is.

    `sets`: the GPUs that jobs may use; None = all.
    """
    if not len(gangs):
        return None
    jobs, pool = leases.jobs, leases.pool
    open_gpus = pool.usable_counts if exempt.open_gpus is None else pool.domain_counts(exempt.open_gpus)
    usable = pool.usable_counts
    gang_of = np.full(len(pool.domain_type), NO_GANG)
    may_hold = can_ever_hold(jobs, pool, settings, gangs)[:, pool.domain_type]
    for row, is_allowed in zip(gangs.tolist(), may_hold, strict=True):
        if sets is not None:
            usable = pool.domain_counts(pool.usable & sets.of(row))
            open_gpus = pool.domain_counts(leases.open_gpus(exempt.jobs) & sets.of(row))
        domain = _best_lot(leases, row, usable, open_gpus, (gang_of == NO_GANG) & is_allowed)
        if domain != NOT_THERE:
            gang_of[domain] = row
        if (gang_of != NO_GANG).all():
            break
    gpus = np.where(gang_of == NO_GANG, 0, jobs.gpus[gang_of])
    barred = np.zeros(jobs.count, dtype=np.bool_)
    barred[jobs.active] = ~non_preemptible.is_preemptible(jobs, jobs.active)
    return Reserved(gpus, gang_of, barred)


def above(reserved: Reserved, jobs: JobTable, rows: Ints) -> Reserved:
    """What is reserved from these jobs of one priority class: nothing for gangs of lower classes."""
    if not len(rows):
        return reserved
    is_lower = (reserved.gang != NO_GANG) & (jobs.rank[reserved.gang] > jobs.rank[rows[0]])
    if not is_lower.any():
        return reserved
    return Reserved(np.where(is_lower, 0, reserved.gpus), np.where(is_lower, NO_GANG, reserved.gang), reserved.barred)


def mark(
    leases: LeaseBook, settings: MechanismSettings, exempt: NonPreemptible, reserved: Reserved, *, is_solved: bool
) -> None:
    """Marks the gangs with reservations in `held_type`, so that they come first as soon as they can start.

    A gang that could start is marked until the policy has answered for it.
    """
    jobs, pool = leases.jobs, leases.pool
    taken = np.flatnonzero(reserved.gang != NO_GANG)
    rows, types = reserved.gang[taken], pool.domain_type[taken]
    waits = jobs.lease[rows] < 0
    if is_solved:
        waits &= _is_blocked(leases, settings, exempt, rows)
    jobs.held_type[rows[waits]] = types[waits]
    jobs.any_held = jobs.any_held or bool(waits.any())


def come_first(jobs: JobTable, rows: Ints) -> Bools:
    """Whether these waiting jobs have a reservation and a share of time, so that they come first in a plan, (K,)."""
    is_held: Bools = np.asarray(jobs.held_type[rows] != NOT_HELD)
    return is_held & jobs.total("target")[rows].any(axis=1) if is_held.any() else is_held


def release(jobs: JobTable, rows: Ints | slice) -> None:
    """Ends the reservations of these jobs."""
    if jobs.any_held:
        jobs.held_type[rows] = NOT_HELD
        jobs.any_held = bool((jobs.held_type[jobs.active] != NOT_HELD).any())


def restore(jobs: JobTable, held_type: Ints) -> None:
    """Takes back what a plan that is made again did to the reservations, which were `held_type` (N,) before."""
    jobs.held_type[: jobs.count] = held_type
    jobs.any_held = bool((held_type[jobs.active] != NOT_HELD).any())


def hold(leases: LeaseBook, wanted: Chosen, is_chosen: Bools) -> bool:
    """Reserves GPUs for gangs of `wanted` with a share that get nothing; returns whether there are any.

    One job of a pair stands for both, and a job that joins a running partner needs no GPUs of its own.
    """
    rows, domains, partner, gpus = wanted
    is_gang = gpus > 1
    has_share = leases.jobs.total("target")[rows, leases.pool.domain_type[domains]] > 0
    comes = (partner >= 0) & (is_chosen[partner] | (partner < rows))
    passed = is_gang & has_share & ~is_chosen[rows] & ~comes
    leases.jobs.held_type[rows[passed]] = leases.pool.domain_type[domains[passed]]
    leases.jobs.any_held = leases.jobs.any_held or bool(passed.any())
    return bool(passed.any())


def less_held(leases: LeaseBook, rows: Ints, free: Ints) -> Ints:
    """Free GPUs of each domain (L,) minus those of its type that are reserved for jobs among `rows`."""
    jobs, pool = leases.jobs, leases.pool
    rows = rows[jobs.held_type[rows] != NOT_HELD]
    held = np.zeros(len(pool.gpu_types), dtype=np.int64)
    np.add.at(held, jobs.held_type[rows], jobs.gpus[rows])
    return np.asarray(np.maximum(free - held[pool.domain_type], 0))


def waiting_gangs(
    leases: LeaseBook, settings: MechanismSettings, exempt: NonPreemptible, now_s: float, is_solved: bool
) -> Ints:
    """Gangs that have or deserve a reservation, those of the highest priority class first, then the oldest.

    `is_solved`: the allocation in force answers for the jobs and GPUs that there are.
    """
    jobs, pool = leases.jobs, leases.pool
    if not settings.keep_unsaved:
        return NO_INTS
    active = jobs.active
    rows = active[(jobs.lease[active] < 0) & (jobs.gpus[active] > 1)]
    if not len(exempt.jobs) and not is_ranked(settings):
        rows = rows[jobs.held_type[rows] != NOT_HELD]
    rows = rows[non_preemptible.may_begin(jobs, rows, now_s)]
    if pool.any_unreachable:
        rows = rows[~jobs.marks(leases_on(jobs, pool, pool.unreachable))[rows]]
    fits = (can_run(jobs, pool, rows) & can_ever_hold(jobs, pool, settings, rows)).any(axis=1)
    is_next = jobs.held_type[rows] != NOT_HELD
    if is_solved:
        is_next &= jobs.total("target")[rows].any(axis=1)
    rows = rows[fits & (_is_blocked(leases, settings, exempt, rows) | is_next)]
    return np.asarray(rows[np.argsort(jobs.rank[rows], kind="stable")])


def _is_blocked(leases: LeaseBook, settings: MechanismSettings, exempt: NonPreemptible, rows: Ints) -> Bools:
    """Whether exempt jobs leave too few GPUs of each type that these jobs may have, (K,)."""
    jobs, pool = leases.jobs, leases.pool
    open_to = can_run_in_class(jobs, pool, settings, rows, exempt.open_gpus)
    return np.asarray(~(open_to & can_ever_hold(jobs, pool, settings, rows)).any(axis=1))


def _best_lot(leases: LeaseBook, row: int, usable: Ints, open_gpus: Ints, is_left: Bools) -> int:
    """The domain that a gang waits for, or NOT_THERE if others have reserved all domains in which it could run.

    `usable` and `open_gpus` (L,): GPUs of each domain that it may use, in all and without those of exempt jobs;
    `is_left` (L,): the domains that are not reserved yet, and of which limits of teams let it have GPUs.
    """
    jobs, pool = leases.jobs, leases.pool
    home = int(pinned_directory(jobs, np.array([row]))[0])
    is_able = is_left & (jobs.rate[row, pool.domain_type] > 0) & (usable >= jobs.gpus[row])
    if home != NOT_PINNED:
        is_able &= pool.domain_directory == home
    found = np.flatnonzero(is_able)
    if not len(found):
        return NOT_THERE
    missing = np.maximum(jobs.gpus[row] - open_gpus[found], 0)
    return int(found[np.lexsort((found, -jobs.rate[row, pool.domain_type[found]], missing))[0]])

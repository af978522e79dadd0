"""Leases as the difference between two rounds: what goes on, what ends, what begins.

Nothing here decides who runs; `selection` has. A lease goes on when its job stays on the same type and all its GPUs may
still be used: then the job keeps exactly the GPUs it has.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.gpus import NOBODY, GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobFact
from gavelpy.mechanism.placement import place
from gavelpy.mechanism.priorities import credit
from gavelpy.mechanism.selection import Selection
from gavelpy.model.arrays import Bools, Ints

NOT_RUNNING_S = -1.0


class LeaseBook:
    """Hands out lease serials and keeps jobs and GPUs in agreement about who holds what."""

    def __init__(self, jobs: JobTable, pool: GpuPool) -> None:
        self.jobs = jobs
        self.pool = pool
        self.next_lease = 0
        self.in_force = 0  # leases promised or running

    def staying(self, chosen: Selection) -> Ints:
        """Of the chosen jobs, those whose lease goes on, (K,) ascending."""
        jobs, pool = self.jobs, self.pool
        rows, lots = chosen
        held = jobs.lease[rows] >= 0
        if pool.all_see:
            same = rows[held & (jobs.lease_type[rows] == lots)]
        else:
            same = rows[held & (pool.lot_of[jobs.gpu_first[rows]] == lots)]
            held_gpus = np.flatnonzero(pool.job != NOBODY)
            holders, lot_of = pool.job[held_gpus], pool.lot_of
            torn = holders[lot_of[held_gpus] != lot_of[jobs.gpu_first[holders]]]  # its servers see no longer the same
            same = same[~jobs.marks(torn)[same]]
        if not pool.usable.all():
            same = same[~np.isin(same, pool.job[~pool.usable & (pool.job != NOBODY)])]
        return np.sort(same)

    def apply(self, chosen: Selection, leaving: Ints, now_s: float, until_s: float) -> tuple[Ints, Ints, Ints, Ints]:
        """Revokes leases of `leaving`, grants new ones to `chosen`: (revoked leases, granted leases, offsets, GPUs)."""
        jobs, pool = self.jobs, self.pool
        revoked = jobs.lease[leaving]
        self.revoke(leaving, now_s)
        rows, lots = chosen
        free = pool.usable & (pool.job == NOBODY)
        offsets, gpus = place(pool, free, lots, jobs.gpus[rows])
        granted = np.arange(self.next_lease, self.next_lease + len(rows))
        self.next_lease += len(rows)
        self.in_force += len(rows)
        jobs.change(rows, JobFact.GRANTED)
        jobs.lease[rows] = granted
        jobs.lease_type[rows] = lots if pool.all_see else pool.lot_type[lots]
        jobs.until_s[rows] = until_s
        jobs.since_s[rows] = NOT_RUNNING_S
        jobs.gpu_first[rows] = gpus[offsets[:-1]]
        pool.job[gpus] = np.repeat(rows, jobs.gpus[rows])
        for k in np.flatnonzero(jobs.gpus[rows] > 1).tolist():
            jobs.gang_gpus[int(rows[k])] = gpus[offsets[k] : offsets[k + 1]]
        return revoked, granted, offsets, gpus

    def revoke(self, rows: Ints, now_s: float) -> None:
        """The leases of these jobs stop; their GPUs may be promised again at once.

        A lease that is still promised while an older one of the job is stopping cannot have started: it is just
        dropped. Any other becomes the job's stopping lease until LeaseEnded.
        """
        jobs = self.jobs
        credit(jobs, rows, now_s)
        jobs.stop(rows[jobs.stopping[rows] < 0])
        self.vacate(rows)
        jobs.change(rows, JobFact.STOPPED)

    def extend(self, rows: Ints, until_s: float) -> None:
        """These leases go on. A promise that was already longer is remembered: nobody can be sure it was taken back."""
        self.jobs.until_s[rows] = np.maximum(self.jobs.until_s[rows], until_s)

    def vacate(self, rows: Ints) -> None:
        """These jobs hold no lease any more; their states are the caller's."""
        jobs = self.jobs
        self.in_force -= len(rows)
        self.pool.job[jobs.gpu_first[rows]] = NOBODY
        for row in rows[jobs.gpus[rows] > 1].tolist():
            self.pool.job[jobs.gang_gpus.pop(row)] = NOBODY
        jobs.lease[rows] = -1
        jobs.lease_type[rows] = -1
        jobs.gpu_first[rows] = -1
        jobs.until_s[rows] = 0.0
        jobs.since_s[rows] = NOT_RUNNING_S


def leases_on(jobs: JobTable, pool: GpuPool, gpus: Bools) -> Ints:
    """Serials of jobs with a lease, be it in force or stopping, on any of these GPUs (G,), ascending."""
    return np.union1d(pool.jobs_holding(gpus), jobs.stopping_on(gpus))

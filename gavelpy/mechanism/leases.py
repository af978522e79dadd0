"""Extends, revokes and grants leases: the difference between two rounds. `selection` chooses the jobs.

A lease is extended if its job stays in the same checkpoint domain and all its GPUs are still usable. The job then keeps
exactly these GPUs.

Each of two co-located jobs holds a lease on the same GPUs. When a pair separates, one job keeps the GPUs. When two
running jobs become a pair, one keeps its GPUs and the other moves there. If one job of a pair ends within a round, the
other continues alone.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism import back_off
from gavelpy.mechanism.gpus import CLUSTERS, NONE, GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobFact, JobState
from gavelpy.mechanism.placement import place, steer
from gavelpy.mechanism.priorities import credit
from gavelpy.mechanism.selection import Chosen
from gavelpy.model.arrays import Bools, Ints

NOT_RUNNING_S = -1.0


class LeaseBook:
    """Assigns lease serials, and keeps the tables of jobs and GPUs consistent."""

    def __init__(self, jobs: JobTable, pool: GpuPool) -> None:
        self.jobs = jobs
        self.pool = pool
        self.next_lease = 0
        self.in_force = 0  # leases granted or running

    @property
    def pinned(self) -> Ints:
        """Running jobs on unhealthy nodes, which every plan leaves running; serials, ascending.

        No other job could start there, and a stopped job might be unable to save a checkpoint.
        """
        jobs, pool = self.jobs, self.pool
        if not pool.any_unhealthy:
            return np.zeros(0, dtype=np.int64)
        rows = pool.jobs_holding(pool.unhealthy)
        rows = rows[jobs.state[rows] == JobState.RUNNING]
        must_leave = pool.jobs_holding(~pool.usable & ~pool.unhealthy)
        return np.asarray(rows[~np.isin(rows, must_leave)])

    def capacity(self, fixed: Ints) -> Ints:
        """GPUs of each domain that a plan may allocate while the leases of `fixed` jobs continue, (L,)."""
        return self.pool.domain_counts(self.open_gpus(fixed)) if len(fixed) else self.pool.usable_counts

    def open_gpus(self, fixed: Ints) -> Bools:
        """Whether each GPU is usable and not leased to any of these jobs, (G,)."""
        pool = self.pool
        gpus, holders = pool.holdings(pool.usable)
        is_open = pool.usable.copy()
        is_open[gpus[np.isin(holders, fixed)]] = False
        return is_open

    def staying(self, chosen: Chosen) -> Ints:
        """The chosen jobs whose lease is extended, (K,) ascending."""
        jobs, pool = self.jobs, self.pool
        rows, domains, partner = chosen
        held = jobs.lease[rows] >= 0
        if pool.shares_checkpoints:
            same = rows[held & (jobs.lease_type[rows] == domains)]
        else:
            same = rows[held & (pool.domain_of[jobs.gpu_first[rows]] == domains)]
            held_gpus, holders = pool.holdings(np.ones(len(pool.job), dtype=np.bool_))
            domain_of = pool.domain_of
            is_split = domain_of[held_gpus] != domain_of[jobs.gpu_first[holders]]  # its nodes use different directories
            same = same[~jobs.marks(holders[is_split])[same]]
        if not pool.usable.all():
            same = same[~np.isin(same, pool.jobs_holding(~pool.usable))]
        if (partner >= 0).any() or (jobs.partner[same] >= 0).any():
            same = self._one_of_each(same, rows, partner)
        return np.sort(same)

    def _one_of_each(self, same: Ints, rows: Ints, partner: Ints) -> Ints:
        """`same` without the second job of each pair that separates or forms: only the first keeps its GPUs."""
        jobs = self.jobs
        coming = np.full(jobs.count, -1)
        coming[rows] = partner
        for which in (jobs.partner[: jobs.count], coming):
            other, is_same = which[same], jobs.marks(same)
            changes = coming[same] != jobs.partner[same]
            same = same[~((other >= 0) & (other < same) & is_same[other] & changes)]
        return same

    def apply(self, chosen: Chosen, leaving: Ints, now_s: float, until_s: float) -> tuple[Ints, Ints, Ints, Ints]:
        """Revokes leases of `leaving`, grants new ones to `chosen`: (revoked leases, granted leases, offsets, GPUs)."""
        jobs, pool = self.jobs, self.pool
        revoked = jobs.lease[leaving]
        self.revoke(leaving, now_s)
        rows, domains, partner = chosen
        offsets, gpus = self._placed(chosen)
        granted = np.arange(self.next_lease, self.next_lease + len(rows))
        self.next_lease += len(rows)
        self.in_force += len(rows)
        jobs.change(rows, JobFact.GRANTED)
        jobs.lease[rows] = granted
        jobs.lease_type[rows] = domains if pool.shares_checkpoints else pool.domain_type[domains]
        jobs.lease_in[rows] = CLUSTERS if pool.shares_checkpoints else pool.domain_directory[domains]
        jobs.until_s[rows] = until_s
        jobs.since_s[rows] = NOT_RUNNING_S
        jobs.began_s[rows] = now_s
        jobs.worked_s[rows] = NOT_RUNNING_S
        jobs.held_type[rows] = -1
        jobs.gpu_first[rows] = gpus[offsets[:-1]]
        is_second = self._is_second(chosen)
        second = np.repeat(is_second, jobs.gpus[rows])
        holders = np.repeat(rows, jobs.gpus[rows])
        pool.job[gpus[~second]], pool.beside[gpus[second]] = holders[~second], holders[second]
        jobs.partner[rows] = partner
        jobs.partner[partner[partner >= 0]] = rows[partner >= 0]
        for k in np.flatnonzero(jobs.gpus[rows] > 1).tolist():
            jobs.gang_gpus[int(rows[k])] = gpus[offsets[k] : offsets[k + 1]]
        return revoked, granted, offsets, gpus

    def _is_second(self, chosen: Chosen) -> Bools:
        """Whether each chosen job uses GPUs that its partner has or gets in the same plan, (K,)."""
        rows, _, partner = chosen
        comes_too = self.jobs.marks(rows)[partner]
        return np.asarray((partner >= 0) & (~comes_too | (partner < rows)))

    def _placed(self, chosen: Chosen) -> tuple[Ints, Ints]:
        """GPU rows of each job, in the format of `place`; the second job of a pair gets those of the first."""
        jobs = self.jobs
        rows, domains, partner = chosen
        is_second = self._is_second(chosen)
        if not is_second.any():
            return self._placed_anew(rows, domains)
        own = np.flatnonzero(~is_second)
        own_offsets, own_gpus = self._placed_anew(rows[own], domains[own])
        found = dict(zip(rows[own].tolist(), np.split(own_gpus, own_offsets[1:-1]), strict=True)) if len(own) else {}
        beside = zip(rows.tolist(), partner.tolist(), is_second.tolist(), strict=True)
        parts = [
            (found[other] if other in found else jobs.gpus_held(other)) if second else found[row]
            for row, other, second in beside
        ]
        return np.concatenate([[0], np.cumsum(jobs.gpus[rows])]), np.concatenate(parts)

    def _placed_anew(self, rows: Ints, domains: Ints) -> tuple[Ints, Ints]:
        jobs, pool = self.jobs, self.pool
        free = pool.usable & (pool.job == NONE)
        offsets, gpus = place(pool, free, domains, jobs.gpus[rows])
        if jobs.loss_nodes or (jobs.avoid[rows] >= 0).any():
            avoid = {k: nodes for k, row in enumerate(rows.tolist()) if (nodes := back_off.nodes_to_avoid(jobs, row))}
            steer(pool, free, domains, offsets, gpus, avoid)
        return offsets, gpus

    def revoke(self, rows: Ints, now_s: float) -> None:
        """Revokes the leases of these jobs; their GPUs can be granted again at once.

        A granted lease cannot have started while an older lease of the job is stopping, so it is dropped. Any other
        lease becomes the stopping lease of its job until LeaseEnded.
        """
        jobs = self.jobs
        credit(jobs, rows, now_s)
        jobs.stop(rows[jobs.stopping[rows] < 0])
        self.vacate(rows)
        jobs.change(rows, JobFact.STOPPED)

    def extend(self, rows: Ints, until_s: float) -> None:
        """Extends the leases of these jobs. A later end is kept: the node may not have received a shorter one."""
        self.jobs.until_s[rows] = np.maximum(self.jobs.until_s[rows], until_s)

    def vacate(self, rows: Ints) -> None:
        """Removes the leases of these jobs; the caller changes their states. Their partners continue alone."""
        jobs = self.jobs
        self.in_force -= len(rows)
        paired = rows[jobs.partner[rows] >= 0]
        partners = jobs.partner[paired]
        shared = [jobs.gpus_held(row).copy() for row in paired.tolist()]
        self.pool.job[jobs.gpu_first[rows]] = NONE
        for row in rows[jobs.gpus[rows] > 1].tolist():
            self.pool.job[jobs.gang_gpus.pop(row)] = NONE
        jobs.lease[rows] = -1
        jobs.lease_type[rows] = jobs.lease_in[rows] = -1
        jobs.gpu_first[rows] = -1
        jobs.until_s[rows] = 0.0
        jobs.since_s[rows] = NOT_RUNNING_S
        jobs.partner[paired] = jobs.partner[partners] = -1
        for partner, gpus in zip(partners.tolist(), shared, strict=True):
            self.pool.job[gpus] = partner if jobs.lease[partner] >= 0 else NONE
            self.pool.beside[gpus] = NONE


def leases_on(jobs: JobTable, pool: GpuPool, gpus: Bools) -> Ints:
    """Serials of jobs with a lease, in force or stopping, on any of these GPUs (G,), ascending."""
    return np.union1d(pool.jobs_holding(gpus), jobs.stopping_on(gpus))

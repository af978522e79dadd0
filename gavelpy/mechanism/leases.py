"""Extends, revokes and grants leases: the difference between two rounds, and the GPUs of new leases.

`selection` chooses the jobs, and `placement` the GPUs of those with new leases.

A lease is extended if its job stays in the same checkpoint domain and all its GPUs are still usable. The job then keeps
exactly these GPUs.

Each of two co-located jobs holds a lease on the same GPUs. When a pair separates, one job keeps the GPUs. When two
running jobs become a pair, one keeps its GPUs and the other moves there. If one job of a pair ends within a round, the
other continues alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import booking, consolidation, priority_classes
from gavelpy.mechanism.gpus import CLUSTERS, NONE, GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobFact, JobState
from gavelpy.mechanism.node_resources import NodeLimits
from gavelpy.mechanism.node_sets import ALL_GPUS, NodeSets, Room, node_sets
from gavelpy.mechanism.placement import nodes_to_avoid, place, steer
from gavelpy.mechanism.strategies import STRATEGIES, PlacementRule, place_by
from gavelpy.mechanism.taking import Chosen
from gavelpy.mechanism.topology import groups
from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.settings import MechanismSettings

NOT_RUNNING_S = -1.0
_NO_OFFSETS: Ints = np.zeros(1, dtype=np.int64)


class LeaseBook:
    """Assigns lease serials, and keeps the tables of jobs and GPUs consistent."""

    def __init__(self, jobs: JobTable, pool: GpuPool, settings: MechanismSettings) -> None:
        self.jobs = jobs
        self.pool = pool
        self.settings = settings  # of the core
        self.next_lease = 0
        self.in_force = 0  # leases granted or running

    def skip(self, jobs: int, leases: int, now_s: float) -> None:
        """Continues the numbers of jobs and leases at these; jobs in between count as failed."""
        self.jobs.skip(jobs, self.pool.gpu_types, now_s)
        self.next_lease = max(self.next_lease, leases)

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
        return np.asarray(rows[~jobs.marks(must_leave)[rows]])

    def capacity(self, fixed: Ints) -> Ints:
        """GPUs of each domain that a plan may allocate while the leases of `fixed` jobs continue, (L,)."""
        return self.pool.domain_counts(self.open_gpus(fixed)) if len(fixed) else self.pool.usable_counts

    def open_gpus(self, fixed: Ints) -> Bools:
        """Whether each GPU is usable and not leased to any of these jobs, (G,)."""
        pool = self.pool
        gpus, holders = pool.holdings(pool.usable)
        is_open = pool.usable.copy()
        is_open[gpus[self.jobs.marks(fixed)[holders]]] = False
        return is_open

    def staying(self, chosen: Chosen) -> Ints:
        """The chosen jobs whose lease is extended, (K,) ascending."""
        jobs, pool = self.jobs, self.pool
        rows, domains, partner, gpus = chosen
        held = (jobs.lease[rows] >= 0) & (jobs.gpus[rows] == gpus)
        if pool.shares_checkpoints:
            same = rows[held & (jobs.lease_type[rows] == domains)]
        else:
            same = rows[held & (pool.domain_of[jobs.gpu_first[rows]] == domains)]
            held_gpus, holders = pool.holdings(np.ones(len(pool.job), dtype=np.bool_))
            domain_of = pool.domain_of
            is_split = domain_of[held_gpus] != domain_of[jobs.gpu_first[holders]]  # its nodes use different directories
            same = same[~jobs.marks(holders[is_split])[same]]
        if (jobs.any_limited or pool.limits_jobs) and (sets := node_sets(jobs, pool)) is not None:
            coming = dict(zip(rows.tolist(), partner.tolist(), strict=True))
            may_stay = [sets.contain(jobs.gpus_held(row), row, coming[row]) for row in same.tolist()]
            same = same[np.array(may_stay, dtype=np.bool_)]
        if not pool.usable.all():
            same = same[~np.isin(same, pool.jobs_holding(~pool.usable))]
        if jobs.claims.count and ((partner >= 0).any() or (jobs.partner[same] >= 0).any()):
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

    def apply(
        self,
        chosen: Chosen,
        leaving: Ints,
        now_s: float,
        until_s: float,
        sets: NodeSets | None = None,
        places: Mapping[int, Ints] | None = None,
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """Revokes leases of `leaving`, grants new ones to `chosen`: (revoked leases, granted leases, offsets, GPUs).

        `sets`: the GPUs that jobs may use; None = all. `places`: the GPUs of all that are granted; empty = not chosen.
        """
        jobs, pool, revoked = self.jobs, self.pool, self.jobs.lease[leaving]
        if not len(leaving) and len(chosen.jobs) < 2:
            if not len(chosen.jobs):
                return revoked, revoked, _NO_OFFSETS, revoked
            if sets is None and self._is_simple(chosen.jobs.item()):
                return revoked, *self._grant_one(chosen, now_s, until_s)
        taken = [jobs.gpus_held(row).copy() for row in leaving.tolist()] if np.count_nonzero(jobs.rank[leaving]) else []
        self.revoke(leaving, now_s)
        rows, domains, partner, sizes = chosen
        free = pool.usable & (pool.job == NONE)
        offsets, gpus = _as_chosen(free, chosen, places) if places else self.placed(chosen, sets, free, now_s)
        if jobs.apart:
            consolidation.started(jobs, rows)
        granted = np.arange(self.next_lease, self.next_lease + len(rows))
        self.next_lease, self.in_force = self.next_lease + len(rows), self.in_force + len(rows)
        jobs.change(rows, JobFact.GRANTED)
        jobs.set_leases(rows, granted)
        jobs.lease_type[rows] = domains if pool.shares_checkpoints else pool.domain_type[domains]
        jobs.lease_in[rows] = CLUSTERS if pool.shares_checkpoints else pool.domain_directory[domains]
        jobs.until_s[rows] = until_s
        jobs.since_s[rows] = NOT_RUNNING_S
        jobs.began_s[rows] = now_s
        jobs.worked_s[rows] = NOT_RUNNING_S
        jobs.held_type[rows] = jobs.taken_by[rows] = -1
        jobs.gpu_first[rows] = gpus[offsets[:-1]]
        jobs.gpus[rows] = sizes
        if jobs.sizes:
            own = rows[jobs.smallest[rows] > 0]
            jobs.claims.add(booking.lease_keys(jobs, own))
        holders = rows.repeat(sizes)
        if jobs.claims.count:
            second = self._is_second(chosen).repeat(sizes)
            pool.hold(gpus[~second], holders[~second])
            pool.beside[gpus[second]] = holders[second]
            jobs.partner[rows] = partner
            jobs.partner[partner[partner >= 0]] = rows[partner >= 0]
        else:
            pool.hold(gpus, holders)
        for k in (sizes > 1).nonzero()[0].tolist():
            jobs.gang_gpus[int(rows[k])] = gpus[offsets[k] : offsets[k + 1]]
        if taken:
            priority_classes.book_takers(jobs, pool, leaving, taken)
        return revoked, granted, offsets, gpus

    def _is_simple(self, row: int) -> bool:
        """Whether a job may get any GPUs of a type, with consecutive numbers by node, and no job is co-located."""
        jobs, pool = self.jobs, self.pool
        if self.has_rule or self.settings.consolidate_s:
            return False
        is_anywhere = pool.shares_checkpoints and pool.in_order and not jobs.claims.count
        return bool(is_anywhere and not jobs.loss_nodes and jobs.avoid[row] < 0 and not jobs.smallest[row])

    def _grant_one(self, chosen: Chosen, now_s: float, until_s: float) -> tuple[Ints, Ints, Ints]:
        """As `apply`, for one new lease, the usual case within a round: (granted leases, offsets, GPUs)."""
        jobs, row, gpu_type = self.jobs, chosen.jobs.item(), chosen.domains.item()
        size = jobs.gpus[row] = chosen.gpus.item()
        gpus, granted = self.pool.free.best_fit(gpu_type, size), np.array([self.next_lease])
        jobs.change(chosen.jobs, JobFact.GRANTED)
        jobs.set_leases(row, self.next_lease)
        self.next_lease, self.in_force = self.next_lease + 1, self.in_force + 1
        jobs.lease_type[row], jobs.lease_in[row] = gpu_type, CLUSTERS
        jobs.until_s[row], jobs.began_s[row] = until_s, now_s
        jobs.since_s[row] = jobs.worked_s[row] = NOT_RUNNING_S
        jobs.held_type[row] = jobs.taken_by[row] = -1
        jobs.gpu_first[row] = gpus[0]
        self.pool.hold(gpus, row)
        if size > 1:
            jobs.gang_gpus[row] = gpus
        return granted, np.array([0, size]), gpus

    def _is_second(self, chosen: Chosen) -> Bools:
        """Whether each chosen job uses GPUs that its partner has or gets in the same plan, (K,)."""
        rows, partner = chosen.jobs, chosen.partner
        comes_too = self.jobs.marks(rows)[partner]
        return np.asarray((partner >= 0) & (~comes_too | (partner < rows)))

    @property
    def has_rule(self) -> bool:
        """Whether leases are placed by a strategy other than `place`, or by racks or zones."""
        return self.settings.placement != STRATEGIES[0] or len(groups(self.pool)) > 2

    def placed(self, chosen: Chosen, sets: NodeSets | None, free: Bools, now_s: float) -> tuple[Ints, Ints]:
        """GPU rows of each job among `free` (G,), in the format of `place`.

        The second job of a pair gets those of the first.
        """
        jobs = self.jobs
        rows, partner = chosen.jobs, chosen.partner
        if not jobs.claims.count or not (is_second := self._is_second(chosen)).any():
            return self._placed_anew(chosen, sets, free, now_s)
        own = np.flatnonzero(~is_second)
        own_offsets, own_gpus = self._placed_anew(chosen.among(~is_second), sets, free, now_s)
        found = dict(zip(rows[own].tolist(), np.split(own_gpus, own_offsets[1:-1]), strict=True)) if len(own) else {}
        beside = zip(rows.tolist(), partner.tolist(), is_second.tolist(), strict=True)
        parts = [
            (found[other] if other in found else jobs.gpus_held(other)) if second else found[row]
            for row, other, second in beside
        ]
        return np.concatenate([[0], np.cumsum(chosen.gpus)]), np.concatenate(parts)

    def _placed_anew(self, chosen: Chosen, sets: NodeSets | None, free: Bools, now_s: float) -> tuple[Ints, Ints]:
        jobs, pool = self.jobs, self.pool
        rows, domains = chosen.jobs, chosen.domains
        if sets is not None and sets.limits is not None:
            return _as_planned(free, chosen, sets.limits)
        avoid: dict[int, list[int]] = {}
        if jobs.loss_nodes or np.count_nonzero(jobs.avoid[rows] >= 0):
            avoid = {k: nodes for k, row in enumerate(rows.tolist()) if (nodes := nodes_to_avoid(jobs, row))}
        if sets is not None and len(rows):
            return _placed_within(pool, chosen, sets, free, avoid)
        if not len(rows) or not (self.has_rule or self.settings.consolidate_s):
            step = place if jobs.kernels is None else jobs.kernels.place
            offsets, gpus = step(pool, free, domains, chosen.gpus)
        else:
            worst = consolidation.worst_levels(self, chosen, now_s) if self.settings.consolidate_s else None
            offsets, gpus = place_by(pool, free, domains, chosen.gpus, self._rule, worst)
        if avoid:
            steer(pool, free, domains, offsets, gpus, avoid)
        return offsets, gpus

    @property
    def _rule(self) -> PlacementRule:
        jobs, strategy = self.jobs, self.settings.placement
        sizes = jobs.gpus[jobs.active] if strategy == "fgd" else None
        return PlacementRule(strategy, sizes, self.next_lease)

    def revoke(self, rows: Ints, now_s: float) -> None:
        """Revokes the leases of these jobs; their GPUs can be granted again at once.

        A granted lease cannot have started while an older lease of the job is stopping, so it is dropped. Any other
        lease becomes the stopping lease of its job until LeaseEnded.
        """
        if not len(rows):
            return
        jobs = self.jobs
        booking.credit(jobs, rows, now_s)
        jobs.stop(rows[jobs.stopping[rows] < 0])
        self.vacate(rows)
        jobs.change(rows, JobFact.STOPPED)

    def extend(self, rows: Ints, until_s: float) -> None:
        """Extends the leases of these jobs. A later end is kept: the node may not have received a shorter one."""
        self.jobs.until_s[rows] = np.maximum(self.jobs.until_s[rows], until_s)

    def end_one(self, row: int, now_s: float) -> None:
        """Books the time of a job's lease, and removes it, as `booking.credit` and `vacate`; there are no claims."""
        jobs, gpus, since_s = self.jobs, self.jobs.gpus.item(row), self.jobs.since_s.item(row)
        if since_s >= 0.0:
            jobs.attained_gpu_s[row] += (now_s - since_s) * gpus
            jobs.received_s[row, jobs.lease_type[row]] += now_s - since_s
        self.in_force -= 1
        self.pool.hold(jobs.gpu_first[row : row + 1] if gpus == 1 else jobs.gang_gpus.pop(row), NONE)
        jobs.set_leases(row, -1)
        jobs.lease_type[row] = jobs.lease_in[row] = jobs.gpu_first[row] = -1
        jobs.until_s[row] = 0.0
        jobs.since_s[row] = NOT_RUNNING_S

    def vacate(self, rows: Ints) -> None:
        """Removes the leases of these jobs; the caller changes their states. Their partners continue alone."""
        jobs = self.jobs
        self.in_force -= len(rows)
        paired = rows[jobs.partner[rows] >= 0] if jobs.claims.count else rows[:0]
        partners = jobs.partner[paired]
        shared = [jobs.gpus_held(row).copy() for row in paired.tolist()]
        self.pool.hold(jobs.gpu_first[rows], NONE)
        for row in rows[jobs.gpus[rows] > 1].tolist():
            self.pool.hold(jobs.gang_gpus.pop(row), NONE)
        jobs.set_leases(rows, -1)
        jobs.gpus[rows] = np.where(jobs.smallest[rows] > 0, jobs.smallest[rows], jobs.gpus[rows])
        jobs.lease_type[rows] = jobs.lease_in[rows] = jobs.gpu_first[rows] = -1
        jobs.until_s[rows] = 0.0
        jobs.since_s[rows] = NOT_RUNNING_S
        if not len(paired):
            return
        jobs.partner[paired] = jobs.partner[partners] = -1
        for partner, gpus in zip(partners.tolist(), shared, strict=True):
            self.pool.hold(gpus, partner if jobs.lease[partner] >= 0 else NONE)
            self.pool.beside[gpus] = NONE


def _as_planned(free: Bools, chosen: Chosen, limits: NodeLimits) -> tuple[Ints, Ints]:
    """The GPUs that the plan chose for these jobs, in the format of `place`."""
    return _as_chosen(free, chosen, limits.placed | limits.granted)


def _as_chosen(free: Bools, chosen: Chosen, places: Mapping[int, Ints]) -> tuple[Ints, Ints]:
    """These GPUs of these jobs, in the format of `place`."""
    found = [places.get(row) for row in chosen.jobs.tolist()]
    flat = np.concatenate([np.zeros(0, dtype=np.int64), *(gpus for gpus in found if gpus is not None)])
    assert len(flat) == chosen.gpus.sum(), "a plan has jobs without a place"
    assert free[flat].all(), "a plan gave out GPUs that are not free"
    return np.concatenate([[0], np.cumsum(chosen.gpus)]), flat


def _placed_within(
    pool: GpuPool, chosen: Chosen, sets: NodeSets, free: Bools, avoid: Mapping[int, Sequence[int]]
) -> tuple[Ints, Ints]:
    """As `place` and `steer`, each job on GPUs that it may use; jobs that may use all get those that are left."""
    rows, domains, partner, sizes = chosen
    room, left, found = Room(pool, sets, free), free.copy(), dict[int, Ints]()
    is_limited = (sets.of_job[rows] != ALL_GPUS) | ((partner >= 0) & (sets.of_job[partner] != ALL_GPUS))
    limited = [k for k in np.lexsort((np.arange(len(rows)), -sizes)).tolist() if is_limited[k]]
    kinds = {k: room.kind(int(rows[k]), int(partner[k])) for k in limited}
    for k in limited:
        assert room.take(int(domains[k]), kinds[k], int(sizes[k])), "a plan has jobs that do not fit"
    for k in limited:
        domain, size = int(domains[k]), int(sizes[k])
        may_use = left & sets.common(int(rows[k]), int(partner[k])) & (pool.domain_of == domain)
        for gpus in _candidates(pool, room, may_use, (domain, kinds[k], size), avoid.get(k, ())):
            if room.pin(domain, kinds[k], room.counts(gpus)):
                found[k] = gpus
                break
        left[found[k]] = False
    others = np.flatnonzero(~is_limited)
    offsets, gpus = place(pool, left, domains[others], sizes[others])
    position = {int(k): i for i, k in enumerate(others.tolist())}
    steer(pool, left, domains[others], offsets, gpus, {position[k]: n for k, n in avoid.items() if k in position})
    found |= dict(zip(others.tolist(), np.split(gpus, offsets[1:-1]), strict=True)) if len(others) else {}
    flat = [found[k] for k in range(len(rows))]
    return np.concatenate([[0], np.cumsum(sizes)]), np.concatenate(flat)


def _candidates(
    pool: GpuPool, room: Room, may_use: Bools, taken: tuple[int, int, int], avoid: Sequence[int]
) -> Iterator[Ints]:
    """GPUs for a job that has `taken` (domain, kind, number) of them, the best first; the last are always possible."""
    domain, kind, size = taken
    better = may_use & ~np.isin(pool.node_of, avoid)
    groups = (better & (room.group_of == group) for group in np.unique(room.group_of[better]).tolist())
    for mask in chain([better], groups, [may_use & (pool.node_of != avoid[-1])] if len(avoid) else [], [may_use]):
        if np.count_nonzero(mask) >= size:
            yield place(pool, mask, np.array([domain]), np.array([size]))[1]
    quota = room.quota(domain, kind, size)
    yield np.concatenate([np.flatnonzero(may_use & (room.group_of == g))[:count] for g, count in quota.items()])


def leases_on(jobs: JobTable, pool: GpuPool, gpus: Bools) -> Ints:
    """Serials of jobs with a lease, in force or stopping, on any of these GPUs (G,), ascending."""
    return np.union1d(pool.jobs_holding(gpus), jobs.stopping_on(gpus))

"""Checkpoint domains: the GPUs of one type on nodes that write to the same directory.

A checkpoint can move between the GPUs of a domain. Domains of the cluster's directory have the number of their GPU
type; others follow, by directory and type. If all nodes use the cluster's directory, there is one domain per GPU type.

A job without a checkpoint can run in any domain (`can_run`). A job with a lease is pinned to the checkpoint directory
of that lease, which receives its next checkpoint; any other job to the directory of its last checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import sizes
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.node_resources import NodeLimits, limits_of, node_domains
from gavelpy.mechanism.node_room import AnyRoom
from gavelpy.mechanism.node_sets import NodeSets, node_sets
from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.team_room import TeamRoom

NOT_PINNED = -1
NOT_THERE = -1


def pinned_directory(jobs: JobTable, rows: Ints) -> Ints:
    """The directory that each job is pinned to, or NOT_PINNED, (K,)."""
    own = np.where(jobs.lease_in[rows] >= 0, jobs.lease_in[rows], jobs.stopping_in[rows])
    return np.where(own >= 0, own, jobs.saved_in[rows])


def max_gang(jobs: JobTable, pool: GpuPool, rows: Ints, among: Bools | None = None) -> Ints:
    """Largest gang that each job could run as on each type, in GPUs, (K, T): among the usable GPUs, or `among` (G,)."""
    sets, gpus = node_sets(jobs, pool), pool.usable if among is None else among
    if jobs.needs and (limits := limits_of(jobs, pool)) is not None:
        return _max_gang_within(jobs, pool, rows, gpus, sets, limits)
    if sets is not None:
        found = np.zeros((len(rows), len(pool.gpu_types)), dtype=np.int64)
        for one in np.unique(sets.of_job[rows]).tolist():
            here = sets.of_job[rows] == one
            found[here] = _max_gang(jobs, pool, rows[here], pool.domain_counts(gpus & sets.gpus[one]))
        return found
    return _max_gang(jobs, pool, rows, pool.usable_counts if among is None else pool.domain_counts(among))


def _max_gang_within(
    jobs: JobTable, pool: GpuPool, rows: Ints, gpus: Bools, sets: NodeSets | None, limits: NodeLimits
) -> Ints:
    """As `max_gang`, where nodes have less of other resources than their GPUs could use."""
    found = np.zeros((len(rows), len(pool.gpu_types)), dtype=np.int64)
    left, domain_of = limits.left(pool, gpus), node_domains(pool)
    alike = np.column_stack([limits.needs_of(rows), np.zeros(len(rows)) if sets is None else sets.of_job[rows]])
    for key in np.unique(alike, axis=0).astype(np.int64):
        here, may_use = (alike == key).all(axis=1), gpus if sets is None else gpus & sets.gpus[key[-1]]
        counts = np.zeros(len(pool.domain_type), dtype=np.int64)
        np.add.at(counts, domain_of, limits.usable(pool, may_use, left, key[:-1]))
        found[here] = _max_gang(jobs, pool, rows[here], counts)
    return found


def _max_gang(jobs: JobTable, pool: GpuPool, rows: Ints, domains: Ints) -> Ints:
    """As `max_gang`, with these GPUs of each domain, (L,)."""
    if pool.shares_checkpoints:
        return np.broadcast_to(domains, (len(rows), len(domains)))
    T, where = len(pool.gpu_types), pinned_directory(jobs, rows)
    there = np.zeros((len(pool.directories), T), dtype=np.int64)
    there[pool.domain_directory, pool.domain_type] = domains
    return np.where((where == NOT_PINNED)[:, None], there.max(axis=0), there[where])


def can_run(jobs: JobTable, pool: GpuPool, rows: Ints, among: Bools | None = None) -> Bools:
    """Whether each job could run on each type with the usable GPUs, or with `among` (G,), (K, T).

    False where the rate is unknown (NaN).
    """
    is_plain = pool.shares_checkpoints and not jobs.any_limited and not pool.limits_jobs and not jobs.needs
    if is_plain or (pool.shares_checkpoints and node_sets(jobs, pool) is None and limits_of(jobs, pool) is None):
        most = pool.usable_counts if among is None else pool.domain_counts(among)
        return sizes.fits(jobs, rows, most)
    return sizes.fits(jobs, rows, max_gang(jobs, pool, rows, among))


def can_run_somewhere(jobs: JobTable, pool: GpuPool, row: int) -> bool:
    """Whether one job could run on any type; cheaper than `can_run` for a single job."""
    is_limited = bool(jobs.limited or jobs.needs) or (pool.any_lacking and jobs.featured) or pool.is_divided
    if is_limited or not pool.shares_checkpoints:
        return bool(can_run(jobs, pool, np.array([row])).any())
    if row in jobs.sizes:
        return bool(jobs.sizes[row].fits(pool.counts).any())
    return bool(np.count_nonzero((jobs.rate[row] > 0) & (pool.counts >= jobs.gpus[row])))


class Domains:
    """Finds the domain in which a job takes GPUs, if nodes use several checkpoint directories, or jobs have node sets.

    `room`: the GPUs that the plan may still take, if jobs have node sets. `teams`: the same by team, if teams have
    limits.
    """

    def __init__(
        self, jobs: JobTable, pool: GpuPool, room: AnyRoom | None = None, teams: TeamRoom | None = None
    ) -> None:
        self._jobs, self._pool, self.room, self.teams = jobs, pool, room, teams
        self.count, self.type_count = len(pool.domain_type), len(pool.gpu_types)
        kinds = pool.domain_type.tolist()
        self._kinds: list[int] = [*kinds, *range(self.type_count)]
        self._of_type: list[list[int]] = [[] for _ in range(self.type_count)]
        for domain, kind in enumerate(kinds):
            self._of_type[kind].append(domain)
        self._first: dict[tuple[int, int, int], int] = {}  # by type, GPUs and key: first domain that may have enough

    def slots(self, rows: Ints) -> Ints:
        """Domain in which each job takes GPUs of each type, (K, T); NOT_THERE; or number of domains + type: in any."""
        pool, where = self._pool, pinned_directory(self._jobs, rows)
        domain_at = np.full((len(pool.directories), self.type_count), NOT_THERE)
        domain_at[pool.domain_directory, pool.domain_type] = np.arange(self.count)
        anywhere = self.count + np.arange(self.type_count)
        return np.where((where == NOT_PINNED)[:, None], anywhere, domain_at[where])

    def kind(self, slot: int) -> int:
        """The GPU type of a slot that is there."""
        return self._kinds[slot]

    def of_slot(self, slot: int) -> list[int]:
        """The domains that a slot stands for, the cluster's directory first."""
        return self._of_type[slot - self.count] if slot >= self.count else [slot] if slot != NOT_THERE else []

    def resolve(self, slot: int, gpus: int, free: list[int], key: int = 0) -> int:
        """The domain in which a job takes this many GPUs, or NOT_THERE; the cluster's directory comes first.

        `free` only decreases between calls with the same `key`: a domain with too few GPUs is not tried again.
        """
        if slot < self.count:
            return slot if slot >= 0 and gpus <= free[slot] else NOT_THERE
        kind = slot - self.count
        domains, position = self._of_type[kind], self._first.get((kind, gpus, key), 0)
        while position < len(domains) and gpus > free[domains[position]]:
            position += 1
        self._first[kind, gpus, key] = position
        return domains[position] if position < len(domains) else NOT_THERE

"""Where a job may run: on its GPU types, and on nodes that write to the directory which holds its checkpoint.

A job without a checkpoint may run anywhere. One with a lease is bound to the directory of that lease, where its next
checkpoint will be; any other to the directory of its last checkpoint, whichever nodes see that directory now. See
`gpus` for directories and lots. Where all nodes use the cluster's directory, lots are types and no job is bound.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Bools, Ints

NOT_BOUND = -1
NOT_THERE = -1


def bound(jobs: JobTable, rows: Ints) -> Ints:
    """The directory that each job is bound to, or NOT_BOUND, (K,)."""
    own = np.where(jobs.lease_in[rows] >= 0, jobs.lease_in[rows], jobs.stopping_in[rows])
    return np.where(own >= 0, own, jobs.saved_in[rows])


def most(jobs: JobTable, pool: GpuPool, rows: Ints, among: Bools | None = None) -> Ints:
    """How many GPUs of each type one lease of each job could have at most, (K, T).

    Of those that are usable, or of some others, `among` (G,).
    """
    lots = pool.usable_counts if among is None else pool.lot_counts(among)
    if pool.all_see:
        return np.broadcast_to(lots, (len(rows), len(lots)))
    T, where = len(pool.gpu_types), bound(jobs, rows)
    there = np.zeros((len(pool.directories), T), dtype=np.int64)
    there[pool.lot_directory, pool.lot_type] = lots
    return np.where((where == NOT_BOUND)[:, None], there.max(axis=0), there[where])


def can_run(jobs: JobTable, pool: GpuPool, rows: Ints, among: Bools | None = None) -> Bools:
    """Whether each job could run on each type with the usable GPUs, or with `among` (G,) of them, (K, T).

    NaN > 0 is false: unknown.
    """
    enough: Bools = jobs.gpus[rows, None] <= most(jobs, pool, rows, among)
    return (jobs.rate[rows] > 0) & enough


def can_run_somewhere(jobs: JobTable, pool: GpuPool, row: int) -> bool:
    """Whether a job could run on any type with the GPUs there are. For one job, asked often: `can_run` is for many."""
    if not pool.all_see:
        return bool(can_run(jobs, pool, np.array([row])).any())
    return bool(((jobs.rate[row] > 0) & (pool.counts >= jobs.gpus[row])).any())


class Lots:
    """In which lot a job may take GPUs, where lots are not types."""

    def __init__(self, jobs: JobTable, pool: GpuPool) -> None:
        self._jobs, self._pool = jobs, pool
        self.count, self.type_count = len(pool.lot_type), len(pool.gpu_types)
        kinds = pool.lot_type.tolist()
        self._of_type: list[list[int]] = [[] for _ in range(self.type_count)]
        for lot, kind in enumerate(kinds):
            self._of_type[kind].append(lot)
        self._first: dict[tuple[int, int, int], int] = {}  # by type, GPUs and key: first lot that may have enough

    def slots(self, rows: Ints) -> Ints:
        """For each job and type the lot to take GPUs in, NOT_THERE, or the number of lots + type: any, (K, T)."""
        pool, where = self._pool, bound(self._jobs, rows)
        lot_at = np.full((len(pool.directories), self.type_count), NOT_THERE)
        lot_at[pool.lot_directory, pool.lot_type] = np.arange(self.count)
        anywhere = self.count + np.arange(self.type_count)
        return np.where((where == NOT_BOUND)[:, None], anywhere, lot_at[where])

    def resolve(self, slot: int, gpus: int, free: list[int], key: int = 0) -> int:
        """The lot in which a job takes this many GPUs, or NOT_THERE; the cluster's directory comes first.

        `free` only falls from one call with a `key` to the next, so that a lot with too few is never looked at again.
        """
        if slot < self.count:
            return slot if slot >= 0 and gpus <= free[slot] else NOT_THERE
        kind = slot - self.count
        lots, position = self._of_type[kind], self._first.get((kind, gpus, key), 0)
        while position < len(lots) and gpus > free[lots[position]]:
            position += 1
        self._first[kind, gpus, key] = position
        return lots[position] if position < len(lots) else NOT_THERE

"""Where a job may run: on its GPU types, and where its checkpoint can follow it.

A job without a checkpoint may run anywhere. One that has run, or is about to, is bound to the lot of that lease: there
its checkpoint is, or will be. See `gpus` for what a lot is. Where every server sees the shared checkpoint directory,
lots are types and nobody is bound.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Bools, Ints

NOT_BOUND = -1
SHARED = -2  # to servers that see the shared checkpoint directory
NOT_THERE = -1


def bound(jobs: JobTable, pool: GpuPool, rows: Ints) -> Ints:
    """The server that each job is bound to (its row), SHARED, or NOT_BOUND, (K,)."""
    gpu = np.where(jobs.gpu_first[rows] >= 0, jobs.gpu_first[rows], jobs.stopping_first[rows])
    return np.where(gpu >= 0, place_of(pool, gpu), jobs.saved_on[rows])


def place_of(pool: GpuPool, gpu: Ints) -> Ints:
    """Where a lease on these GPUs leaves its checkpoint: a server (its row) or SHARED, (K,); -1 for GPU -1."""
    node = pool.node_of[gpu]
    sees = np.array(pool.node_sees, dtype=np.bool_)
    return np.where(gpu >= 0, np.where(sees[node], SHARED, node), NOT_BOUND)


def most(jobs: JobTable, pool: GpuPool, rows: Ints, among: Bools | None = None) -> Ints:
    """How many GPUs of each type one lease of each job could have at most, (K, T).

    Of those that are usable, or of some others, `among` (G,).
    """
    lots = pool.usable_counts if among is None else pool.lot_counts(among)
    if pool.all_see:
        return np.broadcast_to(lots, (len(rows), len(lots)))
    T, where = len(pool.gpu_types), bound(jobs, pool, rows)
    alone = np.zeros(T, dtype=np.int64)  # the most on a server that does not see the directory
    np.maximum.at(alone, pool.lot_type[T:], lots[T:])
    limit = np.where((where == SHARED)[:, None], lots[:T], np.maximum(lots[:T], alone))
    fixed = np.flatnonzero(where >= 0)
    limit[fixed] = 0
    limit[fixed, pool.lot_type[T + where[fixed]]] = lots[T + where[fixed]]
    return limit


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
        self._first: dict[tuple[int, int], int] = {}  # by type and GPUs: position of the first lot that may have enough

    def slots(self, rows: Ints) -> Ints:
        """For each job and type the lot to take GPUs in, NOT_THERE, or the number of lots + type: any, (K, T)."""
        T, types = self.type_count, np.arange(self.type_count)
        where = bound(self._jobs, self._pool, rows)[:, None]
        there = (where >= 0) & (self._pool.lot_type[T + np.maximum(where, 0)] == types)
        own = np.where(there, T + where, NOT_THERE)
        return np.where(where == SHARED, types, np.where(where == NOT_BOUND, self.count + types, own))

    def resolve(self, slot: int, gpus: int, free: list[int]) -> int:
        """The lot in which a job takes this many GPUs, or NOT_THERE; servers that see the directory come first.

        `free` only falls from one call to the next, so that a lot with too few is never looked at again.
        """
        if slot < self.count:
            return slot if slot >= 0 and gpus <= free[slot] else NOT_THERE
        kind = slot - self.count
        lots, position = self._of_type[kind], self._first.get((kind, gpus), 0)
        while position < len(lots) and gpus > free[lots[position]]:
            position += 1
        self._first[kind, gpus] = position
        return lots[position] if position < len(lots) else NOT_THERE

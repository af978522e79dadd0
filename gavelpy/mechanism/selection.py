"""Which jobs run on which GPU type in the coming round: greedy by urgency, within the GPUs there are.

Greedy in order of priority, skipping what does not fit, is the original's rule (Gavel, OSDI '20, section 5, algorithm
1).
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.priorities import priority
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Floats, Ints

Selection = tuple[Ints, Ints]  # jobs (K,), their GPU types (K,)


def select_global(jobs: JobTable, rows: Ints, free: Ints, settings: MechanismSettings) -> Selection:
    """One queue of all (job, type) pairs with a share; then, if the settings say so, leftover GPUs.

    `rows` are the jobs that may be chosen, `free` (T,) the GPUs to give out. Order: priority, time owed less received,
    share, serial, type.
    """
    local, gpu_type = np.nonzero(jobs.target[rows] > 0)
    pairs = rows[local]
    urgency, lag, share = _merit(jobs, pairs, gpu_type, settings)
    order = np.lexsort((gpu_type, pairs, -share, -lag, -urgency))
    left = free.copy()
    chosen = _take(pairs[order], gpu_type[order], jobs.gpus, left)
    if settings.fill_leftover:
        chosen = _joined(chosen, select_leftover(jobs, rows[~jobs.marks(chosen[0])[rows]], left))
    return chosen


def select_leftover(jobs: JobTable, rows: Ints, free: Ints) -> Selection:
    """Free GPUs for whoever can use them: the most neglected job first, on the fastest type it still fits on."""
    if not free.any() or not len(rows):
        return rows[:0], rows[:0]
    usable = _usable(jobs, rows, free)
    rows = rows[usable.any(axis=1)]
    neglect = (jobs.owed_s[rows] - jobs.received_s[rows]).sum(axis=1)
    rows = rows[np.lexsort((rows, -neglect))]
    left: list[int] = free.tolist()
    chosen_jobs: list[int] = []
    chosen_types: list[int] = []
    by_speed = np.argsort(-jobs.rate[rows], axis=1, kind="stable")
    for job, gpus, types in zip(rows.tolist(), jobs.gpus[rows].tolist(), by_speed.tolist(), strict=True):
        for gpu_type in types:
            if gpus <= left[gpu_type] and jobs.rate[job, gpu_type] > 0:
                left[gpu_type] -= gpus
                chosen_jobs.append(job)
                chosen_types.append(gpu_type)
                break
        if not any(left):
            break
    free[:] = left
    return np.array(chosen_jobs, dtype=np.int64), np.array(chosen_types, dtype=np.int64)


def select_by_type(jobs: JobTable, rows: Ints, free: Ints, settings: MechanismSettings, type_order: Ints) -> Selection:
    """One queue a GPU type, types in the given order; jobs without a share stand at its end.

    Only rates matter for who may stand there; the original's order: priority, deficit, share, arrival.
    """
    left = free.copy()
    waiting = rows
    chosen: Selection = (rows[:0], rows[:0])
    for gpu_type in type_order.tolist():
        runs = jobs.rate[waiting, gpu_type] > 0
        if not settings.fill_leftover:
            runs &= jobs.target[waiting, gpu_type] > 0
        here = waiting[runs]
        types = np.full(len(here), gpu_type)
        urgency, _, share = _merit(jobs, here, types, settings)
        order = np.lexsort((here, -share, -jobs.deficit_s[here, gpu_type], -urgency))
        taken = _take(here[order], types, jobs.gpus, left)
        chosen = _joined(chosen, taken)
        waiting = waiting[~jobs.marks(taken[0])[waiting]]
    return chosen


def _merit(jobs: JobTable, pairs: Ints, gpu_type: Ints, settings: MechanismSettings) -> tuple[Floats, Floats, Floats]:
    share = jobs.target[pairs, gpu_type]
    owed, received = jobs.owed_s[pairs, gpu_type], jobs.received_s[pairs, gpu_type]
    return priority(share, owed, received, settings), owed - received, share


def _take(pairs: Ints, gpu_type: Ints, gpus: Ints, left: Ints) -> Selection:
    """Goes down a queue once; each job at most once, each type at most `left` (which it lowers)."""
    free: list[int] = left.tolist()
    total = sum(free)
    taken: set[int] = set()
    chosen: list[int] = []
    needed = gpus[pairs].tolist()
    types = gpu_type.tolist()
    for position, job in enumerate(pairs.tolist()):
        if total == 0:
            break
        need = needed[position]
        if job not in taken and need <= free[types[position]]:
            free[types[position]] -= need
            total -= need
            taken.add(job)
            chosen.append(position)
    left[:] = free
    return pairs[chosen], gpu_type[chosen]


def _usable(jobs: JobTable, rows: Ints, free: Ints) -> Bools:
    runs: Bools = (jobs.rate[rows] > 0) & (jobs.gpus[rows, None] <= free[None, :])
    return runs


def _joined(first: Selection, second: Selection) -> Selection:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])

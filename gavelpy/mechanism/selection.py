"""Which jobs run on which GPU type in the coming round: greedy by urgency, within the GPUs there are.

What is given out are the GPUs of lots (see `gpus`). Without `lots`, and that is as good as always, lots are types.

Greedy in order of priority, skipping what does not fit, is the original's rule (Gavel, OSDI '20, section 5, algorithm
1).
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lots import NOT_THERE, Lots
from gavelpy.mechanism.priorities import priority
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Floats, Ints

Selection = tuple[Ints, Ints]  # jobs (K,), the lots of their GPUs (K,)


def select_global(
    jobs: JobTable, rows: Ints, free: Ints, settings: MechanismSettings, lots: Lots | None = None
) -> Selection:
    """One queue of all (job, type) pairs with a share; then, if the settings say so, leftover GPUs.

    `rows` are the jobs that may be chosen, `free` (L,) the GPUs to give out. Order: priority, time owed less received,
    share, serial, type.
    """
    local, gpu_type = np.nonzero(jobs.target[rows] > 0)
    pairs = rows[local]
    urgency, lag, share = _merit(jobs, pairs, gpu_type, settings)
    order = np.lexsort((gpu_type, pairs, -share, -lag, -urgency))
    left = free.copy()
    slots = gpu_type if lots is None else lots.slots(rows)[local, gpu_type]
    chosen = _take(pairs[order], slots[order], jobs.gpus, left, lots)
    if settings.fill_leftover:
        chosen = _joined(chosen, select_leftover(jobs, rows[~jobs.marks(chosen[0])[rows]], left, lots))
    return chosen


def select_leftover(jobs: JobTable, rows: Ints, free: Ints, lots: Lots | None = None) -> Selection:
    """Free GPUs for whoever can use them: the most neglected job first, on the fastest type it still fits on."""
    if not free.any() or not len(rows):
        return rows[:0], rows[:0]
    runs = jobs.rate[rows] > 0
    usable = runs & (jobs.gpus[rows, None] <= free[None, :]) if lots is None else runs
    rows = rows[usable.any(axis=1)]
    neglect = (jobs.owed_s[rows] - jobs.received_s[rows]).sum(axis=1)
    rows = rows[np.lexsort((rows, -neglect))]
    left: list[int] = free.tolist()
    chosen_jobs: list[int] = []
    chosen_lots: list[int] = []
    by_speed = np.argsort(-jobs.rate[rows], axis=1, kind="stable")
    slots = by_speed if lots is None else np.take_along_axis(lots.slots(rows), by_speed, axis=1)
    for job, gpus, types, places in zip(
        rows.tolist(), jobs.gpus[rows].tolist(), by_speed.tolist(), slots.tolist(), strict=True
    ):
        for gpu_type, slot in zip(types, places, strict=True):
            lot = slot if lots is None else lots.resolve(slot, gpus, left)
            if lot != NOT_THERE and gpus <= left[lot] and jobs.rate[job, gpu_type] > 0:
                left[lot] -= gpus
                chosen_jobs.append(job)
                chosen_lots.append(lot)
                break
        if not any(left):
            break
    free[:] = left
    return np.array(chosen_jobs, dtype=np.int64), np.array(chosen_lots, dtype=np.int64)


def select_by_type(
    jobs: JobTable,
    rows: Ints,
    free: Ints,
    settings: MechanismSettings,
    type_order: Ints,
    lots: Lots | None = None,
) -> Selection:
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
        slots = types if lots is None else lots.slots(here)[:, gpu_type][order]
        taken = _take(here[order], slots, jobs.gpus, left, lots)
        chosen = _joined(chosen, taken)
        waiting = waiting[~jobs.marks(taken[0])[waiting]]
    return chosen


def _merit(jobs: JobTable, pairs: Ints, gpu_type: Ints, settings: MechanismSettings) -> tuple[Floats, Floats, Floats]:
    share = jobs.target[pairs, gpu_type]
    owed, received = jobs.owed_s[pairs, gpu_type], jobs.received_s[pairs, gpu_type]
    return priority(share, owed, received, settings), owed - received, share


def _take(pairs: Ints, slots: Ints, gpus: Ints, left: Ints, lots: Lots | None) -> Selection:
    """Goes down a queue once; each job at most once, each lot at most `left` (which it lowers)."""
    free: list[int] = left.tolist()
    total = sum(free)
    taken: set[int] = set()
    chosen: list[int] = []
    needed = gpus[pairs].tolist()
    found: list[int] = slots.tolist()
    for position, job in enumerate(pairs.tolist()):
        if total == 0:
            break
        need, lot = needed[position], found[position]
        if lots is not None:
            lot = found[position] = lots.resolve(lot, need, free)
            if lot == NOT_THERE:
                continue
        if job not in taken and need <= free[lot]:
            free[lot] -= need
            total -= need
            taken.add(job)
            chosen.append(position)
    left[:] = free
    return pairs[chosen], np.array([found[position] for position in chosen], dtype=np.int64)


def _joined(first: Selection, second: Selection) -> Selection:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])

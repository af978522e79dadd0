"""A queue of jobs takes free GPUs, the most urgent first, in numba: `selection.serve` does the same in numpy."""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.compiled import njit

LOOKED_AT = 2  # queue entries for each free GPU
ALL = -np.inf
FEW_FREE = 32  # GPUs; for more, sorting the queue is faster than a pass for each job that is served


@njit(cache=True, nogil=True)
def serve(jobs, types, urgency, lag, share, gpus, free, least):  # type: ignore[no-untyped-def]
    """Jobs and types that are chosen; updates `free`. Entries below `least` are put in order only if GPUs are left."""
    total, K = free.sum(), len(jobs)
    if K == 0 or total == 0:
        return jobs[:0], types[:0]
    if total <= FEW_FREE:
        return _serve_few(jobs, types, urgency, lag, share, gpus, free, total)
    first = jobs.min()
    is_taken = np.zeros(jobs.max() - first + 1, dtype=np.bool_)
    chosen, count = np.empty(min(total, K), dtype=np.int64), 0
    rows = np.flatnonzero(urgency >= least)
    while True:
        order = _in_order(jobs[rows], types[rows], urgency[rows], lag[rows], share[rows])
        for n in order:
            if total == 0:
                break
            k = rows[n]
            job, need = jobs[k], gpus[jobs[k]]
            if need <= free[types[k]] and not is_taken[job - first]:
                is_taken[job - first] = True
                free[types[k]] -= need
                total -= need
                chosen[count] = k
                count += 1
        if total == 0 or least == ALL:
            break
        left = 0
        rows = np.empty(K, dtype=np.int64)
        for k in range(K):
            if urgency[k] < least and gpus[jobs[k]] <= free[types[k]] and not is_taken[jobs[k] - first]:
                rows[left] = k
                left += 1
        rows, least = rows[:left], ALL
        if left == 0:
            break
    return jobs[chosen[:count]], types[chosen[:count]]


@njit(cache=True, nogil=True)
def _serve_few(jobs, types, urgency, lag, share, gpus, free, total):  # type: ignore[no-untyped-def]
    """As `serve`: finds the most urgent job that fits once for each that is served, and sorts none."""
    rows, order, count = np.arange(len(jobs)), np.empty(total, dtype=np.int64), 0
    taken = np.int64(-1)
    while total > 0:
        best, left = np.int64(-1), 0
        for k in rows:
            if jobs[k] == taken or gpus[jobs[k]] > free[types[k]]:
                continue  # for good: GPUs only become fewer
            rows[left] = k
            left += 1
            if best < 0 or urgency[k] > urgency[best]:
                best = k
            elif urgency[k] == urgency[best]:
                if lag[k] != lag[best]:
                    is_first = lag[k] > lag[best]
                elif share[k] != share[best]:
                    is_first = share[k] > share[best]
                else:
                    is_first = jobs[k] < jobs[best] or (jobs[k] == jobs[best] and types[k] < types[best])
                best = k if is_first else best
        if best < 0:
            break
        taken, rows = jobs[best], rows[:left]
        need = gpus[taken]
        free[types[best]] -= need
        total -= need
        order[count] = best
        count += 1
    return jobs[order[:count]], types[order[:count]]


@njit(cache=True, nogil=True)
def _in_order(jobs, types, urgency, lag, share):  # type: ignore[no-untyped-def]
    """The most urgent first, by merging runs that are in order. A function for the comparison would take most time."""
    K = len(jobs)
    order, merged = np.arange(K), np.empty(K, dtype=np.int64)
    width = 1
    while width < K:
        for begin in range(0, K, 2 * width):
            middle, end = min(begin + width, K), min(begin + 2 * width, K)
            i, j = begin, middle
            for k in range(begin, end):
                if i == middle or j == end:
                    is_second = i == middle
                else:
                    a, b = order[i], order[j]
                    if urgency[a] != urgency[b]:
                        is_second = urgency[b] > urgency[a]
                    elif lag[a] != lag[b]:
                        is_second = lag[b] > lag[a]
                    elif share[a] != share[b]:
                        is_second = share[b] > share[a]
                    elif jobs[a] != jobs[b]:
                        is_second = jobs[b] < jobs[a]
                    else:
                        is_second = types[b] < types[a]
                if is_second:
                    merged[k] = order[j]
                    j += 1
                else:
                    merged[k] = order[i]
                    i += 1
        order, merged = merged, order
        width *= 2
    return order


def least_urgency(urgency: Floats, free: Ints) -> float:
    """Such that the entries from there on take nearly all free GPUs (T,): the others need no order among themselves."""
    most = LOOKED_AT * int(free.sum())
    if len(urgency) <= 2 * most or not most:
        return ALL
    return float(np.partition(urgency, -most)[-most])

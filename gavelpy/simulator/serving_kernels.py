"""A queue of jobs takes free GPUs, the most urgent first, in numba: `selection.serve` does the same in numpy."""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.compiled import njit

LOOKED_AT = 2  # queue entries for each free GPU
ALL = -np.inf
NONE = np.zeros(0, dtype=np.int64)
FEW_FREE = 32  # GPUs; for more, sorting the queue is faster than a pass for each job that is served


@njit(cache=True, nogil=True)
def serve(jobs, types, urgency, lag, share, gpus, free, first, least):  # type: ignore[no-untyped-def]
    """Jobs and types that are chosen; updates `free`. Entries below `least` are put in order only if GPUs are left.

    `first`: the other entries by urgency, in any order where that is equal; for few GPUs it is not needed.
    """
    total, K = free.sum(), len(jobs)
    if K == 0 or total == 0:
        return jobs[:0], types[:0]
    if total <= FEW_FREE:
        return _serve_few(jobs, types, urgency, lag, share, gpus, free, total)
    lowest = jobs.min()
    is_taken = np.zeros(jobs.max() - lowest + 1, dtype=np.bool_)
    chosen, count = np.empty(min(total, K), dtype=np.int64), 0
    order = first if least > ALL else by_urgency(urgency)
    while True:
        _break_ties(order, jobs, types, urgency, lag, share)
        for k in order:
            if total == 0:
                break
            job, need = jobs[k], gpus[jobs[k]]
            if need <= free[types[k]] and not is_taken[job - lowest]:
                is_taken[job - lowest] = True
                free[types[k]] -= need
                total -= need
                chosen[count] = k
                count += 1
        if total == 0 or least == ALL:
            break
        left = 0
        rows = np.empty(K, dtype=np.int64)
        for k in range(K):
            if urgency[k] < least and gpus[jobs[k]] <= free[types[k]] and not is_taken[jobs[k] - lowest]:
                rows[left] = k
                left += 1
        if left == 0:
            break
        rows, least = rows[:left], ALL
        order = rows[by_urgency(urgency[rows])]
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
def by_urgency(urgency):  # type: ignore[no-untyped-def]
    """The entries, the most urgent first."""
    return np.argsort(-urgency)


@njit(cache=True, nogil=True)
def _break_ties(order, jobs, types, urgency, lag, share):  # type: ignore[no-untyped-def]
    """Puts entries that are equally urgent in order."""
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and urgency[order[end]] == urgency[order[begin]]:
            end += 1
        if end > begin + 1:
            order[begin:end] = _by_lag(order[begin:end], jobs, types, lag, share)
        begin = end


@njit(cache=True, nogil=True)
def _by_lag(rows, jobs, types, lag, share):  # type: ignore[no-untyped-def]
    """These rows in order, by merging runs that are. A function for the comparison would take most time."""
    K = len(rows)
    order, merged = rows.copy(), np.empty(K, dtype=np.int64)
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
                    if lag[a] != lag[b]:
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


def most_urgent(urgency: Floats, free: Ints) -> tuple[Ints, float]:
    """The entries that take nearly all free GPUs (T,), by urgency, and the least of theirs: others need no order yet.

    No entries, and ALL, if these are most of the entries, or the GPUs are so few that no order is needed.
    """
    total = int(free.sum())
    most = LOOKED_AT * total
    if total <= FEW_FREE or len(urgency) <= 2 * most:
        return NONE, ALL
    least = float(np.partition(urgency, -most)[-most])
    rows = np.flatnonzero(urgency >= least)
    return rows[np.argsort(-urgency[rows])], least  # numpy sorts faster than numba

"""All pivots (pivots.py) in one compiled call, from a table to times and prices.

Its products and equations round otherwise than numpy's, so steps may be others. A unique optimum is the same in the
end, and has the same bytes, as its kinks are put in order before times and prices are computed. For others pivots.py
takes step after step with numpy's products.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.numba_search import balance, corners, go, leaving, release, settled

UNIQUE = 1
_NONE = 1e-12  # a part that is none but for rounding: `_ROUNDING` of pivots.py


@njit(cache=True, nogil=True, error_model="numpy")
def answered(  # type: ignore[no-untyped-def]
    rate, gains, gpus, count, floor, gpu_counts, more, low, high, sure, steps_max, time, steepness, price
):
    """Sets times (K, T), marginal costs (K,) and prices (T,) of the highest sum; returns UNIQUE if they are unique.

    Else what is set has no meaning. Prices are those with `more` GPUs, times those with `gpu_counts` at the same kinks.
    """
    (K, T), V = rate.shape, len(low)
    gain, corner_time, taken = np.empty((K, V)), np.zeros((K, V, T)), np.empty((K, V, T))
    corners(rate, gains, count, gpus * count, floor, low, high, gain, corner_time, taken)
    best, tie, free = np.empty(K, np.int64), np.zeros((T + 1, 2), np.int64), np.arange(T + 1)
    kinks = np.array([0, T])
    for k in range(K):
        best[k] = np.argmax(gain[k])
        if gain[k, best[k]] == -np.inf:
            return 0
    if not _is_found(gain, taken, more, best, tie, free, kinks, steps_max):
        return 0
    in_order(best, tie, free, kinks)
    left, rows, part, amount = np.empty(T), np.empty((T, T)), np.empty(T), np.empty(T)
    balance(taken, more, best, tie, free, kinks, left, rows)
    ties = kinks[0]
    part[:] = left
    balance(taken, gpu_counts, best, tie, free, kinks, left, rows)
    amount[:] = left
    price[:] = 0.0
    for r in range(ties):
        k = tie[r, 0]
        price[r] = gain[k, tie[r, 1]] - gain[k, best[k]]
    if not (solved(rows.T.copy(), part) and solved(rows.T.copy(), amount) and solved(rows.copy(), price)):
        return 0
    if _least_part(tie, free, kinks, part, more) <= sure or _least_part(tie, free, kinks, amount, gpu_counts) < -_NONE:
        return 0
    for t in range(T):
        price[t] = max(price[t], 0.0)
    for r in range(kinks[1]):
        price[free[r]] = 0.0
    is_sure = settled(
        rate, gains, gpus, low, high, gain, corner_time, taken, best, tie, ties, amount, price, sure, time, steepness
    )
    return UNIQUE if is_sure and _have_prices(free[: kinks[1]], price, sure) else 0


@njit(cache=True, nogil=True, error_model="numpy")
def _is_found(gain, taken, gpu_counts, best, tie, free, kinks, steps_max):  # type: ignore[no-untyped-def]
    """Whether there is a point from which no edge leads down. Sets its kinks."""
    (K, V), T = gain.shape, len(gpu_counts)
    price, amount, direction = np.zeros(T), np.empty(T), np.empty(T)
    left, rows, value, speed = np.empty(T), np.empty((T, T)), np.empty((K, V)), np.empty((K, V))
    for _ in range(steps_max):
        balance(taken, gpu_counts, best, tie, free, kinks, left, rows)
        amount[:] = left
        if not solved(rows.T.copy(), amount):
            return False
        row = leaving(amount, gpu_counts, best, tie, free, kinks)
        if row < 0:
            return True
        balance(taken, gpu_counts, best, tie, free, kinks, left, rows)
        release(row, tie, free, kinks)
        direction[:] = 0.0
        direction[row] = 1.0
        if not solved(rows, direction):
            return False
        fall = 0.0
        for t in range(T):
            fall += left[t] * direction[t]
        for k in range(K):
            for v in range(V):
                cost, rise = 0.0, 0.0
                for t in range(T):
                    cost += taken[k, v, t] * price[t]
                    rise += taken[k, v, t] * direction[t]
                value[k, v], speed[k, v] = gain[k, v] - cost, -rise
        if not go(value, speed, direction, fall, best, tie, free, kinks, price):
            return False
    return False


@njit(cache=True, nogil=True, error_model="numpy")
def in_order(best, tie, free, kinks):  # type: ignore[no-untyped-def]
    """Sorts ties by class and corner, and free types; the first corner of a class becomes its best."""
    ties, frees = kinks
    for r in range(ties):
        k, v = tie[r]
        if v < best[k]:
            tie[r, 1], best[k] = best[k], v
    for r in range(ties):  # a few
        for later in range(r + 1, ties):
            if tie[later, 0] < tie[r, 0] or (tie[later, 0] == tie[r, 0] and tie[later, 1] < tie[r, 1]):
                k, v = tie[r]
                tie[r, 0], tie[r, 1] = tie[later, 0], tie[later, 1]
                tie[later, 0], tie[later, 1] = k, v
    free[:frees].sort()


@njit(cache=True, nogil=True, error_model="numpy")
def solved(rows, right):  # type: ignore[no-untyped-def]
    """Replaces the right side of equations by their solution, by elimination; whether they are independent."""
    T = len(right)
    for c in range(T):
        pivot = c
        for r in range(c + 1, T):
            if abs(rows[r, c]) > abs(rows[pivot, c]):
                pivot = r
        if rows[pivot, c] == 0.0:
            return False
        for t in range(T):
            rows[c, t], rows[pivot, t] = rows[pivot, t], rows[c, t]
        right[c], right[pivot] = right[pivot], right[c]
        for r in range(c + 1, T):
            part = rows[r, c] / rows[c, c]
            if part != 0.0:
                for t in range(c, T):
                    rows[r, t] -= part * rows[c, t]
                right[r] -= part * right[c]
    for c in range(T - 1, -1, -1):
        for t in range(c + 1, T):
            right[c] -= rows[c, t] * right[t]
        right[c] /= rows[c, c]
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _least_part(tie, free, kinks, amount, gpu_counts):  # type: ignore[no-untyped-def]
    """The least part of a class at one of its tied corners, or of a free type's GPUs that are left."""
    (ties, frees), least = kinks, 1.0
    for r in range(ties):
        rest = 1.0
        for other in range(ties):
            if tie[other, 0] == tie[r, 0]:
                rest -= amount[other]
        least = min(least, amount[r], rest)
    for r in range(frees):
        least = min(least, amount[ties + r] / gpu_counts[free[r]])
    return least


@njit(cache=True, nogil=True, error_model="numpy")
def _have_prices(free, price, sure):  # type: ignore[no-untyped-def]
    """Whether all types but the free ones have prices."""
    least, is_free = np.inf, np.zeros(len(price), np.bool_)
    for t in free:
        is_free[t] = True
    for t in range(len(price)):
        if not is_free[t]:
            least = min(least, price[t])
    return least > sure * price.max()

"""Compiled searches for optimal prices: the steps of pivots.py, and levels by columns (column_kernels.py).

They are used where the numba kernels are loaded already (`table.search_kernels`); elsewhere numpy finds the same
answers, to the last byte. Pivots compute what pivots.py does, operation by operation. A level's search only finds the
prices, and vertex.py computes the answer from the structure of the optimum there.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.column_kernels import level_by_columns as level_by_columns

_ROUNDING = 1e-12
_ROOT = np.int64(0)  # of the heap; numba would compile a function another time for the literal


@njit(cache=True, nogil=True, error_model="numpy")
def corners(rate, gain, count, load, floor, low, high, corner_gain, time, taken):  # type: ignore[no-untyped-def]
    """Sets gains (K, V), times and GPUs (K, V, T), zero before, of the corners of each class; see pivots.py."""
    K, T = rate.shape
    for k in range(K):
        need = floor[k]
        for v in range(len(low)):
            a, b = low[v], high[v]
            a_rate, a_gain, b_rate, b_gain, runs = 0.0, 0.0, 0.0, 0.0, True
            if a < T:
                a_rate, a_gain = rate[k, a], gain[k, a]
                runs = a_rate > 0.0
            if b < T:
                b_rate, b_gain = rate[k, b], gain[k, b]
                runs = runs and b_rate > 0.0
            exists = runs and (a_rate >= need if a == b else (a_rate < need and need < b_rate))
            part = (need - a_rate) / (b_rate - a_rate) if exists and a != b else 1.0
            corner_gain[k, v] = (part * b_gain + (1.0 - part) * a_gain) * count[k] if exists else -np.inf
            if b < T:
                time[k, v, b] += part
            if a < T:
                time[k, v, a] += 1.0 - part
            for t in range(T):
                taken[k, v, t] = time[k, v, t] * load[k]


@njit(cache=True, nogil=True, error_model="numpy")
def balance(taken, gpu_counts, best, tie, free, kinks, left, rows):  # type: ignore[no-untyped-def]
    """Sets the GPUs left, (T,), and the quantities that are constant along an edge, (T, T)."""
    _spare(taken, best, gpu_counts, left)
    _constants(taken, best, tie, free, kinks, rows)


@njit(cache=True, nogil=True, error_model="numpy")
def leave(amount, taken, gpu_counts, best, tie, free, kinks, left, rows):  # type: ignore[no-untyped-def]
    """Releases the kink with the most negative amount, and returns its row, or -1; sets what `balance` sets."""
    row = leaving(amount, gpu_counts, best, tie, free, kinks)
    if row >= 0:
        balance(taken, gpu_counts, best, tie, free, kinks, left, rows)
        release(row, tie, free, kinks)
    return row


@njit(cache=True, nogil=True, error_model="numpy")
def _spare(taken, best, gpu_counts, left):  # type: ignore[no-untyped-def]
    """Sets the GPUs left if each class is at its best corner, (T,)."""
    for t in range(len(left)):
        used = taken[0, best[0], t]
        for k in range(1, len(best)):
            used += taken[k, best[k], t]
        left[t] = gpu_counts[t] - used


@njit(cache=True, nogil=True, error_model="numpy")
def _constants(taken, best, tie, free, kinks, rows):  # type: ignore[no-untyped-def]
    """Sets the quantities that are constant along an edge, (T, T): differences of ties, and prices of free types."""
    ties, frees = kinks
    rows[:, :] = 0.0
    for r in range(ties):
        for t in range(len(rows)):
            rows[r, t] = taken[tie[r, 0], tie[r, 1], t] - taken[tie[r, 0], best[tie[r, 0]], t]
    for r in range(frees):
        rows[ties + r, free[r]] = 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def leaving(amount, gpu_counts, best, tie, free, kinks):  # type: ignore[no-untyped-def]
    """The row with the most negative amount, or -1. A short best corner is swapped first."""
    ties, frees = kinks
    part = amount.copy()
    for r in range(frees):
        part[ties + r] = amount[ties + r] / gpu_counts[free[r]]
    row = 0
    for r in range(1, ties + frees):
        if part[r] < part[row]:
            row = r
    short, least = -1, np.inf
    for r in range(ties):
        rest = 1.0
        for other in range(ties):
            if tie[other, 0] == tie[r, 0]:
                rest -= part[other]
        if rest < least:
            short, least = tie[r, 0], rest
    if short < 0 or least >= min(part[row], -_ROUNDING):
        if part[row] >= -_ROUNDING:
            return -1
    else:
        row = -1
        for r in range(ties):
            if tie[r, 0] == short and (row < 0 or part[r] > part[row]):
                row = r
        best[short], tie[row, 1] = tie[row, 1], best[short]
    return row


@njit(cache=True, nogil=True, error_model="numpy")
def release(row, tie, free, kinks):  # type: ignore[no-untyped-def]
    """Removes one kink."""
    if row < kinks[0]:
        for r in range(row, kinks[0] - 1):
            tie[r, 0], tie[r, 1] = tie[r + 1, 0], tie[r + 1, 1]
        kinks[0] -= 1
    else:
        for r in range(row - kinks[0], kinks[1] - 1):
            free[r] = free[r + 1]
        kinks[1] -= 1


@njit(cache=True, nogil=True, error_model="numpy")
def _next_kink(k, length, value, speed, best, still):  # type: ignore[no-untyped-def]
    """The next kink of a class beyond `length`: where, and the corner that becomes the best."""
    first, at, corner = best[k], np.inf, 0
    own_speed, own_value = speed[k, first] + still, value[k, first]
    for v in range(value.shape[1]):
        if speed[k, v] > own_speed and value[k, v] > -np.inf:
            closing = speed[k, v] - speed[k, first]
            behind = max(own_value - value[k, v] - length * closing, 0.0)
            if closing > still and length + behind / closing < at:
                at, corner = length + behind / closing, v
    return at, corner


@njit(cache=True, nogil=True, error_model="numpy")
def _sift(heap, size, place, when):  # type: ignore[no-untyped-def]
    """Moves an entry of the heap down to its place; the earliest kink is first, then the lowest row."""
    entry = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _is_earlier(heap[child + 1], heap[child], when):
            child += 1
        if not _is_earlier(heap[child], entry, when):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry


@njit(cache=True, nogil=True, error_model="numpy")
def _is_earlier(k, other, when):  # type: ignore[no-untyped-def]
    return when[k] < when[other] or (when[k] == when[other] and k < other)


@njit(cache=True, nogil=True, error_model="numpy")
def go(value, speed, direction, fall, best, tie, free, kinks, price):  # type: ignore[no-untyped-def]
    """Moves the prices as far as the sum falls, to the kink that ends it; whether there is one."""
    K = len(value)
    when, which, heap = np.empty(K), np.empty(K, np.int64), np.empty(K, np.int64)
    still = _ROUNDING * np.abs(speed).max()
    is_tied = np.zeros(K, np.bool_)
    for r in range(kinks[0]):
        is_tied[tie[r, 0]] = True
    for k in range(K):
        when[k], which[k] = _next_kink(k, 0.0, value, speed, best, still)
        if is_tied[k]:
            when[k], which[k] = _next_beyond_ties(k, value, speed, best, tie, kinks[0], still)
        heap[k] = k
    for place in range(K // 2 - 1, -1, -1):
        _sift(heap, K, place, when)
    to_zero, first_free = np.inf, -1
    for t in range(len(price)):
        if direction[t] < 0.0 and price[t] > 0.0 and price[t] / -direction[t] < to_zero:
            to_zero, first_free = price[t] / -direction[t], t
    while True:
        k = heap[0]
        v, length = which[k], min(when[k], to_zero)
        if length == np.inf:
            return False
        is_free = length == to_zero
        if not is_free:
            fall += speed[k, v] - speed[k, best[k]]
        if is_free or fall >= 0.0 or is_tied[k]:
            break
        best[k] = v
        when[k], which[k] = _next_kink(k, length, value, speed, best, still)
        _sift(heap, K, _ROOT, when)
    for t in range(len(price)):
        price[t] = max(price[t] + length * direction[t], 0.0)
    if is_free:
        price[first_free] = 0.0
        free[kinks[1]] = first_free
        kinks[1] += 1
    else:
        tie[kinks[0], 0], tie[kinks[0], 1] = k, v
        kinks[0] += 1
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _next_beyond_ties(k, value, speed, best, tie, ties, still):  # type: ignore[no-untyped-def]
    """The next kink of a class that is at one or more already."""
    first, at, corner = best[k], np.inf, 0
    for v in range(value.shape[1]):
        closing, tied = speed[k, v] - speed[k, first], False
        for r in range(ties):
            tied = tied or (tie[r, 0] == k and tie[r, 1] == v)
        if closing > still and not tied:
            behind = max(value[k, first] - value[k, v], 0.0)
            if behind / closing < at:
                at, corner = behind / closing, v
    return at, corner


@njit(cache=True, nogil=True, error_model="numpy")
def settled(  # type: ignore[no-untyped-def]
    rate, gains, gpus, low, high, gain, corner_time, taken, best, tie, ties, amount, price, sure, time, steepness
):
    """Sets times (K, T) and marginal costs (K,) from best corners, ties and prices; whether no times are as good."""
    (K, V), T = gain.shape, len(price)
    is_unique, value = True, np.empty(V)
    for k in range(K):
        first = best[k]
        for v in range(V):
            cost = taken[k, v, 0] * price[0]
            for t in range(1, T):
                cost += taken[k, v, t] * price[t]
            value[v] = gain[k, v] - cost
            if v == first:
                dearest = abs(value[v]) + cost
        for t in range(T):
            time[k, t] = corner_time[k, first, t]
        ahead = value[first]
        value[first] = -np.inf
        for r in range(ties):
            if tie[r, 0] == k:
                v = tie[r, 1]
                value[v] = -np.inf
                for t in range(T):
                    time[k, t] += amount[r] * (corner_time[k, v, t] - corner_time[k, first, t])
        is_unique = is_unique and ahead - value.max() > sure * dearest
        a, b = low[first], high[first]
        a_rate = b_rate = a_cost = b_cost = 0.0
        if a < T:
            a_rate, a_cost = rate[k, a], gpus[k] * price[a] - gains[k, a]
        if b < T:
            b_rate, b_cost = rate[k, b], gpus[k] * price[b] - gains[k, b]
        steepness[k] = (b_cost - a_cost) / (b_rate - a_rate) if b_rate - a_rate > 0.0 else 0.0
        for t in range(T):
            time[k, t] = max(time[k, t], 0.0)
    return is_unique

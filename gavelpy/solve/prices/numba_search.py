"""Compiled searches for optimal prices: the steps of pivots.py, and levels by columns.

They are used where the numba kernels are loaded already (`table.search_kernels`); elsewhere numpy finds the same
answers, to the last byte. Pivots compute what pivots.py does, operation by operation. A level's search only finds the
prices, and vertex.py computes the answer from the structure of the optimum there.

*Columns.* With prices p, the jobs' least cost of a level L is Σ_i c_i(L; p), and

    D(p) = max_L  L - Σ_i c_i(L; p) + p·W

is an upper bound on the highest level. A maximising L, with the GPUs U that it uses, is a column. A small dense linear
program has the best mix of the columns found so far, max Σ θ_k L_k with Σ θ_k U_k <= W and Σ θ_k = 1, and its duals
are the next prices (Dantzig and Wolfe 1960). It has T + 1 rows, and after some 8 T columns its value is the bound.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit

_ROUNDING = 1e-12
_COLUMNS_PER_TYPE = 40
_SAME = 1e-12  # relative difference between the bound and the best mix of columns
_SLACK = 1_000_000  # numbers of the columns of unused GPUs
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
def spare(taken, best, gpu_counts, left):  # type: ignore[no-untyped-def]
    """Sets the GPUs left if each class is at its best corner, (T,)."""
    for t in range(len(left)):
        used = taken[0, best[0], t]
        for k in range(1, len(best)):
            used += taken[k, best[k], t]
        left[t] = gpu_counts[t] - used


@njit(cache=True, nogil=True, error_model="numpy")
def constants(taken, best, tie, free, kinks, rows):  # type: ignore[no-untyped-def]
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
    """The row with the most negative amount, or -1; that kink is released. A short best corner is swapped first."""
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
    for v in range(value.shape[1]):
        closing = speed[k, v] - speed[k, first]
        if closing > still:
            behind = max(value[k, first] - value[k, v] - length * closing, 0.0)
            if length + behind / closing < at:
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
def _edges(rate, gpus, price, reach, cost, mode, edges):  # type: ignore[no-untyped-def]
    """Rates (K, T + 1), costs and modes of the corners of each job's lower hull; `edges` (K,) are their numbers."""
    K, T = rate.shape
    for k in range(K):
        n, at_rate, at_cost = 0, 0.0, 0.0
        reach[k, 0], cost[k, 0], mode[k, 0] = 0.0, 0.0, -1
        while True:
            following, steepness, best_rate = -1, np.inf, 0.0
            for t in range(T):
                rise = rate[k, t] - at_rate
                if rise > 0.0:
                    steep = (gpus[k] * price[t] - at_cost) / rise
                    if steep < steepness or (steep == steepness and rate[k, t] > best_rate):
                        following, steepness, best_rate = t, steep, rate[k, t]
            if following < 0:
                break
            n += 1
            at_rate, at_cost = rate[k, following], gpus[k] * price[following]
            reach[k, n], cost[k, n], mode[k, n] = at_rate, at_cost, following
        edges[k] = n


@njit(cache=True, nogil=True, error_model="numpy")
def _best_level(limit, count, value, reach, cost, edges, kinks, jumps):  # type: ignore[no-untyped-def]
    """The level, at most `limit`, from which a unit more costs at least 1: a kink of the cost, or the limit.

    The cost is convex there. A selection finds the kink in linear time.
    """
    slope, n = 0.0, 0
    for k in range(len(value)):
        before = count[k] * (cost[k, 1] - cost[k, 0]) / (reach[k, 1] - reach[k, 0]) / value[k]
        slope += before
        for e in range(1, edges[k]):
            at = reach[k, e] * value[k]
            if at >= limit:
                break
            after = count[k] * (cost[k, e + 1] - cost[k, e]) / (reach[k, e + 1] - reach[k, e]) / value[k]
            kinks[n], jumps[n] = at, after - before
            before = after
            n += 1
    if slope >= 1.0:
        return 0.0
    first, last = 0, n  # the kink is one of these, or there is none
    level = limit
    while first < last:
        middle = kinks[(first + last) // 2]
        split, jump = first, 0.0
        for i in range(first, last):  # kinks up to `middle` move to the front
            if kinks[i] <= middle:
                kinks[i], kinks[split] = kinks[split], kinks[i]
                jumps[i], jumps[split] = jumps[split], jumps[i]
                jump += jumps[split]
                split += 1
        if slope + jump >= 1.0:
            level = middle
            if split == last:  # all are at most `middle`: set aside those that are equal
                split = first
                for i in range(first, last):
                    if kinks[i] < middle:
                        kinks[i], kinks[split] = kinks[split], kinks[i]
                        jumps[i], jumps[split] = jumps[split], jumps[i]
                        split += 1
            last = split
        else:
            slope += jump
            first = split
    return level


@njit(cache=True, nogil=True, error_model="numpy")
def _column(level, gpus, count, value, reach, cost, mode, edges, used):  # type: ignore[no-untyped-def]
    """The least cost of a level; sets the GPUs that it uses, (T,)."""
    total = 0.0
    used[:] = 0.0
    for k in range(len(value)):
        need, e = level / value[k], 1
        while e < edges[k] and need > reach[k, e]:
            e += 1
        part = min(max((need - reach[k, e - 1]) / (reach[k, e] - reach[k, e - 1]), 0.0), 1.0)
        used[mode[k, e]] += gpus[k] * count[k] * part
        if e > 1:
            used[mode[k, e - 1]] += gpus[k] * count[k] * (1.0 - part)
        total += count[k] * (cost[k, e - 1] * (1.0 - part) + cost[k, e] * part)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _mixed(level, used, columns, gpu_counts, basis, inverse, amount, dual):  # type: ignore[no-untyped-def]
    """Continues the primal simplex method over the columns; sets the duals of the GPUs and of the sum (T + 1,)."""
    T = len(gpu_counts)
    m = T + 1
    column, step = np.empty(m), np.empty(m)
    for _ in range(50 * m):
        for i in range(m):
            dual[i] = 0.0
            for r in range(m):
                if basis[r] < _SLACK:
                    dual[i] += level[basis[r]] * inverse[r, i]
        most, entering = 1e-13 * abs(dual[T]) + 1e-300, -1
        for c in range(columns):
            gain = level[c] - dual[T]
            for t in range(T):
                gain -= dual[t] * used[c, t]
            if gain > most:
                most, entering = gain, c
        for t in range(T):
            if -dual[t] * gpu_counts[t] > most:
                most, entering = -dual[t] * gpu_counts[t], _SLACK + t
        if entering < 0:
            return
        for i in range(m):
            column[i] = 0.0
        if entering >= _SLACK:
            column[entering - _SLACK] = 1.0
        else:
            for t in range(T):
                column[t] = used[entering, t]
            column[T] = 1.0
        least, leaving = np.inf, -1
        for r in range(m):
            step[r] = 0.0
            for i in range(m):
                step[r] += inverse[r, i] * column[i]
            if step[r] > 1e-11 and max(amount[r], 0.0) / step[r] < least:
                least, leaving = max(amount[r], 0.0) / step[r], r
        if leaving < 0:
            return
        for i in range(m):
            inverse[leaving, i] /= step[leaving]
        for r in range(m):
            if r != leaving and step[r] != 0.0:
                for i in range(m):
                    inverse[r, i] -= step[r] * inverse[leaving, i]
        basis[leaving] = entering
        for r in range(m):
            amount[r] = inverse[r, T]
            for t in range(T):
                amount[r] += inverse[r, t] * gpu_counts[t]


@njit(cache=True, nogil=True, error_model="numpy")
def level_by_columns(rate, gpus, count, value, gpu_counts, price):  # type: ignore[no-untyped-def]
    """The highest level, or the limit of the slowest job, an upper bound on it, and columns; sets the prices (T,)."""
    K, T = rate.shape
    most = _COLUMNS_PER_TYPE * T
    reach, cost = np.empty((K, T + 1)), np.empty((K, T + 1))
    mode, edges = np.empty((K, T + 1), np.int64), np.empty(K, np.int64)
    kinks, jumps = np.empty(K * T), np.empty(K * T)
    level, used = np.zeros(most + 1), np.zeros((most + 1, T))  # the first column: no job runs
    basis, inverse = np.empty(T + 1, np.int64), np.zeros((T + 1, T + 1))
    amount, dual, trial = np.empty(T + 1), np.zeros(T + 1), np.empty(T)
    gpus_of_all_types, limit = 0.0, np.inf
    for t in range(T):
        basis[t], inverse[t, t], amount[t] = _SLACK + t, 1.0, gpu_counts[t]
        gpus_of_all_types += gpu_counts[t]
    basis[T], inverse[T, T], amount[T] = 0, 1.0, 1.0
    for t in range(T):
        trial[t] = 1.0 / (T * gpus_of_all_types)
    for k in range(K):
        limit = min(limit, value[k])
    least, value_of_mix = np.inf, 0.0
    for columns in range(1, most + 1):
        _edges(rate, gpus, trial, reach, cost, mode, edges)
        at = _best_level(limit, count, value, reach, cost, edges, kinks, jumps)
        bound = at - _column(at, gpus, count, value, reach, cost, mode, edges, used[columns])
        for t in range(T):
            bound += trial[t] * gpu_counts[t]
        if bound < least:
            least = bound
            for t in range(T):
                price[t] = trial[t]
        level[columns] = at
        _mixed(level, used, columns + 1, gpu_counts, basis, inverse, amount, dual)
        value_of_mix = 0.0
        for r in range(T + 1):
            if basis[r] < _SLACK:
                value_of_mix += amount[r] * level[basis[r]]
        if least - value_of_mix <= _SAME * abs(least):
            return value_of_mix, least, columns
        old = 0.0 if columns < 3 or columns % 4 == 0 else 0.3  # mixed with the best prices, they change less
        for t in range(T):
            trial[t] = old * price[t] + (1.0 - old) * max(dual[t], 0.0)
    return value_of_mix, least, most

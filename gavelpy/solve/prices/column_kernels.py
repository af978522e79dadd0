"""The highest level of up to some thousand jobs by columns, in numba.

With prices p, the jobs' least cost of a level L is Σ_i c_i(L; p), and

    D(p) = max_L  L - Σ_i c_i(L; p) + p·W

is an upper bound on the highest level. A maximising L, with the GPUs U that it uses, is a column. A small dense linear
program has the best mix of the columns found so far, max Σ θ_k L_k with Σ θ_k U_k <= W and Σ θ_k = 1, and its duals
are the next prices (Dantzig and Wolfe 1960). It has T + 1 rows, and after some 8 T columns its value is the bound.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit

_COLUMNS_PER_TYPE = 40
_SAME = 1e-12  # relative difference between the bound and the best mix of columns
_SLACK = 1_000_000  # numbers of the columns of unused GPUs


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

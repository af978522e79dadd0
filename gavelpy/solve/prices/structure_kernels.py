"""The structure of an optimum in numba: what vertex.py computes in numpy, number by number, for the jobs in doubt.

numpy takes some 0.2 ms for a hundred jobs, in some eighty operations on arrays of a few rows.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit

ROUNDING = 1e-15  # needs are up to 1


@njit(cache=True, nogil=True, error_model="numpy")
def kinks_of(  # type: ignore[no-untyped-def]
    rate, gain, gpus, rows, low, high, need, price, kink, times_follow, found, edge_low, edge_high, swap
):
    """Writes the jobs with one mode more than their mix needs, with their edges; returns their number, or -1.

    -1: a job has two such modes; or, unless `times_follow`, a job may have more than its need. `rows` are those of the
    jobs in doubt, and `low` and `high` their modes, T = idle. A swap (T + 1,) is the change of the times for a unit of
    time in the further mode.
    """
    T, B, most = rate.shape[1], 0, 0.0
    rates, cost = np.zeros(T + 1), np.zeros(T + 1)
    for t in range(T):
        most = max(most, price[t])
    for n in range(len(rows)):
        i, a, b = rows[n], low[n], high[n]
        for t in range(T):
            rates[t], cost[t] = rate[i, t], gpus[i] * price[t]
            if len(gain):
                cost[t] -= gain[i, t]
        single, further = a == b, -1
        rise = 1.0 if single else 1.0 / (rates[b] - rates[a])
        for t in range(T + 1):
            if (t < T and not rates[t] > 0.0) or t == a or (t == b and (single or not len(gain))):
                continue
            phi = 0.0 if single or t == b else (rates[t] - rates[a]) * rise
            excess = cost[b] - cost[a] if t == b else cost[t] - cost[a] - phi * (cost[b] - cost[a])
            if max(excess, 0.0) <= kink * gpus[i] * most:
                if further >= 0:
                    return -1
                further = t
        if further < 0:
            continue
        beyond = not single and further == b
        if len(found) == B or (not times_follow and (beyond or (single and rates[further] < need[i]))):
            return -1
        _write_edge(rates, a, further, b, single or beyond, B, edge_low, edge_high, swap)
        found[B] = i
        B += 1
    return B


@njit(cache=True, nogil=True, error_model="numpy")
def _write_edge(rates, a, further, b, is_tied, n, edge_low, edge_high, swap):  # type: ignore[no-untyped-def]
    """Writes the lowest and highest mode of the edge, and the change of the times for a unit of the middle one."""
    if is_tied:
        edge_low[n] = edge_high[n] = min(a, further)
        middle, phi = max(a, further), 0.0
    else:
        first, middle, last = a, further, b  # by rate; equal ones stay in this order
        if rates[middle] < rates[first]:
            first, middle = middle, first
        if rates[last] < rates[middle]:
            middle, last = last, middle
            if rates[middle] < rates[first]:
                first, middle = middle, first
        edge_low[n], edge_high[n] = first, last
        phi = (rates[middle] - rates[first]) / (rates[last] - rates[first])
    swap[n, :] = 0.0
    swap[n, middle] += 1.0
    swap[n, edge_low[n]] -= 1.0 - phi
    swap[n, edge_high[n]] -= phi


@njit(cache=True, nogil=True, error_model="numpy")
def answered(  # type: ignore[no-untyped-def]
    rate, gain, gpus, count, base, slope, near_price, gpu_counts, true_counts, near_level, is_leveled, low, high, rows,
    is_split, free, kink, close, follow, no_swap, price, time, steepness,
):  # fmt: skip
    """Writes prices (T,), times (K, T) and marginal costs (K,) of a structure; returns whether it has them, the level.

    What `by_kernels` of vertex.py does, in one call: `low` and `high` (K,) become those of the edges of jobs with
    kinks. If times `follow`, they are computed for `true_counts` (T,) with the structure for `gpu_counts` (T,).
    """
    T, first, most = rate.shape[1], 1 if is_leveled else 0, 0.0
    for t in range(T):
        most = max(most, near_price[t])
    for t in range(T):
        price[t] = 0.0 if near_price[t] <= free * most else near_price[t]
    modes, edges = np.empty((2, len(rows)), np.int64), np.empty((2, T + 1), np.int64)
    kinks, swap, gains = np.zeros(T + 1, np.int64), np.empty((T + 1, T + 1)), np.zeros((T + 1, T + 1))
    columns, equations = np.zeros((T, T)), np.zeros((T, T))
    right, worth, own, amount = np.zeros(T), np.zeros(T), np.zeros(T), np.zeros(T)
    N, B = system_of(
        rate, gain, gpus, count, base, slope, near_level, is_leveled, near_price, price, gpu_counts, low, high,
        rows, modes, is_split, kink, follow, kinks, edges, swap, columns, equations, right, worth, own, gains,
    )  # fmt: skip
    if N < 0:
        return False, 0.0
    if len(gain):
        for n in range(B):
            worth[first + n] = 0.0
            for t in range(T + 1):
                worth[first + n] += swap[n, t] * gains[n, t]
    found = np.empty(T)
    if not (solved(columns, right, N, amount) and solved(equations, worth, N, found)):
        return False, 0.0
    known, at = np.zeros(T), 0
    for t in range(T):
        if price[t] > 0.0:
            price[t], known[t] = found[at], near_price[t]
            right[at] = true_counts[t] - own[t]
            at += 1
    level = amount[0] if is_leveled else 0.0
    if not has_answer(
        rate, gpus, count, base, slope, level, price, known, near_level, gpu_counts, low, high, rows, modes, kink,
        close, follow, kinks, swap, amount[first:N], no_swap,
    ):  # fmt: skip
        return False, 0.0
    if follow:
        solved(columns, right, N, amount)
        level = amount[0] if is_leveled else 0.0
    is_positive = settled(
        rate, gain, gpus, base, slope, level, price, low, high, kinks, swap, amount[first:N], kink, follow, time,
        steepness,
    )  # fmt: skip
    return is_positive, level


@njit(cache=True, nogil=True, error_model="numpy")
def solved(matrix, right, size, answer):  # type: ignore[no-untyped-def]
    """Writes the solution of the first `size` equations by elimination; returns whether there is one.

    Not by LAPACK, so that vertex.py finds the same bytes without numba, whatever library numpy uses.
    """
    a, b = matrix[:size, :size].copy(), right[:size].copy()
    for c in range(size):
        pivot = c
        for r in range(c + 1, size):
            if abs(a[r, c]) > abs(a[pivot, c]):
                pivot = r
        if not abs(a[pivot, c]) > 0.0:
            return False
        if pivot != c:
            b[c], b[pivot] = b[pivot], b[c]
            for k in range(size):
                a[c, k], a[pivot, k] = a[pivot, k], a[c, k]
        for r in range(c + 1, size):
            factor = a[r, c] / a[c, c]
            b[r] -= factor * b[c]
            for k in range(c + 1, size):
                a[r, k] -= factor * a[c, k]
    for c in range(size - 1, -1, -1):
        rest = b[c]
        for k in range(c + 1, size):
            rest -= a[c, k] * answer[k]
        answer[c] = rest / a[c, c]
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def system_of(  # type: ignore[no-untyped-def]
    rate, gain, gpus, count, base, slope, level, is_leveled, near_price, price, gpu_counts, low, high, rows, modes,
    is_split, kink, times_follow, kinks, edges, swap, columns, equations, right, worth, own, gains,
):  # fmt: skip
    """Writes the two systems of equations of a structure; returns their size and the number of kinks, or -1 twice.

    -1: they do not determine the answer. `low` and `high` (K,) become the ends of the edges of jobs with kinks; `modes`
    (2, S) are those of the jobs in doubt before, T = idle. See vertex.py; `is_split`: sums as in numpy_kernels.
    """
    T, priced = rate.shape[1], 0
    need = np.empty(len(gpus))
    for i in range(len(gpus)):
        need[i] = base[i] + slope[i] * level
    for n in range(len(rows)):
        modes[0, n], modes[1, n] = low[rows[n]] % (T + 1), high[rows[n]] % (T + 1)  # idle is -1
    for t in range(T):
        priced += price[t] > 0.0
    B = kinks_of(
        rate, gain, gpus, rows, modes[0], modes[1], need, near_price, kink, times_follow, kinks, edges[0], edges[1],
        swap,
    )  # fmt: skip
    first = 1 if is_leveled else 0
    if B < 0 or B + first != priced:
        return -1, -1
    for n in range(B):
        low[kinks[n]] = edges[0, n] if edges[0, n] < T else -1
        high[kinks[n]] = edges[1, n] if edges[1, n] < T else -1
    drift = np.zeros(T)
    _demand(rate, gpus, count, base, slope, low, high, is_split, own, drift)
    at = 0
    for t in range(T):
        if not price[t] > 0.0:
            continue
        right[at] = gpu_counts[t] - own[t]
        if is_leveled:
            columns[at, 0] = equations[0, at] = drift[t]
        for n in range(B):
            i = kinks[n]
            columns[at, first + n] = swap[n, t] * (gpus[i] * count[i])
            equations[first + n, at] = swap[n, t] * gpus[i]
        at += 1
    if is_leveled:
        worth[0] = 1.0
    if len(gain):
        for n in range(B):
            for t in range(T):
                gains[n, t] = gain[kinks[n], t]
    return priced, B


@njit(cache=True, nogil=True, error_model="numpy")
def _demand(rate, gpus, count, base, slope, low, high, is_split, own, drift):  # type: ignore[no-untyped-def]
    """Adds the GPUs that these mixes use at level 0, (T,), and those for a unit of level, as numba_kernels.

    `is_split`: low and high modes apart, as numpy_kernels adds them.
    """
    T = len(own)
    other, other_drift = np.zeros(T), np.zeros(T)
    for i in range(len(gpus)):
        a, b, load = low[i], high[i], gpus[i] * count[i]
        if a == b:
            if a >= 0:
                own[a] += load
            continue
        a_rate = rate[i, a] if a >= 0 else 0.0
        rise = 1.0 / (rate[i, b] - a_rate)
        need = base[i] if abs(base[i]) > ROUNDING else 0.0
        theta, more = (need - a_rate) * rise, slope[i] * rise
        if is_split:
            other[b] += load * theta
            other_drift[b] += load * more
        else:
            own[b] += load * theta
            drift[b] += load * more
        if a >= 0:
            own[a] += load * (1.0 - theta)
            if is_split:
                drift[a] += load * more
            else:
                drift[a] -= load * more
    if is_split:
        for t in range(T):
            own[t] += other[t]
            drift[t] = other_drift[t] - drift[t]


@njit(cache=True, nogil=True, error_model="numpy")
def has_answer(  # type: ignore[no-untyped-def]
    rate, gpus, count, base, slope, level, price, near_price, near_level, gpu_counts, low, high, rows, modes, kink,
    close, times_follow, kinks, swap, amount, no_swap,
):  # fmt: skip
    """Whether prices (T,) and amounts of the swaps (B,), solutions of the systems, are an answer with this structure.

    They are near those from which the structure was read; every mode of a job with a choice has time; no rising need is
    at a mode; a free type is not used up. See vertex.py.
    """
    T, all_priced = rate.shape[1], True
    if not abs(level - near_level) <= close * near_level:
        return False
    for t in range(T):
        all_priced &= near_price[t] > 0.0
        if near_price[t] > 0.0 and not abs(price[t] - near_price[t]) <= close * near_price[t]:
            return False
    time = np.zeros(T)
    for n in range(len(amount)):
        i = kinks[n]
        need = _need(base[i], slope[i], level)
        _write_time(rate[i], low[i], high[i], need, time)
        for t in range(T):
            time[t] += swap[n, t] * amount[n]
        if times_follow and low[i] == high[i] and not _is_above(rate[i], low[i], swap[n], time, need, kink):
            return False
        if not _is_in_use(time, low[i], high[i], swap[n], kink, no_swap):
            return False
    for n in range(len(rows)):
        i = rows[n]
        if slope[i] > 0.0:
            need = _need(base[i], slope[i], level)
            for m in modes[:, n]:
                if abs((rate[i, m] if m < T else 0.0) - need) <= kink:
                    return False
    return all_priced or _leaves_free(
        rate, gpus, count, base, slope, level, near_price, gpu_counts, low, high, kink, kinks, swap, amount
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _need(base, slope, level):  # type: ignore[no-untyped-def]
    return (base if abs(base) > ROUNDING else 0.0) + slope * level


@njit(cache=True, nogil=True, error_model="numpy")
def _write_time(rate, a, b, need, time):  # type: ignore[no-untyped-def]
    """Writes the time of a mix, (T,), as numba_kernels.settle."""
    for t in range(len(time)):
        time[t] = 0.0
    if a == b:
        if a >= 0:
            time[a] = 1.0
        return
    a_rate = rate[a] if a >= 0 else 0.0
    theta = min(max((need - a_rate) / (rate[b] - a_rate), 0.0), 1.0)
    time[b] = theta
    if a >= 0:
        time[a] = 1.0 - theta


@njit(cache=True, nogil=True, error_model="numpy")
def _is_above(rate, low, swap, time, need, kink):  # type: ignore[no-untyped-def]
    """Whether a job that mixes two equally cheap modes has more than its need, if it may have more or less."""
    T, second, had = len(time), -1, 0.0
    for t in range(T):
        if swap[t] > 0.0 and (second < 0 or swap[t] > swap[second]):
            second = t
        had += rate[t] * time[t]
    least = min(rate[low] if low >= 0 else 0.0, rate[second] if second >= 0 else 0.0)
    return least >= need or had > need * (1.0 + kink)


@njit(cache=True, nogil=True, error_model="numpy")
def _is_in_use(time, low, high, swap, kink, no_swap):  # type: ignore[no-untyped-def]
    """Whether every mode of a job with a choice has time; if not, another structure has the same shares."""
    T, idle, idle_swap = len(time), 1.0, 0.0
    for t in range(T):
        idle -= time[t]
        idle_swap -= swap[t]
        if (abs(swap[t]) > no_swap or t in (low, high)) and not time[t] > kink:
            return False
    return idle > kink or not (abs(idle_swap) > no_swap or low < 0 or high < 0)


@njit(cache=True, nogil=True, error_model="numpy")
def _leaves_free(  # type: ignore[no-untyped-def]
    rate, gpus, count, base, slope, level, price, gpu_counts, low, high, kink, kinks, swap, amount
):
    """Whether types without a price have GPUs left."""
    T = rate.shape[1]
    time, used = np.zeros(T), np.zeros(T)
    for i in range(len(gpus)):
        _write_time(rate[i], low[i], high[i], _need(base[i], slope[i], level), time)
        for t in range(T):
            used[t] += gpus[i] * count[i] * time[t]
    for n in range(len(amount)):
        for t in range(T):
            used[t] += gpus[kinks[n]] * count[kinks[n]] * swap[n, t] * amount[n]
    has_left = True
    for t in range(T):
        has_left = has_left and (price[t] > 0.0 or used[t] <= gpu_counts[t] * (1.0 - kink))
    return has_left


@njit(cache=True, nogil=True, error_model="numpy")
def settled(  # type: ignore[no-untyped-def]
    rate, gain, gpus, base, slope, level, price, low, high, kinks, swap, amount, kink, is_clipped, time, steepness
):
    """Writes times (K, T) and marginal costs (K,); returns whether no time of a job with a choice is below zero.

    `is_clipped`: times that are below zero by rounding become zero.
    """
    T, gains = rate.shape[1], len(gain) > 0
    for i in range(len(gpus)):
        a, b = low[i], high[i]
        steepness[i] = 0.0
        for t in range(T):
            time[i, t] = 0.0
        if a == b:
            if a >= 0:
                time[i, a] = 1.0
            continue
        a_rate, a_cost = 0.0, 0.0
        if a >= 0:
            a_rate, a_cost = rate[i, a], gpus[i] * price[a] - (gain[i, a] if gains else 0.0)
        b_cost, rise = gpus[i] * price[b] - (gain[i, b] if gains else 0.0), rate[i, b] - a_rate
        theta = min(max((_need(base[i], slope[i], level) - a_rate) / rise, 0.0), 1.0)
        time[i, b] = theta
        if a >= 0:
            time[i, a] = 1.0 - theta
        steepness[i] = max((b_cost - a_cost) / rise, 0.0)
    for n in range(len(amount)):
        for t in range(T):
            x = time[kinks[n], t] + swap[n, t] * amount[n]
            if is_clipped and x < -kink:
                return False
            time[kinks[n], t] = max(x, 0.0) if is_clipped else x
    return True

"""One event of a live problem in numba: sums over the jobs, the exact step over those in doubt, and all times.

A pass over all jobs writes the times, the sums for the certificate from these times, and those from which the next
event starts: between two answers the sums change by the rows of one event only, so rounding does not add up.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.corner_kernels import ZERO, inner
from gavelpy.solve.prices.descent_kernels import AT_THE_EDGE, FOUND, is_near, mix_of, search

_BLOCK = 1024  # rows; partial sums reduce rounding


@njit(cache=True, nogil=True, error_model="numpy")
def mixes(  # type: ignore[no-untyped-def]
    rate, gpus, value, first, last, money, level, is_level, price, radius, low, high, margin, climb, base
):
    """The mixes and margins of some rows at prices (T,): the need is level / value, a value has `money` as its gain.

    A margin is the least part of `radius` (T,) by which prices may move until another mix may be cheaper. The time in
    the high mode is climb x level + base.
    """
    T = rate.shape[1]
    cost, swap, none = np.empty(T), np.empty(T), np.empty((T, T))
    for i in range(first, last):
        need = min(level / value[i], 1.0)
        rises = need if is_level else 0.0
        for t in range(T):
            cost[t] = gpus[i] * price[t] - money * value[i] * rate[i, t]
        a, b, margin[i] = mix_of(rate[i], cost, need, rises, gpus[i], radius, money > 0.0, none, swap)
        low[i], high[i], climb[i], base[i] = a, b, 0.0, 1.0
        if a != b:
            a_rate = rate[i, a] if a >= 0 else 0.0
            climb[i] = 1.0 / (value[i] * (rate[i, b] - a_rate))
            base[i] = -a_rate / (rate[i, b] - a_rate)


@njit(cache=True, nogil=True, error_model="numpy")
def count(  # type: ignore[no-untyped-def]
    gpus, first, last, level, is_level, low, high, margin, climb, base, half, factor, used, drift
):
    """Adds `factor` times the GPUs that some rows use at a level, (T,), and that they use more for a unit of level.

    Rows whose margin is at most `half` are in doubt, and not counted.
    """
    T = len(used)
    block_used, block_drift = np.zeros(T + 1), np.zeros(T + 1)  # the last is for idle, which is -1
    for start in range(first, last, _BLOCK):
        for t in range(T):
            block_used[t] = block_drift[t] = 0.0
        for i in range(start, min(start + _BLOCK, last)):
            if margin[i] > half:
                fast, more = min(max(climb[i] * level + base[i], 0.0), 1.0), gpus[i] * climb[i]
                block_used[low[i]] += gpus[i] * (1.0 - fast)
                block_used[high[i]] += gpus[i] * fast
                block_drift[low[i]] -= more
                block_drift[high[i]] += more
        for t in range(T):
            used[t] += factor * block_used[t]
            drift[t] += factor * block_drift[t] if is_level else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def vertex(  # type: ignore[no-untyped-def]
    rate, gpus, value, per_level, low, high, margin, climb, base, gpu_counts, money, level, is_level,
    half, centre, radius, centre_level, used, drift, price, ties, ties_count, time, figures, spent,
):  # fmt: skip
    """The optimum if prices stay within `half` of a radius of the centre: times (J, T), and sums for a certificate.

    Jobs whose margin is above `half` keep their modes; `used` and `drift` (T,) are the sums of `count` over them, and
    are computed again. `price` (T,) and `ties` (T, 5) are those of the last answer and become those of this one; a tie
    is a row with the modes of two corners. Returns how it ended, level, ties. `figures` and `spent`: see `_written`.
    """
    J, T = rate.shape
    S = 0
    for i in range(J):
        S += margin[i] <= half
    rows = np.empty(S, np.int64)
    k = 0
    for i in range(J):
        if margin[i] <= half:
            rows[k] = i
            k += 1
    some_rate, load, gain, at = np.empty((S, T)), np.empty((S, T)), np.empty((S, T)), np.empty(T, np.int64)
    needs, slope = np.zeros(S), np.zeros(S)
    for k in range(S):
        i = rows[k]
        if is_level:
            slope[k] = per_level[i]
        else:
            needs[k] = min(level / value[i], 1.0)
        for t in range(T):
            some_rate[k, t], load[k, t], gain[k, t] = rate[i, t], gpus[i] / gpu_counts[t], money * value[i] * rate[i, t]
    found = ZERO
    for n in range(ties_count):
        k = np.searchsorted(rows, ties[n, 0])
        if k < S and rows[k] == ties[n, 0]:
            for m in range(5):
                ties[found, m] = ties[n, m]
            at[found] = k
            found += 1
    for n in range(found):
        ties[n, 0] = at[n]
    whole, lowest, highest, spare, rise = np.empty(T), np.empty(T), np.empty(T), np.empty(T), np.empty(T)
    for t in range(T):
        W = gpu_counts[t]
        whole[t], spare[t], rise[t] = price[t] * W, (W - used[t]) / W, drift[t] / W
        lowest[t], highest[t] = W * (centre[t] - half * radius[t]), W * (centre[t] + half * radius[t])
    times, steepness = np.zeros((S, T)), np.zeros(S)
    end, level, found = search(
        some_rate, load, gain, needs, slope, level, is_level, not is_level, spare, rise,
        lowest, highest, centre_level * (1.0 - half), centre_level * (1.0 + half), whole, ties, found,
        times, steepness,
    )  # fmt: skip
    for n in range(found):
        ties[n, 0] = rows[ties[n, 0]]
    for t in range(T):
        price[t] = whole[t] / gpu_counts[t]
    if end == FOUND and not is_near(price, centre, half, radius, is_level):
        end = AT_THE_EDGE
    if end == FOUND:
        _written(
            rate, gpus, value, per_level, low, high, climb, base, level, is_level, price, rows, times, steepness,
            used, drift, time, figures, spent,
        )  # fmt: skip
    return end, level, found


@inner
def _written(  # type: ignore[no-untyped-def]
    rate, gpus, value, per_level, low, high, climb, base, level, is_level, price, rows, times, steepness,
    used, drift, time, figures, spent,
):  # fmt: skip
    """Writes the times of all jobs, the sums of `count` at this level, and those of a certificate from the times.

    figures: least value, budgets, weights, largest time below zero, above 1; spent (T,): GPUs. See `table.Tally`.
    """
    J, T = rate.shape
    k = 0
    least, budgets, weights, sign, over = np.inf, 0.0, 0.0, 0.0, 0.0
    block_used, block_drift, block_doubt = np.zeros(T + 1), np.zeros(T + 1), np.zeros(T)  # the last is for idle
    for t in range(T):
        used[t] = drift[t] = spent[t] = 0.0
    for start in range(0, J, _BLOCK):
        for t in range(T):
            block_used[t] = block_drift[t] = block_doubt[t] = 0.0
        some_budgets, some_weights = 0.0, 0.0
        for i in range(start, min(start + _BLOCK, J)):
            had, steep = 0.0, 0.0
            if k < len(rows) and i == rows[k]:
                whole, steep = 0.0, steepness[k]
                for t in range(T):
                    x = times[k, t]
                    time[i, t] = x
                    had += rate[i, t] * x
                    whole += x
                    block_doubt[t] += gpus[i] * x
                    sign = max(sign, -x if rate[i, t] > 0.0 else abs(x))
                over = max(over, whole - 1.0)
                k += 1
            else:
                for t in range(T):
                    time[i, t] = 0.0
                a, b = low[i], high[i]
                fast, more = min(max(climb[i] * level + base[i], 0.0), 1.0), gpus[i] * climb[i]
                a_price = 0.0
                if a >= 0:
                    time[i, a], had, a_price = 1.0 - fast, (1.0 - fast) * rate[i, a], price[a]
                if b >= 0:
                    time[i, b] = fast
                    had += fast * rate[i, b]
                    steep = max(more * value[i] * (price[b] - a_price), 0.0)
                block_used[a] += gpus[i] * (1.0 - fast)
                block_used[b] += gpus[i] * fast
                block_drift[a] -= more
                block_drift[b] += more
            least = min(least, value[i] * had)
            if is_level:
                budget = 0.0
                for t in range(T):
                    budget = max(budget, rate[i, t] * steep - gpus[i] * price[t] if rate[i, t] > 0.0 else 0.0)
                some_budgets += budget
                some_weights += steep * per_level[i]
        for t in range(T):
            used[t] += block_used[t]
            spent[t] += block_used[t] + block_doubt[t]
            drift[t] += block_drift[t] if is_level else 0.0
        budgets += some_budgets
        weights += some_weights
    figures[0], figures[1], figures[2], figures[3], figures[4] = least, budgets, weights, sign, over

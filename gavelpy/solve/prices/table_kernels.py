"""The best prices of a whole table in numba, from near ones: for many jobs, cold or warm.

At the prices where it begins every job's mix is known, and how far prices may move until another mix may be cheaper.
Only the jobs with the least margins are in doubt and enter the descent; its prices stay in the box in which the others
keep their modes. At the edge of the box all mixes are computed again, with twice as many jobs in doubt.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.corner_kernels import ZERO, inner
from gavelpy.solve.prices.descent_kernels import AT_THE_EDGE, FOUND, UNBOUNDED, is_near, mix_of, search

_ATTEMPTS = 12
_RADIUS = 0.05  # of the highest price: least unit of distance of a price
_BOX_MAX = 0.3  # relative
_FREE = 4e-12  # of the highest price: a type that costs no more is free
_TIED = 1e-10  # equal jobs at a kink: all of them have the same choice


@njit(cache=True, nogil=True, error_model="numpy")
def best_prices(  # type: ignore[no-untyped-def]
    rate, gain, gpus, count, need, slope, gpu_counts, in_doubt, level, is_level, may_be_free, price
):
    """Moves `price` (T,) to the prices of the optimum, and returns how the search ended, and the level.

    Needs (K,) are those at `level`, and rise with `slope` (K,). Gains (K, T) are those of one job's time; (0, T): none.
    If types `may_be_free`, prices may be zero.
    """
    K, T = rate.shape
    low, high, margin = np.empty(K, np.int64), np.empty(K, np.int64), np.empty(K)
    centre, radius = np.empty(T), np.empty(T)
    ties, ties_count = np.zeros((T, 5), np.int64), ZERO
    base, sorted_margin, most_rate = np.empty(K), np.empty(K), np.zeros(K)
    for i in range(K):
        base[i] = need[i] - slope[i] * level
        for t in range(T):
            most_rate[i] = max(most_rate[i], rate[i, t])
    for _ in range(_ATTEMPTS):
        most = 0.0
        for t in range(T):
            most = max(most, price[t])
        if not most > 0.0:
            return UNBOUNDED, level
        centre_at(price, most, centre, radius)
        price[:] = centre
        half = mixes(
            rate, gain, gpus, base, slope, most_rate, level, centre, radius, in_doubt, low, high, margin, sorted_margin
        )  # fmt: skip
        end, level, ties_count = in_box(
            rate, gain, gpus, count, base, slope, most_rate, level, is_level, may_be_free, gpu_counts, low, high,
            margin, half, level, centre, radius, price, ties, ties_count,
        )  # fmt: skip
        if end == FOUND and is_near(price, centre, half, radius, is_level):
            return FOUND, level
        if end != FOUND and end != AT_THE_EDGE:
            return end, level
        in_doubt *= 2
    return AT_THE_EDGE, level


@inner
def centre_at(price, most, centre, radius):  # type: ignore[no-untyped-def]
    """Writes the centre of a box, (T,), and the units of distance from it; `most` is the highest price."""
    for t in range(len(price)):
        centre[t] = price[t] if price[t] > _FREE * most else 0.0
        radius[t] = max(centre[t], _RADIUS * most)


@inner
def in_box(  # type: ignore[no-untyped-def]
    rate, gain, gpus, count, base, slope, most_rate, level, is_level, may_be_free, gpu_counts, low, high, margin, half,
    centre_level, centre, radius, price, ties, ties_count,
):  # fmt: skip
    """Moves `price` (T,) to the best prices of the box around the centre, and returns how that ended, level and ties.

    `low`, `high` and `margin` (K,) are those at the centre, and `half` is the margin up to which jobs are in doubt.
    """
    (K, T), S, gains = rate.shape, 0, gain.shape[0] > 0
    spare, rise, whole, lowest, highest = np.empty(T), np.empty(T), np.empty(T), np.empty(T), np.empty(T)
    for i in range(K):
        S += margin[i] <= half
    rows = np.empty(S, np.int64)
    for t in range(T):
        spare[t], rise[t] = gpu_counts[t], 0.0
    _divide(rate, gpus, count, base, slope, most_rate, level, low, high, margin, half, rows, spare, rise)
    some_rate, load, worth = np.empty((S, T)), np.empty((S, T)), np.zeros((S, T))
    some_base, some_slope, times, steepness = np.empty(S), np.empty(S), np.zeros((S, T)), np.zeros(S)
    for k in range(S):
        i = rows[k]
        some_base[k], some_slope[k] = base[i], slope[i]
        for t in range(T):
            some_rate[k, t], load[k, t] = rate[i, t], gpus[i] * count[i] / gpu_counts[t]
            if gains:
                worth[k, t] = gain[i, t] * count[i]
    for t in range(T):
        W = gpu_counts[t]
        whole[t], spare[t], rise[t] = price[t] * W, spare[t] / W, rise[t] / W
        lowest[t], highest[t] = W * (centre[t] - half * radius[t]), W * (centre[t] + half * radius[t])
    found = _here(ties, ties_count, rows)
    end, level, ties_count = search(
        some_rate, load, worth, some_base, some_slope, level, is_level, may_be_free, spare, rise, lowest, highest,
        centre_level * (1.0 - half), centre_level * (1.0 + half), whole, ties, found, times, steepness,
    )  # fmt: skip
    for n in range(ties_count):
        ties[n, 0] = rows[ties[n, 0]]
    for t in range(T):
        price[t] = whole[t] / gpu_counts[t]
    return end, level, ties_count


@inner
def mixes(  # type: ignore[no-untyped-def]
    rate, gain, gpus, base, slope, most_rate, level, centre, radius, in_doubt, low, high, margin, sorted_margin
):
    """Writes the mixes and margins of all jobs; returns the margin up to which they are in doubt."""
    K, T = rate.shape
    cost, swap, none, tied, gains = np.empty(T), np.empty(T), np.empty((T, T)), 0, gain.shape[0] > 0
    for i in range(K):
        for t in range(T):
            cost[t] = gpus[i] * centre[t] - (gain[i, t] if gains else 0.0)
        need = min(base[i] + slope[i] * level, most_rate[i])
        low[i], high[i], margin[i] = mix_of(rate[i], cost, need, slope[i] * level, gpus[i], radius, gains, none, swap)
        sorted_margin[i] = margin[i]
        tied += margin[i] < _TIED
    if max(in_doubt, 2 * tied) >= K:
        return np.inf
    return min(_smallest(sorted_margin, max(in_doubt, 2 * tied)) * (1.0 - 1e-9), _BOX_MAX)


@inner
def _divide(  # type: ignore[no-untyped-def]
    rate, gpus, count, base, slope, most_rate, level, low, high, margin, half, rows, spare, rise
):
    """Writes the rows in doubt, and takes the GPUs of the others from `spare` (T,), and what they rise to `rise`."""
    k = 0
    for i in range(len(gpus)):
        if margin[i] <= half:
            rows[k] = i
            k += 1
            continue
        a, b, load = low[i], high[i], gpus[i] * count[i]
        if a == b:
            if a >= 0:
                spare[a] -= load
            continue
        a_rate = rate[i, a] if a >= 0 else 0.0
        climb = 1.0 / (rate[i, b] - a_rate)
        theta = (min(base[i] + slope[i] * level, most_rate[i]) - a_rate) * climb
        spare[b] -= load * theta
        rise[b] += load * slope[i] * climb
        if a >= 0:
            spare[a] -= load * (1.0 - theta)
            rise[a] -= load * slope[i] * climb


@inner
def _here(ties, count, rows):  # type: ignore[no-untyped-def]
    """Keeps the ties of jobs in doubt, by their numbers there; returns how many."""
    found = ZERO
    for n in range(count):
        k = np.searchsorted(rows, ties[n, 0])
        if k < len(rows) and rows[k] == ties[n, 0]:
            for m in range(1, 5):
                ties[found, m] = ties[n, m]
            ties[found, 0] = k
            found += 1
    return found


@inner
def _smallest(values, rank):  # type: ignore[no-untyped-def]
    """The value with this rank, 0 = the least; reorders the values."""
    first, last = 0, len(values) - 1
    while first < last:
        middle, i, j = values[(first + last) // 2], first, last
        while i <= j:
            while values[i] < middle:
                i += 1
            while values[j] > middle:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            last = j
        elif rank >= i:
            first = i
        else:
            break
    return values[rank]

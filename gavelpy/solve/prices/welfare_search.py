"""The search for the prices of the highest weighted sum of logarithms of rates, in numba. See welfare_kernels.py."""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.corner_kernels import inner
from gavelpy.solve.prices.welfare_kernels import newton, on_edge, place, released, use

FOUND, NOT_FOUND = 0, 1
_STEPS_MAX = 60
_CHEAP, _DEAR = 1e-2, 1e-5  # of the highest price: below, a price that falls on becomes zero; and one that was too low
_SMALL = 1e-9  # relative change of the prices in a step after which two more end the search
_LONGEST = 0.5  # relative
_STAYS = 1e-14  # relative change of the prices that is rounding
_OVERSHOT, _SHORTEST = 0.5, 0.05
_ROUNDING = 1e-12


@njit(cache=True, nogil=True, error_model="numpy")
def most_welfare(  # type: ignore[no-untyped-def]
    rate, gpus, count, weight, gpu_counts, price, low, high, ties
):
    """Moves `price` (T,), which are near, to the optimal ones; returns how that ended, and the number of ties.

    Writes the edge of each job, (K,) int64, and the ties, (2 T, 2): a job, and the middle mode of its edge. Prices of
    types that are free are zero.
    """
    K, T = rate.shape
    used, curvature, swap, step, z = np.empty(T), np.empty((T, T)), np.empty((2 * T, T)), np.empty(T), np.empty(2 * T)
    is_tied, when, mode, n, closing = np.zeros(K, np.bool_), np.empty(K), np.empty(K, np.int64), 0, 0
    before, taken, fall, stays = price.copy(), np.zeros(T), 0.0, False
    for _ in range(_STEPS_MAX):
        _mark(ties, n, is_tied)
        for k in range(K):
            if not (is_tied[k] or stays):  # at a tie, rounding would place a job that was released
                low[k], high[k] = place(rate[k], gpus[k], weight[k], price)
        if fall < 0.0:
            use(rate, gpus, count, weight, price, low, high, used, curvature)
            part = _shortened(price, taken, fall, used, gpu_counts)
            if part < 1.0:
                fall *= part
                for t in range(T):
                    taken[t] *= part
                    price[t] = before[t] + taken[t]
                continue
        is_regular = newton(
            rate, gpus, count, weight, gpu_counts, price, low, high, ties, n, used, curvature, swap, step, z
        )
        while is_regular:
            left = released(rate, gpus, weight, price, low, high, ties, n, z)
            if left == n:
                break
            n = left
            is_regular = newton(
                rate, gpus, count, weight, gpu_counts, price, low, high, ties, n, used, curvature, swap, step, z
            )
        if not is_regular:  # where all users of a type run all the time, its price has no effect
            if not _freed(price, used, curvature, gpu_counts):
                return NOT_FOUND, n
            fall, stays = 0.0, False
            continue
        largest = _largest(step, price)
        if not largest < np.inf:
            return NOT_FOUND, n
        _mark(ties, n, is_tied)
        _crossed(rate, price, step, low, high, is_tied, when, mode)
        part, fall, joins = _until_a_tie(
            rate, gpus, count, weight, gpu_counts, price, step, min(1.0, _LONGEST / max(largest, _LONGEST)), used,
            curvature, low, high, when, mode, ties, n,
        )  # fmt: skip
        stays, before[:] = part * largest <= _STAYS, price
        is_freed = _moved(price, step, part, used, gpu_counts)
        taken[:] = price - before
        n += joins
        closing = closing + 1 if largest <= _SMALL and not joins and not is_freed else 0
        fall = 0.0 if joins or is_freed else fall
        if closing == 3:
            return FOUND, n
    return NOT_FOUND, n


@inner
def _mark(ties, n, is_tied):  # type: ignore[no-untyped-def]
    """Writes which jobs have a tie."""
    for k in range(len(is_tied)):
        is_tied[k] = False
    for b in range(n):
        is_tied[ties[b, 0]] = True


@inner
def _largest(step, price):  # type: ignore[no-untyped-def]
    """The largest relative change of a price."""
    largest = 0.0
    for t in range(len(price)):
        if price[t] > 0.0:
            largest = max(largest, abs(step[t]) / price[t])
    return largest


@inner
def _shortened(price, taken, fall, used, gpu_counts):  # type: ignore[no-untyped-def]
    """Part of the last step at which a line through the dual function's slopes is zero; 1 if it was not too long."""
    slope, worth = 0.0, 0.0
    for t in range(len(price)):
        slope += (gpu_counts[t] - used[t]) * taken[t]
        worth += gpu_counts[t] * price[t]
    return max(fall / (fall - slope), _SHORTEST) if slope > max(-_OVERSHOT * fall, _ROUNDING * worth) else 1.0


@inner
def _until_a_tie(  # type: ignore[no-untyped-def]
    rate, gpus, count, weight, gpu_counts, price, step, part, used, curvature, low, high, when, mode, ties, n
):
    """The part of the step to take, the dual function's slope along it at first, and whether a tie ends it.

    Writes that tie, the n-th. Jobs whose ties are crossed before take their other edge.
    """
    T, speed, bend = len(price), 0.0, 0.0
    jump, there = np.empty(T), np.empty(T)
    for t in range(T):
        speed += (gpu_counts[t] - used[t]) * step[t]
        for u in range(T):
            bend += step[t] * curvature[t, u] * step[u]
    slope = speed
    while n < len(ties):
        first, k = part, -1
        for i in range(len(when)):
            if when[i] < first:
                first, k = when[i], i
        if k < 0:
            break
        a, m, b = _edge_with(rate[k], low[k], high[k], mode[k])
        for t in range(T):
            there[t] = price[t] + first * step[t]
        _write_jump(rate[k], gpus[k], count[k], weight[k], there, low[k], high[k], a, m, b, jump)
        for t in range(T):
            speed -= jump[t] * step[t]
        if speed + first * bend >= 0.0:
            low[k], high[k], ties[n, 0], ties[n, 1] = a, b, k, m
            return first, first * slope, 1
        when[k] = np.inf
    return part, part * slope, 0


@inner
def _crossed(rate, price, step, low, high, is_tied, when, mode):  # type: ignore[no-untyped-def]
    """Writes the part of the step at which each job on an edge reaches a third mode, and that; infinite if none."""
    K, T = rate.shape
    for k in range(K):
        a, b = low[k], high[k]
        when[k], mode[k] = np.inf, -1
        if a == b or is_tied[k]:
            continue
        a_rate, a_price, a_step = 0.0, 0.0, 0.0
        if a >= 0:
            a_rate, a_price, a_step = rate[k, a], price[a], step[a]
        rise = 1.0 / (rate[k, b] - a_rate)
        for t in range(-1 if a >= 0 else 0, T):
            if t in (a, b) or (t >= 0 and rate[k, t] <= 0.0):
                continue
            part = ((rate[k, t] if t >= 0 else 0.0) - a_rate) * rise
            fall = (step[t] if t >= 0 else 0.0) - a_step - part * (step[b] - a_step)
            if fall < 0.0:
                excess = (price[t] if t >= 0 else 0.0) - a_price - part * (price[b] - a_price)
                at = max(excess, 0.0) / -fall
                if at < when[k]:
                    when[k], mode[k] = at, t


@inner
def _edge_with(rate, a, b, t):  # type: ignore[no-untyped-def]
    """Lowest, middle and highest of three modes by rate."""
    first, middle, last = a, t, b
    low_rate, rate_t = rate[a] if a >= 0 else 0.0, rate[t] if t >= 0 else 0.0
    if rate_t < low_rate:
        first, middle = t, a
    elif rate_t > rate[b]:
        middle, last = b, t
    return first, middle, last


@inner
def _write_jump(rate, gpus, count, weight, price, low, high, a, m, b, jump):  # type: ignore[no-untyped-def]
    """Writes the change of the GPUs used, (T,), where a job on an edge reaches the third of the modes a, m and b."""
    jump[:] = 0.0
    theta, _ = on_edge(rate, gpus, weight, price, low, high)
    low_rate = rate[low] if low >= 0 else 0.0
    had = low_rate + theta * (rate[high] - low_rate)
    first, last = a, b
    if low == a and high == b:
        if had <= rate[m]:
            last = m
        else:
            first = m
    first_rate = rate[first] if first >= 0 else 0.0
    part = (had - first_rate) / (rate[last] - first_rate)
    jump[last] += gpus * count * part
    if first >= 0:
        jump[first] += gpus * count * (1.0 - part)
    jump[high] -= gpus * count * theta
    if low >= 0:
        jump[low] -= gpus * count * (1.0 - theta)


@inner
def _freed(price, used, curvature, gpu_counts):  # type: ignore[no-untyped-def]
    """Sets low prices of types to zero of which GPUs would be left at any lower price; whether there is one."""
    most, is_one = 0.0, False
    for t in range(len(price)):
        most = max(most, price[t])
    for t in range(len(price)):
        is_low = 0.0 < price[t] < _CHEAP * most
        if is_low and curvature[t, t] * price[t] < gpu_counts[t] - used[t]:
            price[t], is_one = 0.0, True
    return is_one


@inner
def _moved(price, step, part, used, gpu_counts):  # type: ignore[no-untyped-def]
    """Moves the prices by a part of the step; whether a type has become free, or is no longer."""
    most, is_other = 0.0, False
    for t in range(len(price)):
        most = max(most, price[t])
    for t in range(len(price)):
        if price[t] <= 0.0 and used[t] > gpu_counts[t] * (1.0 + _ROUNDING):
            price[t], is_other = _DEAR * most, True
        elif price[t] > 0.0 and price[t] < _CHEAP * most and step[t] < -0.5 * price[t]:
            price[t], is_other = 0.0, True
        else:
            price[t] = max(price[t] + part * step[t], 0.0)
    return is_other

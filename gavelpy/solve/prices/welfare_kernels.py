"""The highest weighted sum of logarithms of rates, in numba: the exact step from near prices.

At given prices the cost of a job's rate is the lower hull of idling and of its types, and the job runs where the slope
of the cost is weight / rate: on an edge of the hull between two modes, or all the time in one. Mode -1 is idle. The
GPUs that all jobs use are a smooth function of the prices, but for *ties*: a job on an edge that contains a third mode
may spend any part of its time there. Prices are optimal if the jobs, with some time z in the middle modes of ties, use
the GPUs that exist. Newton's method on prices and z, with the ties that bind:

    used(p) + Σ_b z_b swap_b = W,    swap_b · p = 0.

A step ends where a job reaches a tie beyond which the dual function rises; a tie with too little or too much time in
its middle mode is released. (The linear problems' steps in descent_kernels.py do the same without curvature.)
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.corner_kernels import inner
from gavelpy.solve.prices.kink_kernels import AS_WRITTEN, solved

_ROUNDING = 1e-12
_EXACT_STEPS = 3  # from prices with 22 bits: the error is squared with each


@inner
def place(rate, gpus, weight, price):  # type: ignore[no-untyped-def]
    """The edge on which a job runs, as two modes; equal if it runs in one all the time."""
    a, a_rate, a_cost = -1, 0.0, 0.0
    while True:
        b, b_rate, slope = -1, 0.0, np.inf
        for t in range(len(rate)):
            rise = rate[t] - a_rate
            if rise > 0.0:
                steep = (gpus * price[t] - a_cost) / rise
                if steep < slope or (steep == slope and rate[t] > b_rate):
                    b, b_rate, slope = t, rate[t], steep
        if b < 0:
            return a, a
        if slope > 0.0:
            if weight <= a_rate * slope:
                return a, a
            if weight < b_rate * slope:
                return a, b
        a, a_rate, a_cost = b, b_rate, gpus * price[b]


@inner
def on_edge(rate, gpus, weight, price, a, b):  # type: ignore[no-untyped-def]
    """Part of the time in the high mode, and minus its change for a unit of the difference of the modes' prices."""
    a_rate, a_price = 0.0, 0.0
    if a >= 0:
        a_rate, a_price = rate[a], price[a]
    rise = rate[b] - a_rate
    slope = gpus * (price[b] - a_price) / rise
    return (weight / slope - a_rate) / rise, weight / (slope * slope) * gpus / (rise * rise)


@inner
def use(rate, gpus, count, weight, price, low, high, used, curvature):  # type: ignore[no-untyped-def]
    """Writes the GPUs that all jobs use, (T,), and minus their derivative by the prices, (T, T)."""
    K = len(low)
    used[:] = 0.0
    curvature[:] = 0.0
    for k in range(K):
        a, b, load = low[k], high[k], gpus[k] * count[k]
        if a == b:
            if a >= 0:
                used[a] += load
            continue
        theta, bend = on_edge(rate[k], gpus[k], weight[k], price, a, b)
        used[b] += load * theta
        curvature[b, b] += load * bend
        if a >= 0:
            used[a] += load * (1.0 - theta)
            curvature[a, a] += load * bend
            curvature[a, b] -= load * bend
            curvature[b, a] -= load * bend


@inner
def _write_swap(rate, gpus, a, m, b, swap):  # type: ignore[no-untyped-def]
    """Writes the GPUs of one job for a unit of time in the middle mode of an edge, (T,); returns its part of high."""
    swap[:] = 0.0
    a_rate = rate[a] if a >= 0 else 0.0
    part = (rate[m] - a_rate) / (rate[b] - a_rate)
    swap[m] += gpus
    swap[b] -= gpus * part
    if a >= 0:
        swap[a] -= gpus * (1.0 - part)
    return part


@inner
def newton(  # type: ignore[no-untyped-def]
    rate, gpus, count, weight, gpu_counts, price, low, high, ties, n, used, curvature, swap, step, z
):
    """Writes Newton's step of the prices, (T,), and the times z in the middle modes of n ties; whether there is one."""
    T = len(price)
    use(rate, gpus, count, weight, price, low, high, used, curvature)
    N = 0
    for t in range(T):
        N += price[t] > 0.0
    at, size = np.empty(N, np.int64), N + n
    N = 0
    for t in range(T):
        if price[t] > 0.0:
            at[N] = t
            N += 1
    matrix, right, answer = np.zeros((size, size)), np.zeros(size), np.empty(size)  # relative steps, parts of the GPUs
    for r in range(N):
        for c in range(N):
            matrix[r, c] = -curvature[at[r], at[c]] * price[at[c]] / gpu_counts[at[r]]
        right[r] = (gpu_counts[at[r]] - used[at[r]]) / gpu_counts[at[r]]
    for b in range(n):
        k = ties[b, 0]
        _write_swap(rate[k], gpus[k], low[k], ties[b, 1], high[k], swap[b])
        cost, most = 0.0, 0.0
        for r in range(N):
            cost += swap[b, at[r]] * price[at[r]]
            most = max(most, abs(swap[b, at[r]] * price[at[r]]))
        if not most > 0.0:
            return False
        for r in range(N):
            matrix[r, N + b] = swap[b, at[r]] * count[k] / gpu_counts[at[r]]
            matrix[N + b, r] = swap[b, at[r]] * price[at[r]] / most
        right[N + b] = -cost / most
    if not solved(matrix, AS_WRITTEN, right, answer):
        return False
    step[:] = 0.0
    for r in range(N):
        step[at[r]] = answer[r] * price[at[r]]
    for b in range(n):
        z[b] = answer[N + b]
    return True


@inner
def released(rate, gpus, weight, price, low, high, ties, n, z):  # type: ignore[no-untyped-def]
    """Releases the tie whose time in the middle mode is most out of its range; returns how many ties are left."""
    worst, leaving, side = _ROUNDING, -1, 0
    for b in range(n):
        k, m = ties[b, 0], ties[b, 1]
        a, h = low[k], high[k]
        theta, _ = on_edge(rate[k], gpus[k], weight[k], price, a, h)
        a_rate = rate[k, a] if a >= 0 else 0.0
        part = (rate[k, m] - a_rate) / (rate[k, h] - a_rate)
        lacks = (-z[b], z[b] * (1.0 - part) - (1.0 - theta), z[b] * part - theta)
        for which in range(3):
            if lacks[which] > worst:
                worst, leaving, side = lacks[which], b, which
    if leaving < 0:
        return n
    k, m = ties[leaving, 0], ties[leaving, 1]
    if side == 1:
        low[k] = m
    elif side == 2:
        high[k] = m
    ties[leaving, 0], ties[leaving, 1] = ties[n - 1, 0], ties[n - 1, 1]
    return n - 1


@njit(cache=True, nogil=True, error_model="numpy")
def settled(rate, gpus, count, weight, gpu_counts, price, low, high, ties, n, kink, time, slope):  # type: ignore[no-untyped-def]
    """The optimum of a structure from rounded prices (T,), which become exact; whether it is the only one.

    Writes times (K, T), and the weight of each job over its rate, (K,). The structure is that of `most_welfare`.
    """
    K, T = rate.shape
    used, curvature, swap, step, z = np.empty(T), np.empty((T, T)), np.empty((2 * T, T)), np.empty(T), np.empty(2 * T)
    for _ in range(_EXACT_STEPS):
        if not newton(rate, gpus, count, weight, gpu_counts, price, low, high, ties, n, used, curvature, swap, step, z):
            return False
        for t in range(T):
            price[t] += step[t]
    most, tie_of = 0.0, np.full(K, -1, np.int64)
    for t in range(T):
        most = max(most, price[t])
    for b in range(n):
        tie_of[ties[b, 0]] = b
    for k in range(K):
        a, b, middle = low[k], high[k], -2
        for t in range(T):
            time[k, t] = 0.0
        theta, _ = on_edge(rate[k], gpus[k], weight[k], price, a, b) if a != b else (1.0, 0.0)
        time[k, b] = theta
        if a >= 0 and a != b:
            time[k, a] = 1.0 - theta
        if tie_of[k] >= 0:
            middle, x, a_rate = ties[tie_of[k], 1], z[tie_of[k]], rate[k, a] if a >= 0 else 0.0
            part = (rate[k, middle] - a_rate) / (rate[k, b] - a_rate)
            time[k, middle] += x
            time[k, b] -= x * part
            if a >= 0:
                time[k, a] -= x * (1.0 - part)
            if not (x > kink and theta - x * part > kink and 1.0 - theta - x * (1.0 - part) > kink):
                return False
        had = 0.0
        for t in range(T):
            had += rate[k, t] * time[k, t]
        slope[k] = weight[k] / had
        if not _is_alone(rate[k], gpus[k], slope[k], price, a, b, middle, theta, most, kink):
            return False
    return True


@inner
def _is_alone(rate, gpus, slope, price, a, b, middle, theta, most, kink):  # type: ignore[no-untyped-def]
    """Whether no other mode is as good, and no mode of an edge has hardly any time."""
    T, best = len(rate), slope * rate[b] - gpus * price[b]  # value of the time beyond its cost
    if a != b and middle == -2 and not kink < theta < 1.0 - kink:
        return False
    if a != b and not abs(best - (slope * rate[a] - gpus * price[a] if a >= 0 else 0.0)) <= kink * gpus * most:
        return False
    for t in range(-1, T):
        if t in (a, b, middle) or (t >= 0 and rate[t] <= 0.0):
            continue
        if not best - (slope * rate[t] - gpus * price[t] if t >= 0 else 0.0) > kink * gpus * most:
            return False
    return True

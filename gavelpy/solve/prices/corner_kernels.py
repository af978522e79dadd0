"""The corners of a job in numba: modes that give at least its need, and mixes of two that give exactly that.

Mode -1 is idle. Numbers are in parts of each type's GPUs, and prices are those of all GPUs of a type.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gavelpy.solve.compiled import njit

inner = partial(njit, cache=True, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)()
"""Compiles a function that only others call: without wrappers for Python this takes half the time."""

TIE, FREE, HELD, HIGHEST, LOWEST, LEVEL = range(6)  # kinds of kinks

# What other functions receive: from a literal, and again from a number, numba compiles them twice.
ZERO: Any = np.int64(0)  # any: a counter that starts here is an int elsewhere
NONE: Any = np.int64(-1)


@inner
def corners(rate, need, slope, low, high, part, rising):  # type: ignore[no-untyped-def]
    """Writes the corners of a job; returns their number. Mode -1 is idle."""
    n = 0
    for a in range(-1, len(rate)):
        a_rate = rate[a] if a >= 0 else 0.0
        if a >= 0 and a_rate <= 0.0:
            continue
        if a_rate >= need:
            low[n], high[n], part[n], rising[n] = a, a, 1.0, 0.0
            n += 1
            continue
        for b in range(len(rate)):
            if rate[b] > need:
                rise = 1.0 / (rate[b] - a_rate)
                low[n], high[n], part[n], rising[n] = a, b, (need - a_rate) * rise, slope * rise
                n += 1
    return n


@inner
def named(low, high, count, a, b):  # type: ignore[no-untyped-def]
    """The corner with these modes; -1 if there is none."""
    for v in range(count):
        if low[v] == a and high[v] == b:
            return v
    return -1


@inner
def corner_cost(load, gain, price, a, b, part):  # type: ignore[no-untyped-def]
    """The price of a corner's GPUs, less its gain."""
    cost = part * (load[b] * price[b] - gain[b]) if b >= 0 else 0.0
    return cost + (1.0 - part) * (load[a] * price[a] - gain[a]) if a >= 0 else cost


@inner
def corner_price(load, price, a, b, part):  # type: ignore[no-untyped-def]
    """The price of a corner's GPUs."""
    cost = part * (load[b] * price[b]) if b >= 0 else 0.0
    return cost + (1.0 - part) * (load[a] * price[a]) if a >= 0 else cost


@inner
def cheapest(load, gain, price, count, low, high, part):  # type: ignore[no-untyped-def]
    best, least = 0, np.inf
    for v in range(count):
        cost = corner_cost(load, gain, price, low[v], high[v], part[v])
        if cost < least:
            best, least = v, cost
    return best


@inner
def tie_row(load, low, high, part, k, first, second, row):  # type: ignore[no-untyped-def]
    """Writes the GPUs that the second corner of a job takes beyond the first, (T,)."""
    for t in range(len(row)):
        row[t] = 0.0
    for v, sign in ((second, 1.0), (first, -1.0)):
        a, b = low[k, v], high[k, v]
        if b >= 0:
            row[b] += sign * load[k, b] * part[k, v]
        if a >= 0:
            row[a] += sign * load[k, a] * (1.0 - part[k, v])


@inner
def filled(  # type: ignore[no-untyped-def]
    rate, load, gain, price, low, high, part, best, kind, who, corner, kinks, amount, times, steepness
):
    """Writes times (S, T) and the marginal cost of each job's rate, (S,)."""
    S, T = rate.shape
    row = np.empty(T)
    for k in range(S):
        v = best[k]
        a, b = low[k, v], high[k, v]
        if b >= 0:
            times[k, b] += part[k, v]
        if a >= 0:
            times[k, a] += 1.0 - part[k, v]
        if a != b:
            rise = rate[k, b] - (rate[k, a] if a >= 0 else 0.0)
            cost = load[k, b] * price[b] - gain[k, b]
            if a >= 0:
                cost -= load[k, a] * price[a] - gain[k, a]
            steepness[k] = max(cost / rise, 0.0)
    for n in range(kinks):
        if kind[n] == TIE:
            k = who[n]
            tie_row(load, low, high, part, k, best[k], corner[n], row)
            z = min(max(amount[n], 0.0), 1.0)
            for t in range(T):
                times[k, t] = max(times[k, t] + z * row[t] / load[k, t], 0.0)

"""The structure of an optimum in numba: what vertex.py computes in numpy, number by number, for the jobs in doubt.

numpy takes some 0.2 ms for a hundred jobs, in some eighty operations on arrays of a few rows.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit


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

"""The cheapest mix of a job's modes at given prices, in numba.

A mode is a size on a GPU type. It has a rate, and a cost: Σ_r load_r price_r of the rows (resource, type) that it uses.
The least cost of a rate is the lower hull of idling (0, 0) and the modes. A job that needs a rate mixes the two corners
around it; if rate has a value of its own (`money`), it goes along the hull as far as that pays.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit

IDLE = -1


@njit(cache=True, nogil=True, error_model="numpy")
def corners(rate, load, rows, price, need, money, costs, reach, cost, mode):  # type: ignore[no-untyped-def]
    """Writes a job's hull, up to the edge beyond `need` that no longer pays; returns the number of its edges.

    `load` and `rows` are (M, R). Corner 0 is idling; `costs` (M,) are those of the modes.
    """
    M, R = load.shape
    for m in range(M):
        costs[m] = 0.0
        for r in range(R):
            costs[m] += load[m, r] * price[rows[m, r]]
    n, at_rate, at_cost = 0, 0.0, 0.0
    reach[0], cost[0], mode[0] = 0.0, 0.0, IDLE
    while True:
        best, best_rise, best_dearer = IDLE, 1.0, 0.0
        for m in range(M):
            rise = rate[m] - at_rate
            if rise > 0.0:
                dearer = max(costs[m] - at_cost, 0.0)
                one, other = dearer * best_rise, best_dearer * rise
                if best == IDLE or one < other or (one == other and rise > best_rise):
                    best, best_rise, best_dearer = m, rise, dearer
        if best == IDLE:
            return n
        n += 1
        at_rate, at_cost = rate[best], costs[best]
        reach[n], cost[n], mode[n] = at_rate, at_cost, best
        if at_rate >= need and best_dearer > money * best_rise:
            return n


@njit(cache=True, nogil=True, error_model="numpy")
def edge_of(reach, cost, edges, need, money):  # type: ignore[no-untyped-def]
    """The edge (1 to `edges`) on which a job is, and the part of its time in the upper corner."""
    e = 1
    while e < edges and need > reach[e]:
        e += 1
    part = min(max((need - reach[e - 1]) / (reach[e] - reach[e - 1]), 0.0), 1.0)
    while cost[e] - cost[e - 1] < money * (reach[e] - reach[e - 1]):
        part = 1.0
        if e == edges:
            break
        if not cost[e + 1] - cost[e] < money * (reach[e + 1] - reach[e]):
            break
        e += 1
    return e, part


@njit(cache=True, nogil=True, error_model="numpy")
def margin_of(rate, load, rows, unit, need, money, costs, low, high, part, rises):  # type: ignore[no-untyped-def]
    """By how many units (P,) prices may change until another mix may be cheaper, or the need leaves the edge."""
    M, R = load.shape
    low_rate, low_cost, low_size = 0.0, 0.0, 0.0
    high_rate, high_cost, high_size = rate[high], costs[high], 0.0
    for r in range(R):
        high_size += load[high, r] * unit[rows[high, r]]
        if low != IDLE:
            low_size += load[low, r] * unit[rows[low, r]]
    if low != IDLE:
        low_rate, low_cost = rate[low], costs[low]
    width = high_rate - low_rate
    single = part >= 1.0 and money > 0.0 and high_cost - low_cost < money * width
    steep = money if single else (high_cost - low_cost) / width
    least = np.inf
    for m in range(-1, M):
        if m == high or (m == low and not single):
            continue
        m_rate, m_cost, size = 0.0, 0.0, 0.0
        if m >= 0:
            m_rate, m_cost = rate[m], costs[m]
            if m_rate <= 0.0:
                continue
            for r in range(R):
                size += load[m, r] * unit[rows[m, r]]
        excess = max(m_cost - high_cost - steep * (m_rate - high_rate), 0.0)
        if single:
            size += high_size
        else:
            phi = (m_rate - low_rate) / width
            size += abs(1.0 - phi) * low_size + abs(phi) * high_size
        if size > 0.0:
            least = min(least, excess / size)
    if not single and money > 0.0:  # more than the need may pay
        least = min(least, max(high_cost - low_cost - money * width, 0.0) / (low_size + high_size))
    if rises and need > 0.0:
        least = min(least, min(need - low_rate, high_rate - need) / need)
    return max(least, 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def mixes(  # type: ignore[no-untyped-def]
    rate, load, rows, count, need, rise, money, price, unit, low, high, part, climb, margin, used, drift
):
    """The mix of every job at `price` (P,): modes, parts and margins (K,), rows used and their rise by level (P,)."""
    K, M = rate.shape
    R = load.shape[2]
    costs, reach, cost = np.empty(M), np.empty(M + 1), np.empty(M + 1)
    mode = np.empty(M + 1, np.int64)
    used[:] = 0.0
    drift[:] = 0.0
    for k in range(K):
        edges = corners(rate[k], load[k], rows, price, need[k], money[k], costs, reach, cost, mode)
        e, x = edge_of(reach, cost, edges, need[k], money[k])
        a, b = mode[e - 1], mode[e]
        width = reach[e] - reach[e - 1]
        is_rising = rise[k] > 0.0 and (x < 1.0 or need[k] <= reach[e])
        climb[k] = rise[k] / width if is_rising else 0.0
        low[k], high[k], part[k] = a, b, x
        margin[k] = margin_of(rate[k], load[k], rows, unit, need[k], money[k], costs, a, b, x, is_rising)
        for r in range(R):
            used[rows[b, r]] += count[k] * load[k, b, r] * x
            drift[rows[b, r]] += count[k] * load[k, b, r] * climb[k]
            if a != IDLE:
                used[rows[a, r]] += count[k] * load[k, a, r] * (1.0 - x)
                drift[rows[a, r]] -= count[k] * load[k, a, r] * climb[k]


@njit(cache=True, nogil=True, error_model="numpy")
def demand(rate, load, rows, count, need, rise, money, price, used, drift):  # type: ignore[no-untyped-def]
    """The rows that all jobs use at `price` (P,), and their rise by level, (P,): as `mixes`, without the margins."""
    K, M = rate.shape
    R = load.shape[2]
    costs, reach, cost = np.empty(M), np.empty(M + 1), np.empty(M + 1)
    mode = np.empty(M + 1, np.int64)
    used[:] = 0.0
    drift[:] = 0.0
    for k in range(K):
        edges = corners(rate[k], load[k], rows, price, need[k], money[k], costs, reach, cost, mode)
        e, x = edge_of(reach, cost, edges, need[k], money[k])
        a, b = mode[e - 1], mode[e]
        is_rising = rise[k] > 0.0 and (x < 1.0 or need[k] <= reach[e])
        climb = rise[k] / (reach[e] - reach[e - 1]) if is_rising else 0.0
        for r in range(R):
            used[rows[b, r]] += count[k] * load[k, b, r] * x
            drift[rows[b, r]] += count[k] * load[k, b, r] * climb
            if a != IDLE:
                used[rows[a, r]] += count[k] * load[k, a, r] * (1.0 - x)
                drift[rows[a, r]] -= count[k] * load[k, a, r] * climb


@njit(cache=True, nogil=True, error_model="numpy")
def duals(rate, load, rows, need, money, price, steepness):  # type: ignore[no-untyped-def]
    """The marginal cost of each job's rate at its need, (K,), beyond what a unit of it is worth (`money`)."""
    K, M = rate.shape
    costs, reach, cost = np.empty(M), np.empty(M + 1), np.empty(M + 1)
    mode = np.empty(M + 1, np.int64)
    for k in range(K):
        edges = corners(rate[k], load[k], rows, price, need[k], money[k], costs, reach, cost, mode)
        e = 1
        while e < edges and need[k] > reach[e]:
            e += 1
        steep = (cost[e] - cost[e - 1]) / (reach[e] - reach[e - 1])
        steepness[k] = max(steep - money[k], 0.0) if need[k] > 0.0 else 0.0

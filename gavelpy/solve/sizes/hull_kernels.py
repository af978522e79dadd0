"""The cheapest mix of a job's modes at given prices, in numba.

A mode is a size on a GPU type. It has a rate, and a cost: Σ_r load_r price_r of the rows (resource, type) that it uses.
The least cost of a rate is the lower hull of idling (0, 0) and the modes. A job that needs a rate mixes the two corners
around it; if rate has a value of its own (`money`), it goes along the hull as far as that pays.

A sweep over many jobs needs one edge of each hull. It is found without the rest of the hull, by Newton's method: the
mode farthest below the line through two corners replaces one of them. From the edge at slightly other prices, most jobs
need one look at their modes.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit

IDLE, NO_MODE = -1, -2
_ROUNDED = 1.0 + 1e-15
_PART = 64  # jobs
_NEAR = 1.0 - 1e-15  # part of the cost on a line: what costs less is below it


@njit(cache=True, nogil=True, error_model="numpy")
def prices_of_modes(rows, price):  # type: ignore[no-untyped-def]
    """The price (P,) of each row that each mode uses, (M R,)."""
    M, R = rows.shape
    prices = np.empty(M * R)
    for m in range(M):
        for r in range(R):
            prices[m * R + r] = price[rows[m, r]]
    return prices


@njit(cache=True, nogil=True, error_model="numpy")
def costs_of(load, prices, costs):  # type: ignore[no-untyped-def]
    """Sets the costs of a job's modes, (M,), from their loads and the prices of their rows, (M R,)."""
    M = len(costs)
    R = len(load) // M
    if R == 1:
        for m in range(M):
            costs[m] = load[m] * prices[m]
        return
    for m in range(M):
        costs[m] = 0.0
        for q in range(m * R, m * R + R):
            costs[m] += load[q] * prices[q]


@njit(cache=True, nogil=True, error_model="numpy")
def least_loads(rate, load, least):  # type: ignore[no-untyped-def]
    """Sets the least part of a row, (K,), that a job's best rate takes in a mode: of the row that it uses most."""
    K, M = rate.shape
    for k in range(K):
        least[k] = np.inf
        for m in range(M):
            if rate[k, m] > 0.0:
                most = 0.0
                for r in range(load.shape[2]):
                    most = max(most, load[k, m, r])
                least[k] = min(least[k], most / rate[k, m])


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"})  # no number changes; `min` is fast
def next_corner(rate, costs, at_rate, at_cost):  # type: ignore[no-untyped-def]
    """The corner of the hull after one of this rate and cost; IDLE: there is none."""
    least = np.inf
    for m in range(len(rate)):
        rise = rate[m] - at_rate
        steep = max(costs[m] - at_cost, 0.0) / (rise if rise > 0.0 else 1.0)
        least = min(least, steep if rise > 0.0 else np.inf)
    best = IDLE
    if least < np.inf:
        most, within = at_rate, least * _ROUNDED
        for m in range(len(rate)):
            if rate[m] > most and costs[m] - at_cost <= within * (rate[m] - at_rate):
                best, most = m, rate[m]
    return best


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"})  # no number changes; `max` is fast
def set_edges(rate, load, rows, need, money, price, low, high, part):  # type: ignore[no-untyped-def]
    """Sets the modes between which each job is, and the part of its time in the upper one, (K,).

    If those of `low` and `high` are still right, one look at each mode shows it.
    """
    K, M = rate.shape
    R = load.shape[2]
    costs, flat, prices = np.empty(M), load.reshape(K, M * R), prices_of_modes(rows, price)
    for k in range(K):
        rates, a, b = rate[k], low[k], high[k]
        costs_of(flat[k], prices, costs)
        is_right = False
        if b != IDLE and rates[b] >= need[k]:
            if a == IDLE:
                low_rate, low_cost = 0.0, 0.0
            else:
                low_rate, low_cost = rates[a], costs[a]
            if money[k] > 0.0:  # one mode pays
                most, of_it = 0.0, money[k]
                for m in range(M):
                    most = max(most, of_it * rates[m] - costs[m])
                is_right = most > 0.0 and of_it * rates[b] - costs[b] >= most
                if is_right:
                    low[k], high[k], part[k] = IDLE, b, 1.0
            if not is_right and rates[b] > low_rate and (low_rate < need[k] or a == IDLE):
                steep = (costs[b] - low_cost) / (rates[b] - low_rate)
                most = low_cost - steep * low_rate
                for m in range(M):
                    most = max(most, (low_cost + steep * (rates[m] - low_rate)) * _NEAR - costs[m])
                is_right = steep >= money[k] and most <= (1.0 - _NEAR) * low_cost
                high[k] = b
                part[k] = (need[k] - low_rate) / (rates[b] - low_rate)
        if not is_right:
            low[k], high[k], part[k] = _edge_at(rates, costs, need[k], money[k], a, b)


@njit(cache=True, nogil=True, error_model="numpy")
def _fastest(rate):  # type: ignore[no-untyped-def]
    best = 0
    for m in range(1, len(rate)):
        if rate[m] > rate[best]:
            best = m
    return best


@njit(cache=True, nogil=True, error_model="numpy")
def _edge_at(rate, costs, need, money, low, high):  # type: ignore[no-untyped-def]
    """The corners on both sides of what a job needs or what pays, and the part of its time in the upper one.

    The search begins with the modes `low` and `high`, if these are around the need; without any, it walks from idling.
    """
    M = len(rate)
    if money > 0.0:
        paying, most = IDLE, 0.0
        for m in range(M):
            if money * rate[m] - costs[m] > most:
                paying, most = m, money * rate[m] - costs[m]
        if paying != IDLE and rate[paying] >= need:
            return IDLE, paying, 1.0
    low_rate, low_cost = 0.0, 0.0
    if high == IDLE:
        at = IDLE
        while True:
            corner = next_corner(rate, costs, low_rate, low_cost)
            if corner == IDLE:
                break
            if rate[corner] >= need:
                return at, corner, min(max((need - low_rate) / (rate[corner] - low_rate), 0.0), 1.0)
            at, low_rate, low_cost = corner, rate[corner], costs[corner]
        low_rate, low_cost = 0.0, 0.0
    if low != IDLE and rate[low] < need:
        low_rate, low_cost = rate[low], costs[low]
    else:
        low = IDLE
    if high == IDLE or rate[high] < need or rate[high] <= low_rate:
        high = _fastest(rate)
        if rate[high] <= low_rate:
            low, low_rate, low_cost = IDLE, 0.0, 0.0
    high_rate, high_cost = rate[high], costs[high]
    for _ in range(2 * M):
        steep = (high_cost - low_cost) / (high_rate - low_rate)
        found, below = NO_MODE, (1.0 - _NEAR) * low_cost
        if low_cost - steep * low_rate > below:
            found, below = IDLE, low_cost - steep * low_rate
        for m in range(M):
            gain = (low_cost + steep * (rate[m] - low_rate)) * _NEAR - costs[m]
            if gain > below:
                found, below = m, gain
        if found in (NO_MODE, low, high):
            break
        if found == IDLE:
            low, low_rate, low_cost = IDLE, 0.0, 0.0
        elif rate[found] >= need:
            high, high_rate, high_cost = found, rate[found], costs[found]
        else:
            low, low_rate, low_cost = found, rate[found], costs[found]
    part = (need - low_rate) / (high_rate - low_rate)
    return low, high, min(max(part, 0.0), 1.0)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"})
def _margin_of(rate, costs, sizes, need, money, low, high, part, rises):  # type: ignore[no-untyped-def]
    """By how many units prices may change until another mix may be cheaper, or the need leaves the edge.

    `sizes` (M,) are the costs of the modes at prices of one unit.
    """
    low_rate, low_cost, low_size = 0.0, 0.0, 0.0
    high_rate, high_cost, high_size = rate[high], costs[high], sizes[high]
    if low != IDLE:
        low_rate, low_cost, low_size = rate[low], costs[low], sizes[low]
    width = high_rate - low_rate
    single = part >= 1.0 and money > 0.0 and high_cost - low_cost < money * width
    steep = money if single else (high_cost - low_cost) / width
    other = high if single else low
    least = np.inf
    for m in range(len(rate)):
        excess = max(costs[m] - high_cost - steep * (rate[m] - high_rate), 0.0)
        phi = (rate[m] - low_rate) / width
        size = sizes[m] + (high_size if single else abs(1.0 - phi) * low_size + abs(phi) * high_size)
        counts = rate[m] > 0.0 and m != high and m != other and size > 0.0
        least = min(least, excess / (size if counts else 1.0) if counts else np.inf)
    if low != IDLE or single:
        size = high_size if single else (1.0 + low_rate / width) * low_size + low_rate / width * high_size
        if size > 0.0:
            least = min(least, max(steep * high_rate - high_cost, 0.0) / size)
    if not single and money > 0.0:  # more than the need may pay
        least = min(least, max(high_cost - low_cost - money * width, 0.0) / (low_size + high_size))
    if rises and need > 0.0:
        least = min(least, min(need - low_rate, high_rate - need) / need)
    return max(least, 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def margins(rate, load, rows, need, rise, money, price, unit, low, high, part, margin):  # type: ignore[no-untyped-def]
    """Sets by how many units, (K,), prices or the level may change until a job's mix may be another one."""
    K, M = rate.shape
    costs, sizes, flat = np.empty(M), np.empty(M), load.reshape(K, -1)
    prices, units = prices_of_modes(rows, price), prices_of_modes(rows, unit)
    for k in range(K):
        costs_of(flat[k], prices, costs)
        costs_of(flat[k], units, sizes)
        is_rising = rise[k] > 0.0 and (part[k] < 1.0 or need[k] <= rate[k, high[k]])
        margin[k] = _margin_of(rate[k], costs, sizes, need[k], money[k], low[k], high[k], part[k], is_rising)


@njit(cache=True, nogil=True, error_model="numpy")
def uses(rate, load, rows, count, need, rise, low, high, part, climb, used, drift):  # type: ignore[no-untyped-def]
    """Adds the rows used by all mixes and their rise by level, (P,); sets the rise of every part, `climb` (K,)."""
    R = load.shape[2]
    for k in range(len(rate)):
        a, b, x = low[k], high[k], part[k]
        is_rising = rise[k] > 0.0 and (x < 1.0 or need[k] <= rate[k, b])
        climb[k] = rise[k] / (rate[k, b] - (rate[k, a] if a != IDLE else 0.0)) if is_rising else 0.0
        for r in range(R):
            used[rows[b, r]] += count[k] * load[k, b, r] * x
            drift[rows[b, r]] += count[k] * load[k, b, r] * climb[k]
            if a != IDLE:
                used[rows[a, r]] += count[k] * load[k, a, r] * (1.0 - x)
                drift[rows[a, r]] -= count[k] * load[k, a, r] * climb[k]


@njit(cache=True, nogil=True, error_model="numpy")
def sweep(  # type: ignore[no-untyped-def]
    rate, load, rows, count, need, rise, money, price, level, low, high, part, climb, used, drift
):
    """Sets the edges, and adds the rows used (`set_edges`, `uses`), part by part, so that the modes stay in the cache.

    A level sets the needs, too; below 0 there is none.
    """
    for at in range(0, len(rate), _PART):
        end = min(at + _PART, len(rate))
        if level >= 0.0:
            for k in range(at, end):
                need[k] = min(level * rise[k], 1.0)
        rates, loads, a, b, x = rate[at:end], load[at:end], low[at:end], high[at:end], part[at:end]
        set_edges(rates, loads, rows, need[at:end], money[at:end], price, a, b, x)
        uses(rates, loads, rows, count[at:end], need[at:end], rise[at:end], a, b, x, climb[at:end], used, drift)


@njit(cache=True, nogil=True, error_model="numpy")
def duals(rate, load, rows, need, money, price, low, high, steepness):  # type: ignore[no-untyped-def]
    """Sets the marginal cost of each job's rate at its need, (K,), beyond what a unit of it is worth (`money`).

    `low` and `high` (K,) are the modes on both sides of the need.
    """
    R = load.shape[2]
    for k in range(len(rate)):
        a, b, cost = low[k], high[k], 0.0
        for r in range(R):
            cost += load[k, b, r] * price[rows[b, r]]
            if a != IDLE:
                cost -= load[k, a, r] * price[rows[a, r]]
        steep = cost / (rate[k, b] - (rate[k, a] if a != IDLE else 0.0))
        steepness[k] = max(steep - money[k], 0.0) if need[k] > 0.0 else 0.0

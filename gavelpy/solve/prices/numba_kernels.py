"""The loops over jobs in numba. `numpy_kernels` computes the same in numpy and is the oracle of its tests."""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.table import IDLE, Modes, Sweep, Table, Tally, fixed


def sweep(table: Table, need: Floats, slope: Floats, prices: Floats, width: float, level: float) -> Sweep:
    """Every job's cheapest mix for its need at these prices. See `table.Sweep`."""
    K, T = table.rate.shape
    low, high, margin = np.empty(K, np.int8), np.empty(K, np.int8), np.empty(K)
    used, drift, curvature = np.zeros(T), np.zeros(T), np.zeros((T, T))
    reward, short = _sweep(
        table.rate, table.gain, table.gpus, table.count, need, slope, prices, width, level,
        low, high, margin, used, drift, curvature,
    )  # fmt: skip
    return Sweep(low, high, margin, used, drift, curvature, reward, int(short))


@njit(cache=True, nogil=True, error_model="numpy")
def _hull(rate, cost, need, T):  # type: ignore[no-untyped-def]
    """The edge of the lower hull of {idle} and {(rate_t, cost_t)} that contains `need`; low == high at a vertex.

    Returns low, high, and whether the need is above the best rate.
    """
    low, low_rate, low_cost = IDLE, 0.0, 0.0
    for t in range(T):
        if rate[t] > 0.0 and (cost[t] < low_cost or (cost[t] == low_cost and rate[t] > low_rate)):
            low, low_rate, low_cost = t, rate[t], cost[t]
    if low_rate >= need:
        return low, low, False
    while True:
        high, high_rate, steepness = IDLE, 0.0, np.inf
        for t in range(T):
            rise = rate[t] - low_rate
            if rise > 0.0:
                steep = (cost[t] - low_cost) / rise
                if steep < steepness or (steep == steepness and rate[t] > high_rate):
                    high, high_rate, steepness = t, rate[t], steep
        if high == IDLE:
            return low, low, True
        if high_rate >= need:
            return low, high, False
        low, low_rate, low_cost = high, high_rate, cost[high]


@njit(cache=True, nogil=True, error_model="numpy")
def _sweep(  # type: ignore[no-untyped-def]
    rate, gain, gpus, count, need, slope, prices, width, level, low, high, margin, used, drift, curvature
):
    K, T = rate.shape
    cost, swap = np.empty(T), np.empty(T)
    gains = gain.shape[0] > 0
    reward, short = 0.0, 0
    for i in range(K):
        g, load = gpus[i], count[i] * gpus[i]
        for t in range(T):
            cost[t] = g * prices[t] - (gain[i, t] if gains else 0.0)
        a, b, lacking = _hull(rate[i], cost, need[i], T)
        low[i], high[i] = a, b
        if a == b:
            if a >= 0:
                used[a] += load
                reward += count[i] * gain[i, a] if gains else 0.0
            if lacking:
                short += 1
                margin[i] = 0.0
            else:
                margin[i] = _margin_at_vertex(
                    a, rate[i], cost, prices, g, load, need[i], slope[i] * level, width, curvature
                )
            continue
        a_rate = rate[i, a] if a >= 0 else 0.0
        rise = 1.0 / (rate[i, b] - a_rate)
        theta = (need[i] - a_rate) * rise
        used[b] += load * theta
        drift[b] += load * slope[i] * rise
        if a >= 0:
            used[a] += load * (1.0 - theta)
            drift[a] -= load * slope[i] * rise
        if gains:
            reward += count[i] * (theta * gain[i, b] + ((1.0 - theta) * gain[i, a] if a >= 0 else 0.0))
        margin[i] = _margin_on_edge(
            a, b, rate[i], cost, prices, g, load, need[i], slope[i] * level, theta, gains, width, curvature, swap
        )
    return reward, short


@njit(cache=True, nogil=True, error_model="numpy")
def _margin_at_vertex(a, rate, cost, prices, g, load, need, per_level, width, curvature):  # type: ignore[no-untyped-def]
    """The margin of a job in one mode; adds its kinks within `width` to the curvature."""
    a_rate, a_cost, a_price = 0.0, 0.0, 0.0
    if a >= 0:
        a_rate, a_cost, a_price = rate[a], cost[a], prices[a]
    least = (a_rate - need) / per_level if per_level > 0.0 else np.inf
    for t in range(-1, len(prices)):
        if t == a or (t >= 0 and rate[t] <= 0.0):
            continue
        excess = (cost[t] if t >= 0 else 0.0) - a_cost
        reach = g * ((prices[t] if t >= 0 else 0.0) + a_price)
        part = excess / reach if reach > 0.0 else (0.0 if excess <= 0.0 else np.inf)
        least = min(least, part)
        if width > 0.0 and part < width and reach > 0.0:
            weight = load * g / (2.0 * width * reach)
            if t >= 0:
                curvature[t, t] += weight
                if a >= 0:
                    curvature[t, a] -= weight
                    curvature[a, t] -= weight
            if a >= 0:
                curvature[a, a] += weight
    return least


@njit(cache=True, nogil=True, error_model="numpy")
def _margin_on_edge(  # type: ignore[no-untyped-def]
    a, b, rate, cost, prices, g, load, need, per_level, theta, gains, width, curvature, swap
):
    """The margin of a job in two modes; adds its kinks within `width` to the curvature."""
    T = len(prices)
    a_rate, a_cost, a_price = 0.0, 0.0, 0.0
    if a >= 0:
        a_rate, a_cost, a_price = rate[a], cost[a], prices[a]
    rise, climb = 1.0 / (rate[b] - a_rate), cost[b] - a_cost
    least = min(need - a_rate, rate[b] - need) / per_level if per_level > 0.0 else np.inf
    if gains:
        least = min(least, climb / (g * (prices[b] + a_price)))
    for t in range(-1, T):
        if t in (a, b) or (t >= 0 and rate[t] <= 0.0):
            continue
        phi = ((rate[t] if t >= 0 else 0.0) - a_rate) * rise
        excess = (cost[t] if t >= 0 else 0.0) - a_cost - phi * climb
        reach = g * ((prices[t] if t >= 0 else 0.0) + abs(1.0 - phi) * a_price + abs(phi) * prices[b])
        part = excess / reach if reach > 0.0 else (0.0 if excess <= 0.0 else np.inf)
        least = min(least, part)
        if width > 0.0 and part < width and reach > 0.0:
            room = min(1.0, (1.0 - theta) / (1.0 - phi)) if 1.0 - phi > 1e-12 else 1.0
            room = min(room, theta / phi) if phi > 1e-12 else room
            swap[:] = 0.0
            if t >= 0:
                swap[t] = 1.0
            if a >= 0:
                swap[a] -= 1.0 - phi
            swap[b] -= phi
            weight = load * g * room / (2.0 * width * reach)
            for u in range(T):
                if swap[u] != 0.0:
                    for v in range(T):
                        curvature[u, v] += weight * swap[u] * swap[v]
    return least


def settle(table: Table, low: Modes, high: Modes, need: Floats, price: Floats) -> tuple[Floats, Floats]:
    """Times (K, T) of these mixes at these needs, and the marginal cost of each job's rate, (K,)."""
    time, steepness = np.zeros(table.rate.shape), np.zeros(len(need))
    _settle(table.rate, table.gain, table.gpus, low, high, need, price, time, steepness)
    return time, steepness


@njit(cache=True, nogil=True, error_model="numpy")
def _settle(rate, gain, gpus, low, high, need, price, time, steepness):  # type: ignore[no-untyped-def]
    gains = gain.shape[0] > 0
    for i in range(len(gpus)):
        a, b = low[i], high[i]
        if a == b:
            if a >= 0:
                time[i, a] = 1.0
            continue
        a_rate, a_cost = 0.0, 0.0
        if a >= 0:
            a_rate, a_cost = rate[i, a], gpus[i] * price[a] - (gain[i, a] if gains else 0.0)
        b_cost = gpus[i] * price[b] - (gain[i, b] if gains else 0.0)
        rise = rate[i, b] - a_rate
        theta = min(max((need[i] - a_rate) / rise, 0.0), 1.0)
        time[i, b] = theta
        if a >= 0:
            time[i, a] = 1.0 - theta
        steepness[i] = max((b_cost - a_cost) / rise, 0.0)


def demand(table: Table, low: Modes, high: Modes, need: Floats, slope: Floats) -> tuple[Floats, Floats]:
    """GPUs that these mixes use at these needs, (T,), and the additional GPUs per unit of level."""
    used, drift = np.zeros((2, table.rate.shape[1]))
    _demand(table.rate, table.gpus, table.count, low, high, need, slope, used, drift)
    return used, drift


@njit(cache=True, nogil=True, error_model="numpy")
def _demand(rate, gpus, count, low, high, need, slope, used, drift):  # type: ignore[no-untyped-def]
    for i in range(len(gpus)):
        a, b, load = low[i], high[i], gpus[i] * count[i]
        if a == b:
            if a >= 0:
                used[a] += load
            continue
        a_rate = rate[i, a] if a >= 0 else 0.0
        rise = 1.0 / (rate[i, b] - a_rate)
        theta, more = (need[i] - a_rate) * rise, slope[i] * rise
        used[b] += load * theta
        drift[b] += load * more
        if a >= 0:
            used[a] += load * (1.0 - theta)
            drift[a] -= load * more


def tally(
    rate: Floats, gpus: Floats, share: Floats, weight: Floats, gain: Floats, worth: Floats, price: Floats,
    scale: Floats, floor: Floats, best: Floats,
) -> Tally:  # fmt: skip
    """One pass over jobs (J,) and types (T,): the sums of shares (J, T) and duals for a certificate."""
    used, figures = np.zeros(len(price)), np.zeros(8)
    given = (fixed(a) for a in (rate, gpus, share, weight, gain, worth, price, scale, floor, best))
    _tally(*given, used, figures)
    least, total, budgets, floors, weights, sign, time, lack = figures.tolist()
    return Tally(least, total, used, budgets, floors, weights, sign, time, lack)


def proof(
    rate: Floats, gpus: Floats, time: Floats, steepness: Floats, gain: Floats, worth: Floats, price: Floats,
    scale: Floats, floor: Floats, best: Floats, noise: float,
) -> Tally:  # fmt: skip
    """The tally of distinct jobs, all of which can run.

    Times (J, T) below `noise` become zero; marginal costs (J,) are those of `settle`.
    """
    used, figures = np.zeros(len(price)), np.zeros(8)
    given = (fixed(a) for a in (rate, gpus, gain, worth, price, scale, floor, best))
    _proof(*given, time, steepness, noise, used, figures)
    least, total, budgets, floors, weights, sign, over, lack = figures.tolist()
    return Tally(least, total, used, budgets, floors, weights, sign, over, lack)


@njit(cache=True, nogil=True, error_model="numpy")
def _proof(  # type: ignore[no-untyped-def]
    rate, gpus, gain, worth, price, scale, floor, best, time, steepness, noise, used, figures
):
    J, T = rate.shape
    none, weight = np.zeros(J), np.empty(J)
    for j in range(J):
        weight[j] = steepness[j] / best[j]
        for t in range(T):
            time[j, t] = 0.0 if time[j, t] < noise else time[j, t]
    _tally(
        rate, gpus, time, weight, gain if len(gain) else none, worth, price, scale if len(scale) else none,
        floor if len(floor) else none, best, used, figures,
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def _tally(  # type: ignore[no-untyped-def]
    rate, gpus, share, weight, gain, worth, price, scale, floor, best, used, figures
):
    J, T = rate.shape
    least, sign, time, lack = np.inf, 0.0, 0.0, 0.0
    block = np.zeros(T)
    for start in range(0, J, 1024):  # partial sums reduce rounding
        total, budgets, floors, weights = 0.0, 0.0, 0.0, 0.0
        block[:] = 0.0
        for j in range(start, min(start + 1024, J)):
            if best[j] <= 0.0:
                for t in range(T):
                    sign = max(sign, abs(share[j, t]))
                continue
            spent, had, worthy, budget = 0.0, 0.0, 0.0, 0.0
            for t in range(T):
                x, r = share[j, t], rate[j, t]
                sign = max(sign, -x)
                if r <= 0.0:
                    sign = max(sign, x)
                    continue
                spent += x
                had += r * x
                worthy += r * x * worth[t]
                block[t] += gpus[j] * x
                budget = max(budget, r * (weight[j] + gain[j] * worth[t]) - gpus[j] * price[t])
            time = max(time, spent - 1.0)
            total += gain[j] * worthy
            budgets += budget
            floors += weight[j] * floor[j]
            if floor[j] > 0.0:
                lack = max(lack, (floor[j] - had) / max(floor[j], 1e-6 * best[j]))
            if scale[j] > 0.0:
                least = min(least, scale[j] * had)
                weights += weight[j] / scale[j]
        used += block
        figures[1] += total
        figures[2] += budgets
        figures[3] += floors
        figures[4] += weights
    figures[0], figures[5], figures[6], figures[7] = least, sign, time, lack

"""The loops over jobs in numpy: fast enough for a few hundred jobs, and the oracle of the tests of `numba_kernels`."""

from __future__ import annotations

from functools import reduce

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.prices.table import IDLE, Modes, Sweep, Table, Tally


def sweep(table: Table, need: Floats, slope: Floats, prices: Floats, width: float, level: float) -> Sweep:
    """Every job's cheapest mix for its need at these prices. See `table.Sweep`."""
    K, T = table.rate.shape
    at = np.arange(K)
    rate = np.concatenate([table.rate, np.zeros((K, 1))], axis=1)  # the last column is idle
    cost = np.zeros((K, T + 1))
    cost[:, :T] = table.gpus[:, None] * prices
    gain = np.zeros((K, T + 1))
    if len(table.gain):
        gain[:, :T] = table.gain
        cost -= gain
    price = np.append(prices, 0.0)
    possible = rate > 0
    possible[:, T] = True
    low, high, lacking = _hulls(rate, cost, need, possible)
    single = low == high
    low_rate, high_rate, low_cost, high_cost = rate[at, low], rate[at, high], cost[at, low], cost[at, high]
    rise = 1.0 / np.where(single, 1.0, high_rate - low_rate)
    theta = np.where(single, 0.0, (need - low_rate) * rise)
    load, theta_slope = table.load, np.where(single, 0.0, slope * rise)
    used = _by_mode(low, load * (1.0 - theta), T) + _by_mode(high, load * theta, T)
    drift = _by_mode(high, load * theta_slope, T) - _by_mode(low, load * theta_slope, T)
    reward = float(table.count @ ((1.0 - theta) * gain[at, low] + theta * gain[at, high]))

    phi = np.where(single[:, None], 0.0, (rate - low_rate[:, None]) * rise[:, None])
    excess = cost - low_cost[:, None] - phi * (high_cost - low_cost)[:, None]
    reach = price + np.abs(1.0 - phi) * price[low][:, None] + np.abs(phi) * price[high][:, None]
    reach *= table.gpus[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # a price may be tiny
        part = np.where(reach > 0, excess / reach, np.where(excess <= 0, 0.0, np.inf))
        spare = np.where(single, low_rate - need, np.minimum(need - low_rate, high_rate - need))
        ends = np.where(slope * level > 0, spare / (slope * level), np.inf)
        if len(table.gain):
            climb = (high_cost - low_cost) / (table.gpus * (price[high] + price[low]))
            ends = np.where(single, ends, np.minimum(ends, climb))
    possible[at, low] = possible[at, high] = False
    part[~possible] = np.inf
    margin = np.where(lacking, 0.0, np.minimum(part.min(axis=1), ends))
    doubtful = (part < width) & (reach > 0) & ~lacking[:, None]
    curvature = _curvature(table, doubtful, low, high, phi, theta, reach, width)
    idle_low, idle_high = np.where(low == T, IDLE, low), np.where(high == T, IDLE, high)
    return Sweep(
        idle_low.astype(np.int8), idle_high.astype(np.int8), margin, used, drift, curvature, reward, int(lacking.sum())
    )


def settle(table: Table, low: Modes, high: Modes, need: Floats, price: Floats) -> tuple[Floats, Floats]:
    """Times (K, T) of these mixes at these needs, and the marginal cost of each job's rate, (K,)."""
    K, T = table.rate.shape
    at = np.arange(K)
    rate = np.concatenate([table.rate, np.zeros((K, 1))], axis=1)
    cost = np.zeros((K, T + 1))
    cost[:, :T] = table.gpus[:, None] * price - (table.gain if len(table.gain) else 0.0)
    single = low == high
    rise = np.where(single, 1.0, rate[at, high] - rate[at, low])  # IDLE is the last column
    theta = np.where(single, 1.0, np.clip((need - rate[at, low]) / rise, 0.0, 1.0))
    time = np.zeros((K, T + 1))
    time[at, high] += theta
    time[at, low] += 1.0 - theta
    steepness = np.where(single, 0.0, np.maximum((cost[at, high] - cost[at, low]) / rise, 0.0))
    return time[:, :T].copy(), steepness


def demand(table: Table, low: Modes, high: Modes, need: Floats, slope: Floats) -> tuple[Floats, Floats]:
    """GPUs that these mixes use at these needs, (T,), and the additional GPUs per unit of level."""
    K, T = table.rate.shape
    at, single = np.arange(K), low == high
    rate = np.concatenate([table.rate, np.zeros((K, 1))], axis=1)  # IDLE is the last column
    rise = 1.0 / np.where(single, 1.0, rate[at, high] - rate[at, low])
    theta = np.where(single, 0.0, (need - rate[at, low]) * rise)
    more = table.load * np.where(single, 0.0, slope * rise)
    used = _by_mode(low % (T + 1), table.load * (1.0 - theta), T) + _by_mode(high % (T + 1), table.load * theta, T)
    return used, _by_mode(high % (T + 1), more, T) - _by_mode(low % (T + 1), more, T)


def tally(
    rate: Floats, gpus: Floats, share: Floats, weight: Floats, gain: Floats, worth: Floats, price: Floats,
    scale: Floats, floor: Floats, best: Floats,
) -> Tally:  # fmt: skip
    """One pass over jobs (J,) and types (T,): the sums of shares (J, T) and duals for a certificate."""
    runs = best > 0
    possible = (rate > 0) & runs[:, None]
    inside = np.where(possible, share, 0.0)
    had, worthy = _of_types(rate * inside), _of_types(rate * inside * worth)
    dear = rate * (weight[:, None] + gain[:, None] * worth) - gpus[:, None] * price
    budgets = np.where(possible, dear, 0.0).max(axis=1, initial=0.0)
    scaled, floored = runs & (scale > 0), runs & (floor > 0)
    lack = (floor - had)[floored] / np.maximum(floor, 1e-6 * best)[floored]
    return Tally(
        least=float((scale * had)[scaled].min(initial=np.inf)),
        total=_in_turn(gain * worthy),
        used=np.add.accumulate(gpus[:, None] * inside)[-1] if len(gpus) else np.zeros(len(price)),
        budgets=_in_turn(budgets),
        floors=_in_turn(weight[runs] * floor[runs]),
        weights=_in_turn(weight[scaled] / scale[scaled]),
        worst_sign=float(max((-share).max(initial=0.0), np.where(possible, 0.0, np.abs(share)).max(initial=0.0))),
        worst_time=float((_of_types(inside) - 1.0).max(initial=0.0)),
        worst_floor=float(lack.max(initial=0.0)),
    )


def _of_types(figures: Floats) -> Floats:
    """The sum over types of each job, (J,), one type after the other."""
    return reduce(np.add, figures.T, np.zeros(len(figures)))


def _in_turn(figures: Floats) -> float:
    """The sum, one number after the other, as the numba kernels add up to 1,024 of them."""
    return float(np.add.accumulate(figures)[-1]) if len(figures) else 0.0


def _hulls(rate: Floats, cost: Floats, need: Floats, possible: Bools) -> tuple[Ints, Ints, Bools]:
    """Low and high mode of each job (K,), where the last is idle, and whether its need is above its best rate."""
    K, modes = rate.shape
    at = np.arange(K)
    priced = np.where(possible, cost, np.inf)
    cheapest = priced == priced.min(axis=1, keepdims=True)
    low = np.where(cheapest, rate, -1.0).argmax(axis=1)
    high = low.copy()
    lacking = np.zeros(K, dtype=np.bool_)
    climbing = np.flatnonzero(rate[at, low] < need)
    for _ in range(modes):
        if not len(climbing):
            break
        here = low[climbing]
        rise = rate[climbing] - rate[climbing, here][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = np.where(rise > 0, (cost[climbing] - cost[climbing, here][:, None]) / rise, np.inf)
        least = steep.min(axis=1)
        following = np.where((steep == least[:, None]) & (rise > 0), rate[climbing], -1.0).argmax(axis=1)
        stuck = np.isinf(least)
        lacking[climbing[stuck]] = True
        high[climbing] = np.where(stuck, here, following)
        beyond = (rate[climbing, following] < need[climbing]) & ~stuck
        low[climbing[beyond]] = following[beyond]
        climbing = climbing[beyond]
    return low, high, lacking


def _by_mode(mode: Ints, weight: Floats, gpu_types: int) -> Floats:
    return np.bincount(mode, weights=weight, minlength=gpu_types + 1)[:gpu_types].astype(np.float64)


def _curvature(
    table: Table, doubtful: Bools, low: Ints, high: Ints, phi: Floats, theta: Floats, reach: Floats, width: float
) -> Floats:
    """The smoothed Hessian from the kinks within `width`, (T, T)."""
    T = table.rate.shape[1]
    i, t = np.nonzero(doubtful)
    if width <= 0 or not len(i):
        return np.zeros((T, T))
    f, share = phi[i, t], theta[i]
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.minimum(1.0, np.where(1.0 - f > 1e-12, (1.0 - share) / (1.0 - f), np.inf))
        room = np.where(low[i] == high[i], 1.0, np.minimum(room, np.where(f > 1e-12, share / f, np.inf)))
    weight = table.load[i] * table.gpus[i] * room / (2.0 * width * reach[i, t])
    at = np.arange(len(i))
    swap = np.zeros((len(i), T + 1))
    swap[at, t] = 1.0
    swap[at, low[i]] -= 1.0 - f
    swap[at, high[i]] -= f
    return np.asarray((swap[:, :T] * weight[:, None]).T @ swap[:, :T])

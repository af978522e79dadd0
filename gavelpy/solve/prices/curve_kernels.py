"""Bent needs in numba: the finish-time ratio at which targets cost as much as there is, and a ratio's certificate.

A job of age a with an isolated time i (both in units of the job's duration at its best rate) has at the ratio ρ the
target 1 / (ρ i - a), at most its highest rate. Targets bend there: their sum is convex between bends only.

A search needs such a root at every step, and numpy takes some twenty passes over arrays for each. A certificate's root
stays numpy's (finish_time_search.py), so that its bytes do not depend on whether numba is loaded.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.corner_kernels import inner

_CLOSE = 1e-15  # relative distance of the bounds at which the search ends
_STEPS_MAX, _NEAR_STEPS_MAX = 200, 6
_NEAR = 1e-7  # relative: the last step of a search that needs no exact root
_HALF = 0.5


@njit(cache=True, nogil=True, error_model="numpy")
def ratio_of(isolated, age, cap, weight, limit):  # type: ignore[no-untyped-def]
    """The least ratio at which Σ weight x target is at most `limit`, from above; see `Curves.root`."""
    n, low, high = len(age), np.inf, 0.0
    for i in range(n):
        low = min(low, (age[i] + 1.0 / cap[i]) / isolated[i])
        high = max(high, (age[i] + n * weight[i] / limit) / isolated[i])
    cost, slope = _cost(isolated, age, cap, weight, low)
    if cost <= limit:
        return low
    ratio = low
    for _ in range(_STEPS_MAX):
        if high - low <= _CLOSE * high:
            break
        if ratio != low:
            cost, slope = _cost(isolated, age, cap, weight, ratio)
        if cost > limit:
            low = ratio
        else:
            high = ratio
        following = ratio + (cost - limit) / slope + _CLOSE * ratio if slope > 0.0 else np.inf
        if not low < following < high:
            following = low**0.5 * high**0.5 if high > 2.0 * low else 0.5 * (low + high)
        if following in (low, high):
            break
        ratio = following
    return high


@inner
def ratio_near(isolated, age, cap, weight, limit, ratio):  # type: ignore[no-untyped-def]
    """As `ratio_of`, by Newton's method from a ratio near it; up to the square of the last step."""
    for _ in range(_NEAR_STEPS_MAX):
        cost, slope = _cost(isolated, age, cap, weight, ratio)
        step = (cost - limit) / slope if slope > 0.0 else np.inf
        if not abs(step) < _HALF * ratio:
            break
        ratio += step
        if abs(step) <= _NEAR * ratio:
            return ratio
    return ratio_of(isolated, age, cap, weight, limit)


@njit(cache=True, nogil=True, error_model="numpy")
def level_of(base, speed, limit, weight, budget, level):  # type: ignore[no-untyped-def]
    """The highest level at which Σ weight x min(base + speed x level, limit) is at most `budget`, infinite if all are.

    Newton's method from `level`: the sum is concave, so from the second step on levels rise to the root.
    """
    for _ in range(_STEPS_MAX):
        cost, slope = 0.0, 0.0
        for i in range(len(base)):
            need = base[i] + speed[i] * level
            if need < limit[i]:
                cost += weight[i] * need
                slope += weight[i] * speed[i]
            else:
                cost += weight[i] * limit[i]
        if not slope > 0.0:
            if cost <= budget:
                return np.inf
            level *= _HALF
            continue
        step = (budget - cost) / slope
        level = max(level + step, _HALF * level)
        if abs(step) <= _CLOSE * level:
            break
    return level


@inner
def _cost(isolated, age, cap, weight, ratio):  # type: ignore[no-untyped-def]
    """The weighted sum of the targets at a ratio, and its decrease per increase of the ratio."""
    cost, slope = 0.0, 0.0
    for i in range(len(age)):
        left = ratio * isolated[i] - age[i]
        if left * cap[i] <= 1.0:
            cost += weight[i] * cap[i]
        else:
            cost += weight[i] / left
            slope += weight[i] * isolated[i] / (left * left)
    return cost, slope


@njit(cache=True, nogil=True, error_model="numpy")
def best_alone(rate, gpus, gpu_counts, best, per_gpu):  # type: ignore[no-untyped-def]
    """Writes the highest rate of each job alone in the cluster, (K,), and its increase per GPU of a type, (K, T).

    What finish_time._best_in computes for jobs that run alone, with sums in numpy's order for at most seven types.
    """
    K, T = rate.shape
    order = np.empty(T, np.int64)
    for k in range(K):
        for n in range(T):  # by rate; equal ones stay in their order
            m = n
            while m > 0 and rate[k, order[m - 1]] < rate[k, n]:
                order[m] = order[m - 1]
                m -= 1
            order[m] = n
        total, before, until, slowest = 0.0, 0.0, 0.0, 0.0
        for n in range(T):
            t = order[n]
            until += min(gpu_counts[t] / gpus[k], 1.0)
            reached = min(until, 1.0)
            total += rate[k, t] * (reached - before)
            if until >= 1.0 and before < 1.0:
                slowest = rate[k, t]
            before = reached
        best[k] = total
        for t in range(T):
            per_gpu[k, t] = max(rate[k, t] - slowest, 0.0) / gpus[k]


@njit(cache=True, nogil=True, error_model="numpy")
def tabled(  # type: ignore[no-untyped-def]
    rate, gpus, gpu_counts, steps, age_s, isolated_s, best, scaled, load, isolated, age, cap, per_gpu, total
):
    """Writes the table and the curves of a problem; returns whether all jobs can run, and each type is of use.

    `load` are a job's GPUs as a program of classes has them, a part of a type times the type. `total` has a sum over
    the figures of every job: see `are_distinct` in program.py.
    """
    J, T = rate.shape
    is_used = np.zeros(T, np.bool_)
    for j in range(J):
        most = 0.0
        for t in range(T):
            most = max(most, rate[j, t])
        if not most > 0.0:
            return False
        best[j] = most
        unit_s = steps[j] / most
        isolated[j], age[j] = isolated_s[j] / unit_s, age_s[j] / unit_s
        found = 0.0
        for t in range(T):
            scaled[j, t] = rate[j, t] / most
            found += np.sqrt(t + 2.0) * scaled[j, t]
            if rate[j, t] > 0.0:
                is_used[t] = True
                load[j] = gpus[j] / gpu_counts[t] * gpu_counts[t]
        found += np.sqrt(T + 2.0) * gpus[j] + np.sqrt(T + 3.0) * (most * (isolated[j] / most))
        total[j] = found + np.sqrt(T + 4.0) * (age[j] * most / most)
    best_alone(scaled, gpus, gpu_counts, cap, per_gpu)
    return is_used.all()


@njit(cache=True, nogil=True, error_model="numpy")
def cleaned(rate, best, need, noise, dust, deficit, share):  # type: ignore[no-untyped-def]
    """Drops shares (J, T) that add nothing to a rate, and adds the time that a job lacks: see certificate.py."""
    for j in range(len(best)):
        had, left, fastest = 0.0, 0.0, 0
        for t in range(share.shape[1]):
            if not (share[j, t] > noise and rate[j, t] > 0.0):
                share[j, t] = 0.0
            had += rate[j, t] * share[j, t]
            if rate[j, t] > rate[j, fastest]:
                fastest = t
        for t in range(share.shape[1]):
            if not rate[j, t] * share[j, t] > dust * had:
                share[j, t] = 0.0
            left += rate[j, t] * share[j, t]
        least = need[j] * best[j]
        if least - left > deficit * least:
            share[j, fastest] += min((least - left) / rate[j, fastest], 1.0)


@njit(cache=True, nogil=True, error_model="numpy")
def worths_of(rate, gpus, best, steepness, price, weight, budget):  # type: ignore[no-untyped-def]
    """Writes the worth of each job's rate, (J,), in units of its best rate, and the budget for its time, (J,)."""
    for j in range(len(best)):
        worth, most = steepness[j] / best[j], 0.0
        for t in range(len(price)):
            if rate[j, t] > 0.0:
                most = max(most, worth * rate[j, t] - gpus[j] * price[t])
        weight[j], budget[j] = worth * best[j], most


@njit(cache=True, nogil=True, error_model="numpy")
def ratios_of(isolated, age, cap, best, rates, root, gap):  # type: ignore[no-untyped-def]
    """The worst ratio at these rates (J,), that of the jobs below their best rates, and that of jobs by themselves.

    And the decrease of each target per increase of the ratio at `root`, (J,): see `Curves.fall`.
    """
    worst, others, own, fall = 0.0, root, 0.0, np.empty(len(age))
    for j in range(len(age)):
        rate = rates[j] / best[j]
        ratio = (age[j] + 1.0 / rate) / isolated[j]
        worst = max(worst, ratio)
        if rate < cap[j] * (1.0 - gap):
            others = max(others, ratio)
        own = max(own, (age[j] + 1.0 / cap[j]) / isolated[j])
        left = root * isolated[j] - age[j]
        target = cap[j] if left * cap[j] <= 1.0 else 1.0 / left
        fall[j] = isolated[j] * (target * target) if target < cap[j] else 0.0
    return worst, others, own, fall


@njit(cache=True, nogil=True, error_model="numpy")
def slopes_of(rate, cost, need, equal, rounding, worth, budget):  # type: ignore[no-untyped-def]
    """Writes the marginal value of each class's rate (K,) at its need, and its budget (K,); see saturation.py."""
    K, T = rate.shape
    for k in range(K):
        fastest, best, steepest, rate_here, cost_here = 0.0, 0.0, 0.0, 0.0, 0.0
        for t in range(T):
            fastest = max(fastest, rate[k, t])
        size = equal * need[k] + rounding * fastest
        for _ in range(T):
            slope, following = np.inf, -1
            for t in range(T):
                rise = rate[k, t] - rate_here
                if rate[k, t] > 0.0 and rise > 0.0 and cost[k, t] - cost_here < np.inf:
                    steep = max(cost[k, t] - cost_here, 0.0) / rise
                    if steep < slope:
                        slope, following = steep, t
            if following < 0:
                break
            value = slope * (need[k] - rate_here) + cost_here
            margin = slope * size
            if value >= best - margin and (slope > steepest or value > best + margin):
                steepest = slope
            best = max(best, value)
            rate_here, cost_here = rate[k, following], cost[k, following]
        worth[k], budget[k] = steepest, 0.0
        for t in range(T):
            if rate[k, t] > 0.0:
                budget[k] = max(budget[k], steepest * rate[k, t] - cost[k, t])

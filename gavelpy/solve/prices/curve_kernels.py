"""Roots of bent needs in numba: the finish-time ratio at which targets cost as much as there is.

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
_STEPS_MAX = 200


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

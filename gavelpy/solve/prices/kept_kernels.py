"""Rows of jobs that are kept from one problem to the next, in numba: what is known of a job that stays is copied.

A job is its rates, GPUs, value and floor. Jobs that stay keep their order; others leave and arrive between them.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.corner_kernels import inner
from gavelpy.solve.prices.descent_kernels import AT_THE_EDGE, FOUND, is_near, mix_of
from gavelpy.solve.prices.table_kernels import _smallest, centre_at, in_box, mixes

_AHEAD = 8  # rows: so many may leave between two that stay
_TIED, _MORE_THAN_TIED = 1e-10, 1.2  # as in crossover.py


@njit(cache=True, nogil=True, error_model="numpy")
def followed(  # type: ignore[no-untyped-def]
    was_rate, was_gpus, was_value, was_floor, given_rate, given_gpus, given_value, given_floor, apart, new_max,
    old_best, old_rate, old_value, old_total, source, best, rate, value, total, range_of_values,
):  # fmt: skip
    """Writes what is known of each job by itself, (J,); returns how many are new, -1 if too many, or not all differ.

    source: the row that the job had, -1 if it is new. best: steps/s on the best type. rate: in units of that. value: of
    that rate. total: sums that differ between jobs, see program.are_distinct; new jobs are compared with all others.
    """
    (J, T), before, at, new = given_rate.shape, len(was_gpus), 0, 0
    least, most = np.inf, 0.0
    for i in range(J):
        k = at
        same = k < before and was_gpus[k] == given_gpus[i] and was_value[k] == given_value[i]
        if same:
            for t in range(T):
                same = same and was_rate[k, t] == given_rate[i, t]
            if len(was_floor):
                same = same and was_floor[k] == given_floor[i]
        if not same:
            k = _row_of(
                was_rate, was_gpus, was_value, was_floor, at + 1, given_rate, given_gpus, given_value, given_floor, i
            )
        source[i] = k
        if k >= 0:
            at = k + 1
            best[i], value[i], total[i] = old_best[k], old_value[k], old_total[k]
            for t in range(T):
                rate[i, t] = old_rate[k, t]
        else:
            new += 1
            if before and new > new_max:
                return -1
            fastest = 0.0
            for t in range(T):
                fastest = max(fastest, given_rate[i, t])
            if not fastest > 0.0:
                return -1
            best[i], value[i] = fastest, fastest * given_value[i]
            total[i] = 0.0
            for t in range(T):
                rate[i, t] = given_rate[i, t] / fastest
                total[i] += np.sqrt(t + 2) * rate[i, t]
            total[i] += np.sqrt(T + 2) * given_gpus[i]
            total[i] += np.sqrt(T + 3) * value[i]
            if len(given_floor):
                total[i] += np.sqrt(T + 4) * (given_floor[i] / fastest)
        least, most = min(least, value[i]), max(most, value[i])
    range_of_values[0], range_of_values[1] = least, most
    return new if _are_apart(total, source, new, apart) else -1


@inner
def _row_of(rate, gpus, value, floor, at, new_rate, new_gpus, new_value, new_floor, i):  # type: ignore[no-untyped-def]
    """The first row from `at` on of the same job, -1 if it is not near."""
    for k in range(at, min(at + _AHEAD, len(gpus))):
        same = gpus[k] == new_gpus[i] and value[k] == new_value[i]
        for t in range(rate.shape[1]):
            same = same and rate[k, t] == new_rate[i, t]
        if len(floor):
            same = same and floor[k] == new_floor[i]
        if same:
            return k
    return -1


@inner
def _are_apart(total, source, new, apart):  # type: ignore[no-untyped-def]
    """Whether no two sums are nearly equal, if this holds for the rows that are not new."""
    J = len(total)
    if new == J:
        in_order, apart_so_far = np.sort(total), True
        for i in range(1, J):
            apart_so_far = apart_so_far and in_order[i] - in_order[i - 1] > apart * in_order[i]
        return apart_so_far
    for i in range(J):
        if source[i] < 0:
            for k in range(J):
                if k != i and not abs(total[k] - total[i]) > apart * max(total[k], total[i]):
                    return False
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def centred(  # type: ignore[no-untyped-def]
    rate, gain, gpus, need, slope, level, price, centre, radius, in_doubt, low, high, margin
):
    """Writes mixes and margins of all jobs at these prices (T,), the centre; returns `half`, see table_kernels."""
    K, T = rate.shape
    most, most_rate, base = 0.0, np.ones(K), np.empty(K)
    for t in range(T):
        most = max(most, price[t])
    for i in range(K):
        base[i] = need[i] - slope[i] * level
    centre_at(price, most, centre, radius)
    return mixes(
        rate, gain, gpus, base, slope, most_rate, level, centre, radius, in_doubt, low, high, margin, np.empty(K)
    )


@njit(cache=True, nogil=True, error_model="numpy")
def copied(  # type: ignore[no-untyped-def]
    source, rate, gain, gpus, need, slope, level, centre, radius, low, high, margin, old_low, old_high, old_margin,
    ties, ties_count,
):  # fmt: skip
    """Writes the mixes and margins at the centre: those of new rows are computed. Returns how many ties are left."""
    K, T = rate.shape
    cost, swap, none, gains = np.empty(T), np.empty(T), np.empty((T, T)), gain.shape[0] > 0
    row_of = np.full(len(old_low), -1, np.int64)
    for i in range(K):
        k = source[i]
        if k >= 0:
            low[i], high[i], margin[i], row_of[k] = old_low[k], old_high[k], old_margin[k], i
            continue
        for t in range(T):
            cost[t] = gpus[i] * centre[t] - (gain[i, t] if gains else 0.0)
        need_there = min(need[i], 1.0)
        low[i], high[i], margin[i] = mix_of(
            rate[i], cost, need_there, slope[i] * level, gpus[i], radius, gains, none, swap
        )
    left = 0
    for n in range(ties_count):
        i = row_of[ties[n, 0]]
        if i >= 0:
            for m in range(1, 5):
                ties[left, m] = ties[n, m]
            ties[left, 0] = i
            left += 1
    return left


@njit(cache=True, nogil=True, error_model="numpy")
def moved(  # type: ignore[no-untyped-def]
    rate, gain, gpus, base, slope, level, is_level, gpu_counts, low, high, margin, half, centre_level, centre, radius,
    price, ties, ties_count, price_floor, in_doubt, near_price, mode_low, mode_high, rows,
):  # fmt: skip
    """The best prices of the box, as `in_box`; ends at the edge if jobs that are not in doubt may have other modes.

    Needs are base (K,) + slope (K,) x level. Returns how it ended, the level, the number of ties, and that of the rows
    in doubt: `near_price` (T,), modes and `rows` are those of `read`.
    """
    K, T = rate.shape
    count, most_rate = np.ones(K), np.ones(K)
    if is_level:  # prices have the unit of the centre
        unit, priced = 0.0, 0
        for t in range(T):
            if price[t] > 0.0:
                unit += centre[t] / price[t]
                priced += 1
        for t in range(T):
            price[t] *= unit / max(priced, 1)
    end, level, ties_count = in_box(
        rate, gain, gpus, count, base, slope, most_rate, level, is_level, not is_level, gpu_counts, low, high,
        margin, half, centre_level, centre, radius, price, ties, ties_count,
    )  # fmt: skip
    if end == FOUND and not is_near(price, centre, half, radius, is_level):
        end = AT_THE_EDGE
    if end != FOUND:
        return end, level, ties_count, 0
    most, need = 0.0, np.empty(K)
    for t in range(T):
        most = max(most, price[t])
    for t in range(T):  # from parts of the level to units
        near_price[t] = max(price[t], price_floor * most) * (level if is_level else 1.0)
    for i in range(K):
        need[i] = base[i] + slope[i] * level
    found = read(
        rate, gain, gpus, need, slope, level, near_price, low, high, margin, half, in_doubt, mode_low, mode_high, rows
    )
    return end, level, ties_count, found


@njit(cache=True, nogil=True, error_model="numpy")
def read(  # type: ignore[no-untyped-def]
    rate, gain, gpus, need, slope, level, price, low, high, margin, half, in_doubt, mode_low, mode_high, rows
):
    """Writes the modes of all jobs (K,) at these prices, and rows of the jobs with the least margins; their number.

    Jobs whose margin at the centre is above `half` have the modes there.
    """
    (K, T), S, tied = rate.shape, 0, 0
    cost, swap, none, gains = np.empty(T), np.empty(T), np.empty((T, T)), gain.shape[0] > 0
    some, part = np.empty(K, np.int64), np.empty(K)
    for i in range(K):
        if margin[i] > half:
            mode_low[i], mode_high[i] = low[i], high[i]
            continue
        for t in range(T):
            cost[t] = gpus[i] * price[t] - (gain[i, t] if gains else 0.0)
        mode_low[i], mode_high[i], part[S] = mix_of(
            rate[i], cost, need[i], slope[i] * level, gpus[i], price, gains, none, swap
        )
        some[S] = i
        tied += part[S] < _TIED
        S += 1
    count = max(in_doubt, int(_MORE_THAN_TIED * tied))
    edge = _smallest(part[:S].copy(), count) if count < S else np.inf
    found = 0
    for k in range(S):
        if part[k] < edge:
            rows[found] = some[k]
            found += 1
    return found

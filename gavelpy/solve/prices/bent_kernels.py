"""The highest level of needs that bend, by Newton's steps in numba: each takes the best prices for tangents.

Needs are those for a finish-time ratio, which is minus the level, or lines up to a limit. All mixes are computed once
at the centre of a box.
While prices and level stay in the box, the next step has the tangents at the new level, and only sums over the jobs
that are not in doubt are computed again.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.corner_kernels import ZERO, inner
from gavelpy.solve.prices.descent_kernels import AT_THE_EDGE, ENDLESS, FOUND, UNBOUNDED, is_near
from gavelpy.solve.prices.newton_kernels import tangents_of
from gavelpy.solve.prices.table_kernels import centre_at, in_box, mixes

_STEPS_MAX = 60
_FREE = 4e-12  # of the highest price: a type that costs no more is free
_FITS = 1e-12
_SAME_LEVEL = 1e-9  # relative: a smaller step of the level is the last
_LOWER = 0.7  # of a level that is too high
_ENOUGH = 1e6  # times the GPUs of a free type


@njit(cache=True, nogil=True, error_model="numpy")
def stepped(rate, gpus, count, first, second, third, by_lines, gpu_counts, in_doubt, level, price):  # type: ignore[no-untyped-def]
    """Moves `price` (T,) to the prices of the highest level; returns how the search ended, and the level.

    Classes that reach their needs on free types have no part in the search.
    """
    K, T = rate.shape
    start, here, is_free = price.copy(), gpu_counts.copy(), np.zeros(T, np.bool_)
    need, slope, base, most_rate = np.empty(K), np.empty(K), np.empty(K), np.ones(K)
    low, high, margin, order = np.empty(K, np.int64), np.empty(K, np.int64), np.empty(K), np.empty(K)
    centre, radius, ties, ties_count = np.empty(T), np.empty(T), np.zeros((T, 5), np.int64), ZERO
    rows, none, N = np.empty(K, np.int64), np.zeros((0, T)), ZERO
    some, load, figures = rate, gpus, (count, first, second, third)
    half, centre_level, has_box = 0.0, level, False
    for _ in range(_STEPS_MAX):
        if not has_box:
            most = price.max()
            if not most > 0.0:
                return UNBOUNDED, level
            is_free[:] = price <= _FREE * most
            here[:] = np.where(is_free, _ENOUGH * gpu_counts, gpu_counts)
            if N or is_free.any():
                _bend(first, second, third, by_lines, level, need, slope, base)
                N = _priced(rate, need, is_free, rows)
                some, load = rate[rows[:N]], gpus[rows[:N]]
                figures = (count[rows[:N]], first[rows[:N]], second[rows[:N]], third[rows[:N]])
            _bend(figures[1], figures[2], figures[3], by_lines, level, need, slope, base)
            centre_at(price, most, centre, radius)
            price[:] = centre
            n, ties_count, centre_level = len(load), ZERO, level
            half = mixes(
                some, none, load, base[:n], slope[:n], most_rate[:n], 1.0, centre, radius, in_doubt, low[:n], high[:n],
                margin[:n], order[:n],
            )  # fmt: skip
        n = len(load)
        end, part, ties_count = in_box(
            some, none, load, figures[0], base[:n], slope[:n], most_rate[:n], 1.0, True, True, here, low[:n], high[:n],
            margin[:n], half, 1.0 + (centre_level - level) / abs(level), centre, radius, price, ties, ties_count,
        )  # fmt: skip
        if end == FOUND and not is_near(price, centre, half, radius, True):
            end = AT_THE_EDGE
        if end == UNBOUNDED:  # classes at their limits need more than there is: the level is too high
            price[:] = start
            part = _LOWER
        elif end not in (FOUND, AT_THE_EDGE, ENDLESS) or not part > 0.0:
            return end, level
        level += (part - 1.0) * abs(level)
        if end == FOUND and abs(part - 1.0) <= _SAME_LEVEL:
            return FOUND, level
        if end == AT_THE_EDGE:
            in_doubt *= 2
        has_box = end == FOUND and N == 0 and _are_free(price, is_free)
        if has_box:
            _bend(first, second, third, by_lines, level, need, slope, base)
            has_box = _have_modes(rate, need, low, high, margin, half)
    return ENDLESS, level


@inner
def _bend(first, second, third, by_lines, level, need, slope, base):  # type: ignore[no-untyped-def]
    """Writes the needs at a level, and their tangents, in units of it: base + slope at 1."""
    n = len(third)
    tangents_of(first, second, third, by_lines, level, base[:n], slope[:n])
    for i in range(n):
        need[i] = base[i] + slope[i] * level
        slope[i] *= abs(level)
        base[i] = need[i] - slope[i]


@inner
def _priced(rate, need, is_free, rows):  # type: ignore[no-untyped-def]
    """Writes the rows of the classes that do not reach their needs on free types; returns their number."""
    n = ZERO
    for i in range(len(rate)):
        by_free = 0.0
        for t in range(len(is_free)):
            if is_free[t]:
                by_free = max(by_free, rate[i, t])
        if need[i] > by_free * (1.0 + _FITS):
            rows[n] = i
            n += 1
    return n


@inner
def _are_free(price, is_free):  # type: ignore[no-untyped-def]
    """Whether the free types are still these."""
    most, same = price.max(), True
    for t in range(len(price)):
        same &= (price[t] <= _FREE * most) == is_free[t]
    return same


@inner
def _have_modes(rate, need, low, high, margin, half):  # type: ignore[no-untyped-def]
    """Whether the modes of the jobs that are not in doubt still reach their needs."""
    for i in range(len(rate)):
        if margin[i] > half:
            a, b = low[i], high[i]
            a_rate = rate[i, a] if a >= 0 else 0.0
            if (need[i] > a_rate) if a == b else not a_rate <= need[i] <= rate[i, b]:
                return False
    return True

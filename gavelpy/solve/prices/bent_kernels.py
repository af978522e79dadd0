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
from gavelpy.solve.prices.descent_kernels import AT_THE_EDGE, ENDLESS, FOUND, UNBOUNDED, is_near, mix_of
from gavelpy.solve.prices.newton_kernels import tangents_of
from gavelpy.solve.prices.table_kernels import _smallest, centre_at, in_box, mixes

_STEPS_MAX = 60
_FREE = 4e-12  # of the highest price: a type that costs no more is free
_FITS = 1e-12
_SAME_LEVEL = 1e-9  # relative: a smaller step of the level is the last
_LOWER = 0.7  # of a level that is too high
_TIED, _MORE_THAN_TIED = 1e-10, 1.2  # as in crossover.py
_APART = 1e-6  # of a best rate: a need that is closer to the rate of a mode is in doubt
_ENOUGH = 1e6  # times the GPUs of a free type


@njit(cache=True, nogil=True, error_model="numpy")
def stepped(  # type: ignore[no-untyped-def]
    rate, gpus, count, first, second, third, by_lines, gpu_counts, in_doubt, level, low, high, margin, price
):
    """Moves `price` (T,) to the prices of the highest level; returns how the search ended, the level, and `half`.

    Classes that reach their needs on free types have no part in the search. If there is none, `low`, `high` and
    `margin` (K,) are those of the last box, and jobs with a margin above `half` have these modes; else it is negative.
    """
    K, T = rate.shape
    start, here, is_free = price.copy(), gpu_counts.copy(), np.zeros(T, np.bool_)
    need, slope, base, most_rate = np.empty(K), np.empty(K), np.empty(K), np.ones(K)
    order = np.empty(K)
    centre, radius, ties, ties_count = np.empty(T), np.empty(T), np.zeros((T, 5), np.int64), ZERO
    rows, none, N = np.empty(K, np.int64), np.zeros((0, T)), ZERO
    some, load, figures = rate, gpus, (count, first, second, third)
    n, half, centre_level, has_box, is_part = K, 0.0, level, False, False
    for _ in range(_STEPS_MAX):
        if not has_box:
            most = price.max()
            if not most > 0.0:
                return UNBOUNDED, level, -1.0
            is_free[:] = price <= _FREE * most
            here[:] = np.where(is_free, _ENOUGH * gpu_counts, gpu_counts)
            is_part |= bool(is_free.any())
            if is_part:
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
            return end, level, -1.0
        level += (part - 1.0) * abs(level)
        if end == FOUND and abs(part - 1.0) <= _SAME_LEVEL:
            return FOUND, level, half if not is_part and _are_free(price, is_free) else -1.0
        if end == AT_THE_EDGE:
            in_doubt *= 2
        has_box = end == FOUND and _are_free(price, is_free)
        if has_box and is_part:
            _bend(first, second, third, by_lines, level, need, slope, base)
            has_box = _are_priced(rate, need, is_free, rows[:n])
        if has_box:
            _bend(figures[1], figures[2], figures[3], by_lines, level, need, slope, base)
            has_box = _have_modes(some, need, low, high, margin, half)
    return ENDLESS, level, -1.0


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
def _are_priced(rate, need, is_free, rows):  # type: ignore[no-untyped-def]
    """Whether the classes that do not reach their needs on free types are still these."""
    n = ZERO
    for i in range(len(rate)):
        by_free = 0.0
        for t in range(len(is_free)):
            if is_free[t]:
                by_free = max(by_free, rate[i, t])
        if need[i] > by_free * (1.0 + _FITS):
            if n == len(rows) or rows[n] != i:
                return False
            n += 1
    return n == len(rows)


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


@njit(cache=True, nogil=True, error_model="numpy")
def modes_at(  # type: ignore[no-untyped-def]
    rate, gpus, count, first, second, third, by_lines, level, price, half, in_doubt, low, high, margin, need, rise,
    mode_low, mode_high, rows,
):  # fmt: skip
    """Writes the modes of all jobs (K,) at these prices, all above zero, and rows of those with the least margins.

    Returns their number and how much the cost of all needs rises for a relative step of the level; -1 if a job cannot
    reach its need. Writes needs at the level, (K,), and how much they rise, as `Curves` and `EvenTargets` do. Jobs with
    a margin above `half` have the modes `low` and `high`.
    """
    (K, T), S, tied, norm = rate.shape, 0, 0, 0.0
    cost, swap, none = np.empty(T), np.empty(T), np.empty((T, T))
    some, part = np.empty(K, np.int64), np.empty(K)
    for i in range(K):
        if by_lines:
            reached = first[i] + second[i] * level
            need[i], rise[i] = min(reached, third[i]), (second[i] if reached < third[i] else 0.0) * abs(level)
        else:
            left = -level * first[i] - second[i]
            need[i] = third[i] if left * third[i] <= 1.0 else 1.0 / left
            rise[i] = (first[i] * (need[i] * need[i]) if need[i] < third[i] else 0.0) * abs(level)
        a, b = low[i], high[i]
        if not (margin[i] > half and _is_between(rate[i], a, b, need[i])):
            fastest = 0.0
            for t in range(T):
                cost[t] = gpus[i] * price[t]
                fastest = max(fastest, rate[i, t])
            if need[i] > fastest:
                return -1, 0.0
            a, b, part[S] = mix_of(rate[i], cost, need[i], rise[i], gpus[i], price, False, none, swap)
            some[S] = i
            tied += part[S] < _TIED
            S += 1
        mode_low[i], mode_high[i] = a, b
        if a != b:
            climb = rise[i] / (rate[i, b] - (rate[i, a] if a >= 0 else 0.0))
            norm += gpus[i] * count[i] * climb * (price[b] - (price[a] if a >= 0 else 0.0))
    wanted = max(in_doubt, int(_MORE_THAN_TIED * tied))
    edge = _smallest(part[:S].copy(), wanted) if wanted < S else np.inf
    found = 0
    for k in range(S):
        if part[k] < edge:
            rows[found] = some[k]
            found += 1
    return found, norm


@inner
def _is_between(rate, a, b, need):  # type: ignore[no-untyped-def]
    """Whether the modes reach this need, and needs a little off."""
    a_rate = rate[a] if a >= 0 else 0.0
    if a == b:
        return need <= a_rate * (1.0 - _APART)
    return a_rate + _APART <= need <= rate[b] * (1.0 - _APART)

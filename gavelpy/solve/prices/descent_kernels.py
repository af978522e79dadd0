"""From one vertex of prices to the best, in numba, over the jobs in doubt.

At given prices every job has a cheapest *corner*: a mode that gives at least its need, or a mix of two modes that gives
exactly that. T kinks determine the prices: jobs with two equally cheap corners (ties), types without a price, and, if
there is a level, the unit of prices. The GPUs that exist determine the amounts: the time of each tie in its second
corner, the GPUs left of each free type, and the step of the level. If no amount is negative, and no tie has more than
all its time, this is the optimum. Otherwise the worst kink is released, and prices move along the edge to the kink at
which the dual function stops falling (pivots.py does the same from zero prices), or to the end of the box in which the
jobs that are not in doubt keep their modes.

Few kinks change with one event. Where a tied job has left, a type whose price is held takes its place: a kink that may
have no amount, and is released first.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.prices.corner_kernels import (
    FREE,
    HELD,
    HIGHEST,
    LEVEL,
    LOWEST,
    NONE,
    TIE,
    ZERO,
    cheapest,
    corner_cost,
    corner_price,
    corners,
    filled,
    inner,
    named,
)
from gavelpy.solve.prices.kink_kernels import AS_WRITTEN, TRANSPOSED, completed, equations, solved, take
from gavelpy.solve.prices.numba_kernels import _hull, _margin_at_vertex, _margin_on_edge

FOUND, AT_THE_EDGE, ENDLESS, SINGULAR, UNBOUNDED, FREE_TYPE = range(6)  # how a search ends
STEPS_MAX = 200
_LEVELS_MAX = 12  # linearisations in the level; their error is squared with each
_ROUNDING = 1e-12
_OF_A_TYPE = 4e-15  # rounding of a sum of GPUs, as a part of them
_LEVEL_ROUNDING = 4e-16  # relative


@inner
def search(  # type: ignore[no-untyped-def]
    rate, load, gain, base, slope, level, is_level, may_be_free, spare, drift, lowest, highest, level_min, level_max,
    price, ties, ties_count, times, steepness,
):  # fmt: skip
    """The optimum of S jobs and `spare` (T,) GPUs at the level, less `drift` for each unit above.

    Needs are base (S,) + level x slope (S,), in 0..1; gains (S, T) are those of all the time on a type. If types may
    not be free, the search ends where a price is zero.
    """
    S, T = rate.shape
    V = (T + 2) ** 2 // 4 + 1
    low, high = np.empty((S, V), np.int64), np.empty((S, V), np.int64)
    part, rising = np.empty((S, V)), np.empty((S, V))
    count, best = np.empty(S, np.int64), np.empty(S, np.int64)
    kind, who, corner = np.empty(T, np.int64), np.empty(T, np.int64), np.empty(T, np.int64)
    amount = np.zeros(T)
    for _ in range(_LEVELS_MAX):
        for k in range(S):
            most = 0.0
            for t in range(T):
                most = max(most, rate[k, t])
            need = min(base[k] + level * slope[k], most)
            count[k] = corners(rate[k], need, slope[k], low[k], high[k], part[k], rising[k])
            best[k] = cheapest(load[k], gain[k], price, count[k], low[k], high[k], part[k])
        kinks = ZERO
        for n in range(ties_count):
            k = ties[n, 0]
            first = named(low[k], high[k], count[k], ties[n, 1], ties[n, 2])
            second = named(low[k], high[k], count[k], ties[n, 3], ties[n, 4])
            if first >= 0 and second >= 0:
                best[k] = first
                kind[kinks], who[kinks], corner[kinks] = TIE, k, second
                kinks += 1
        end, kinks, step = _descended(
            load, gain, level, is_level, may_be_free, spare, drift, lowest, highest, price,
            low, high, part, rising, count, best, kind, who, corner, kinks, amount,
        )  # fmt: skip
        ties_count = 0
        for n in range(kinks):
            if kind[n] == TIE:
                k = who[n]
                ties[ties_count, 0] = k
                ties[ties_count, 1], ties[ties_count, 2] = low[k, best[k]], high[k, best[k]]
                ties[ties_count, 3], ties[ties_count, 4] = low[k, corner[n]], high[k, corner[n]]
                ties_count += 1
        if end != FOUND:
            return end, level, ties_count
        if is_level and not level_min <= level * (1.0 + step) <= level_max:
            return AT_THE_EDGE, min(max(level * (1.0 + step), level_min), level_max), ties_count
        if not is_level or abs(step) <= _LEVEL_ROUNDING:
            filled(
                rate, load, gain, price, low, high, part, best, kind, who, corner, kinks, amount, times, steepness,
            )  # fmt: skip
            return FOUND, level, ties_count
        for t in range(T):
            spare[t] -= drift[t] * step * level
        level *= 1.0 + step
    return ENDLESS, level, ties_count


@inner
def mix_of(rate, cost, need, rises, gpus, radius, gains, none, swap):  # type: ignore[no-untyped-def]
    """A job's cheapest modes for its need, and the least part of `radius` (T,) by which prices may move until others
    may be cheaper. The need rises by `rises` for a relative step of the level."""
    a, b, lacking = _hull(rate, cost, need, len(rate))
    if lacking:
        return a, b, 0.0
    if a == b:
        return a, b, _margin_at_vertex(a, rate, cost, radius, gpus, 0.0, need, rises, 0.0, none)
    return a, b, _margin_on_edge(a, b, rate, cost, radius, gpus, 0.0, need, rises, 0.0, gains, 0.0, none, swap)


@inner
def is_near(price, centre, half, radius, is_level):  # type: ignore[no-untyped-def]
    """Whether jobs that are not in doubt have the right modes at these prices, (T,)."""
    unit = 1.0
    if is_level:  # only ratios of prices count
        unit, priced = 0.0, 0
        for t in range(len(price)):
            if price[t] > 0.0:
                unit += centre[t] / price[t]
                priced += 1
        unit /= priced
    near = True
    for t in range(len(price)):
        near &= abs(price[t] * unit - centre[t]) <= half * radius[t]
    return near


@inner
def _is_held_back(kind, amount):  # type: ignore[no-untyped-def]
    """Whether a price would move on if it might."""
    back = False
    for n in range(len(kind)):
        back |= (kind[n] == HIGHEST or kind[n] == LOWEST) and abs(amount[n]) > _ROUNDING
    return back


@inner
def _descended(  # type: ignore[no-untyped-def]
    load, gain, level, is_level, may_be_free, spare, drift, lowest, highest, price,
    low, high, part, rising, count, best, kind, who, corner, kinks, amount,
):  # fmt: skip
    """Moves prices from kink to kink until no amount is wrong. Returns how it ended, the kinks, and the level's step.

    The kinks that are given are completed; a step is a part of the level.
    """
    S, T = load.shape
    system, right, scale = np.zeros((T, T)), np.zeros(T), np.ones(T)
    left, rise, direction = np.empty(T), np.empty(T), np.empty(T)
    when = np.empty((S, low.shape[1]))
    for number in range(STEPS_MAX):
        norm = 0.0
        for t in range(T):
            left[t], rise[t] = spare[t], drift[t]
        take(load, low, high, part, rising, best, left, rise)
        if is_level:
            for t in range(T):
                norm += level * rise[t] * price[t]
            if not norm > 0.0:
                return SINGULAR, 0, 0.0
            for figures in (price, lowest, highest):
                for t in range(T):
                    figures[t] /= norm
        if number == 0:
            kinks = completed(load, low, high, part, best, rise, is_level, price, kind, who, corner, kinks, system)
            if kinks < T:
                return SINGULAR, 0, 0.0
        equations(
            load, gain, level, rise, price, low, high, part, best, kind, who, corner, system, right, scale,
        )  # fmt: skip
        if not solved(system, AS_WRITTEN, right, price):
            return SINGULAR, kinks, 0.0
        fall = 0.0
        if not solved(system, TRANSPOSED, left, amount):
            return SINGULAR, kinks, 0.0
        step = 0.0
        for n in range(T):
            amount[n] /= scale[n]
            if kind[n] == LEVEL:
                step = amount[n]
        leaving, sign = _leaving(kind, who, corner, best, amount, scale)
        if leaving == -2:  # the best corner of a tie was exchanged
            continue
        if leaving < 0:
            return AT_THE_EDGE if _is_held_back(kind, amount) else FOUND, kinks, step
        for t in range(T):
            price[t] = max(price[t], 0.0)
            right[t] = sign if t == leaving else 0.0
        if not solved(system, AS_WRITTEN, right, direction):
            return SINGULAR, kinks, 0.0
        for t in range(T):
            fall += left[t] * direction[t]
        kind[leaving] = -1
        end = _moved(
            load, gain, may_be_free, lowest, highest, price, direction, fall, low, high, part, count, best,
            kind, who, corner, leaving, when,
        )  # fmt: skip
        if end != FOUND:
            return end, 0, 0.0
    return ENDLESS, 0, 0.0


@inner
def _leaving(kind, who, corner, best, amount, scale):  # type: ignore[no-untyped-def]
    """The kink with the worst amount, and the sign of its release; -1 if all are right.

    -2: a job had too little time in its best corner, which was exchanged for the one with most time.
    """
    worst, leaving, sign = -1.0, -1, 1.0
    short, is_short = -1, False
    for n in range(len(kind)):
        allowed = _ROUNDING
        if kind[n] == LEVEL:
            continue
        if kind[n] == TIE:
            allowed += _OF_A_TYPE / scale[n]
            rest = 1.0
            for m in range(len(kind)):
                if kind[m] == TIE and who[m] == who[n]:
                    rest -= amount[m]
            if rest / allowed < worst:
                worst, short, is_short = rest / allowed, who[n], True
        wrong = amount[n]
        if kind[n] == HIGHEST or (kind[n] == HELD and wrong > 0.0):
            wrong = -wrong
        if wrong / allowed < worst:
            worst, leaving, is_short = wrong / allowed, n, False
            sign = 1.0 if wrong == amount[n] else -1.0
    if is_short:
        most = -1
        for n in range(len(kind)):
            if kind[n] == TIE and who[n] == short and (most < 0 or amount[n] > amount[most]):
                most = n
        best[short], corner[most] = corner[most], best[short]
        return -2, 1.0
    return leaving, sign


@inner
def _when(  # type: ignore[no-untyped-def]
    load, gain, price, direction, low, high, part, count, best, length, still, when
):
    """Writes how far prices move until each corner of a job is as cheap as its best, which is best from `length` on."""
    at = corner_cost(load, gain, price, low[best], high[best], part[best])
    speed = corner_price(load, direction, low[best], high[best], part[best])
    for v in range(count):
        when[v] = np.inf
        closing = speed - corner_price(load, direction, low[v], high[v], part[v])
        if v != best and closing > still:
            behind = corner_cost(load, gain, price, low[v], high[v], part[v]) - at
            when[v] = length + max(behind - length * closing, 0.0) / closing


@inner
def _first(when, count):  # type: ignore[no-untyped-def]
    """The first corner with the least number."""
    first = 0
    for v in range(1, count):
        if when[v] < when[first]:
            first = v
    return first


@inner
def _end(price, direction, lowest, highest):  # type: ignore[no-untyped-def]
    """How far prices may move, and the type and the kind of the kink there; the type is -1 if there is none."""
    end, first, kind = np.inf, -1, FREE
    for t in range(len(price)):
        limit, kind_at_limit = highest[t], HIGHEST
        if direction[t] < 0.0:
            limit, kind_at_limit = max(lowest[t], 0.0), LOWEST if lowest[t] > 0.0 else FREE
        if direction[t] != 0.0 and max((limit - price[t]) / direction[t], 0.0) < end:
            end, first, kind = max((limit - price[t]) / direction[t], 0.0), t, kind_at_limit
    return end, first, kind


@inner
def _moved(  # type: ignore[no-untyped-def]
    load, gain, may_be_free, lowest, highest, price, direction, fall, low, high, part, count, best,
    kind, who, corner, leaving, when,
):  # fmt: skip
    """Moves the prices as far as the dual function falls, to a kink that takes the place of the one that leaves."""
    (S, T), fastest = load.shape, 0.0
    first_corner, soonest = np.empty(S, np.int64), np.empty(S)  # of each job
    for t in range(T):
        for k in range(S):
            fastest = max(fastest, load[k, t] * abs(direction[t]))
    still = _ROUNDING * fastest
    for k in range(S):
        _when(
            load[k], gain[k], price, direction, low[k], high[k], part[k], count[k], best[k], 0.0, still, when[k],
        )  # fmt: skip
    for n in range(T):
        if kind[n] == TIE:
            when[who[n], corner[n]] = np.inf
    for k in range(S):
        first_corner[k] = _first(when[k], count[k])
        soonest[k] = when[k, first_corner[k]] if count[k] else np.inf
    end, first, kind_there = _end(price, direction, lowest, highest)
    while True:
        length, k, v = np.inf, NONE, NONE
        for i in range(S):
            if soonest[i] < length:
                length, k, v = soonest[i], i, first_corner[i]
        if end <= length:
            break
        b, is_tied = best[k], False
        fall -= corner_price(load[k], direction, low[k, v], high[k, v], part[k, v])
        fall += corner_price(load[k], direction, low[k, b], high[k, b], part[k, b])
        for n in range(T):
            is_tied |= kind[n] == TIE and who[n] == k
        if fall >= 0.0 or is_tied:
            break
        best[k] = v
        _when(
            load[k], gain[k], price, direction, low[k], high[k], part[k], count[k], v, length, still, when[k],
        )  # fmt: skip
        first_corner[k] = _first(when[k], count[k])
        soonest[k] = when[k, first_corner[k]] if count[k] else np.inf
    if end <= length and (first < 0 or (kind_there == FREE and not may_be_free)):
        return UNBOUNDED if first < 0 else FREE_TYPE
    for t in range(T):
        price[t] = max(price[t] + min(end, length) * direction[t], 0.0)
    if end > length:
        kind[leaving], who[leaving], corner[leaving] = TIE, k, v
        return FOUND
    if kind_there == FREE:
        price[first] = 0.0
    kind[leaving], who[leaving] = kind_there, first
    return FOUND

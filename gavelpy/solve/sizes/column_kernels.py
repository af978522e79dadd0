"""The best mix of answers at several prices, in numba: Dantzig and Wolfe (1960) over the jobs whose mode is in doubt.

At prices y, each job takes its cheapest mix; all of them together are a column with a value v (a level, or a sum of
gains) and the part U of each row that it uses. A small linear program has the best mix of the columns so far,

    max Σ θ_c v_c + Σ_q (low_q s_q - high_q e_q)    with   Σ θ_c U_c + s - e = 1,   Σ θ_c = 1,   all >= 0,

and its duals are the next prices, which stay in the box from low to high. The jobs outside keep their modes there, so
that the rows which they use are `fixed` + `drift` x (level - first level). The mix is the optimum if no column at its
prices is better, and if it neither buys (e) nor sells (s) at a price above zero.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.sizes.hull_kernels import IDLE, costs_of, next_corner, prices_of_modes, set_edges

COLUMNS_PER_ROW = 40
_PIVOT = 1e-11
_AT_LAST = 1e-10  # relative gain that is enough after half of the columns: rounding may leave as much
_SOLD, _BOUGHT = 1_000_000, 2_000_000  # numbers of the columns s and e
DONE, AT_THE_EDGE, FAILED = 0, 1, 2


@njit(cache=True, nogil=True, error_model="numpy")
def _level_of(first, last, slope, kinks, jumps, n):  # type: ignore[no-untyped-def]
    """The level from which a unit more costs at least 1, between `first` and `last`; `slope` is that at `first`.

    The least kink at which the slope reaches 1 is found by halving the kinks (quickselect), which moves them.
    """
    if slope >= 1.0:
        return first
    level, start, end = last, 0, n
    while start < end:
        a, b, c = kinks[start], kinks[(start + end) // 2], kinks[end - 1]
        middle, at, below = max(min(a, b), min(max(a, b), c)), start, slope
        for i in range(start, end):
            if kinks[i] <= middle:
                below += jumps[i]
                kinks[i], kinks[at] = kinks[at], kinks[i]
                jumps[i], jumps[at] = jumps[at], jumps[i]
                at += 1
        if below < 1.0:
            start, slope = at, below
        else:
            level, before = min(middle, last), at
            end = start
            for i in range(start, before):
                if kinks[i] < middle:
                    kinks[i], kinks[end] = kinks[end], kinks[i]
                    jumps[i], jumps[end] = jumps[end], jumps[i]
                    end += 1
    return level


@njit(cache=True, nogil=True, error_model="numpy")
def _slopes(  # type: ignore[no-untyped-def]
    rate, load, rows, count, rise, price, first, last, low, high, reach, cost, mode, edges, kinks, jumps
):
    """Sets the edges of every hull from that at the level `first` to that at `last`, and the kinks of the costs.

    Returns the slope of all costs at `first`, and the number of kinks.
    """
    K, M = rate.shape
    costs, prices, flat = np.empty(M), prices_of_modes(rows, price), load.reshape(K, -1)
    slope, n = 0.0, 0
    for k in range(K):
        a, b = low[k], high[k]
        reach[k, 0], cost[k, 0], mode[k, 0] = 0.0, 0.0, a
        reach[k, 1], cost[k, 1], mode[k, 1] = rate[k, b], 0.0, b
        for r in range(load.shape[2]):
            cost[k, 1] += load[k, b, r] * price[rows[b, r]]
            if a != IDLE:
                reach[k, 0], cost[k, 0] = rate[k, a], cost[k, 0] + load[k, a, r] * price[rows[a, r]]
        e, most = 1, min(last * rise[k], 1.0)
        if reach[k, 1] < most or first * rise[k] >= reach[k, 1]:
            costs_of(flat[k], prices, costs)
        while reach[k, e] < most or first * rise[k] >= reach[k, e]:
            b = next_corner(rate[k], costs, reach[k, e], cost[k, e])
            if b == IDLE:
                break
            e += 1
            reach[k, e], cost[k, e], mode[k, e] = rate[k, b], costs[b], b
        edges[k] = e
        e = 1
        while e < edges[k] and first * rise[k] >= reach[k, e]:
            e += 1
        before = (cost[k, e] - cost[k, e - 1]) / (reach[k, e] - reach[k, e - 1]) * rise[k] * count[k]
        slope += before
        for f in range(e, edges[k]):
            after = (cost[k, f + 1] - cost[k, f]) / (reach[k, f + 1] - reach[k, f]) * rise[k] * count[k]
            kinks[n], jumps[n] = reach[k, f] / rise[k], after - before
            before = after
            n += 1
    return slope, n


@njit(cache=True, nogil=True, error_model="numpy")
def _answered(  # type: ignore[no-untyped-def]
    rate, load, rows, count, need, rise, money, price, is_level, first, last, fixed, drift, at, used, low, high, part,
    figures, mode, edges, kinks, jumps, its_low, its_high,
):  # fmt: skip
    """The column at `price`: sets `used` (P,), and its mixes, `its_low`, `its_high` and `part` (K,).

    Returns its value and level. `need` is that at the level `first`, and `low` and `high` are the modes there.
    """
    K, R = len(rate), load.shape[2]
    reach, cost = figures[0], figures[1]
    set_edges(rate, load, rows, need, money, price, low, high, part)
    level = at
    if is_level:
        slope, n = _slopes(
            rate, load, rows, count, rise, price, first, last, low, high, reach, cost, mode, edges, kinks, jumps
        )
        for q in range(len(price)):
            slope += drift[q] * price[q]
        level = _level_of(first, last, slope, kinks, jumps, n)
    value = level if is_level else 0.0
    for q in range(len(price)):
        used[q] = fixed[q] + drift[q] * (level - at)
    for k in range(K):
        a, b, x = low[k], high[k], part[k]
        if is_level:
            least, e = min(level * rise[k], 1.0), 1
            while e < edges[k] and least > reach[k, e]:
                e += 1
            a, b = mode[k, e - 1], mode[k, e]
            x = min(max((least - reach[k, e - 1]) / (reach[k, e] - reach[k, e - 1]), 0.0), 1.0)
        its_low[k], its_high[k], part[k] = a, b, x
        for r in range(R):
            used[rows[b, r]] += count[k] * load[k, b, r] * x
            if a != IDLE:
                used[rows[a, r]] += count[k] * load[k, a, r] * (1.0 - x)
        value += count[k] * money[k] * (rate[k, b] * x + (rate[k, a] * (1.0 - x) if a != IDLE else 0.0))
    return value, level


@njit(cache=True, nogil=True, error_model="numpy")
def _column(number, used, P, column):  # type: ignore[no-untyped-def]
    column[:] = 0.0
    if number >= _BOUGHT:
        column[number - _BOUGHT] = -1.0
    elif number >= _SOLD:
        column[number - _SOLD] = 1.0
    else:
        column[:P] = used[number]
        column[P] = 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def _worth(number, value, low, high):  # type: ignore[no-untyped-def]
    if number >= _BOUGHT:
        return -high[number - _BOUGHT]
    if number >= _SOLD:
        return low[number - _SOLD]
    return value[number]


@njit(cache=True, nogil=True, error_model="numpy")
def _mixed(value, used, columns, low, high, tolerance, basis, inverse, amount, dual):  # type: ignore[no-untyped-def]
    """Continues the primal simplex method; sets the duals of the rows and of the sum (P + 1,)."""
    P = len(low)
    m = P + 1
    column, step = np.empty(m), np.empty(m)
    for _ in range(50 * m):
        for i in range(m):
            dual[i] = 0.0
            for r in range(m):
                dual[i] += _worth(basis[r], value, low, high) * inverse[r, i]
        most, entering = tolerance, -1
        for c in range(columns):
            gain = value[c] - dual[P]
            for q in range(P):
                gain -= dual[q] * used[c, q]
            if gain > most:
                most, entering = gain, c
        for q in range(P):
            if low[q] - dual[q] > most:
                most, entering = low[q] - dual[q], _SOLD + q
            if dual[q] - high[q] > most:
                most, entering = dual[q] - high[q], _BOUGHT + q
        if entering < 0:
            return
        _column(entering, used, P, column)
        least, leaving = np.inf, -1
        for r in range(m):
            step[r] = 0.0
            for i in range(m):
                step[r] += inverse[r, i] * column[i]
            if step[r] > _PIVOT and max(amount[r], 0.0) / step[r] < least:
                least, leaving = max(amount[r], 0.0) / step[r], r
        if leaving < 0:
            return
        for i in range(m):
            inverse[leaving, i] /= step[leaving]
        for r in range(m):
            if r != leaving and step[r] != 0.0:
                for i in range(m):
                    inverse[r, i] -= step[r] * inverse[leaving, i]
        basis[leaving] = entering
        for r in range(m):
            amount[r] = 0.0
            for i in range(m):
                amount[r] += inverse[r, i]  # the right sides are 1


@njit(cache=True, nogil=True, error_model="numpy")
def best_mix(  # type: ignore[no-untyped-def]
    rate, load, rows, count, need, rise, money, is_level, first, last, fixed, drift, at, low, high, price,
    same, modes_low, modes_high, time,
):  # fmt: skip
    """How it ended, the level, and the number of columns; sets `price` (P,) and the times in the modes (K, M).

    It ends when no column gains more than `same`, relative to the value. `modes_low` and `modes_high` (K,) are the
    modes between which each job was last. Where prices are equal to the last digit, more than one mix is the cheapest,
    so each column keeps its own.
    """
    K, M = rate.shape
    P = len(price)
    most = COLUMNS_PER_ROW * P
    value, used, levels, part = np.zeros(most), np.zeros((most, P)), np.zeros(most), np.zeros(most)
    basis, inverse = np.empty(P + 1, np.int64), np.zeros((P + 1, P + 1))
    amount, dual = np.empty(P + 1), np.zeros(P + 1)
    figures, mode, edges = np.empty((2, K, M + 1)), np.empty((K, M + 1), np.int64), np.empty(K, np.int64)
    its_low, its_high = np.empty((most, K), np.int16), np.empty((most, K), np.int16)
    x, kinks, jumps = np.empty((most, K)), np.empty(K * M), np.empty(K * M)
    least = np.minimum(first * rise, 1.0) if is_level else need
    trial = price.copy()
    ended = FAILED
    columns = 0
    while columns < most:
        c = columns
        value[c], levels[c] = _answered(
            rate, load, rows, count, least, rise, money, trial, is_level, first, last, fixed, drift, at, used[c],
            modes_low, modes_high, x[c], figures, mode, edges, kinks, jumps, its_low[c], its_high[c],
        )  # fmt: skip
        columns += 1
        if c == 0:
            _begin(used[0], basis, inverse, amount)
        else:
            gain = value[c] - dual[P]
            for q in range(P):
                gain -= dual[q] * used[c, q]
            enough = same if columns <= most // 2 else max(same, _AT_LAST)
            if gain <= enough * (abs(value[c]) + np.abs(trial).sum()):
                ended = DONE
                break
        _mixed(
            value,
            used,
            columns,
            low,
            high,
            0.1 * same * (abs(value[c]) + np.abs(trial).sum()),
            basis,
            inverse,
            amount,
            dual,
        )
        for q in range(P):
            trial[q] = min(max(dual[q], low[q]), high[q])
    ended, level = _parts(ended, used, levels, columns, low, basis, part)
    price[:] = trial
    time[:] = 0.0
    for c in range(columns):
        if part[c] > 0.0:
            for k in range(K):
                time[k, its_high[c, k]] += part[c] * x[c, k]
                if its_low[c, k] != IDLE:
                    time[k, its_low[c, k]] += part[c] * (1.0 - x[c, k])
    return ended, level, columns


@njit(cache=True, nogil=True, error_model="numpy")
def _begin(used, basis, inverse, amount):  # type: ignore[no-untyped-def]
    """The first basis: one column, and what it leaves or lacks of each row."""
    P = len(used)
    inverse[P, P], basis[P], amount[P] = 1.0, 0, 1.0
    for q in range(P):
        sells = used[q] <= 1.0
        sign = 1.0 if sells else -1.0
        basis[q] = (_SOLD if sells else _BOUGHT) + q
        inverse[q, q], inverse[q, P] = sign, -sign * used[q]
        amount[q] = sign * (1.0 - used[q])


@njit(cache=True, nogil=True, error_model="numpy")
def _parts(ended, used, levels, columns, low, basis, part):  # type: ignore[no-untyped-def]
    """Sets the parts of the columns; returns how the search ended, and the level."""
    P = len(low)
    part[:] = 0.0
    level = 0.0
    matrix, right = np.zeros((P + 1, P + 1)), np.ones(P + 1)
    column = np.empty(P + 1)
    for r in range(P + 1):
        _column(basis[r], used, P, column)
        matrix[:, r] = column
    weight = np.linalg.solve(matrix, right)
    for r in range(P + 1):
        if basis[r] < _SOLD:
            part[basis[r]] = max(weight[r], 0.0)
        elif weight[r] > 1e-9 and (basis[r] >= _BOUGHT or low[basis[r] - _SOLD] > 0.0):
            ended = max(ended, AT_THE_EDGE)
    total = part.sum()
    for c in range(columns):
        part[c] /= total
        level += part[c] * levels[c]
    return ended, level

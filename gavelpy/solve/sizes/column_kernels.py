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
from gavelpy.solve.sizes.hull_kernels import IDLE, corners, edge_of

COLUMNS_PER_ROW = 40
_PIVOT = 1e-11
_SOLD, _BOUGHT = 1_000_000, 2_000_000  # numbers of the columns s and e
DONE, AT_THE_EDGE, FAILED = 0, 1, 2


@njit(cache=True, nogil=True, error_model="numpy")
def _level_of(first, last, slope, kinks, jumps, n):  # type: ignore[no-untyped-def]
    """The level from which a unit more costs at least 1, between `first` and `last`; `slope` is that at `first`."""
    if slope >= 1.0:
        return first
    order = np.argsort(kinks[:n])
    for i in order:
        slope += jumps[i]
        if slope >= 1.0:
            return min(kinks[i], last)
    return last


@njit(cache=True, nogil=True, error_model="numpy")
def _answered(  # type: ignore[no-untyped-def]
    rate, load, rows, count, need, rise, money, price, is_level, first, last, fixed, drift, at, used, figures
):
    """The column at `price`: sets `used` (P,); returns its value and level."""
    K, M = rate.shape
    R = load.shape[2]
    costs, mode, edges = np.empty(M), np.empty((K, M + 1), np.int64), np.empty(K, np.int64)
    reach, cost = figures[0], figures[1]
    kinks, jumps, n, slope = np.empty(K * M), np.empty(K * M), 0, 0.0
    for k in range(K):
        most = min(last * rise[k], 1.0) if is_level else need[k]
        edges[k] = corners(rate[k], load[k], rows, price, most, money[k], costs, reach[k], cost[k], mode[k])
        if is_level:
            e, before = 1, 0.0
            while e < edges[k] and first * rise[k] >= reach[k, e]:
                e += 1
            before = (cost[k, e] - cost[k, e - 1]) / (reach[k, e] - reach[k, e - 1]) * rise[k] * count[k]
            slope += before
            for f in range(e, edges[k]):
                after = (cost[k, f + 1] - cost[k, f]) / (reach[k, f + 1] - reach[k, f]) * rise[k] * count[k]
                kinks[n], jumps[n] = reach[k, f] / rise[k], after - before
                before = after
                n += 1
    level = at
    if is_level:
        for q in range(len(price)):
            slope += drift[q] * price[q]
        level = _level_of(first, last, slope, kinks, jumps, n)
    value = level if is_level else 0.0
    for q in range(len(price)):
        used[q] = fixed[q] + drift[q] * (level - at)
    for k in range(K):
        least = min(level * rise[k], 1.0) if is_level else need[k]
        e, x = edge_of(reach[k], cost[k], edges[k], least, money[k])
        a, b = mode[k, e - 1], mode[k, e]
        for r in range(R):
            used[rows[b, r]] += count[k] * load[k, b, r] * x
            if a != IDLE:
                used[rows[a, r]] += count[k] * load[k, a, r] * (1.0 - x)
        value += count[k] * money[k] * (reach[k, e] * x + reach[k, e - 1] * (1.0 - x))
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
    part, prices, levels, same,
):  # fmt: skip
    """How it ended, the level, and the number of columns; sets `price` (P,), and the columns' parts, prices, levels.

    It ends when no column gains more than `same`, relative to the value.
    """
    K, M = rate.shape
    P = len(price)
    most = len(part)
    value, used = np.zeros(most), np.zeros((most, P))
    basis, inverse = np.empty(P + 1, np.int64), np.zeros((P + 1, P + 1))
    amount, dual = np.empty(P + 1), np.zeros(P + 1)
    figures = np.empty((2, K, M + 1))
    trial = price.copy()
    ended = FAILED
    columns = 0
    while columns < most:
        c = columns
        value[c], levels[c] = _answered(
            rate, load, rows, count, need, rise, money, trial, is_level, first, last, fixed, drift, at, used[c], figures
        )
        prices[c] = trial
        columns += 1
        if c == 0:
            _begin(used[0], basis, inverse, amount)
        else:
            gain = value[c] - dual[P]
            for q in range(P):
                gain -= dual[q] * used[c, q]
            if gain <= same * (abs(value[c]) + np.abs(trial).sum()):
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


@njit(cache=True, nogil=True, error_model="numpy")
def times_of(rate, load, rows, need, rise, money, is_level, part, prices, levels, time):  # type: ignore[no-untyped-def]
    """Adds the times of the jobs, (K, M), in the mix of columns."""
    K, M = rate.shape
    costs, reach, cost = np.empty(M), np.empty(M + 1), np.empty(M + 1)
    mode = np.empty(M + 1, np.int64)
    for c in range(len(part)):
        if part[c] <= 0.0:
            continue
        for k in range(K):
            least = min(levels[c] * rise[k], 1.0) if is_level else need[k]
            edges = corners(rate[k], load[k], rows, prices[c], least, money[k], costs, reach, cost, mode)
            e, x = edge_of(reach, cost, edges, least, money[k])
            time[k, mode[e]] += part[c] * x
            if mode[e - 1] != IDLE:
                time[k, mode[e - 1]] += part[c] * (1.0 - x)

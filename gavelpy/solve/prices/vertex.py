"""The optimum as a function of its structure: the modes that every job uses, and the types that have a price.

A unique optimum is determined by its structure: shares, level and prices are the solutions of two small systems of
equations, whatever point the search began at. So a warm start changes no byte of the answer. With the jobs at kinks b
(three modes on one edge of their hull, or two equally cheap ones) and the priced types t:

    Σ_i load_i x_i(τ) + Σ_b load_b swap_b z_b = W_t         in τ and z,
    gpus_b swap_b · p = swap_b · gain_b                     in p, scaled to drift·p = 1 if there is a level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from types import ModuleType

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.linear import TRACE
from gavelpy.solve.prices.crossover import Restricted, Vertex, most_in_doubt, restricted
from gavelpy.solve.prices.newton import PRICE_FLOOR, Dual, Point
from gavelpy.solve.prices.table import IDLE, Modes, Sweep, Table, compiled, fixed, kernels

_ROUNDING = 1e-15
_KINK = 1e-9  # relative: modes whose cost exceeds the hull by less are on it
_FREE = 4 * PRICE_FLOOR  # of the highest price: a type that costs no more is free
_IN_DOUBT_LEAST, _IN_DOUBT_MOST, _IN_DOUBT_PART, _IN_DOUBT_PER_TYPE = 32, 512, 16, 8
_NO_SWAP = 1e-12  # of a unit: rounding of a sum of parts
_CLOSE = 1e-6  # relative: largest difference between the solution and the point whose structure it has


@dataclass(frozen=True, eq=False)
class Mix:
    """Times of a table with their duals."""

    time: Floats  # (K, T)
    steepness: Floats  # (K,) marginal cost of a job's rate, per unit of its best rate
    price: Floats  # (T,)
    level: float
    is_unique: bool  # then the bytes do not depend on the search
    has_unique_times: bool = False  # whether that is known of the times alone


@dataclass(frozen=True, eq=False)
class _Kinks:
    """The B jobs with a choice."""

    rows: Ints  # (B,) of the table
    low: Modes  # (B,) lowest mode of the edge
    high: Modes  # (B,) highest; equal to low if two modes are equally cheap and the need is met
    swap: Floats  # (B, T) change of the times for a unit of z, time in a further mode
    gain: Floats  # (B,) reward for a unit of z


def read_off(table: Table, vertex: Vertex) -> Mix:
    """The answer at a vertex: from its structure if the optimum is unique, else from the last program."""
    some, again, price = _again(table, vertex)
    r = restricted(some, again, vertex.need[vertex.rows], vertex.price)
    mix = _by_structure(table, vertex, price > 0, r.low, r.high, _kinks(table, vertex, r, times_follow=False))
    return as_left(table, vertex, vertex.level) if mix is None else mix


def unique(dual: Dual, near: Point, *, doubted: float = 1.0) -> Mix | None:
    """The answer by compiled steps from near prices, the same from all; None if it is not unique, or is not found.

    `doubted`: part of the jobs in doubt at first; very near prices leave fewer.
    With a trace more GPUs the optimum is unique also where whole jobs fill a type exactly. Its structure determines the
    answer: times for the true GPUs, and the prices of the next GPU.
    """
    from gavelpy.solve.prices.descent_kernels import FOUND
    from gavelpy.solve.prices.table_kernels import best_prices

    table, price = dual.table, near.price.copy()
    (K, T), W = table.rate.shape, table.gpu_counts * (1.0 + TRACE)
    need, slope = dual.needs.at(near.level)
    end, level = best_prices(
        table.rate, table.gain, *map(np.array, (table.gpus, table.count, need, slope)), W,
        int(doubted * in_doubt(K, T)), near.level, dual.leveled, not dual.leveled, price,
    )  # fmt: skip
    if end != FOUND:
        return None
    price = np.maximum(price, PRICE_FLOOR * price.max())
    if dual.leveled:
        price *= level  # from parts of the level to units
    return from_prices(replace(dual, table=replace(table, gpu_counts=W)), Point(price, level), table.gpu_counts)


def in_doubt(jobs: int, gpu_types: int) -> int:
    """Jobs whose mixes may change before all are computed again: enough for a box as wide as the prices are wrong."""
    part = min(max(jobs // _IN_DOUBT_PART, _IN_DOUBT_LEAST), _IN_DOUBT_MOST)
    return part + _IN_DOUBT_PER_TYPE * gpu_types


def from_prices(dual: Dual, point: Point, gpu_counts: Floats | None = None, swept: Sweep | None = None) -> Mix | None:
    """The answer at exact prices, up to rounding, if it is unique: with the bytes that `read_off` finds; else None.

    `gpu_counts` (T,): those for which times are computed, with the same structure; default: the table's. `swept`: the
    mixes at these prices or a multiple of them, if they are known.
    """
    table, level = dual.table, point.level
    K, T = table.rate.shape
    need, slope = dual.needs.at(level)
    s = swept or dual.loops(K).sweep(table, need, slope, point.price, 0.0, level)
    rows = most_in_doubt(s, T)
    base = need - slope * level
    if dual.loops(K) is compiled(K):
        return by_kernels(table, base, slope, dual.leveled, point, s.low, s.high, rows, gpu_counts)
    time = np.zeros((len(rows), T))
    vertex = Vertex(point.price, level, dual.leveled, s.low, s.high, base, slope, rows, time, attempts=0)
    some, again, price = _again(table, vertex, dual.loops)
    r = restricted(some, again, need[rows], point.price)
    kinks = _kinks(table, vertex, r, times_follow=gpu_counts is not None)
    return _by_structure(table, vertex, price > 0, r.low, r.high, kinks, gpu_counts)


def by_kernels(
    table: Table, base: Floats, slope: Floats, leveled: bool, near: Point, low: Modes, high: Modes, in_doubt: Ints,
    gpu_counts: Floats | None,
) -> Mix | None:  # fmt: skip
    """What `_by_structure` returns, with its kinks, by kernels. `low` and `high` (K,) are changed.

    Needs are base (K,) + slope (K,) x level.
    """
    from gavelpy.solve.prices.structure_kernels import answered

    (K, T), follow = table.rate.shape, gpu_counts is not None
    W = table.gpu_counts if gpu_counts is None else gpu_counts
    price, time, steepness = np.empty(T), np.empty((K, T)), np.empty(K)
    given = (table.rate, table.gain, table.gpus, table.count, base, slope, near.price, table.gpu_counts, W)
    found, level = answered(
        *map(fixed, given), near.level, leveled, low, high, in_doubt, kernels(K) is not compiled(K), _FREE, _KINK,
        _CLOSE, follow, _NO_SWAP if follow else 0.0, price, time, steepness,
    )  # fmt: skip
    return Mix(time, steepness, price, level, is_unique=True) if found else None


def as_left(table: Table, vertex: Vertex, level: float) -> Mix:
    """The answer of the last program, with this level."""
    some, again, price = _again(table, vertex)
    kernel, need = kernels(len(vertex.low)), vertex.need
    time, steepness = kernel.settle(table, vertex.low, vertex.high, need, price)
    time[vertex.rows] = vertex.time
    steepness[vertex.rows] = kernel.settle(some, again.low, again.high, need[vertex.rows], price)[1]
    return Mix(time, steepness, price, level, is_unique=False)


def _again(table: Table, vertex: Vertex, loops: Callable[[int], ModuleType] = kernels) -> tuple[Table, Sweep, Floats]:
    """The jobs of the last program, their mixes at the final prices, and these prices with zeros."""
    some, need = table.some(vertex.rows), vertex.need[vertex.rows]
    again = loops(len(vertex.low)).sweep(some, need, np.zeros(len(need)), vertex.price, 0.0, 0.0)
    return some, again, np.where(vertex.price <= _FREE * vertex.price.max(), 0.0, vertex.price)


def _by_structure(
    table: Table, vertex: Vertex, priced: Bools, in_doubt_low: Ints, in_doubt_high: Ints, kinks: _Kinks | None,
    gpu_counts: Floats | None = None,
) -> Mix | None:  # fmt: skip
    """The answer if the modes of every job leave no choice; None if they do, or if rounding hides them.

    Modes of the jobs in doubt (S,), T = idle.
    """
    if kinks is None or len(kinks.rows) + vertex.leveled != int(priced.sum()):
        return None
    kernel = kernels(len(vertex.low))
    low, high = vertex.low.copy(), vertex.high.copy()
    low[vertex.rows], high[vertex.rows] = _as_modes(in_doubt_low, table), _as_modes(in_doubt_high, table)
    low[kinks.rows], high[kinks.rows] = kinks.low, kinks.high
    base = np.where(np.abs(vertex.base) > _ROUNDING, vertex.base, 0.0)  # needs are up to 1
    own, drift = kernel.demand(table, low, high, base, vertex.slope)
    change = kinks.swap * table.load[kinks.rows, None]
    columns = np.column_stack([drift, change.T]) if vertex.leveled else change.T
    edges = kinks.swap * table.gpus[kinks.rows, None]
    rows = np.vstack([drift, edges]) if vertex.leveled else edges
    worth = np.concatenate([np.ones(int(vertex.leveled)), kinks.gain])
    try:
        answer = _solved(columns[priced], (table.gpu_counts - own)[priced])
        price = np.zeros(len(priced))
        price[priced] = _solved(rows[:, priced], worth)
    except np.linalg.LinAlgError:
        return None
    level = float(answer[0]) if vertex.leveled else 0.0
    close = np.abs(price - vertex.price)[priced] <= _CLOSE * vertex.price[priced]
    if not (close.all() and abs(level - vertex.level) <= _CLOSE * vertex.level):
        return None
    need = base + vertex.slope * level
    time, steepness = kernel.settle(table, low, high, need, price)
    time[kinks.rows] += kinks.swap * answer[int(vertex.leveled) :, None]
    if gpu_counts is not None and not _is_above(table, time, need, kinks):
        return None
    if not (
        _all_in_use(time, low, high, kinks, 0.0 if gpu_counts is None else _NO_SWAP)
        and _no_need_at_a_mode(table, vertex, in_doubt_low, in_doubt_high, need)
    ):
        return None
    if not priced.all() and (table.load @ time > table.gpu_counts * (1 - _KINK))[~priced].any():
        return None
    if gpu_counts is not None:
        answer = _solved(columns[priced], (gpu_counts - own)[priced])
        level = float(answer[0]) if vertex.leveled else 0.0
        time, steepness = kernel.settle(table, low, high, base + vertex.slope * level, price)
        time[kinks.rows] += kinks.swap * answer[int(vertex.leveled) :, None]
        at_kinks = time[kinks.rows]
        if (at_kinks < -_KINK).any():
            return None
        time[kinks.rows] = np.maximum(at_kinks, 0.0)
    return Mix(time, steepness, price, level, is_unique=True)


def _solved(matrix: Floats, right: Floats) -> Floats:
    """The solution by elimination, with the bytes of structure_kernels.solved; raises LinAlgError if there is none."""
    a, b = matrix.tolist(), right.tolist()
    N = len(b)
    for c in range(N):
        column = [abs(row[c]) for row in a[c:]]
        pivot = c + column.index(max(column))
        if not abs(a[pivot][c]) > 0.0:
            raise np.linalg.LinAlgError("singular")
        a[c], a[pivot], b[c], b[pivot] = a[pivot], a[c], b[pivot], b[c]
        for r in range(c + 1, N):
            factor = a[r][c] / a[c][c]
            b[r] -= factor * b[c]
            for k in range(c + 1, N):
                a[r][k] -= factor * a[c][k]
    answer = [0.0] * N
    for c in reversed(range(N)):
        rest = b[c]
        for k in range(c + 1, N):
            rest -= a[c][k] * answer[k]
        answer[c] = rest / a[c][c]
    return np.array(answer)


def _is_above(table: Table, time: Floats, need: Floats, kinks: _Kinks) -> bool:
    """Whether a job that mixes two equally cheap modes has more than its need, if it may have more or less."""
    rate, need = table.rate[kinks.rows], need[kinks.rows]
    second = np.where((kinks.swap > 0).any(axis=1), kinks.swap.argmax(axis=1), IDLE)
    least = np.minimum(*(np.where(mode >= 0, rate[np.arange(len(rate)), mode], 0.0) for mode in (kinks.low, second)))
    had = (rate * time[kinks.rows]).sum(axis=1)
    return bool((had > need * (1 + _KINK))[(kinks.low == kinks.high) & (least < need)].all())


def _all_in_use(time: Floats, low: Modes, high: Modes, kinks: _Kinks, no_swap: float) -> bool:
    """Whether every mode of the jobs with a choice has time; if not, another structure has the same shares."""
    B, T = kinks.swap.shape
    times = np.column_stack([time[kinks.rows], 1.0 - time[kinks.rows].sum(axis=1)])
    used = np.abs(np.column_stack([kinks.swap, -kinks.swap.sum(axis=1)])) > no_swap
    at = np.arange(B)
    used[at, low[kinks.rows] % (T + 1)] = used[at, high[kinks.rows] % (T + 1)] = True
    return bool((times[used] > _KINK).all())


def _no_need_at_a_mode(table: Table, vertex: Vertex, low: Ints, high: Ints, need: Floats) -> bool:
    """Whether no need that rises with the level equals the rate of a mode, among the jobs in doubt."""
    if not vertex.leveled:
        return True
    rate = np.column_stack([table.rate[vertex.rows], np.zeros(len(vertex.rows))])
    at = np.arange(len(vertex.rows))
    needs = need[vertex.rows]
    off_low, off_high = np.abs(rate[at, low] - needs), np.abs(rate[at, high] - needs)
    return bool((np.minimum(off_low, off_high)[vertex.slope[vertex.rows] > 0] > _KINK).all())


def _kinks(table: Table, vertex: Vertex, r: Restricted, *, times_follow: bool) -> _Kinks | None:
    """The jobs with one mode more than their mix needs, or None if a job has two more.

    `times_follow`: the times are not yet known, and `_is_above` checks them later.
    """
    T = table.rate.shape[1]
    i, t = r.column_row, r.column_mode
    at_kink = r.excess[i, t] <= _KINK * table.gpus[vertex.rows[i]] * vertex.price.max()
    i, t = i[at_kink], t[at_kink]
    if len(np.unique(i)) < len(i):
        return None
    rows = vertex.rows[i]
    rate = np.column_stack([table.rate[rows], np.zeros(len(i))])
    gain = np.column_stack([table.gain[rows], np.zeros(len(i))]) if len(table.gain) else np.zeros((len(i), T + 1))
    at = np.arange(len(i))
    modes = np.column_stack([r.low[i], t, r.high[i]])
    single = r.low[i] == r.high[i]
    beyond = ~single & (t == r.high[i])  # a rate above the need is equally cheap
    if not times_follow:
        had, need = (rate[:, :T] * vertex.time[i]).sum(axis=1), vertex.need[rows]
        if (beyond & (had <= need * (1 + _KINK))).any() or (single & (rate[at, t] < need)).any():
            return None
    tied = single | beyond
    order = np.argsort(np.take_along_axis(rate, modes, axis=1), axis=1, kind="stable")
    ordered = np.take_along_axis(modes, order, axis=1)
    first, second = np.minimum(r.low[i], t), np.maximum(r.low[i], t)
    low = np.where(tied, first, ordered[:, 0])
    high = np.where(tied, first, ordered[:, 2])
    middle = np.where(tied, second, ordered[:, 1])
    span = np.where(tied, 1.0, rate[at, high] - rate[at, low])
    phi = np.where(tied, 0.0, (rate[at, middle] - rate[at, low]) / span)
    swap = np.zeros((len(i), T + 1))
    swap[at, middle] += 1.0
    swap[at, low] -= 1.0 - phi
    swap[at, high] -= phi
    return _Kinks(rows, _as_modes(low, table), _as_modes(high, table), swap[:, :T], reduce(np.add, (swap * gain).T))


def _as_modes(mode: Ints, table: Table) -> Modes:
    """Modes as the kernels number them: idle is -1, not T."""
    return np.where(mode == table.rate.shape[1], IDLE, mode).astype(np.int8)

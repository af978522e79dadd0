"""The optimum as a function of its structure: the modes that every job uses, and the types that have a price.

A unique optimum is determined by its structure: shares, level and prices are the solutions of two small systems of
equations, whatever point the search began at. So a warm start changes no byte of the answer. With the jobs at kinks b
(three modes on one edge of their hull, or two equally cheap ones) and the priced types t:

    Σ_i load_i x_i(τ) + Σ_b load_b swap_b z_b = W_t         in τ and z,
    gpus_b swap_b · p = swap_b · gain_b                     in p, scaled to drift·p = 1 if there is a level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.prices.crossover import Restricted, Vertex, most_in_doubt, restricted
from gavelpy.solve.prices.newton import PRICE_FLOOR, Dual, Point
from gavelpy.solve.prices.table import IDLE, Modes, Sweep, Table, kernels

_ROUNDING = 1e-15
_KINK = 1e-9  # relative: modes whose cost exceeds the hull by less are on it
_FREE = 4 * PRICE_FLOOR  # of the highest price: a type that costs no more is free
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
    mix = _by_structure(table, vertex, price > 0, restricted(some, again, vertex.need[vertex.rows], vertex.price))
    return as_left(table, vertex, vertex.level) if mix is None else mix


def from_prices(dual: Dual, point: Point) -> Mix | None:
    """The answer at exact prices, up to rounding, if it is unique: with the bytes that `read_off` finds; else None."""
    table, level = dual.table, point.level
    K, T = table.rate.shape
    need, slope = dual.needs.at(level)
    s = kernels(K).sweep(table, need, slope, point.price, 0.0, level)
    rows = most_in_doubt(s, T)
    base, time = need - slope * level, np.zeros((len(rows), T))
    vertex = Vertex(point.price, level, dual.leveled, s.low, s.high, base, slope, rows, time, attempts=0)
    some, again, price = _again(table, vertex)
    return _by_structure(table, vertex, price > 0, restricted(some, again, need[rows], point.price))


def as_left(table: Table, vertex: Vertex, level: float) -> Mix:
    """The answer of the last program, with this level."""
    some, again, price = _again(table, vertex)
    kernel, need = kernels(len(vertex.low)), vertex.need
    time, steepness = kernel.settle(table, vertex.low, vertex.high, need, price)
    time[vertex.rows] = vertex.time
    steepness[vertex.rows] = kernel.settle(some, again.low, again.high, need[vertex.rows], price)[1]
    return Mix(time, steepness, price, level, is_unique=False)


def _again(table: Table, vertex: Vertex) -> tuple[Table, Sweep, Floats]:
    """The jobs of the last program, their mixes at the final prices, and these prices with zeros."""
    some, need = table.some(vertex.rows), vertex.need[vertex.rows]
    again = kernels(len(vertex.low)).sweep(some, need, np.zeros(len(need)), vertex.price, 0.0, 0.0)
    return some, again, np.where(vertex.price <= _FREE * vertex.price.max(), 0.0, vertex.price)


def _by_structure(table: Table, vertex: Vertex, priced: Bools, r: Restricted) -> Mix | None:
    """The answer if the modes of every job leave no choice; None if they do, or if rounding hides them."""
    kinks = _kinks(table, vertex, r)
    if kinks is None or len(kinks.rows) + vertex.leveled != int(priced.sum()):
        return None
    kernel = kernels(len(vertex.low))
    low, high = vertex.low.copy(), vertex.high.copy()
    low[vertex.rows], high[vertex.rows] = _as_modes(r.low, table), _as_modes(r.high, table)
    low[kinks.rows], high[kinks.rows] = kinks.low, kinks.high
    base = np.where(np.abs(vertex.base) > _ROUNDING, vertex.base, 0.0)  # needs are up to 1
    used, drift = kernel.demand(table, low, high, base, vertex.slope)
    change = kinks.swap * table.load[kinks.rows, None]
    columns = np.column_stack([drift, change.T]) if vertex.leveled else change.T
    edges = kinks.swap * table.gpus[kinks.rows, None]
    rows = np.vstack([drift, edges]) if vertex.leveled else edges
    worth = np.concatenate([np.ones(int(vertex.leveled)), kinks.gain])
    try:
        answer = np.linalg.solve(columns[priced], (table.gpu_counts - used)[priced])
        price = np.zeros(len(priced))
        price[priced] = np.linalg.solve(rows[:, priced], worth)
    except np.linalg.LinAlgError:
        return None
    level = float(answer[0]) if vertex.leveled else 0.0
    close = np.abs(price - vertex.price)[priced] <= _CLOSE * vertex.price[priced]
    if not (close.all() and abs(level - vertex.level) <= _CLOSE * vertex.level):
        return None
    need = base + vertex.slope * level
    time, steepness = kernel.settle(table, low, high, need, price)
    time[kinks.rows] += kinks.swap * answer[int(vertex.leveled) :, None]
    if not (_all_in_use(time, low, high, kinks) and _no_need_at_a_mode(table, vertex, r, need)):
        return None
    used = table.load @ time
    if (used > table.gpu_counts * (1 - _KINK))[~priced].any():
        return None
    return Mix(time, steepness, price, level, is_unique=True)


def _all_in_use(time: Floats, low: Modes, high: Modes, kinks: _Kinks) -> bool:
    """Whether every mode of the jobs with a choice has time; if not, another structure has the same shares."""
    B, T = kinks.swap.shape
    times = np.column_stack([time[kinks.rows], 1.0 - time[kinks.rows].sum(axis=1)])
    used = np.column_stack([kinks.swap, -kinks.swap.sum(axis=1)]) != 0.0
    at = np.arange(B)
    used[at, low[kinks.rows] % (T + 1)] = used[at, high[kinks.rows] % (T + 1)] = True
    return bool((times[used] > _KINK).all())


def _no_need_at_a_mode(table: Table, vertex: Vertex, r: Restricted, need: Floats) -> bool:
    """Whether no need that rises with the level equals the rate of a mode, among the jobs in doubt."""
    rate = np.column_stack([table.rate[vertex.rows], np.zeros(len(vertex.rows))])
    at = np.arange(len(vertex.rows))
    needs = need[vertex.rows]
    off_low, off_high = np.abs(rate[at, r.low] - needs), np.abs(rate[at, r.high] - needs)
    return bool((np.minimum(off_low, off_high)[vertex.slope[vertex.rows] > 0] > _KINK).all())


def _kinks(table: Table, vertex: Vertex, r: Restricted) -> _Kinks | None:
    """The jobs with one mode more than their mix needs, or None if a job has two more."""
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
    had = (rate[:, :T] * vertex.time[i]).sum(axis=1)
    if (beyond & (had <= vertex.need[rows] * (1 + _KINK))).any() or (single & (rate[at, t] < vertex.need[rows])).any():
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
    return _Kinks(rows, _as_modes(low, table), _as_modes(high, table), swap[:, :T], (swap * gain).sum(axis=1))


def _as_modes(mode: Ints, table: Table) -> Modes:
    """Modes as the kernels number them: idle is -1, not T."""
    return np.where(mode == table.rate.shape[1], IDLE, mode).astype(np.int8)

"""The highest gain of few classes by pivots on the prices: a dual simplex method for the T rows that couple them.

The feasible times of a class within its budget and its floor are a polytope with known corners: the class runs in one
mode, or in two that give exactly its floor. So find prices p >= 0 that minimise

    p · W + Σ_k max_v (gain_kv - load_kv · p)        over the corners v of each class k.

This function has a kink where a class has two best corners (a tie) and where a price is zero. T kinks determine the
prices; at first all prices are zero. One after another is released, and prices move along the edge as long as the sum
falls, past any number of kinks. If GPUs are hardly scarce that is a step or two of about 40 microseconds.

Whole jobs often use a type to the last GPU, and then several prices are optimal. With a trace more GPUs they are not:
one search there finds the times and the prices of the next GPU (`most_gain_of_whole_jobs`).

There is no state: the same jobs in the same order have the same answer, to the last byte. A unique optimum is computed
from its kinks in order, whatever the steps to it were. Where numba is loaded already (`table.search_kernels`), one call
finds it (pivots_search.py). Other optima depend on the steps: there compiled loops take the same, operation by
operation, and the products and equations stay numpy's.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.linear import TRACE
from gavelpy.solve.prices.numpy_search import STEPS_MAX, SURE, by_steps, determined, pairs, times, unique
from gavelpy.solve.prices.table import INTERPRETED, Table, fixed, search_kernels
from gavelpy.solve.prices.vertex import Mix

_ENTRIES_MAX = 40_000  # classes x corners x types up to which pivots take less time than other searches
_CLASSES_MAX, _SCARCE = 256, 4.0  # or up to this many classes, if jobs use at most this multiple of the GPUs


def most_gain(table: Table, floor: Floats) -> Mix | None:
    """Times with the highest sum of gains that give every class its floor, (K,), and prices.

    None if no times satisfy the floors, or if the search does not end. `is_unique`: no other times or prices are
    equally good.
    """
    kernels = search_kernels()
    try:
        if kernels is not None:
            if not _may_fill_exactly(table, floor):
                return _by_one_call(table, floor) or _by_kernels(table, floor, kernels)
            mix = _by_kernels(table, floor, kernels)
            return _by_one_call(table, floor) or mix if mix is not None and mix.is_unique else mix
        with INTERPRETED.search():
            return by_steps(table, floor)
    except np.linalg.LinAlgError:
        return None


def most_gain_of_whole_jobs(table: Table, floor: Floats) -> Mix | None:
    """The answer where whole jobs may fill whole GPUs, with the prices of the next GPU, by a single search.

    With a trace more GPUs the optimum is unique also where jobs fill a type to the last GPU. Its kinks determine times
    for the true GPUs, and prices. None if it is not unique all the same, if the true GPUs have other kinks, or if jobs
    cannot fill GPUs like that: then `most_gain` finds out.
    """
    if not _may_fill_exactly(table, floor):
        return None
    more = table.gpu_counts * (1.0 + TRACE)
    if search_kernels() is not None:
        return _by_one_call(table, floor, more)
    try:
        with INTERPRETED.search():
            mix = by_steps(table, floor, more)
    except np.linalg.LinAlgError:
        return None
    return mix if mix is not None and mix.is_unique else None


def has_few_pivots(table: Table) -> bool:
    """Whether pivots find the highest sum in less time than other searches: each raises a price, and few are high."""
    (K, T), V = table.rate.shape, len(pairs(table.rate.shape[1])[0])
    if K * V * T <= _ENTRIES_MAX:
        return True
    return K < _CLASSES_MAX and bool(table.load.sum() <= _SCARCE * table.gpu_counts.sum())


def _may_fill_exactly(table: Table, floor: Floats) -> bool:
    """Whether whole jobs may fill whole GPUs, so that the optimum is hardly ever unique."""
    return not floor.any() and bool((table.gpu_counts == np.rint(table.gpu_counts)).all())


def _by_one_call(table: Table, floor: Floats, more: Floats | None = None) -> Mix | None:
    """The answer if it is unique with `more` GPUs, (T,), or with those of the table."""
    from gavelpy.solve.prices.pivots_search import UNIQUE, answered

    K, T = table.rate.shape
    low, high, _, _ = pairs(T)
    time, steepness, price = np.empty((K, T)), np.empty(K), np.empty(T)
    counts = table.gpu_counts
    given = (table.rate, table.gain, table.gpus, table.count, floor, counts, counts if more is None else more)
    end = answered(*map(fixed, given), low, high, SURE, STEPS_MAX, time, steepness, price)
    return Mix(time, steepness, price, 0.0, True, True) if end == UNIQUE else None


def _by_kernels(table: Table, floor: Floats, kernels: ModuleType) -> Mix | None:
    """The same answer by compiled loops."""
    (K, T), W = table.rate.shape, table.gpu_counts.copy()  # a copy is writable: kernels compile for one type
    low, high, _, _ = pairs(T)
    gain, corner_time, load = np.empty((K, len(low))), np.zeros((K, len(low), T)), np.empty((K, len(low), T))
    kernels.corners(table.rate, table.gain, table.count, table.load, floor, low, high, gain, corner_time, load)
    best, tie, free, kinks = gain.argmax(axis=1), np.zeros((T + 1, 2), np.int64), np.arange(T + 1), np.array([0, T])
    if np.isneginf(gain[np.arange(K), best]).any():
        return None
    spare, rows = np.empty(T), np.empty((T, T))
    if not _is_found(kernels, gain, load, W, best, tie, free, kinks, spare, rows):
        return None
    ties, frees = kinks.tolist()
    k, v = tie[:ties].T
    amount, price = determined(rows, spare, gain[k, v] - gain[k, best[k]], free[:frees])
    time, steepness = np.empty((K, T)), np.empty(K)
    is_sure = kernels.settled(
        table.rate, table.gain, table.gpus, low, high, gain, corner_time, load, best, tie, ties, amount, price, SURE,
        time, steepness,
    )  # fmt: skip
    return unique(Mix(time, steepness, price, 0.0, False, is_sure), k.tolist(), free[:frees], amount, W)


def _is_found(
    kernels: ModuleType, gain: Floats, load: Floats, gpu_counts: Floats, best: Ints, tie: Ints, free: Ints,
    kinks: Ints, spare: Floats, rows: Floats,
) -> bool:  # fmt: skip
    """Whether there is a point from which no edge leads down. Sets its kinks, and what is constant there."""
    T = len(gpu_counts)
    price, units = np.zeros(T), np.eye(T)
    for _ in range(STEPS_MAX):
        kernels.balance(load, gpu_counts, best, tie, free, kinks, spare, rows)
        amount = np.linalg.solve(rows.T, spare) if kinks[0] else spare[free[:T]]
        row = kernels.leave(amount, load, gpu_counts, best, tie, free, kinks, spare, rows)
        if row < 0:
            return True
        direction = np.linalg.solve(rows, units[row])
        value, speed = gain - times(load, price), -times(load, direction)
        if not kernels.go(value, speed, direction, float(spare @ direction), best, tie, free, kinks, price):
            return False
    return False

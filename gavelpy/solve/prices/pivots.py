"""The highest gain of few classes by pivots on the prices: a dual simplex method for the T rows that couple them.

The feasible times of a class within its budget and its floor are a polytope with known corners: the class runs in one
mode, or in two that give exactly its floor. So find prices p >= 0 that minimise

    p · W + Σ_k max_v (gain_kv - load_kv · p)        over the corners v of each class k.

This function has a kink where a class has two best corners (a tie) and where a price is zero. T kinks determine the
prices; at first all prices are zero. One after another is released, and prices move along the edge as long as the sum
falls, past any number of kinks. If GPUs are hardly scarce that is a step or two of about 40 microseconds.

There is no state: the same jobs in the same order have the same answer, to the last byte. A unique optimum is computed
from its kinks in order, whatever the steps to it were. Where numba is loaded already (`table.search_kernels`), one call
finds it (pivots_search.py). Other optima depend on the steps: there compiled loops take the same, operation by
operation, and the products and equations stay numpy's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.table import INTERPRETED, Table, fixed, search_kernels
from gavelpy.solve.prices.vertex import Mix

STEPS_MAX = 100
_ENTRIES_MAX = 40_000  # classes x corners x types up to which pivots take less time than other searches
_CLASSES_MAX, _SCARCE = 256, 4.0  # or up to this many classes, if jobs use at most this multiple of the GPUs
_SURE = 1e-9  # relative: closer to a kink the answer may not be unique
_ROUNDING = 1e-12
_TYPES_BY_CLASS = (
    8  # from so many on, one product for all classes takes as long as one for each, and rounds differently
)


@dataclass(frozen=True, eq=False)
class _Corners:
    """V corners of each of K classes."""

    gain: Floats  # (K, V) of all jobs of the class; minus infinity if the class has no such corner
    time: Floats  # (K, V, T)
    load: Floats  # (K, V, T) GPUs
    gpu_counts: Floats  # (T,)

    def value(self, price: Floats) -> Floats:
        """Gain of each corner less its cost, (K, V)."""
        return self.gain - times(self.load, price)


@dataclass(eq=False)
class _Point:
    """Prices, and the kinks that determine them."""

    price: Floats  # (T,)
    best: Ints  # (K,) corner
    ties: list[tuple[int, int]]  # a class, and a second corner that is equally good
    free: list[int]  # types without a price; with the ties as many as types

    def spare(self, corners: _Corners) -> Floats:
        """GPUs left if each class is at its best corner, (T,)."""
        left: Floats = corners.gpu_counts - corners.load[np.arange(len(self.best)), self.best].sum(axis=0)
        return left

    def rows(self, corners: _Corners) -> Floats:
        """Quantities that are constant along an edge, (T, T): differences of ties, and prices of free types."""
        rows = np.zeros((len(self.price), len(self.price)))
        for row, (k, v) in enumerate(self.ties):
            rows[row] = corners.load[k, v] - corners.load[k, self.best[k]]
        for row, t in enumerate(self.free, len(self.ties)):
            rows[row, t] = 1.0
        return rows

    def amounts(self, corners: _Corners) -> Floats:
        """Time in the second corner of each tie, and GPUs left of each free type, (T,), that add up to all GPUs."""
        spare = self.spare(corners)
        if not self.ties:
            return spare[self.free]
        return np.asarray(np.linalg.solve(self.rows(corners).T, spare), dtype=np.float64)

    def in_order(self) -> _Point:
        """The same kinks, sorted by class, corner and type; the first corner of a class counts as its best."""
        best, ties, of_class = self.best.copy(), [], dict[int, list[int]]()
        for k, v in self.ties:
            of_class.setdefault(k, [int(self.best[k])]).append(v)
        for k in sorted(of_class):
            best[k], *others = sorted(of_class[k])
            ties += [(k, v) for v in others]
        return _Point(self.price, best, ties, sorted(self.free))

    def release(self, row: int) -> None:
        """Removes one kink."""
        if row < len(self.ties):
            del self.ties[row]
        else:
            del self.free[row - len(self.ties)]


def most_gain(table: Table, floor: Floats) -> Mix | None:
    """Times with the highest sum of gains that give every class its floor, (K,), and prices.

    None if no times satisfy the floors, or if the search does not end. `is_unique`: no other times or prices are
    equally good.
    """
    kernels = search_kernels() if len(table.gpu_counts) > 1 else None  # numpy adds a single column in another order
    try:
        if kernels is not None:
            if not _may_fill_exactly(table, floor):
                return _by_one_call(table, floor) or _by_kernels(table, floor, kernels)
            mix = _by_kernels(table, floor, kernels)
            return _by_one_call(table, floor) or mix if mix is not None and mix.is_unique else mix
        with INTERPRETED.search():
            corners = _corners(table, floor)
            at = None if np.isneginf(corners.gain.max(axis=1)).any() else _searched(corners)
            if at is None:
                return None
            mix = _settled(table, corners, at.in_order(), _by_elimination)
            return mix if mix.is_unique else _settled(table, corners, at, _by_lapack)
    except np.linalg.LinAlgError:
        return None


def has_few_pivots(table: Table) -> bool:
    """Whether pivots find the highest sum in less time than other searches: each raises a price, and few are high."""
    (K, T), V = table.rate.shape, len(_pairs(table.rate.shape[1])[0])
    if K * V * T <= _ENTRIES_MAX:
        return True
    return K < _CLASSES_MAX and bool(table.load.sum() <= _SCARCE * table.gpu_counts.sum())


def _searched(corners: _Corners) -> _Point | None:
    """The point from which no edge leads down."""
    T = len(corners.gpu_counts)
    at = _Point(np.zeros(T), corners.gain.argmax(axis=1), [], list(range(T)))
    for _ in range(STEPS_MAX):
        leaving = _leaving(at, at.amounts(corners), corners.gpu_counts)
        if leaving < 0:
            return at
        direction = np.linalg.solve(at.rows(corners), (np.arange(T) == leaving).astype(np.float64))
        at.release(leaving)
        if not _gone(corners, at, direction):
            return None
    return None


def _may_fill_exactly(table: Table, floor: Floats) -> bool:
    """Whether whole jobs may fill whole GPUs, so that the optimum is hardly ever unique."""
    return not floor.any() and bool((table.gpu_counts == np.rint(table.gpu_counts)).all())


def _by_one_call(table: Table, floor: Floats) -> Mix | None:
    """The answer if it is unique."""
    from gavelpy.solve.prices.pivots_search import UNIQUE, answered

    K, T = table.rate.shape
    low, high, _, _ = _pairs(T)
    time, steepness, price = np.empty((K, T)), np.empty(K), np.empty(T)
    given = (table.rate, table.gain, table.gpus, table.count, floor, table.gpu_counts)
    end = answered(*map(fixed, given), low, high, _SURE, STEPS_MAX, time, steepness, price)
    return Mix(time, steepness, price, 0.0, True, True) if end == UNIQUE else None


def _by_kernels(table: Table, floor: Floats, kernels: ModuleType) -> Mix | None:
    """The same answer by compiled loops."""
    (K, T), W = table.rate.shape, table.gpu_counts.copy()  # a copy is writable: kernels compile for one type
    low, high, _, _ = _pairs(T)
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
    amount, price = _determined(rows, spare, gain[k, v] - gain[k, best[k]], free[:frees])
    time, steepness = np.empty((K, T)), np.empty(K)
    is_sure = kernels.settled(
        table.rate, table.gain, table.gpus, low, high, gain, corner_time, load, best, tie, ties, amount, price, _SURE,
        time, steepness,
    )  # fmt: skip
    return _unique(Mix(time, steepness, price, 0.0, False, is_sure), k.tolist(), free[:frees], amount, W)


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


def times(load: Floats, price: Floats) -> Floats:
    """Cost of each corner, (K, V), at prices (T,)."""
    K, V, T = load.shape
    if T >= _TYPES_BY_CLASS:
        return np.asarray(load @ price)
    return np.asarray((load.reshape(-1, T) @ price).reshape(K, V))


def _corners(table: Table, floor: Floats) -> _Corners:
    K, T = table.rate.shape
    rate, gain = np.zeros((K, T + 1)), np.zeros((K, T + 1))
    rate[:, :T], gain[:, :T] = table.rate, table.gain
    runs = rate > 0
    runs[:, T] = True  # the last mode is idle
    low, high, low_time, high_time = _pairs(T)
    low_rate, high_rate, need = rate[:, low], rate[:, high], floor[:, None]
    single = low == high
    exists = np.where(single, low_rate >= need, (low_rate < need) & (need < high_rate)) & runs[:, low] & runs[:, high]
    part = np.divide(need - low_rate, high_rate - low_rate, out=np.ones(exists.shape), where=exists & ~single)
    total = (part * gain[:, high] + (1.0 - part) * gain[:, low]) * table.count[:, None]
    time = part[:, :, None] * high_time + (1.0 - part)[:, :, None] * low_time
    return _Corners(np.where(exists, total, -np.inf), time, time * table.load[:, None, None], table.gpu_counts)


@cache
def _pairs(gpu_types: int) -> tuple[Ints, Ints, Floats, Floats]:
    """Slow and fast mode of each corner, (V,), equal if it is one mode; and as times, (V, T)."""
    low, high = np.indices((gpu_types + 1, gpu_types + 1)).reshape(2, -1)
    kept = high < gpu_types  # idle is never the fast one,
    kept[-1] = True  # but may be the only one
    modes = np.eye(gpu_types + 1)[:, :gpu_types]
    return low[kept], high[kept], modes[low[kept]], modes[high[kept]]


def _leaving(at: _Point, amount: Floats, gpu_counts: Floats) -> int:
    """The row with the most negative amount, or -1 if there is none.

    If a class has too little time in its best corner, that corner is first swapped with the one that has most time.
    """
    ties = len(at.ties)
    parts = [*amount[:ties].tolist(), *(amount[ties:] / gpu_counts[at.free]).tolist()]
    row = min(range(len(parts)), key=parts.__getitem__)
    rest = dict.fromkeys((k for k, _ in at.ties), 1.0)
    for (k, _), part in zip(at.ties, parts, strict=False):
        rest[k] -= part
    short = min(rest, key=rest.__getitem__, default=-1)
    if short < 0 or rest[short] >= min(parts[row], -_ROUNDING):
        return row if parts[row] < -_ROUNDING else -1
    row = max((r for r in range(ties) if at.ties[r][0] == short), key=parts.__getitem__)
    at.best[short], at.ties[row] = at.ties[row][1], (short, int(at.best[short]))
    return row


def _gone(corners: _Corners, at: _Point, direction: Floats) -> bool:
    """Moves the prices as far as the sum falls, to the kink that ends it; whether there is one."""
    V, inf = corners.gain.shape[1], np.inf
    classes, tied = np.arange(len(at.best)), {k for k, _ in at.ties}
    value, speed = corners.value(at.price), -times(corners.load, direction)
    still = _ROUNDING * np.abs(speed).max()
    fall = float(at.spare(corners) @ direction)
    closing = speed - speed[classes, at.best][:, None]
    behind = np.maximum(value[classes, at.best][:, None] - value, 0.0)
    when = np.divide(behind, closing, out=np.full(behind.shape, inf), where=closing > still)
    for k, v in at.ties:
        when[k, v] = inf
    falling = (direction < 0) & (at.price > 0)
    to_zero = np.divide(at.price, -direction, out=np.full(len(falling), inf), where=falling)
    first_free = int(to_zero.argmin())
    first = when.argmin(axis=1)
    soonest = when[classes, first]
    while True:
        k = int(soonest.argmin())
        v = int(first[k])
        length = min(float(soonest[k]), float(to_zero[first_free]))
        if length == inf:
            return False
        is_free = length == to_zero[first_free]
        fall += 0.0 if is_free else float(speed[k, v] - speed[k, at.best[k]])
        if is_free or fall >= 0 or k in tied:
            break
        at.best[k] = v
        closing_k = speed[k] - speed[k, v]
        behind_k = np.maximum(value[k, v] - value[k] - length * closing_k, 0.0)
        later = length + np.divide(behind_k, closing_k, out=np.full(V, inf), where=closing_k > still)
        first[k] = later.argmin()
        soonest[k] = later[first[k]]
    at.price = np.maximum(at.price + length * direction, 0.0)
    if is_free:
        at.price[first_free] = 0.0
        at.free.append(first_free)
    else:
        at.ties.append((k, v))
    return True


_Solve = Callable[[Floats, Floats], Floats]  # of equations (T, T) with their right sides (T,)


def _by_lapack(rows: Floats, right: Floats) -> Floats:
    return np.asarray(np.linalg.solve(rows, right), dtype=np.float64)


def _by_elimination(rows: Floats, right: Floats) -> Floats:
    """The solution of equations, number by number as in pivots_search.py."""
    T, a = len(right), [[*row, number] for row, number in zip(rows.tolist(), right.tolist(), strict=True)]
    for c in range(T):
        pivot = max(range(c, T), key=lambda r: abs(a[r][c]))
        a[c], a[pivot] = a[pivot], a[c]
        if a[c][c] == 0.0:
            raise np.linalg.LinAlgError("the equations of kinks must be independent")
        for r in range(c + 1, T):
            part = a[r][c] / a[c][c]
            if part != 0.0:
                for t in range(c, T + 1):
                    a[r][t] -= part * a[c][t]
    found = [row[T] for row in a]
    for c in range(T - 1, -1, -1):
        for t in range(c + 1, T):
            found[c] -= a[c][t] * found[t]
        found[c] /= a[c][c]
    return np.array(found)


def _determined(
    rows: Floats, spare: Floats, dearer: Floats, free: Ints, solve: _Solve = _by_lapack
) -> tuple[Floats, Floats]:
    """Amounts and prices, (T,), of the kinks with these rows, gains of the ties' second corners, and free types."""
    if not len(dearer):
        return spare[free], np.zeros(len(spare))
    amount = solve(rows.T, spare)
    price: Floats = np.maximum(solve(rows, np.append(dearer, np.zeros(len(free)))), 0.0)
    price[free] = 0.0
    return amount, price


def _settled(table: Table, corners: _Corners, at: _Point, solve: _Solve) -> Mix:
    """The answer at a point from which no edge leads down."""
    classes, free = np.arange(len(at.best)), np.array(at.free, dtype=np.int64)
    dearer = np.array([corners.gain[k, v] - corners.gain[k, at.best[k]] for k, v in at.ties])
    amount, price = _determined(at.rows(corners), at.spare(corners), dearer, free, solve)
    value = corners.value(price)
    ahead = value[classes, at.best]
    value[classes, at.best] = -np.inf
    time = corners.time[classes, at.best]
    for (k, v), part in zip(at.ties, amount.tolist(), strict=False):
        value[k, v] = -np.inf
        time[k] += part * (corners.time[k, v] - corners.time[k, at.best[k]])
    dearest = np.abs(ahead) + corners.load[classes, at.best] @ price
    is_sure = bool((ahead - value.max(axis=1) > _SURE * dearest).all())
    mix = Mix(np.maximum(time, 0.0), _steepness(table, at.best, price), price, 0.0, False, is_sure)
    return _unique(mix, [k for k, _ in at.ties], free, amount, corners.gpu_counts)


def _unique(mix: Mix, tied: list[int], free: Ints, amount: Floats, gpu_counts: Floats) -> Mix:
    """The mix with its `is_unique`, from whether the corners that are not tied are unique (its `has_unique_times`)."""
    parts, rest, prices = amount.tolist(), dict.fromkeys(tied, 1.0), mix.price.tolist()
    for k, part in zip(tied, parts, strict=False):
        rest[k] -= part
    least, frees = _SURE * max(prices), set(free.tolist())
    has_unique_times = mix.has_unique_times and all(p > least for t, p in enumerate(prices) if t not in frees)
    is_unique = has_unique_times and min([*parts[: len(tied)], *rest.values()], default=1.0) > _SURE
    left = zip(parts[len(tied) :], free.tolist(), strict=True)
    is_unique = is_unique and all(part > _SURE * float(gpu_counts[t]) for part, t in left)
    return replace(mix, is_unique=is_unique, has_unique_times=has_unique_times)


def _steepness(table: Table, best: Ints, price: Floats) -> Floats:
    """Marginal cost of each class's rate, (K,): 0 if it runs in one mode."""
    low, high = (mode[best] for mode in _pairs(len(price))[:2])
    K, T = table.rate.shape
    at, rate, cost = np.arange(K), np.zeros((K, T + 1)), np.zeros((K, T + 1))
    rate[:, :T], cost[:, :T] = table.rate, table.gpus[:, None] * price - table.gain
    rise = rate[at, high] - rate[at, low]
    steepness: Floats = np.divide(cost[at, high] - cost[at, low], rise, out=np.zeros(K), where=rise > 0)
    return steepness

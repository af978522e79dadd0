"""Pivots in numpy: the steps of pivots.py where numba is not loaded, and the oracle of the compiled ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.table import Table
from gavelpy.solve.prices.vertex import Mix

STEPS_MAX = 100
SURE = 1e-9  # relative: closer to a kink the answer may not be unique
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

    def spare(self, corners: _Corners, gpu_counts: Floats) -> Floats:
        """Of these GPUs, those left if each class is at its best corner, (T,)."""
        taken = corners.load[np.arange(len(self.best)), self.best]
        used = taken.sum(axis=0) if taken.shape[1] > 1 else taken.cumsum(axis=0)[-1]  # both add row after row
        left: Floats = gpu_counts - used
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
        spare = self.spare(corners, corners.gpu_counts)
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


def by_steps(table: Table, floor: Floats, more: Floats | None = None) -> Mix | None:
    """The highest sum with `more` GPUs, (T,), or with those of the table; None if there is none, or no end.

    Raises LinAlgError where kinks are not independent.
    """
    corners = _corners(table, floor) if more is None else replace(_corners(table, floor), gpu_counts=more)
    at = None if np.isneginf(corners.gain.max(axis=1)).any() else _searched(corners)
    if at is None:
        return None
    mix = _settled(table, corners, at.in_order(), by_elimination)
    return mix if mix.is_unique or more is not None else _settled(table, corners, at, _by_lapack)


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
    low, high, low_time, high_time = pairs(T)
    low_rate, high_rate, need = rate[:, low], rate[:, high], floor[:, None]
    single = low == high
    exists = np.where(single, low_rate >= need, (low_rate < need) & (need < high_rate)) & runs[:, low] & runs[:, high]
    part = np.divide(need - low_rate, high_rate - low_rate, out=np.ones(exists.shape), where=exists & ~single)
    total = (part * gain[:, high] + (1.0 - part) * gain[:, low]) * table.count[:, None]
    time = part[:, :, None] * high_time + (1.0 - part)[:, :, None] * low_time
    return _Corners(np.where(exists, total, -np.inf), time, time * table.load[:, None, None], table.gpu_counts)


@cache
def pairs(gpu_types: int) -> tuple[Ints, Ints, Floats, Floats]:
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
    fall = float(at.spare(corners, corners.gpu_counts) @ direction)
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


def by_elimination(rows: Floats, right: Floats) -> Floats:
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


def determined(
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
    rows, counts = at.rows(corners), corners.gpu_counts
    part, price = determined(rows, at.spare(corners, counts), dearer, free, solve)
    amount, is_near = part, True
    if counts is not table.gpu_counts:
        amount, _ = determined(rows, at.spare(corners, table.gpu_counts), dearer, free, solve)
        is_near = _least_part([k for k, _ in at.ties], free, amount, table.gpu_counts) >= -_ROUNDING
    value = corners.value(price)
    ahead = value[classes, at.best]
    value[classes, at.best] = -np.inf
    time = corners.time[classes, at.best]
    for (k, v), share in zip(at.ties, amount.tolist(), strict=False):
        value[k, v] = -np.inf
        time[k] += share * (corners.time[k, v] - corners.time[k, at.best[k]])
    dearest = np.abs(ahead) + corners.load[classes, at.best] @ price
    is_sure = bool((ahead - value.max(axis=1) > SURE * dearest).all())
    mix = Mix(np.maximum(time, 0.0), _steepness(table, at.best, price), price, 0.0, False, is_sure and is_near)
    return unique(mix, [k for k, _ in at.ties], free, part, counts)


def unique(mix: Mix, tied: list[int], free: Ints, amount: Floats, gpu_counts: Floats) -> Mix:
    """The mix with its `is_unique`, from whether the corners that are not tied are unique (its `has_unique_times`)."""
    prices = mix.price.tolist()
    least, frees = SURE * max(prices), set(free.tolist())
    has_unique_times = mix.has_unique_times and all(p > least for t, p in enumerate(prices) if t not in frees)
    is_unique = has_unique_times and _least_part(tied, free, amount, gpu_counts) > SURE
    return replace(mix, is_unique=is_unique, has_unique_times=has_unique_times)


def _least_part(tied: list[int], free: Ints, amount: Floats, gpu_counts: Floats) -> float:
    """The least part of a class at one of its tied corners, or of a free type's GPUs that are left."""
    parts, rest = amount.tolist(), dict.fromkeys(tied, 1.0)
    for k, part in zip(tied, parts, strict=False):
        rest[k] -= part
    left = (amount[len(tied) :] / gpu_counts[free]).tolist()
    return min([*parts[: len(tied)], *rest.values(), *left], default=1.0)


def _steepness(table: Table, best: Ints, price: Floats) -> Floats:
    """Marginal cost of each class's rate, (K,): 0 if it runs in one mode."""
    low, high = (mode[best] for mode in pairs(len(price))[:2])
    K, T = table.rate.shape
    at, rate, cost = np.arange(K), np.zeros((K, T + 1)), np.zeros((K, T + 1))
    rate[:, :T], cost[:, :T] = table.rate, table.gpus[:, None] * price - table.gain
    rise = rate[at, high] - rate[at, low]
    steepness: Floats = np.divide(cost[at, high] - cost[at, low], rise, out=np.zeros(K), where=rise > 0)
    return steepness

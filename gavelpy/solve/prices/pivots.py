"""The most gain of few classes by pivots on the prices: a dual simplex method for the T rows that couple them.

What a class can do within its time and its floor has corners that are known beforehand: it runs in one mode, or in two
that give exactly its floor. So prices p >= 0 are to be found that make least

    p · W + Σ_k max_v (gain_kv - load_kv · p)        over the corners v of each class k.

That is bent where a class has two best corners (a tie) and where a price is zero; T such bends hold the prices where
they are, at first all at zero. One after another is let go, and prices move along the edge as far as the sum falls,
past as many bends as it takes. Where GPUs are hardly scarce that is a step or two, of some 40 microseconds.

No state is kept: the same jobs in the same order have the same answer, to the last byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.table import Table
from gavelpy.solve.prices.vertex import Mix

STEPS_MAX = 100
_SURE = 1e-9  # relative: what is nearer to a bend leaves more than one answer
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class _Corners:
    """V corners of each of K classes."""

    gain: Floats  # (K, V) of all jobs of the class; minus infinity where the class has no such corner
    time: Floats  # (K, V, T)
    load: Floats  # (K, V, T) GPUs
    gpu_counts: Floats  # (T,)

    def value(self, price: Floats) -> Floats:
        """Gain of each corner beyond what it costs, (K, V)."""
        worth: Floats = self.gain - self.load @ price
        return worth


@dataclass(eq=False)
class _Point:
    """Prices and the bends that hold them there."""

    price: Floats  # (T,)
    best: Ints  # (K,) corner
    ties: list[tuple[int, int]]  # class and a further corner that is as good
    free: list[int]  # types without a price; as many as types with the ties

    def spare(self, corners: _Corners) -> Floats:
        """GPUs that are left when each class is at its best corner, (T,)."""
        left: Floats = corners.gpu_counts - corners.load[np.arange(len(self.best)), self.best].sum(axis=0)
        return left

    def rows(self, corners: _Corners) -> Floats:
        """What does not change along an edge, (T, T): the difference of each tie, then the price of each free type."""
        rows = np.zeros((len(self.price), len(self.price)))
        for row, (k, v) in enumerate(self.ties):
            rows[row] = corners.load[k, v] - corners.load[k, self.best[k]]
        for row, t in enumerate(self.free, len(self.ties)):
            rows[row, t] = 1.0
        return rows

    def amounts(self, corners: _Corners) -> Floats:
        """Time in the further corner of each tie and GPUs left of each free type that use all GPUs, (T,)."""
        spare = self.spare(corners)
        if not self.ties:
            return spare[self.free]
        return np.asarray(np.linalg.solve(self.rows(corners).T, spare), dtype=np.float64)

    def let_go(self, row: int) -> None:
        """One bend fewer."""
        if row < len(self.ties):
            del self.ties[row]
        else:
            del self.free[row - len(self.ties)]


def most_gain(table: Table, floor: Floats) -> Mix | None:
    """Times with the highest sum of gains that give every class its floor, (K,), and prices.

    None where no times keep the floors, and where the search does not end. `is_unique` says whether neither other times
    nor other prices are as good.
    """
    corners = _corners(table, floor)
    if np.isneginf(corners.gain.max(axis=1)).any():
        return None
    T = len(corners.gpu_counts)
    at = _Point(np.zeros(T), corners.gain.argmax(axis=1), [], list(range(T)))
    for _ in range(STEPS_MAX):
        try:
            amount = at.amounts(corners)
            leaving = _leaving(at, amount, corners.gpu_counts)
            if leaving < 0:
                return _settled(table, corners, at, amount)
            direction = np.linalg.solve(at.rows(corners), (np.arange(T) == leaving).astype(np.float64))
        except np.linalg.LinAlgError:
            return None
        at.let_go(leaving)
        if not _gone(corners, at, direction):
            return None
    return None


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
    """Slow and quick mode of each corner, (V,), the same where it is one mode; and as times, (V, T)."""
    low, high = np.indices((gpu_types + 1, gpu_types + 1)).reshape(2, -1)
    kept = high < gpu_types  # idle is never the quick one,
    kept[-1] = True  # but may be the only one
    modes = np.eye(gpu_types + 1)[:, :gpu_types]
    return low[kept], high[kept], modes[low[kept]], modes[high[kept]]


def _leaving(at: _Point, amount: Floats, gpu_counts: Floats) -> int:
    """The row that has the least of what it must not have less than none of, or -1 where all have some.

    Where a class has too little time in its best corner, that and the corner of which it has most change places first.
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
    """Moves the prices as far as the sum falls, to the bend that ends it; whether there is one."""
    V, inf = corners.gain.shape[1], np.inf
    classes, tied = np.arange(len(at.best)), {k for k, _ in at.ties}
    value, speed = corners.value(at.price), -(corners.load @ direction)
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
    while True:
        k, v = divmod(int(when.argmin()), V)
        length = min(float(when[k, v]), float(to_zero[first_free]))
        if length == inf:
            return False
        is_free = length == to_zero[first_free]
        fall += 0.0 if is_free else float(speed[k, v] - speed[k, at.best[k]])
        if is_free or fall >= 0 or k in tied:
            break
        at.best[k] = v
        closing_k = speed[k] - speed[k, v]
        behind_k = np.maximum(value[k, v] - value[k] - length * closing_k, 0.0)
        when[k] = length + np.divide(behind_k, closing_k, out=np.full(V, inf), where=closing_k > still)
    at.price = np.maximum(at.price + length * direction, 0.0)
    if is_free:
        at.price[first_free] = 0.0
        at.free.append(first_free)
    else:
        at.ties.append((k, v))
    return True


def _settled(table: Table, corners: _Corners, at: _Point, amount: Floats) -> Mix:
    """The answer where no edge leads down."""
    classes, price = np.arange(len(at.best)), np.zeros(len(at.price))
    if at.ties:
        dearer = [corners.gain[k, v] - corners.gain[k, at.best[k]] for k, v in at.ties]
        price = np.maximum(np.linalg.solve(at.rows(corners), np.array(dearer + [0.0] * len(at.free))), 0.0)
        price[at.free] = 0.0
    value = corners.value(price)
    ahead = value[classes, at.best]
    value[classes, at.best] = -np.inf
    time, rest = corners.time[classes, at.best], dict.fromkeys((k for k, _ in at.ties), 1.0)
    parts = amount[: len(at.ties)].tolist()
    for (k, v), part in zip(at.ties, parts, strict=True):
        value[k, v] = -np.inf
        time[k] += part * (corners.time[k, v] - corners.time[k, at.best[k]])
        rest[k] -= part
    dearest = np.abs(ahead) + corners.load[classes, at.best] @ price
    priced = [t for t in range(len(price)) if t not in at.free]
    is_unique = min([*parts, *rest.values()], default=1.0) > _SURE
    is_unique &= bool((ahead - value.max(axis=1) > _SURE * dearest).all())
    is_unique &= bool((price[priced] > _SURE * price.max()).all())
    is_unique &= bool((amount[len(at.ties) :] > _SURE * corners.gpu_counts[at.free]).all())
    return Mix(np.maximum(time, 0.0), _steepness(table, at.best, price), price, level=0.0, is_unique=is_unique)


def _steepness(table: Table, best: Ints, price: Floats) -> Floats:
    """What each class pays for the last of its rate, (K,): 0 where it runs in one mode."""
    low, high = (mode[best] for mode in _pairs(len(price))[:2])
    K, T = table.rate.shape
    at, rate, cost = np.arange(K), np.zeros((K, T + 1)), np.zeros((K, T + 1))
    rate[:, :T], cost[:, :T] = table.rate, table.gpus[:, None] * price - table.gain
    rise = rate[at, high] - rate[at, low]
    steepness: Floats = np.divide(cost[at, high] - cost[at, low], rise, out=np.zeros(K), where=rise > 0)
    return steepness

"""Estimates whether a job, or two co-located jobs, fit into GPU memory: a logistic model of room and demand.

    log odds that i and j fit on t = room(t) - takes(i) - takes(j);    alone: room(t) + spare - takes(i)

`takes` has terms for the family, the batch size and the job itself. Coefficients have Gaussian priors; L-BFGS finds
the most probable values (the problem is convex).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from gavelpy.estimator.kinds import Key, Sides, sides
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.throughput import ThroughputTable

OBSERVATIONS_MAX = 20_000
_ROOM, _ROOM_SD = 3.0, 3.0
_SPARE, _SPARE_SD = 3.0, 1.0
_FAMILY_SD, _OWN_SD, _BATCH_SD = 1.0, 1.5, 0.5


@dataclass(frozen=True, eq=False)
class _Tried:
    first: Ints  # (n,) rows of keys
    second: Ints  # (n,) rows of keys, -1 = alone
    gpu_type: Ints  # (n,)
    ran: Floats  # (n,) 1 or 0


class Fitting:
    """The model fitted to a table."""

    def __init__(self, table: ThroughputTable) -> None:
        self.table = table
        tried = _tried(table)
        self._sides = sides(table.keys)
        self._families = int(self._sides.family.max(initial=-1)) + 1
        features = _features(self._sides, self._families, np.arange(len(table.keys)))
        self._room, self._takes, self._spare = _most_probable(features, tried, len(table.gpu_types))

    def alone(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
        """Probability that each key runs alone on each type, (N, T)."""
        room = self._rooms(gpu_types)
        return np.asarray(expit(room[None, :] + self._spare - self._needs(keys)[:, None]))

    def together(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
        """Probability that two keys run together, (N, N, T); 0 or 1 where the table has the pair."""
        needs = self._needs(keys)
        both = needs[:, None] + needs[None, :]
        fits = np.asarray(expit(self._rooms(gpu_types)[None, None, :] - both[:, :, None]))
        self._take_tried(keys, gpu_types, fits)
        return fits

    def _take_tried(self, keys: Sequence[Key], gpu_types: Sequence[str], fits: Floats) -> None:
        place = {key: i for i, key in enumerate(keys)}
        column = {name: t for t, name in enumerate(self.table.gpu_types)}
        row = np.array([place.get(key, -1) for key in self.table.keys], dtype=np.int64)
        pairs = row[self.table.pair_rows]
        included = (pairs >= 0).all(axis=1)
        first, second = pairs[included].T
        for t, name in enumerate(gpu_types):
            if name not in column:
                continue
            rates = self.table.pair_rate_steps_per_s[included, :, column[name]]
            ran, failed = (rates > 0).any(axis=1), (rates == 0).any(axis=1)
            known = ran | failed
            fits[first[known], second[known], t] = fits[second[known], first[known], t] = ~failed[known]

    def _rooms(self, gpu_types: Sequence[str]) -> Floats:
        column = {name: i for i, name in enumerate(self.table.gpu_types)}
        middle = float(np.median(self._room)) if len(self._room) else _ROOM
        return np.array([self._room[column[name]] if name in column else middle for name in gpu_types])

    def _needs(self, keys: Sequence[Key]) -> Floats:
        known = len(self.table.keys)
        s = sides([*self.table.keys, *keys])
        row = {key: i for i, key in enumerate(self.table.keys)}
        rows = np.array([row.get(key, known + i) for i, key in enumerate(keys)], dtype=np.int64)
        features = _features(s, self._families, rows, known)
        return np.asarray(features @ self._takes)


def _tried(table: ThroughputTable) -> _Tried:
    row, column = np.nonzero(~np.isnan(table.rate_steps_per_s))
    alone = _Tried(row, np.full(len(row), -1), column, (table.rate_steps_per_s[row, column] > 0).astype(np.float64))
    rates = table.pair_rate_steps_per_s
    known = ~np.isnan(rates).any(axis=1) & (table.rate_steps_per_s[table.pair_rows] > 0).all(axis=1)
    pair, gpu_type = np.nonzero(known)
    if len(pair) > OBSERVATIONS_MAX:
        chosen = np.linspace(0, len(pair) - 1, OBSERVATIONS_MAX).astype(np.int64)
        pair, gpu_type = pair[chosen], gpu_type[chosen]
    ran = (rates[pair, :, gpu_type] > 0).all(axis=1).astype(np.float64)
    first, second = table.pair_rows[pair].T
    return _Tried(
        np.concatenate([alone.first, first]),
        np.concatenate([alone.second, second]),
        np.concatenate([alone.gpu_type, gpu_type]),
        np.concatenate([alone.ran, ran]),
    )


def _features(s: Sides, families: int, rows: Ints, known: int | None = None) -> Floats:
    """(N, 1 + 2 families + keys): batch size, family, batch size within the family, the job; scaled by prior sds."""
    count = len(s.family) if known is None else known
    batch = (s.log2_batch[rows] - 5.0)[:, None]
    family = (s.family[rows][:, None] == np.arange(families)[None, :]).astype(np.float64)
    own = (rows[:, None] == np.arange(count)[None, :]).astype(np.float64)
    parts = [_BATCH_SD * batch, _FAMILY_SD * family, _BATCH_SD * family * batch, _OWN_SD * own]
    return np.concatenate(parts, axis=1)


def _most_probable(features: Floats, tried: _Tried, types: int) -> tuple[Floats, Floats, float]:
    """Room of each type, coefficients of the features, and the spare room of a job alone."""
    size = features.shape[1]
    is_alone = tried.second < 0
    sign = 2.0 * tried.ran - 1.0
    jobs = len(features)

    def cost(x: Floats) -> tuple[float, Floats]:
        room, spare, weight = _ROOM + _ROOM_SD * x[:types], _SPARE + _SPARE_SD * x[types], x[types + 1 :]
        takes = features @ weight
        odds = room[tried.gpu_type] - takes[tried.first] - np.where(is_alone, -spare, takes[tried.second])
        slope = -sign * expit(-sign * odds)
        by_job = np.bincount(tried.first, slope, minlength=jobs)
        by_job = by_job + np.bincount(tried.second[~is_alone], slope[~is_alone], minlength=jobs)
        by_type = _ROOM_SD * np.bincount(tried.gpu_type, slope, minlength=types)
        gradient = np.concatenate([by_type, [_SPARE_SD * slope[is_alone].sum()], -(features.T @ by_job)])
        return float(np.logaddexp(0.0, -sign * odds).sum() + 0.5 * x @ x), gradient + x

    found = minimize(cost, np.zeros(types + 1 + size), jac=True, method="L-BFGS-B", options={"maxiter": 60}).x
    return _ROOM + _ROOM_SD * found[:types], found[types + 1 :], float(_SPARE + _SPARE_SD * found[types])

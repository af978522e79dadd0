"""Readings of co-located jobs, and the slowdowns that follow from them.

A slowdown is the rate of a co-located job over its rate alone. While the rate alone is unknown, the reading and the
slowdown that the pair model predicts give a hint of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from gavelpy.estimator.completion import Completion
from gavelpy.estimator.kinds import Key
from gavelpy.estimator.pairs import Slowdowns
from gavelpy.estimator.rate_filter import RateFilter
from gavelpy.model.arrays import Floats, Ints

STUCK_S = 240.0  # without a step of a co-located job: the two do not fit together
GUESS, GUESS_SD = -0.55, 0.35  # mean and sd of a log slowdown before the model has predicted any
Cell = tuple[Key, Key, str]  # job of the rate, partner, GPU type


class ColocatedReadings:
    """Rates that co-located jobs report, combined with the predictions of a completed table."""

    def __init__(self) -> None:
        self._filters: dict[Cell, RateFilter] = {}
        self._idle_s: dict[Cell, float] = {}  # without a step
        self._cached_for: tuple[tuple[Key, ...], tuple[str, ...]] = ((), ())
        self._completion: Completion | None = None
        self._slowdowns: Slowdowns | None = None
        self._fits: Floats = np.zeros((0, 0, 0))

    def read(self, cell: Cell, log_rate: float) -> None:
        """Adds a log rate of a co-located job."""
        self._filters.setdefault(cell, RateFilter()).read(log_rate)
        self._idle_s.pop(cell, None)

    def idle(self, cell: Cell, seconds: float) -> bool:
        """Adds a time without a step; returns whether the pair counts as stuck."""
        self._idle_s[cell] = self._idle_s.get(cell, 0.0) + seconds
        return self.is_stuck(cell)

    def is_stuck(self, cell: Cell) -> bool:
        """Whether a co-located job has made no step for STUCK_S, so that the two do not fit."""
        return self._idle_s.get(cell, 0.0) >= STUCK_S

    def guess(self, cell: Cell) -> tuple[float, float]:
        """Mean and standard deviation of the first job's log slowdown, predicted by the model alone."""
        (keys, gpu_types), (first, second, gpu_type) = self._cached_for, cell
        if self._slowdowns is None or first not in keys or second not in keys or gpu_type not in gpu_types:
            return GUESS, GUESS_SD
        place = keys.index(first), keys.index(second), gpu_types.index(gpu_type)
        return float(self._slowdowns.mean[place]), float(self._slowdowns.sd[place])

    def estimates(
        self, completion: Completion, keys: Sequence[Key], gpu_types: Sequence[str], log_alone: Floats
    ) -> tuple[Slowdowns, Floats]:
        """Slowdowns of each key with each partner, and the probability that the two fit, (N, N, T).

        `log_alone` (N, T) are logarithms of rates alone, which the slowdowns refer to.
        """
        slowdowns, fits = self._by_model(completion, tuple(keys), tuple(gpu_types))
        mean, sd, fits = slowdowns.mean.copy(), slowdowns.sd.copy(), fits.copy()
        row = {key: i for i, key in enumerate(keys)}
        column = {name: t for t, name in enumerate(gpu_types)}
        for (first, second, gpu_type), rate_filter in self._filters.items():
            if first in row and second in row and gpu_type in column:
                i, j, t = row[first], row[second], column[gpu_type]
                mean[i, j, t] = rate_filter.level - log_alone[i, t]
                sd[i, j, t], fits[i, j, t], fits[j, i, t] = math.sqrt(rate_filter.variance), 1.0, 1.0
        for cell in self._idle_s:
            first, second, gpu_type = cell
            if self.is_stuck(cell) and first in row and second in row and gpu_type in column:
                i, j, t = row[first], row[second], column[gpu_type]
                fits[i, j, t] = fits[j, i, t] = 0.0
        return replace(slowdowns, mean=mean, sd=sd), fits

    def update_pairs(
        self, rows: dict[Key, int], columns: dict[str, int], pair_rows: Ints, rates: Floats
    ) -> tuple[Ints, Floats]:
        """A table's pairs (P, 2) and their rates (P, 2, T), updated with the measurements."""
        place = {(int(a), int(b)): k for k, (a, b) in enumerate(pair_rows)}
        known = {cell: math.exp(rate_filter.level) for cell, rate_filter in self._filters.items()}
        known |= {cell: 0.0 for cell in self._idle_s if self.is_stuck(cell)}
        known = {cell: rate for cell, rate in known.items() if cell[0] in rows and cell[1] in rows}
        new = dict.fromkeys(
            pair
            for first, second, _ in known
            if (pair := _ordered(rows[first], rows[second])) not in place and pair[::-1] not in place
        )
        place |= {pair: len(pair_rows) + k for k, pair in enumerate(new)}
        wide = np.concatenate([rates, np.full((len(new), 2, rates.shape[2]), math.nan)])
        for (first, second, gpu_type), rate in known.items():
            a, b = rows[first], rows[second]
            side = 0 if (a, b) in place else 1
            here = place[(a, b) if side == 0 else (b, a)]
            wide[here, side, columns[gpu_type]] = rate
            if a == b or rate == 0.0:
                wide[here, 1 - side, columns[gpu_type]] = rate
        return np.concatenate([pair_rows, np.array(list(new), dtype=np.int64).reshape(-1, 2)]), wide

    def keep(self, keys: Collection[Key]) -> None:
        """Drops the measurements of all other keys."""
        for known in (self._filters, self._idle_s):
            for cell in [cell for cell in known if cell[0] not in keys or cell[1] not in keys]:
                del known[cell]

    def _by_model(
        self, completion: Completion, keys: tuple[Key, ...], gpu_types: tuple[str, ...]
    ) -> tuple[Slowdowns, Floats]:
        """The completion's prediction, cached for the same keys and types."""
        if self._completion is not completion or self._cached_for != (keys, gpu_types) or self._slowdowns is None:
            self._slowdowns, self._fits = completion.pairs(keys, gpu_types)
            self._completion, self._cached_for = completion, (keys, gpu_types)
        return self._slowdowns, self._fits


def _ordered(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one <= other else (other, one)

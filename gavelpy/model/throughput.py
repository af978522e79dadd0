"""Throughput tables: steps/s of each (job type, GPUs) on each GPU type, with the provenance of each rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints, floats, ints, require

if TYPE_CHECKING:
    import pandas as pd


class Provenance(IntEnum):
    """Source of a rate, best first."""

    MEASURED = 0
    PUBLISHED = 1
    ESTIMATED = 2
    PRIOR = 3


@dataclass(frozen=True, eq=False)
class ThroughputTable:
    """Rates of whole jobs. NaN = unknown, 0 = does not fit there."""

    keys: tuple[tuple[str, int], ...]  # N rows: (job type, GPUs)
    gpu_types: tuple[str, ...]  # T columns
    rate_steps_per_s: Floats  # (N, T)
    provenance: Ints  # (N, T) values of Provenance; meaningless where the rate is NaN
    source: tuple[str, ...]  # N: free text on the source of each row
    pair_rows: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))  # (P, 2) rows of keys
    pair_rate_steps_per_s: Floats = field(default_factory=lambda: np.zeros((0, 2, 0)))  # (P, 2, T)

    def __post_init__(self) -> None:
        N, T, P = len(self.keys), len(self.gpu_types), len(self.pair_rows)
        object.__setattr__(self, "rate_steps_per_s", floats("rate_steps_per_s", self.rate_steps_per_s, (N, T)))
        object.__setattr__(self, "provenance", ints("provenance", self.provenance, (N, T)))
        object.__setattr__(self, "pair_rows", ints("pair_rows", np.reshape(self.pair_rows, (P, 2)), (P, 2)))
        pairs = np.reshape(self.pair_rate_steps_per_s, (P, 2, T)) if P else np.zeros((0, 2, T))
        object.__setattr__(self, "pair_rate_steps_per_s", floats("pair_rate_steps_per_s", pairs, (P, 2, T)))
        if len(self.source) != N or len(self._row) != N:
            raise InvalidInput(
                f"keys must be unique and have one source each, got {N} keys, {len(self.source)} sources"
            )
        kinds, rows = self.provenance, self.pair_rows
        require("provenance", kinds, np.isin(kinds, list(Provenance)), f"in [0, {len(Provenance)})")
        require("pair_rows", rows, (rows >= 0) & (rows < N), f"in [0, {N})")
        for name in ("rate_steps_per_s", "pair_rate_steps_per_s"):
            values = getattr(self, name)
            require(
                name,
                values,
                np.isnan(values) | (np.isfinite(values) & (values >= 0)),
                "finite and >= 0 (NaN = unknown)",
            )

    @cached_property
    def _row(self) -> dict[tuple[str, int], int]:
        return {key: row for row, key in enumerate(self.keys)}

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._row

    def rates(self, job_type: str, gpus: int) -> Mapping[str, float]:
        """Known steps/s by GPU type of a job of this type on this many GPUs; empty if all are unknown."""
        row = self._row.get((job_type, gpus))
        if row is None:
            return {}
        values = self.rate_steps_per_s[row].tolist()
        return {t: rate for t, rate in zip(self.gpu_types, values, strict=True) if rate == rate}  # not NaN

    def slowdowns(self, keys: Sequence[tuple[str, int]], gpu_types: Sequence[str]) -> Floats:
        """Rate of each key co-located with each key / alone, (N, N, T): 0 = they do not fit, NaN = unknown."""
        known = np.full((len(self.keys) + 1, len(self.keys) + 1, len(self.gpu_types) + 1), np.nan)
        alone = self.rate_steps_per_s[self.pair_rows]
        relative = np.divide(self.pair_rate_steps_per_s, alone, out=np.zeros_like(alone), where=~(alone <= 0))
        first, second = self.pair_rows.T
        mean = relative.mean(axis=1, keepdims=True)  # for two jobs of one key
        relative = np.where((first == second)[:, None, None], mean, relative)
        known[first, second, :-1], known[second, first, :-1] = relative[:, 0], relative[:, 1]
        row = np.array([self._row.get(key, len(self.keys)) for key in keys], dtype=np.int64)
        place = {name: t for t, name in enumerate(self.gpu_types)}
        column = np.array([place.get(name, len(place)) for name in gpu_types], dtype=np.int64)
        return np.asarray(known[np.ix_(row, row, column)])

    def job_types(self, gpus: int | None = None) -> tuple[str, ...]:
        """Job types with a row (for this number of GPUs, if given), in table order, without duplicates."""
        return tuple(dict.fromkeys(name for name, n in self.keys if gpus is None or n == gpus))

    def to_frame(self) -> pd.DataFrame:
        """One row per known entry: job_type, gpus, gpu_type, rate_steps_per_s, provenance, source."""
        import pandas as pd

        rows = [
            (*key, gpu_type, float(rate), Provenance(int(kind)).name.lower(), source)
            for key, rates, kinds, source in zip(
                self.keys, self.rate_steps_per_s, self.provenance, self.source, strict=True
            )
            for gpu_type, rate, kind in zip(self.gpu_types, rates, kinds, strict=True)
            if not np.isnan(rate)
        ]
        return pd.DataFrame(rows, columns=["job_type", "gpus", "gpu_type", "rate_steps_per_s", "provenance", "source"])

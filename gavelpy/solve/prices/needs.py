"""The least rate that each job must have, as the level rises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gavelpy.model.arrays import Floats, Ints


class Needs(Protocol):
    """Least rates in units of each job's best rate; a job that would need more than that runs at its best."""

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Needs at a level, (K,) <= 1, and how fast they rise with it, (K,) >= 0."""
        ...  # a protocol's body

    def some(self, rows: Ints) -> Needs:
        """The needs of some of the jobs."""
        ...  # a protocol's body


@dataclass(frozen=True, eq=False)
class Proportional:
    """Each job's value at least the level."""

    per_level: Floats  # (K,) > 0

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Rates that have the value `level`."""
        need = level * self.per_level
        if need.max(initial=0.0) <= 1.0:
            return need, self.per_level
        return np.minimum(need, 1.0), np.where(need < 1.0, self.per_level, 0.0)

    def some(self, rows: Ints) -> Proportional:
        """The needs of some of the jobs."""
        return Proportional(self.per_level[rows])


@dataclass(frozen=True, eq=False)
class Fixed:
    """Floors that no level moves."""

    floor: Floats  # (K,) in 0..1

    def at(self, level: float) -> tuple[Floats, Floats]:  # noqa: ARG002 the protocol's
        """The floors."""
        return self.floor, np.zeros(len(self.floor))

    def some(self, rows: Ints) -> Fixed:
        """The floors of some of the jobs."""
        return Fixed(self.floor[rows])

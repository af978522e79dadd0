"""A linear problem seen from its prices: what jobs do at each point, and what that says of the optimum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.needs import Needs
from gavelpy.solve.prices.table import Sweep, Table
from gavelpy.solve.twins import INTERPRETED_MAX

PRICE_FLOOR = 1e-12  # of the highest price: what a free type costs, so that nobody uses it in vain


@dataclass(frozen=True, eq=False)
class Dual:
    """Needs of rate that rise with a level, as high as can be; or fixed needs and the most gain, without a level."""

    table: Table
    needs: Needs
    level_max: float | None = None  # no level above has a meaning; None = there is no level
    root: Callable[[Dual, Sweep, Floats, Floats], float] | None = None  # what a sweep proves, where needs bend
    is_size: bool = False  # the level is minus the number of times that the cluster must be there for fixed needs

    @property
    def leveled(self) -> bool:
        """Whether there is a level to raise."""
        return self.level_max is not None

    def over(self, s: Sweep, level: float) -> Floats:
        """GPUs used above those there are, (T,)."""
        return s.used + self.table.gpu_counts * level if self.is_size else s.used - self.table.gpu_counts

    def drift(self, s: Sweep) -> Floats:
        """GPUs that a unit of level takes, (T,)."""
        return self.table.gpu_counts if self.is_size else s.drift

    def sampled(self, rows: Ints) -> Dual:
        """The same for some of the jobs, and their part of the GPUs."""
        some = self.table.some(rows)
        part = float(some.load.sum() / self.table.load.sum())
        return replace(self, table=replace(some, gpu_counts=self.table.gpu_counts * part), needs=self.needs.some(rows))

    def swept(self, price: Floats, level: float, width: float = 0.0) -> Sweep:
        """What every job does at this point."""
        need, slope = self.needs.at(level)
        return kernels(len(need)).sweep(self.table, need, slope, price, width, level)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the dual."""

    price: Floats  # (T,)
    level: float
    excess: float = math.inf  # largest difference of GPUs used to GPUs there, in units of what is close
    bound: float = math.inf  # no level is above, or no sum; the least that was met on the way here


def kernels(jobs: int) -> ModuleType:
    """The loops over that many jobs: in numpy, or in machine code, which takes a second to load."""
    if jobs <= INTERPRETED_MAX:
        from gavelpy.solve.prices import interpreted

        return interpreted
    from gavelpy.solve.prices import compiled

    return compiled

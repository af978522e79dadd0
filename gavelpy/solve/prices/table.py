"""Jobs as the price engine sees them: K rows that want GPUs, T types that sell them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gavelpy.model.arrays import Floats, Ints

IDLE = -1  # a mode of running: not at all

Modes = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Table:
    """K classes of equal jobs that run alone, in equilibrated numbers."""

    rate: Floats  # (K, T) in units of the job's best rate; 0 = cannot run there
    gpus: Floats  # (K,) GPUs of one job
    count: Floats  # (K,) jobs in the class
    gpu_counts: Floats  # (T,)
    gain: Floats  # (K, T) worth of one job's time there, beyond its need; (0, T) = none

    @property
    def load(self) -> Floats:
        """GPUs of a class, (K,)."""
        return self.gpus * self.count

    def some(self, rows: Ints) -> Table:
        """The table of some rows."""
        return replace(
            self,
            rate=self.rate[rows],
            gpus=self.gpus[rows],
            count=self.count[rows],
            gain=self.gain[rows] if len(self.gain) else self.gain,
        )


@dataclass(frozen=True, eq=False)
class Sweep:
    """Each job's cheapest mix of at most two modes that reaches its need within its time: low, and high for the rest.

    A job that needs less than its cheapest mode gives has low == high.
    """

    low: Modes  # (K,) GPU type or IDLE
    high: Modes  # (K,)
    margin: Floats  # (K,) how far, relatively, prices and level may move until another mix may be cheaper
    used: Floats  # (T,) GPUs
    drift: Floats  # (T,) GPUs more for each unit of level
    curvature: Floats  # (T, T) GPUs fewer for each unit of price, smoothed
    reward: float  # of all jobs
    short: int  # classes that need more than their best rate


@dataclass(frozen=True, eq=False)
class Tally:
    """What shares and duals come to, by the arithmetic of the problem itself: see `proof`."""

    least: float  # of scale x rate, over the jobs with a scale
    total: float  # of gains
    used: Floats  # (T,) GPUs
    budgets: float  # least that the jobs' time can be worth under these duals
    floors: float  # worth of the floors
    weights: float  # of the duals in units of 1 / scale
    worst_sign: float  # largest share below zero
    worst_time: float  # largest time above 1
    worst_floor: float  # largest relative lack of a floor

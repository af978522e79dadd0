"""Medians of wall time, and peak memory of a process."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
RUNS = 5
FIRST_MAX = 2.0


@dataclass(frozen=True)
class Timed(Generic[T]):
    """Median seconds of some runs, and the last result."""

    median_s: float
    runs: int
    answer: T


def timed(call: Callable[[], T], *, prepare: Callable[[], None] = lambda: None, budget_s: float = 10.0) -> Timed[T]:
    """Times `call` up to RUNS times, while `budget_s` lasts; `prepare` runs before each and is not timed.

    An additional first run triggers imports on first use; it counts only if it took FIRST_MAX budgets.
    """
    times: list[float] = []
    while len(times) <= RUNS and _has_time(times, budget_s):
        prepare()
        began_s = time.perf_counter()
        answer = call()
        times.append(time.perf_counter() - began_s)
    counted = times[1:] or times
    return Timed(statistics.median(counted), len(counted), answer)


def _has_time(times: list[float], budget_s: float) -> bool:
    match times:
        case []:
            return True
        case [first]:
            return first <= FIRST_MAX * budget_s
        case [_, *counted]:
            return sum(counted) + counted[-1] <= budget_s
    return False


class Patience:
    """Decides whether to run a contender at the next size: not if it exceeded a limit, or is forecast to.

    The forecast is a power law through its last two sizes, never flatter than linear.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._known: list[tuple[int, float]] = []

    def add(self, jobs: int, took_s: float) -> None:
        """Records a size and its time."""
        self._known.append((jobs, took_s))

    def forecast_s(self, jobs: int) -> float:
        """Forecast in seconds for this many jobs; 0 without data."""
        if not self._known:
            return 0.0
        last_jobs, last_s = self._known[-1]
        power = 1.0
        if len(self._known) > 1:
            before_jobs, before_s = self._known[-2]
            power = max(1.0, math.log(last_s / before_s) / math.log(last_jobs / before_jobs))
        return last_s * math.pow(jobs / last_jobs, power)

    def is_over(self, jobs: int) -> bool:
        """Whether to skip this size."""
        over = any(took_s > self._limit_s for _, took_s in self._known)
        return over or self.forecast_s(jobs) > 3.0 * self._limit_s


def peak_memory_mb() -> float:
    """Peak memory of this process, in MB; NaN if the platform does not report it."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would include the parent's memory until this process started
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return float(line.split()[1]) / 1024.0
    if sys.platform == "win32":
        return float("nan")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024.0**2 if sys.platform == "darwin" else 1024.0)

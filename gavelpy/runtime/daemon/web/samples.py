"""Time owed and received of living jobs, and prices of GPUs and other resources, since this scheduler started.

A sample has the sums of every living job, so memory is bounded: above VALUES_MAX or SAMPLES_MAX every second sample is
dropped and the period doubles; with the longest period the oldest sample is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.view import standing
from gavelpy.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

SAMPLES_MAX = 720
VALUES_MAX = 2_000_000  # of one job in one sample, 24 bytes each
SAMPLES_A_ROUND = 30
PERIOD_S_MIN, PERIOD_S_MAX = 1.0, 600.0


@dataclass(frozen=True, eq=False)
class _Sample:
    now_s: float
    jobs: Ints  # (K,) serials, ascending
    owed_s: Floats  # (K,)
    received_s: Floats  # (K,)
    prices: Mapping[str, float]
    others: Mapping[tuple[str, str], float]  # by GPU type and resource


class Samples:
    """Samples of a scheduler while `run` runs."""

    def __init__(self, scheduler: Scheduler, *, values_max: int = VALUES_MAX, samples_max: int = SAMPLES_MAX) -> None:
        self._scheduler, self._values_max, self._samples_max = scheduler, values_max, samples_max
        self._samples: list[_Sample] = []
        period_s = scheduler.core.settings.round_s / SAMPLES_A_ROUND
        self.period_s = min(max(period_s, PERIOD_S_MIN), PERIOD_S_MAX)

    async def run(self) -> None:
        """Takes samples until it is cancelled."""
        while True:
            self.take(self._scheduler.now_s())
            await asyncio.sleep(self.period_s)

    def take(self, now_s: float) -> None:
        """Takes a sample."""
        core = self._scheduler.core
        rows = core.jobs.active
        _, _, owed_s, received_s, _ = standing(core, rows, now_s)
        engine = self._scheduler.engine
        prices, others = dict(engine.shadow_prices), dict(engine.resource_prices)
        self._samples.append(_Sample(now_s, core.jobs.ids.of_rows(rows), owed_s, received_s, prices, others))
        while len(self._samples) > 1 and self._is_full():
            if 2 * self.period_s > PERIOD_S_MAX:
                del self._samples[0]
            else:
                self._samples, self.period_s = self._samples[len(self._samples) % 2 :: 2], 2 * self.period_s

    def _is_full(self) -> bool:
        values = sum(len(sample.jobs) for sample in self._samples)
        return len(self._samples) > self._samples_max or values > self._values_max

    def of_job(self, job: int) -> dict[str, list[float]]:
        """Unix times, and the time that a job was owed and had received by then, in seconds."""
        found: dict[str, list[float]] = {"time_s": [], "owed_s": [], "received_s": []}
        for sample in self._samples:
            row = int(np.searchsorted(sample.jobs, job))
            if row < len(sample.jobs) and sample.jobs[row] == job:
                found["time_s"].append(self._scheduler.wall_s(sample.now_s))
                found["owed_s"].append(float(sample.owed_s[row]))
                found["received_s"].append(float(sample.received_s[row]))
        return found

    def prices(self) -> dict[str, object]:
        """Unix times, and the price of each GPU type at these times; NaN = unknown.

        `by_resource`: of CPU cores, memory and quotas of teams, where it was positive at some time.
        """
        types = sorted({name for sample in self._samples for name in sample.prices})
        others = sorted({key for sample in self._samples for key, price in sample.others.items() if price > 0})
        return {
            "time_s": [self._scheduler.wall_s(sample.now_s) for sample in self._samples],
            "by_type": {name: [sample.prices.get(name, math.nan) for sample in self._samples] for name in types},
            "by_resource": [
                {
                    "gpu_type": gpu_type,
                    "resource": resource,
                    "values": [sample.others.get((gpu_type, resource), math.nan) for sample in self._samples],
                }
                for gpu_type, resource in others
            ],
        }

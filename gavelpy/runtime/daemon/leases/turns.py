"""Measures what the start and the stop of a lease cost its job, by the scheduler's clock and the reports of nodes.

A start lasts from the first report of running processes to the first report of a step under this lease. A stop lasts
from the order to stop to the end of the last part. So the times include up to one interval of heartbeats each. A job
that reports no steps has no measured start; nor has one whose first step comes with the first report, or during which
the scheduler was restarted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.events import TurnMeasured

if TYPE_CHECKING:
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.runtime.daemon.leases.lease import Lease

NOTABLE = 0.2  # change of a known time that is reported
NOTABLE_S = 1.0


class LeaseTimes:
    """The measured start and stop of one lease; NaN = not known yet."""

    __slots__ = ("restart_s", "save_s", "started_at_s", "stopping_at_s")

    def __init__(self) -> None:
        self.started_at_s = self.stopping_at_s = math.nan
        self.restart_s = self.save_s = 0.0  # 0 = not measured, or reported to the core

    def started(self, now_s: float) -> None:
        """Its processes run."""
        self.started_at_s = now_s

    def stepped(self, now_s: float) -> None:
        """It has made steps."""
        if now_s > self.started_at_s:
            self.restart_s = now_s - self.started_at_s
        self.started_at_s = math.nan

    def stopping(self, now_s: float) -> None:
        """It was ordered to save and stop."""
        self.stopping_at_s = now_s

    def stopped(self, now_s: float) -> None:
        """A part of it has stopped as ordered; the last one counts."""
        if self.stopping_at_s < now_s < math.inf:
            self.save_s = now_s - self.stopping_at_s

    def news(self, jobs: JobTable, job: int) -> tuple[float, float]:
        """The times that differ notably from those that the core knows, once; 0 = none."""
        known = float(jobs.restart_s[job]), float(jobs.save_s[job])
        found = tuple(
            time_s if abs(time_s - before_s) > max(NOTABLE_S * (before_s > 0), NOTABLE * before_s) else 0.0
            for time_s, before_s in zip((self.restart_s, self.save_s), known, strict=True)
        )
        self.restart_s = self.save_s = 0.0
        return found[0], found[1]


def turns_measured(leases: Sequence[Lease], jobs: JobTable) -> list[TurnMeasured]:
    """The event that these leases were measured; none if the core knows all of it."""
    news = [(lease.job, lease.lease, *lease.turn.news(jobs, lease.job)) for lease in leases]
    new = [row for row in news if row[2] or row[3]]
    if not new:
        return []
    serials, times = np.array([row[:2] for row in new]), np.array([row[2:] for row in new], dtype=np.float64)
    return [TurnMeasured(serials[:, 0], serials[:, 1], times[:, 0], times[:, 1])]

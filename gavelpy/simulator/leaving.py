"""Lets jobs that are over leave the core's tables in long simulations, and keeps what results report of them.

Without this, memory and the work of a wake-up grow with all jobs that ever arrived, not with those that are there.
Decisions are the same with it: see `mechanism.archiving`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gavelpy.mechanism import failures
from gavelpy.mechanism.archiving import can_leave
from gavelpy.mechanism.consolidation import fragmentation_delays_s
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import JobsArchived
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobSpec

OVER_MIN = 10_000  # jobs that are over stay until there are so many: small simulations have no event of this
CANCELLED = "cancelled by its user"


class LeavingJobs:
    """Jobs that have left in one run, by serial."""

    def __init__(self, core: SchedulerCore, jobs: Iterable[JobSpec], over_min: int = OVER_MIN) -> None:
        self._core, self._over_min = core, over_min
        self._any_order = any(job.after_ok or job.after_any for job in jobs)
        self._ends: dict[int, str] = {}  # why those are over that did not finish
        self._delays_s: dict[int, float] = {}  # fragmentation delays

    def due(self) -> JobsArchived | None:
        """The event by which all jobs that can leave do, once half of the rows are of jobs that are over.

        None before, and where jobs come after others: a core takes jobs that have left for finished ones.
        """
        jobs = self._core.jobs
        over = jobs.count - len(jobs.active)
        if over < max(self._over_min, 1, len(jobs.active)) or self._any_order:
            return None
        rows = np.flatnonzero(jobs.state[: jobs.count] > LAST_ALIVE)
        rows = rows[can_leave(self._core, rows)]
        if 2 * len(rows) < over:
            return None  # most are still stopping
        leaving = jobs.marks(rows)
        serials = jobs.ids.of_rows(rows)
        self._ends |= {job: text for job, text in self._ends_here().items() if leaving[jobs.ids.row(job)]}
        if jobs.apart:
            delays_s = fragmentation_delays_s(self._core)[serials]
            late = delays_s > 0
            self._delays_s |= dict(zip(serials[late].tolist(), delays_s[late].tolist(), strict=True))
        return JobsArchived(serials.copy())

    def ends(self) -> dict[int, str]:
        """Why jobs are over that have not finished: those that left and those that are there."""
        return self._ends | self._ends_here()

    def delays_s(self) -> Floats:
        """The fragmentation delay of each job so far, (J,)."""
        found = fragmentation_delays_s(self._core)
        found[list(self._delays_s)] = list(self._delays_s.values())
        return found

    def _ends_here(self) -> dict[int, str]:
        jobs, settings = self._core.jobs, self._core.settings
        state = jobs.state[: jobs.count]
        failed, cancelled = (np.flatnonzero(state == one).tolist() for one in (JobState.FAILED, JobState.CANCELLED))
        why = {row: failures.in_words(jobs, row, settings, is_given_up=True) for row in failed}
        why |= dict.fromkeys(cancelled, CANCELLED)
        why |= jobs.apps.ended
        return {jobs.ids.serial(row): text for row, text in why.items()}

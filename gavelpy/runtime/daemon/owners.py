"""The owners of jobs as numbers: counts by owner read one array instead of a specification per job.

The owner of a job never changes, so each job is read once.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Ints


class JobOwners:
    """The owner of each job of a core, by number in order of their first jobs."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._number_of: dict[str, int] = {}
        self._owner: Ints = np.zeros(64, dtype=np.int64)  # (N,) number of each job's owner
        self._seen = 0

    def of_active(self, core: SchedulerCore) -> Ints:
        """Numbers of the owners of all jobs that are not over, in the order of `core.jobs.active`."""
        self._follow(core.jobs)
        return self._owner[core.jobs.active]

    def living_jobs(self, core: SchedulerCore, owner: str) -> int:
        """How many of an owner's jobs are not over."""
        self._follow(core.jobs)
        number = self._number_of.get(owner, -1)
        return int(np.count_nonzero(self._owner[core.jobs.active] == number))

    def _follow(self, jobs: JobTable) -> None:
        """Adds the owners of jobs that were submitted since the last call."""
        if jobs.count > len(self._owner):
            more = np.zeros(max(jobs.count, len(self._owner)), dtype=np.int64)
            self._owner = np.concatenate([self._owner, more])
        for job in range(self._seen, jobs.count):
            owner = jobs.specs[job].owner
            number = self._number_of.setdefault(owner, len(self.names))
            if number == len(self.names):
                self.names.append(owner)
            self._owner[job] = number
        self._seen = jobs.count

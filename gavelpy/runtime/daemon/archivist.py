"""Moves past jobs and the usage of past hours from the scheduler's tables to the archive, some at a time.

The driver calls `next` between two batches of events, and writes what it returns to the journal in one transaction:
the event JobsArchived with the rows of the archive. The jobs are over for longer than `retention` and no node may run a
lease of them, so nothing happens to them meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import math
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.journal.archive_tables import Leaving, PastJob
from gavelpy.mechanism.accept import check
from gavelpy.mechanism.archiving import can_leave, can_retire
from gavelpy.mechanism.events import JobsArchived
from gavelpy.mechanism.translation import to_rows
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.config_sections import JournalSettings
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.queries.past import details_of
from gavelpy.runtime.daemon.usage import HOUR_S

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

logger = logging.getLogger(__name__)
JOBS_AT_ONCE = 500
_READ_AT_ONCE = 50  # between two yields to the event loop
EVERY_S = 60.0
LOAD = 4.0  # pause after a part, as a multiple of its duration


class Archivist:
    """Chooses what leaves."""

    def __init__(self, scheduler: Scheduler, settings: JournalSettings) -> None:
        self._scheduler, self._settings = scheduler, settings
        self._retention_s = settings.retention_s
        self._jobs = JobQueries(scheduler)
        self._allowed_s = 0.0  # by perf_counter
        self._usage_before_s = 0.0

    async def next(self, now_s: float) -> tuple[JobsArchived, Leaving] | None:
        """What leaves now; None = nothing. Only the caller may change the core until it has applied the event."""
        began_s = perf_counter()
        if not self._retention_s or began_s < self._allowed_s:
            return None
        due = self._due(now_s)
        jobs, before_s = due[:JOBS_AT_ONCE], math.floor(now_s / HOUR_S) * HOUR_S
        usage = []
        if before_s > self._usage_before_s:
            usage = self._scheduler.history.usage.leaving(before_s)
            self._usage_before_s = before_s
        found: list[PastJob] = []
        for first in range(0, len(jobs), _READ_AT_ONCE):
            found += self._read(jobs[first : first + _READ_AT_ONCE])
            await asyncio.sleep(0)
        is_more = len(due) > len(jobs)
        pause_s = LOAD * (perf_counter() - began_s) if is_more else EVERY_S
        self._allowed_s = perf_counter() + pause_s
        nodes = self._lost_nodes(now_s)
        event = JobsArchived(jobs, float(before_s), nodes)
        if not (found or usage or nodes):
            return None
        try:
            ids = self._scheduler.core.jobs.ids
            check(self._scheduler.core, to_rows(ids, event)[0] or event)
        except InvalidInput as error:  # it must not be in the journal, as the core would keep what it names
            logger.error("nothing was archived", extra={"detail": str(error)})
            return None
        return event, Leaving(found, usage)

    def events_from_s(self, now_s: float) -> float | None:
        """The archive keeps events for a replay from then on; None = no events."""
        kept_s = self._settings.events_retention_s
        return max(now_s - kept_s, 0.0) if kept_s else None

    @property
    def due_in_s(self) -> float:
        """When `next` may return something again; infinite if nothing is archived."""
        return max(self._allowed_s - perf_counter(), 0.0) if self._retention_s else math.inf

    def _due(self, now_s: float) -> Ints:
        """Jobs that leave, ascending."""
        core = self._scheduler.core
        jobs = self._scheduler.history.ended_by(now_s - self._retention_s)
        jobs = jobs[can_leave(core, core.jobs.ids.rows(jobs))]
        return np.asarray(jobs[~np.isin(jobs, self._scheduler.leases.jobs)])

    def _lost_nodes(self, now_s: float) -> tuple[str, ...]:
        """Nodes that have been lost for as long, and are forgotten."""
        lost_s, core = self._scheduler.history.lost_s, self._scheduler.core
        old = [node for node, at_s in lost_s.items() if at_s <= now_s - self._retention_s]
        return tuple(node for node in sorted(old) if can_retire(core, node))

    def _read(self, jobs: Ints) -> list[PastJob]:
        scheduler = self._scheduler
        table, history = scheduler.core.jobs.by_serial, scheduler.history
        found = []
        for status in self._jobs.statuses(jobs):
            job, spec = status.job, table.specs[status.job]
            entries = [tuple(entry) for entry in history.entries(job)]
            details = details_of(status, spec, entries, history.usage.of_job(job))
            times = (float(table.submitted_s[job]), history.ended_s(job))
            found.append(PastJob(job, spec.owner, name_of(spec.id), spec.entity, int(status.state), *times, details))
        return found

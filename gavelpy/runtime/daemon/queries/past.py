"""Past jobs: their details in the archive, and queries of them, which run in threads of their own.

A job in the archive looks as it did when it left the scheduler's tables. Users see their own jobs, admins all.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gavelpy.errors import InvalidInput, NotFound
from gavelpy.journal.archive_reader import ArchiveReader, Selection
from gavelpy.journal.archive_tables import PastJob
from gavelpy.journal.codec import decode, encode
from gavelpy.mechanism.events import JobSubmitted
from gavelpy.model.job import JobSpec
from gavelpy.runtime.daemon.job_history import HistoryEntry
from gavelpy.runtime.daemon.queries.job_status import JobStatus, PublicState
from gavelpy.runtime.daemon.queries.jobs import JobPage, JobQueries, as_described
from gavelpy.runtime.metric_files import MetricPoint
from gavelpy.runtime.security.identity import Caller

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState

_SERIAL = re.compile(r"[0-9]{1,15}")
_THREADS = 2
UNKNOWN: Mapping[str, Any] = {"int": 0, "str": "", "float": 0.0, "bool": False, "PublicState": PublicState.FAILED}
Answer = TypeVar("Answer")


def details_of(
    status: JobStatus, spec: JobSpec, entries: Sequence[tuple[Any, ...]], usage: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """What the archive keeps of a job, as plain values."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(status).items()}
    return {
        "status": plain | {"state": int(status.state)},
        "submitted": encode(JobSubmitted(spec), 0.0),
        "history": [list(entry) for entry in entries],
        "usage": {gpu_type: list(sums) for gpu_type, sums in usage.items()},
    }


def status_of(past: PastJob) -> JobStatus:
    """The last status of a past job. Fields that came later have the value for unknown."""
    known = past.details["status"]
    values = {f.name: known.get(f.name, UNKNOWN.get(str(f.type), ())) for f in fields(JobStatus)}
    values["metrics"] = [MetricPoint(*point) for point in values["metrics"]]
    return JobStatus(**(values | {"state": PublicState(past.state)}))


def spec_of(past: PastJob) -> JobSpec:
    """The job as it was submitted."""
    event = decode(past.details["submitted"])[1]
    assert isinstance(event, JobSubmitted), "the archive keeps the submission of a job"
    return event.spec


def history_of(past: PastJob) -> list[HistoryEntry]:
    """The newest entries of its history, oldest first."""
    return [HistoryEntry(*entry) for entry in past.details["history"]]


class PastQueries:
    """Queries of a scheduler's archive."""

    def __init__(self, scheduler: SchedulerState, reader: ArchiveReader) -> None:
        self._scheduler, self._reader = scheduler, reader
        self._threads = ThreadPoolExecutor(_THREADS, "archive")

    def close(self) -> None:
        """Ends the threads when their queries have ended."""
        self._threads.shutdown(wait=False)

    async def read(self, use: Callable[[ArchiveReader], Answer]) -> Answer:
        """Calls a function of the reader in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, use, self._reader)

    @property
    def count(self) -> int:
        """Number of jobs that have left the scheduler's tables."""
        jobs = self._scheduler.core.jobs
        return jobs.ids.next_serial - jobs.count

    async def find(self, caller: Caller, text: str) -> PastJob | None:
        """A past job by number or name (admins: OWNER/NAME) that the caller may see; None = there is none."""
        if not self.count or not text:
            return None
        job = -1
        if _SERIAL.fullmatch(text):
            job = int(text)
        else:
            owner, separator, name = text.rpartition("/")
            owner = owner if separator else caller.name
            if caller.is_admin or owner == caller.name:
                job = await self.read(lambda reader: reader.newest(owner, name))
        if job < 0 or self._scheduler.core.jobs.ids.row(job) >= 0:
            return None
        found = (await self.read(lambda reader: reader.found([job]))).get(job)
        return found if found is not None and (caller.is_admin or found.owner in (caller.name, "")) else None

    async def among(self, caller: Caller, jobs: JobQueries, names: Sequence[str]) -> dict[str, PastJob]:
        """Those of these names that are of past jobs; others are left out, known or not."""
        found = {}
        for name in dict.fromkeys(names) if self.count else ():
            try:
                jobs.find(caller, name)
            except NotFound:
                if (past := await self.find(caller, name)) is not None:
                    found[name] = past
        return found

    async def page(
        self, caller: Caller, *, owner: str, states: AbstractSet[PublicState], after: int, size: int, since_s: float
    ) -> list[PastJob]:
        """The first past jobs after a number. `since_s`: Unix time; 0 = ended at any time."""
        selected = owner or (None if caller.is_admin else caller.name)
        if not self.count or (selected is not None and selected != caller.name and not caller.is_admin):
            return []
        ended_s = since_s - self._scheduler.wall_s(0.0) if since_s else None
        codes = None if len(states) == len(PublicState) else {int(state) for state in states}
        which = Selection(after, selected, codes, ended_s)
        return await self.read(lambda reader: reader.jobs(which, size))

    def check_after(self, spec: JobSpec, past: Mapping[int, PastJob]) -> None:
        """Raises InvalidInput for a job that can never start, as one that it comes after did not finish."""
        for other in spec.after_ok:
            found = past.get(other)
            if found is not None and found.state != PublicState.FINISHED:
                how = PublicState(found.state).name.lower()
                allowed = f"jobs that have finished or still can; {other}:any waits for its end only"
                raise InvalidInput(f"after must name {allowed}, got job {other}, which is {how}")


def merged(page: JobPage, past: Sequence[PastJob], size: int) -> tuple[list[int | PastJob], int]:
    """Jobs of both kinds in order of their numbers, at most `size`, and where the next page begins (-1 = nowhere)."""
    both: list[tuple[int, int | PastJob]] = [(job, job) for job in page.jobs] + [(job.job, job) for job in past]
    both.sort(key=lambda one: one[0])
    is_more = len(both) > size or page.next_after >= 0 or len(past) == size
    chosen = both[:size]
    return [one for _, one in chosen], chosen[-1][0] if is_more and chosen else -1


def described(past: PastJob, *, shows_environment: bool) -> JobSpec:
    """A past job as its owner described it."""
    spec = spec_of(past)
    found = as_described(spec)
    return replace(found, environment=spec.environment) if shows_environment else found


def history_lines(past: PastJob, epoch_s: float) -> list[str]:
    """Its history with dates."""
    return [
        f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(epoch_s + entry.now_s))}  {entry.line}"
        for entry in history_of(past)
    ]

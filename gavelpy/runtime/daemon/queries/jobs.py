"""Jobs: which ones a caller may see, lookup by number or name, pages, and warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput, NotFound
from gavelpy.mechanism import non_preemptible
from gavelpy.mechanism.accept import NAMES_SHOWN
from gavelpy.mechanism.feasibility import cannot_run
from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.model.arrays import Ints
from gavelpy.model.job import JobId, JobSpec
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.queries.fields import number, require, shown
from gavelpy.runtime.daemon.queries.job_status import JobStatus, JobStatuses, PublicState
from gavelpy.runtime.security.identity import Caller

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState

HIDDEN = "***"
_SHOWN = re.compile(
    r"PATH|HOME|LANG|LC_[A-Z]+|TZ|TMPDIR|TERM|SHELL|PYTHON(PATH|UNBUFFERED|HASHSEED|FAULTHANDLER)|VIRTUAL_ENV|LD_LIBRARY_PATH"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS|CUDA_(HOME|LAUNCH_BLOCKING|DEVICE_ORDER)|NCCL_(DEBUG|IB_DISABLE|SOCKET_IFNAME)"
)
_SERIAL, _OWNER_SEPARATOR = re.compile(r"[0-9]{1,15}"), "/"
PAGE_DEFAULT, PAGE_MAX, JOBS_NAMED_MAX = 1_000, 10_000, 10_000


@dataclass(frozen=True)
class JobPage:
    """Serials of jobs, ascending. `next_after`: where the next page begins; -1 = this is the last."""

    jobs: Sequence[int]
    next_after: int


class JobQueries:
    """Reads jobs from a scheduler; has an index by owner."""

    def __init__(self, scheduler: SchedulerState) -> None:
        self._scheduler = scheduler
        self._of_owner: dict[str, list[int]] = {}
        self._seen = self._gone = 0
        self._statuses = JobStatuses(scheduler)

    # Visibility ---------------------------------------------------------------------------------------------------

    def serials(self, caller: Caller, owner: str = "") -> Ints:
        """Serials of the jobs that a caller may see, ascending, optionally of one owner."""
        if caller.is_admin and not owner:
            return self._scheduler.core.jobs.ids.serials
        selected = owner or caller.name
        if selected != caller.name and not caller.is_admin:
            return np.zeros(0, dtype=np.int64)  # as if that owner had none: names do not leak
        self._follow()
        return np.array(self._of_owner.get(selected, ()), dtype=np.int64)

    def may_see(self, caller: Caller, job: int) -> bool:
        """Whether the caller is an admin or owns the job, which has not left (see `past`). All see lost ones."""
        row = self._scheduler.core.jobs.ids.row(job)
        return caller.is_admin or (row >= 0 and self._scheduler.core.jobs.specs[row].owner in (caller.name, ""))

    def find(self, caller: Caller, text: str) -> int:
        """The serial of a job by number or name (admins: OWNER/NAME); raises NotFound if the caller may see none."""
        job = -1
        if _SERIAL.fullmatch(text):
            job = int(text)
        elif text:
            owner, separator, name = text.rpartition(_OWNER_SEPARATOR)
            if not separator:
                job = self._scheduler.job_named(caller.name, name)
            elif caller.is_admin or owner == caller.name:
                job = self._scheduler.job_named(owner, name)
        if self._scheduler.core.jobs.ids.row(job) < 0 or not self.may_see(caller, job):
            hint = " (admins name others' jobs OWNER/NAME)" if caller.is_admin and not _SERIAL.fullmatch(text) else ""
            raise NotFound(f"job must be the number or name of one of yours, got {shown(text)}{hint}")
        return job

    def of_app(self, caller: Caller, text: str) -> list[int]:
        """Serials of the jobs of an app that have not left, ascending; raises NotFound if the caller may see none.

        `text`: its name (the newest of this name; admins: OWNER/NAME), or the number of one of its jobs.
        """
        jobs = self._scheduler.core.jobs
        of = jobs.apps.app_of
        if _SERIAL.fullmatch(text):
            label = of.get(jobs.ids.row(job := self.find(caller, text)))
            if label is None:
                raise NotFound(f"app must be that of a job, got job {job} ({self.name(job)}), which belongs to none")
            return [jobs.ids.serial(row) for row, one in of.items() if one == label]
        owner, separator, name = text.rpartition(_OWNER_SEPARATOR)
        owner = owner if separator else caller.name
        found: dict[str, list[int]] = {}
        for row, label in of.items() if caller.is_admin or owner == caller.name else ():
            if label.startswith(f"{name}/") and jobs.specs[row].owner == owner:
                found.setdefault(label, []).append(jobs.ids.serial(row))
        if not name or not found:
            others = ", for admins also OWNER/NAME" * caller.is_admin
            allowed = f"the name of one of yours{others}, or the number of a job of it (gavel app list)"
            raise NotFound(f"app must be {allowed}, got {shown(text)}")
        return max(found.values())

    def named(self, caller: Caller, names: Sequence[str]) -> Ints:
        """Serials of jobs without duplicates, in order; raises NotFound if the caller may not see one."""
        require(1 <= len(names) <= JOBS_NAMED_MAX, "jobs", f"1 to {JOBS_NAMED_MAX} jobs", len(names))
        return np.array(list(dict.fromkeys(self.find(caller, name) for name in names)), dtype=np.int64)

    def page(
        self, caller: Caller, *, owner: str = "", states: AbstractSet[PublicState] | None = None, after: int = -1,
        size: int = PAGE_DEFAULT, ended_since_s: float = 0.0,
    ) -> JobPage:  # fmt: skip
        """The first jobs after a serial, optionally of one owner or in some states; by default those not over.

        With `ended_since_s`, a Unix time, none of the jobs that ended before.
        """
        require(0 < size <= PAGE_MAX, "page_size", f"at most {PAGE_MAX}", size)
        rows = self.serials(caller, owner)
        rows = rows[rows > after]
        if states is None:
            rows = rows[self._scheduler.core.jobs.by_serial.state[rows] <= ALIVE[-1]]
        elif len(states) < len(PublicState):
            rows = rows[np.isin(self._statuses.states(rows), list(states))]
        if number("ended_since_s", ended_since_s):
            is_over = self._scheduler.core.jobs.by_serial.state[rows] > ALIVE[-1]
            since_s = ended_since_s - self._scheduler.wall_s(0.0)
            rows = rows[~is_over | self._scheduler.history.ended_since(rows, since_s)]
        page = rows[:size].tolist()
        return JobPage(page, page[-1] if len(rows) > size else -1)

    def name(self, job: int) -> str:
        """The name of a job."""
        return name_of(self._scheduler.core.jobs.by_serial.specs[job].id)

    def _follow(self) -> None:
        jobs = self._scheduler.core.jobs
        if (gone := jobs.ids.next_serial - jobs.count) != self._gone:  # jobs have left
            self._of_owner, self._seen, self._gone = {}, 0, gone
        for job, spec in zip(jobs.ids.serials[self._seen :].tolist(), jobs.specs[self._seen :], strict=True):
            self._of_owner.setdefault(spec.owner, []).append(job)
        self._seen = jobs.count

    def states(self, jobs: Ints) -> Ints:
        """State of each job as a PublicState, (K,)."""
        return self._statuses.states(jobs)

    def statuses(self, jobs: Sequence[int] | Ints) -> list[JobStatus]:
        """The status of these jobs. Many take long: call it in pieces."""
        return self._statuses.of(jobs)

    def check_requeue(self, rows: Sequence[int], *, force: bool) -> None:
        """Raises InvalidInput for jobs that have no lease to stop, or would start from scratch without `force`."""
        jobs = self._scheduler.core.jobs.by_serial
        for job in rows:
            where = f"job {job} ({self.name(job)})"
            if jobs.state[job] > ALIVE[-1]:
                raise InvalidInput(f"{where} is over, and cannot be requeued: submit it again")
            if jobs.lease[job] < 0:
                raise InvalidInput(f"{where} has no lease to stop: it waits already")
            if non_preemptible.is_finishing(jobs, np.array([job]))[0]:
                raise InvalidInput(f"{where} has done its last step and is about to end: a requeue would repeat work")
            if non_preemptible.loses_all(jobs, job) and not force and jobs.state[job] == JobState.RUNNING:
                lost = (
                    f"about {self._statuses.steps_done(job):.0f} steps"
                    if self._statuses.steps_done(job)
                    else "its work so far"
                )
                why = f"never saved a checkpoint, and a requeue loses {lost}"
                raise InvalidInput(f"{where} {why}: add --force to start it from scratch")

    def warnings(self, rows: Ints) -> dict[int, str]:
        """Warnings by serial: the job cannot run, or has a rate for a GPU type that the cluster lacks."""
        core = self._scheduler.core
        never, ids = cannot_run(core, core.jobs.ids.rows(rows)), core.jobs.ids
        found = {ids.serial(row): f"cannot run on this cluster as it is: {why}" for row, why in never.items()}
        known, here = set(core.pool.gpu_types), ", ".join(core.pool.gpu_types)
        for job in rows.tolist():
            spec = core.jobs.by_serial.specs[job]
            unknown = [name for name in (*spec.nodes, *spec.exclude) if name not in core.pool.node_row]
            if unknown and job not in found:
                nodes = ", ".join(sorted(core.pool.node_ids)[:NAMES_SHOWN])
                found[job] = f"no node has the name {', '.join(unknown[:NAMES_SHOWN])} now; the cluster has {nodes}"
            strange = sorted(set(spec.rates_steps_per_s).union(*spec.rates_by_size.values()) - known)
            if strange and job not in found:
                found[job] = f"no node has GPUs of type {', '.join(strange)}; the cluster has {here}"
        return found


def as_described(spec: JobSpec) -> JobSpec:
    """A job as its owner described it: with its own name, and without values that may be secrets."""
    id, environment = JobId(name_of(spec.id)), redacted(spec.environment)
    return replace(spec, id=id, environment=environment, notify=spec.notify.redacted)


def redacted(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with *** in place of all values except those of variables that are known not to be secrets."""
    return {name: value if _SHOWN.fullmatch(name) else HIDDEN for name, value in environment.items()}

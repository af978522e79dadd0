"""A page of a table of jobs, filtered and sorted by columns of many jobs at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.view import standing
from gavelpy.model.arrays import Floats, Ints
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.queries.fields import require, text
from gavelpy.runtime.daemon.queries.job_status import PublicState
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.security.identity import Caller

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState

SIZE_DEFAULT, SIZE_MAX = 50, 500
LIVING = frozenset({PublicState.WAITING, PublicState.STARTING, PublicState.RUNNING, PublicState.STOPPING})
_OFFSET_MAX = 1 << 31


@dataclass(frozen=True)
class JobFilter:
    """Which jobs, in which order, and which of them. Raises InvalidInput."""

    states: AbstractSet[PublicState] = LIVING
    owner: str = ""  # empty = all that the caller may see
    team: str = ""  # empty = all
    name: str = ""  # part of a name; empty = all
    sort: str = "job"
    descending: bool = False
    offset: int = 0
    limit: int = SIZE_DEFAULT

    def __post_init__(self) -> None:
        for field in ("owner", "team", "name"):
            text(field, getattr(self, field))
        require(self.sort in SORTS, "sort", f"one of {', '.join(SORTS)}", self.sort)
        require(0 <= self.offset <= _OFFSET_MAX, "offset", f"in [0, {_OFFSET_MAX}]", self.offset)
        require(1 <= self.limit <= SIZE_MAX, "limit", f"in [1, {SIZE_MAX}]", self.limit)


@dataclass(frozen=True)
class TablePage:
    """Serials of the jobs of a page, in order; the number of jobs that match, and of those in each state."""

    jobs: Sequence[int]
    total: int
    by_state: Mapping[PublicState, int]  # of all states, under the other conditions


def page_of(scheduler: SchedulerState, jobs: JobQueries, caller: Caller, wanted: JobFilter) -> TablePage:
    """The page of a table of the jobs that the caller may see and that have not left for the archive."""
    table, serials = scheduler.core.jobs, jobs.serials(caller, wanted.owner)
    if wanted.team:
        known = table.entities.index(wanted.team) if wanted.team in table.entities else len(table.entities)
        serials = serials[table.entity[table.ids.rows(serials)] == known]
    if wanted.name:
        specs, part = table.specs, wanted.name
        rows = table.ids.rows(serials).tolist()
        serials = serials[np.array([part in name_of(specs[row].id) for row in rows], dtype=np.bool_)]
    states = jobs.states(serials)
    counts = np.bincount(states, minlength=len(PublicState)).tolist()
    if len(wanted.states) < len(PublicState):
        serials = serials[np.isin(states, list(wanted.states))]
    if wanted.sort == "job":
        serials = serials[::-1] if wanted.descending else serials
    else:
        column = SORTS[wanted.sort](scheduler, jobs, serials)
        serials = serials[np.argsort(-column if wanted.descending else column, kind="stable")]
    found = serials[wanted.offset : wanted.offset + wanted.limit].tolist()
    return TablePage(found, len(serials), dict(zip(PublicState, counts, strict=True)))


Column = Callable[["SchedulerState", JobQueries, Ints], Floats | Ints]


def _number(_: SchedulerState, __: JobQueries, serials: Ints) -> Ints:
    return serials


def _state(_: SchedulerState, jobs: JobQueries, serials: Ints) -> Ints:
    return jobs.states(serials)


def _of_table(name: str) -> Column:
    def column(scheduler: SchedulerState, _: JobQueries, serials: Ints) -> Floats | Ints:
        table = scheduler.core.jobs
        found: Floats | Ints = getattr(table, name)[table.ids.rows(serials)]
        return found

    return column


def _progress(scheduler: SchedulerState, _: JobQueries, serials: Ints) -> Floats:
    table = scheduler.core.jobs
    rows = table.ids.rows(serials)
    found: Floats = table.steps_done[rows] / np.maximum(table.steps_total[rows], 1e-300)
    return found


def _urgency(scheduler: SchedulerState, _: JobQueries, serials: Ints) -> Floats:
    core = scheduler.core
    return standing(core, core.jobs.ids.rows(serials), scheduler.now_s())[-1]


SORTS: Mapping[str, Column] = {
    "job": _number,
    "state": _state,
    "gpus": _of_table("gpus"),
    "progress": _progress,
    "submitted": _of_table("submitted_s"),
    "urgency": _urgency,
}

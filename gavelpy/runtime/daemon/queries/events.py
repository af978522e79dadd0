"""Events of the journal for clients, as sentences and as JSON: a page, or a stream that follows new events."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.journal.archive_reader import ArchiveReader
from gavelpy.journal.codec import journal_name
from gavelpy.journal.store import EventStore
from gavelpy.journal.tables import Entry
from gavelpy.mechanism.events import (
    AllocationSolved,
    Event,
    GpuMemoryMeasured,
    IdsReserved,
    JobAnnotated,
    JobCancelled,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    MetricsReported,
    NodeLost,
    NodeUnreachable,
    Outcome,
    PriorityChanged,
    ReservationAdded,
    ReservationRemoved,
    TotalAnnounced,
    TurnMeasured,
)
from gavelpy.mechanism.named_round import is_named
from gavelpy.mechanism.nodes import peers_text
from gavelpy.mechanism.priority_classes import NORMAL
from gavelpy.model.job import JobSpec
from gavelpy.runtime.daemon.job_history import SEPARATOR, name_of
from gavelpy.runtime.daemon.queries.fields import require
from gavelpy.runtime.daemon.queries.jobs import JobQueries, redacted
from gavelpy.runtime.security.identity import Caller

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

_EVENTS_A_PAGE = 500
EVENTS_DEFAULT = 1_000
_WAIT_S = 30.0
NOT_KEPT = "events-not-kept"
_SHOWN = 10  # jobs in a sentence
_HIDDEN = frozenset({"state_id", "memory"})  # identifies an agent; is a policy's own
_JOB_ARRAYS = ("jobs", "leases", "steps_done", "gpu_type", "share", "sizes", "rates_steps_per_s")


@dataclass(frozen=True)
class EventText:
    """One event, as a sentence and as JSON, with its place in the journal and its Unix time."""

    kind: str  # lease-started, or NOT_KEPT
    text: str
    json: str
    sequence: int = 0
    time_s: float = 0.0


def kind_of(event: Event) -> str:
    """The event's name in journals, in lower case with hyphens: `lease-started`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", journal_name(event)).lower()


def jobs_of(event: Event) -> frozenset[int] | None:
    """Serials of the jobs of an event; None = the event has no jobs."""
    match event:
        case JobSubmitted():
            serial = event.spec.id.rpartition(SEPARATOR)[2]
            return frozenset({int(serial)} if serial.isascii() and serial.isdecimal() else ())
        case JobCancelled() | JobAnnotated():
            return frozenset({event.job})
        case IdsReserved():
            return None
        case _:
            jobs = getattr(event, "jobs", None)
            return None if jobs is None else frozenset(jobs.tolist())


def event_text(event: Event, visible: Container[int] | None = None) -> EventText | None:
    """The event for a caller that may see these jobs (None = all); None = the caller may see no part of it."""
    jobs = jobs_of(event)
    if visible is not None and jobs is not None and not any(job in visible for job in jobs):
        return None
    values = _values(event, visible)
    text = json.dumps(values, allow_nan=False)
    return EventText(kind_of(event), _sentence(event, values), text)


def _values(event: Event, visible: Container[int] | None) -> dict[str, Any]:
    """The fields as JSON values, without rows of other jobs."""
    found = {field.name: getattr(event, field.name) for field in fields(event) if field.name not in _HIDDEN}
    if isinstance(event, JobSubmitted):
        return {"job": next(iter(jobs_of(event) or ()), None), **_spec(event.spec)}
    if isinstance(event, AllocationSolved):
        of_jobs = zip(event.refused_jobs.tolist(), event.refused_why, strict=True)
        refused = {job: why for job, why in of_jobs if visible is None or job in visible}
        found |= {"refused_jobs": list(refused), "refused_why": list(refused.values())}
        named = event.next_round.tolist() if is_named(event.next_round) else []
        found["next_round"] = [one for one in named if visible is None or one[0] in visible or one[1] in visible]
    if isinstance(found.get("jobs"), np.ndarray):
        kept = np.array([visible is None or job in visible for job in found["jobs"].tolist()], dtype=np.bool_)
        if "gpu_offsets" in found:
            ends = found.pop("gpu_offsets")
            found["gpus"] = [found["gpus"][ends[k] : ends[k + 1]] for k in np.flatnonzero(kept).tolist()]
        found |= {name: found[name][kept] for name in _JOB_ARRAYS if name in found and len(found[name])}
    return {name: _plain(value) for name, value in found.items()}


def _spec(spec: JobSpec) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in asdict(spec).items() if name not in _HIDDEN}
    return values | {
        "name": name_of(spec.id),
        "environment": redacted(spec.environment),
        "notify": _plain(spec.notify.redacted),
    }


def _plain(value: Any) -> Any:  # Any: a field of an event, and a JSON value
    match value:
        case Outcome():
            return value.name.lower()
        case float():
            return value if math.isfinite(value) else None
        case np.ndarray():
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case dict():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case _ if hasattr(value, "__dataclass_fields__"):
            return _plain(asdict(value))
        case _:
            return value


def _sentence(event: Event, values: dict[str, Any]) -> str:
    match event:
        case JobSubmitted():
            spec = event.spec
            gpus = "1 GPU" if spec.gpus == 1 else f"{spec.gpus} GPUs"
            others = ", ".join(str(size) for size in spec.sizes if size != spec.gpus)
            gpus += f" (or {others})" if others else ""
            owner = spec.owner or "an unknown user"
            steps = "number of steps not known" if spec.open_ended else f"{spec.steps_total:g} steps"
            return f"job {values['job']} ({name_of(spec.id)}) submitted by {owner}: {gpus}, {steps}"
        case JobCancelled():
            return f"job {event.job} cancelled"
        case JobsRequeued():
            return f"requeued: {_listed([f'job {job}' for job in values['jobs']])}"
        case PriorityChanged():
            return f"priority {event.priority or NORMAL}: {_listed([f'job {job}' for job in values['jobs']])}"
        case JobsHeld() | JobsReleased():
            what = "held" if isinstance(event, JobsHeld) else "released"
            return f"{what}{' by an admin' * event.by_admin}: {_listed([f'job {job}' for job in values['jobs']])}"
        case ReservationAdded():
            why = f": {event.reason}" if event.reason else ""
            users = f" for {_listed(list(event.users))}" if event.users else ""
            return f"reservation {event.name!r} of {_listed(list(event.node_ids))}{users}{why}"
        case ReservationRemoved():
            return f"reservation {event.name!r} deleted"
        case NodeLost():
            return f"node {event.node_id} is lost{'; its name is free for the next agent' * event.is_forgotten}"
        case NodeUnreachable() if found := peers_text(event.alive_to, event.dead_to):
            return f"node {event.node_id} sends no heartbeats; {found}"
        case TotalAnnounced():
            told = [
                f"job {job} has {steps:g}" for job, steps in zip(values["jobs"], values["steps_total"], strict=True)
            ]
            return f"steps announced: {_listed(told)}"
        case GpuMemoryMeasured():
            used = [f"job {job} {gib:.1f} GiB" for job, gib in zip(values["jobs"], values["peak_gib"], strict=True)]
            return f"GPU memory in use: {_listed(used)}"
        case MetricsReported():
            points = zip(values["jobs"], values["metric"], values["metric_steps"], values["values"], strict=True)
            shown = [f"job {job} {event.names[k]} {value:.6g} at step {step:g}" for job, k, step, value in points]
            return f"metrics: {_listed(shown)}"
        case TurnMeasured():
            starts = [f"job {k} starts in {s:.1f} s" for k, s in _positive(values["jobs"], values["restart_s"])]
            stops = [f"job {k} stops in {s:.1f} s" for k, s in _positive(values["jobs"], values["save_s"])]
            return f"measured: {_listed([*starts, *stops])}"
        case JobAnnotated():
            return f"job {event.job}, lease {event.lease}: {event.text}"
        case IdsReserved():
            return f"the next job is {event.jobs}, the next lease {event.leases}; {event.text}"
        case LeaseStarted():
            return f"started: {_leases(values)}"
        case LeaseEnded():
            return f"{values['outcome']}: {_leases(values)}"
        case _:
            return _fields(values)


def _positive(jobs: Sequence[int], seconds: Sequence[float]) -> list[tuple[int, float]]:
    return [(job, time_s) for job, time_s in zip(jobs, seconds, strict=True) if time_s > 0]


def _leases(values: dict[str, Any]) -> str:
    steps = values.get("steps_done") or [None] * len(values["jobs"])
    gpus = values.get("gpus") or [None] * len(values["jobs"])
    return _listed(
        [
            f"job {job} (lease {lease}{f', GPU {_listed(held)}' if held else ''}{f', step {done:.0f}' if done else ''})"
            for job, lease, done, held in zip(values["jobs"], values["leases"], steps, gpus, strict=True)
        ]
    )


def _fields(values: dict[str, Any]) -> str:
    """The fields of an event without a special sentence."""
    parts = (
        f"{name.replace('_', ' ')} {_listed(value) if isinstance(value, list) else value}"
        for name, value in values.items()
        if value not in ([], "", None) and not isinstance(value, dict)
    )
    return ", ".join(parts)


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:_SHOWN])
    return f"{shown} and {len(values) - _SHOWN} more" if len(values) > _SHOWN else shown


class _Visible:
    """Serials that a caller may see, as a container."""

    def __init__(self, jobs: JobQueries, caller: Caller) -> None:
        self._jobs, self._caller = jobs, caller

    def __contains__(self, job: object) -> bool:
        return isinstance(job, int) and self._jobs.may_see(self._caller, job)


class EventQueries:
    """Reads the journal, and older events from the archive."""

    def __init__(self, scheduler: Scheduler, jobs: JobQueries) -> None:
        self._scheduler, self._jobs = scheduler, jobs

    async def read(
        self, caller: Caller, *, after: int = 0, job: str = "", events_max: int = 0, follow: bool = False
    ) -> AsyncIterator[EventText]:
        """The events after a sequence number that a caller may see, in order, optionally of one job.

        Returns after `events_max`; 0 = EVENTS_DEFAULT, or no limit if it follows new events.
        """
        require(after >= 0, "after", ">= 0", after)
        past = (await self._scheduler.past.among(caller, self._jobs, [job])).get(job)
        serial = past.job if past is not None else self._jobs.find(caller, job) if job else None
        limit = events_max or (0 if follow else EVENTS_DEFAULT)
        visible = {serial} if serial is not None else None if caller.is_admin else _Visible(self._jobs, caller)
        sent = 0
        while True:
            version = self._scheduler.version
            entries = await self._scheduler.read_journal(partial(EventStore.events, after=after, limit=_EVENTS_A_PAGE))
            if is_older := bool(entries) and entries[0][0] > after + 1:
                first = partial(ArchiveReader.events, after=after, limit=_EVENTS_A_PAGE)
                found_there = await self._scheduler.past.read(first)
                entries, is_older = found_there or entries, bool(found_there)
            if entries and entries[0][0] > after + 1:
                yield self._not_kept(after + 1, entries[0])
            for after, now_s, event in entries:
                if serial is not None and serial not in (jobs_of(event) or ()):
                    continue
                if (found := event_text(event, visible)) is not None:
                    yield replace(found, sequence=after, time_s=self._scheduler.wall_s(now_s))
                    sent += 1
                if limit and sent >= limit:
                    return
            if len(entries) < _EVENTS_A_PAGE and not is_older:
                if not follow:
                    return
                await self._scheduler.wait_changed(version, _WAIT_S)

    def _not_kept(self, first: int, entry: Entry) -> EventText:
        """In place of requested events before `entry` that were truncated."""
        last, time_s = entry[0] - 1, self._scheduler.wall_s(entry[1])
        text = f"events {first} to {last} were truncated: a snapshot replaces them"
        return EventText(NOT_KEPT, text, json.dumps({"first": first, "last": last}), last, time_s)

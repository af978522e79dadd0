"""Events of the journal for clients: a page, or a stream that follows new events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Container
from typing import TYPE_CHECKING

from gavelpy.journal.rows import Entry
from gavelpy.mechanism.events import Event
from gavelpy.runtime.daemon.queries.event_text import event_text, jobs_of
from gavelpy.runtime.daemon.queries.jobs import JobBoard
from gavelpy.runtime.daemon.rpc.requests import require
from gavelpy.runtime.security.identity import Caller
from gavelpy.runtime.wire import client_pb2 as pb

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

_EVENTS_A_PAGE = 500
_EVENTS_DEFAULT = 1_000
_WAIT_S = 30.0
NOT_KEPT = "events-not-kept"


class _Visible:
    """Serials that a caller may see, as a container."""

    def __init__(self, board: JobBoard, caller: Caller) -> None:
        self._board, self._caller = board, caller

    def __contains__(self, job: object) -> bool:
        return isinstance(job, int) and self._board.may_see(self._caller, job)


class EventStream:
    """Reads the journal for clients."""

    def __init__(self, scheduler: Scheduler, board: JobBoard) -> None:
        self._scheduler, self._board = scheduler, board

    async def read(self, request: pb.ListEventsRequest, caller: Caller) -> AsyncIterator[pb.ListEventsResponse]:
        """The events that a caller may see, in order."""
        require(request.after >= 0, "after", ">= 0", request.after)
        job = self._board.find(caller, request.job) if request.job else None
        limit = request.events_max or (0 if request.follow else _EVENTS_DEFAULT)
        visible = {job} if job is not None else None if caller.is_admin else _Visible(self._board, caller)
        after, sent = request.after, 0
        while True:
            version = self._scheduler.version
            entries = await self._page(after)
            if entries and entries[0][0] > after + 1:
                yield self._not_kept(after + 1, entries[0])
            for after, now_s, event in entries:
                if job is not None and job not in (jobs_of(event) or ()):
                    continue
                if (message := self._message(after, now_s, event, visible)) is not None:
                    yield message
                    sent += 1
                if limit and sent >= limit:
                    return
            if len(entries) < _EVENTS_A_PAGE:
                if not request.follow:
                    return
                await self._scheduler.wait_changed(version, _WAIT_S)

    def _not_kept(self, first: int, entry: Entry) -> pb.ListEventsResponse:
        """A message in place of requested events before `entry` that were truncated."""
        last, time_s = entry[0] - 1, self._scheduler.wall_s(entry[1])
        text = f"events {first} to {last} were truncated: a snapshot replaces them"
        return pb.ListEventsResponse(
            sequence=last, time_s=time_s, kind=NOT_KEPT, text=text, json=json.dumps({"first": first, "last": last})
        )

    async def _page(self, after: int) -> list[Entry]:
        return await self._scheduler.read_journal(lambda store: store.events(after, _EVENTS_A_PAGE))

    def _message(
        self, sequence: int, now_s: float, event: Event, visible: Container[int] | None
    ) -> pb.ListEventsResponse | None:
        described = event_text(event, visible)
        if described is None:
            return None
        time_s = self._scheduler.wall_s(now_s)
        return pb.ListEventsResponse(
            sequence=sequence, time_s=time_s, kind=described.kind, text=described.text, json=described.json
        )

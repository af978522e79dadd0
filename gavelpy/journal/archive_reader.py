"""Reads the archive: past jobs by page, by number and by name, accounts of GPU time as sums, and older events.

Each call opens a connection of its own and only reads, so it may run in any thread while the scheduler writes. Lists
are in pages, and sums are computed by the database.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from gavelpy.errors import JournalCorrupt, JournalFailed
from gavelpy.journal.archive_tables import (
    BLOCKS,
    JOBS,
    OLD_SNAPSHOTS,
    SEGMENTS,
    USAGE,
    ArchivedJobRow,
    BlockRow,
    OldSnapshotRow,
    PastJob,
    SegmentRow,
    details_of,
    events_of,
    is_sealed,
)
from gavelpy.journal.codec import decode_state
from gavelpy.journal.tables import EVENTS, Entry, EventRow, Position, entry_of

if TYPE_CHECKING:
    from gavelpy.journal.database import Database

USAGE_COLUMNS = ("owner", "entity", "gpu_type")
USAGE_SUMS = ("gpu_s", "cost_usd", "waited_s", "leases", "preemptions")


@dataclass(frozen=True)
class Selection:
    """Which past jobs: after a number, perhaps of one owner, in some states, ended at or after a time."""

    after: int = -1
    owner: str | None = None
    states: Collection[int] | None = None
    ended_since_s: float | None = None


class ArchiveReader:
    """Reads one archive."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def jobs(self, which: Selection, limit: int) -> list[PastJob]:
        """At most `limit` past jobs with their details, by number."""
        query = select(JOBS).where(JOBS.c.job > which.after).order_by(JOBS.c.job).limit(limit)
        if which.owner is not None:
            query = query.where(JOBS.c.owner == which.owner)
        if which.states is not None:
            query = query.where(JOBS.c.state.in_(sorted(which.states)))
        if which.ended_since_s is not None:
            query = query.where(JOBS.c.ended_s >= which.ended_since_s)
        with self._connection() as connection:
            return self._with_details(connection, connection.execute(query).all())

    def found(self, serials: Sequence[int]) -> dict[int, PastJob]:
        """These past jobs; those that are not in the archive are left out."""
        with self._connection() as connection:
            rows = connection.execute(select(JOBS).where(JOBS.c.job.in_(list(serials)))).all()
            return {job.job: job for job in self._with_details(connection, rows)}

    def newest(self, owner: str, name: str) -> int:
        """Number of the newest past job of this owner and name; -1 = none."""
        query = select(func.max(JOBS.c.job)).where(JOBS.c.owner == owner, JOBS.c.name == name)
        with self._connection() as connection:
            found = connection.execute(query).scalar()
        return -1 if found is None else int(found)

    def usage(self, since_s: float, by: Sequence[str], owner: str | None = None) -> dict[tuple[str, ...], list[float]]:
        """The sums of USAGE_SUMS since a time, by these columns of USAGE_COLUMNS, perhaps of one owner."""
        columns = [USAGE.c[name] for name in by]
        sums = [func.sum(USAGE.c[name]) for name in USAGE_SUMS]
        query = select(*columns, *sums).where(USAGE.c.start_s >= since_s).group_by(*columns)
        if owner is not None:
            query = query.where(USAGE.c.owner == owner)
        with self._connection() as connection:
            rows = connection.execute(query).all()
        return {tuple(row[: len(by)]): [float(value) for value in row[len(by) :]] for row in rows}

    def events(self, after: int, limit: int) -> list[Entry]:
        """At most `limit` archived events after a sequence."""
        entries: list[Entry] = []
        query = select(SEGMENTS).where(SEGMENTS.c.sequence > after).order_by(SEGMENTS.c.first)
        once = {"stream_results": True, "yield_per": 1}
        with self._connection() as connection, connection.execute(query, execution_options=once) as found:
            for row in found:
                for event in events_of(SegmentRow(*row)):
                    if event.sequence > after and len(entries) < limit:
                        entries.append(entry_of(event, Position(event.sequence - 1, event.previous_crc32)))
                if len(entries) >= limit:
                    break
        return entries

    def replay(self, since_s: float) -> tuple[dict[str, Any] | None, Iterator[Entry]]:
        """A state at or before a time (None = before the first event), and all events after it up to now.

        Raises JournalCorrupt if the archive does not reach back so far.
        """
        query = select(OLD_SNAPSHOTS).where(OLD_SNAPSHOTS.c.now_s <= since_s)
        with self._connection() as connection:
            found = connection.execute(query.order_by(OLD_SNAPSHOTS.c.sequence.desc()).limit(1)).one_or_none()
        if found is None:
            return None, self._chain(Position())
        row = OldSnapshotRow(*found)
        if not is_sealed(OLD_SNAPSHOTS, row):
            raise JournalCorrupt(f"snapshot after event {row.sequence} in the archive does not have its checksum")
        return decode_state(zlib.decompress(row.data)), self._chain(Position(row.sequence, row.event_crc32))

    def _chain(self, at: Position) -> Iterator[Entry]:
        """All events after a position, from the archive and then the journal; raises JournalCorrupt for a gap."""
        archived = select(SEGMENTS).where(SEGMENTS.c.sequence > at.sequence).order_by(SEGMENTS.c.first)
        with self._connection() as connection:
            segments = [SegmentRow(*row) for row in connection.execute(archived)]
            living = [EventRow(*row) for row in connection.execute(select(EVENTS).order_by(EVENTS.c.sequence))]
        for row in (*(event for segment in segments for event in events_of(segment)), *living):
            if row.sequence > at.sequence:
                yield entry_of(row, at)
                at = Position(row.sequence, row.crc32)

    def _with_details(self, connection: Connection, rows: Sequence[Any]) -> list[PastJob]:
        jobs = [ArchivedJobRow(*row) for row in rows]
        broken = [job.job for job in jobs if not is_sealed(JOBS, job)]
        if broken:
            raise JournalCorrupt(f"job {broken[0]} in the archive does not have its checksum")
        wanted, numbers = sorted({job.block for job in jobs}), {job.job for job in jobs}
        details: dict[int, dict[str, Any]] = {}
        for first in range(0, len(wanted), _BLOCKS_AT_ONCE):
            query = select(BLOCKS).where(BLOCKS.c.block.in_(wanted[first : first + _BLOCKS_AT_ONCE]))
            for row in connection.execute(query):
                details |= details_of(BlockRow(*row), numbers)
        return [
            PastJob(j.job, j.owner, j.name, j.entity, j.state, j.submitted_s, j.ended_s, details.get(j.job, {}))
            for j in jobs
        ]

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        try:
            with self._database.read() as connection:
                yield connection
        except DBAPIError as error:
            raise JournalFailed(f"archive of {self._database.name}: {' '.join(str(error.orig).split())}") from error


_BLOCKS_AT_ONCE = 500

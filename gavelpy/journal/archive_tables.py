"""The tables of the archive, in the journal's database: past jobs, accounts of GPU time, older events and snapshots.

Rows are written in one transaction with the event that removes what they hold from the core (JobsArchived), or from the
table of events. Each has a checksum. A past job is a row with what queries select by; everything else about it is in a
block, which holds some dozens of jobs and is compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Double, Index, Integer, LargeBinary, Table, Text, func, select

from gavelpy.errors import JournalCorrupt
from gavelpy.journal.tables import EVENTS, SERIAL, SNAPSHOTS, TABLES, EventRow, insertion, mixed_crc32

Item = TypeVar("Item")
JOBS_A_BLOCK = 32
EVENTS_A_SEGMENT = 2_000
_ROWS_AT_ONCE = 500
SNAPSHOT_EVERY_S = 86_400.0  # of those in the archive


class ArchivedJobRow(NamedTuple):
    """A past job, by what queries select by. Times are the scheduler's."""

    job: int
    owner: str
    name: str
    entity: str
    state: int  # as people see it
    submitted_s: float
    ended_s: float
    block: int
    sequence: int  # of the event that removed it from the core
    crc32: int = 0


class BlockRow(NamedTuple):
    """Details of some jobs: a map from serial to details, MessagePack, compressed."""

    block: int
    data: bytes
    sequence: int
    crc32: int = 0


class UsageEntry(NamedTuple):
    """GPU time of one holder on one GPU type, in a period."""

    start_s: int
    length_s: int
    owner: str
    entity: str
    gpu_type: str
    gpu_s: float
    cost_usd: float
    waited_s: float  # of the leases that started in the period: the time that their jobs had waited for them
    leases: int  # that started
    preemptions: int  # leases that ended before their jobs did
    sequence: int = 0
    crc32: int = 0


class SegmentRow(NamedTuple):
    """Consecutive events: their rows, MessagePack, compressed."""

    first: int
    sequence: int  # of the last
    first_s: float
    last_s: float
    data: bytes
    crc32: int = 0


class OldSnapshotRow(NamedTuple):
    """The state after an event, compressed; replays of older events begin there."""

    sequence: int
    now_s: float
    data: bytes
    event_crc32: int
    crc32: int = 0


JOBS = Table(
    "gavel_archived_jobs",
    TABLES,
    Column("job", SERIAL, primary_key=True, autoincrement=False),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("entity", Text, nullable=False),
    Column("state", Integer, nullable=False),
    Column("submitted_s", Double, nullable=False),
    Column("ended_s", Double, nullable=False),
    Column("block", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("crc32", BigInteger, nullable=False),
    Index("gavel_archived_jobs_name", "owner", "name", "job"),
    Index("gavel_archived_jobs_ended", "ended_s"),
)
BLOCKS = Table(
    "gavel_archived_blocks",
    TABLES,
    Column("block", SERIAL, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("crc32", BigInteger, nullable=False),
)
USAGE = Table(
    "gavel_archived_usage",
    TABLES,
    Column("start_s", BigInteger, primary_key=True),
    Column("length_s", BigInteger, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("entity", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("gpu_s", Double, nullable=False),
    Column("cost_usd", Double, nullable=False),
    Column("waited_s", Double, nullable=False),
    Column("leases", BigInteger, nullable=False),
    Column("preemptions", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("crc32", BigInteger, nullable=False),
)
SEGMENTS = Table(
    "gavel_archived_events",
    TABLES,
    Column("first", SERIAL, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),
    Column("first_s", Double, nullable=False),
    Column("last_s", Double, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("crc32", BigInteger, nullable=False),
)
OLD_SNAPSHOTS = Table(
    "gavel_archived_snapshots",
    TABLES,
    Column("sequence", SERIAL, primary_key=True, autoincrement=False),
    Column("now_s", Double, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("event_crc32", BigInteger, nullable=False),
    Column("crc32", BigInteger, nullable=False),
)
ROWS: Mapping[Table, type[Any]] = {  # Any: the row types
    JOBS: ArchivedJobRow,
    BLOCKS: BlockRow,
    USAGE: UsageEntry,
    SEGMENTS: SegmentRow,
    OLD_SNAPSHOTS: OldSnapshotRow,
}


@dataclass(frozen=True)
class PastJob:
    """A job that leaves the core. `details`: plain values, all that is to be known of it."""

    job: int
    owner: str
    name: str
    entity: str
    state: int
    submitted_s: float
    ended_s: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Leaving:
    """What one event moves to the archive."""

    jobs: Sequence[PastJob]
    usage: Sequence[UsageEntry] = ()

    def write(self, connection: Connection, sequence: int) -> None:
        """Adds the rows in the transaction of the event."""
        for jobs in in_parts(self.jobs, JOBS_A_BLOCK):
            block = jobs[0].job
            data = zlib.compress(msgspec.msgpack.encode([[job.job, job.details] for job in jobs]))
            _insert(connection, BLOCKS, [BlockRow(block, data, sequence)])
            _insert(
                connection,
                JOBS,
                [
                    ArchivedJobRow(j.job, j.owner, j.name, j.entity, j.state, j.submitted_s, j.ended_s, block, sequence)
                    for j in jobs
                ],
            )
        _insert(connection, USAGE, [row._replace(sequence=sequence) for row in self.usage])


def sealed(table: Table, row: Any) -> Any:  # Any: a row of this table
    """The row with its checksum."""
    return row._replace(crc32=mixed_crc32(table.name, row[:-1]))


def is_sealed(table: Table, row: Any) -> bool:  # Any: a row of this table, with the values of the driver
    """Whether a row has its checksum; false if a field has another type."""
    try:
        return bool(row[-1] == mixed_crc32(table.name, row[:-1]))
    except (AttributeError, TypeError, ValueError, struct.error):
        return False


def details_of(block: BlockRow, wanted: Collection[int]) -> dict[int, dict[str, Any]]:
    """Details of the wanted jobs in a block; raises JournalCorrupt."""
    if not is_sealed(BLOCKS, block):
        raise JournalCorrupt(f"block {block.block} of the archive does not have its checksum")
    found = _BLOCK.decode(zlib.decompress(block.data))
    return {job: msgspec.msgpack.decode(details) for job, details in found if job in wanted}


_BLOCK = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]])


def archive_upto(connection: Connection, upto: int, snapshot: int) -> None:
    """Copies the events up to a sequence to the archive; once a day also the snapshot after event `snapshot`."""
    events = select(EVENTS).where(EVENTS.c.sequence <= upto).order_by(EVENTS.c.sequence)
    with connection.execute(events, execution_options={"stream_results": True, "yield_per": EVENTS_A_SEGMENT}) as found:
        parts = [[EventRow(*row) for row in part] for part in found.partitions()]
    for part in parts:
        data = zlib.compress(msgspec.msgpack.encode(part))
        segment = SegmentRow(part[0].sequence, part[-1].sequence, part[0].now_s, part[-1].now_s, data)
        _insert(connection, SEGMENTS, [segment])
    newest = connection.execute(select(func.max(OLD_SNAPSHOTS.c.now_s))).scalar()
    now_s = connection.execute(select(EVENTS.c.now_s).where(EVENTS.c.sequence == snapshot)).scalar()
    if now_s is not None and (newest is None or now_s >= newest + SNAPSHOT_EVERY_S):
        state = connection.execute(select(SNAPSHOTS).where(SNAPSHOTS.c.sequence == snapshot)).one()
        _insert(
            connection, OLD_SNAPSHOTS, [OldSnapshotRow(snapshot, now_s, zlib.compress(state.data), state.event_crc32)]
        )


def events_of(segment: SegmentRow) -> Iterator[EventRow]:
    """The rows of a segment; raises JournalCorrupt."""
    if not is_sealed(SEGMENTS, segment):
        raise JournalCorrupt(f"events from {segment.first} in the archive do not have their checksum")
    for row in msgspec.msgpack.decode(zlib.decompress(segment.data), type=list[tuple[Any, ...]]):
        yield EventRow(*row)


def forget_after(connection: Connection, sequence: int) -> None:
    """Deletes what later events archived: they are lost, so the core still has it."""
    for table in ROWS:
        connection.execute(table.delete().where(table.c.sequence > sequence))


def forget_events(connection: Connection, before_s: float) -> None:
    """Deletes segments and snapshots that a replay from this time on does not need."""
    query = select(func.max(OLD_SNAPSHOTS.c.sequence)).where(OLD_SNAPSHOTS.c.now_s <= before_s)
    if (oldest := connection.execute(query).scalar()) is not None:
        connection.execute(OLD_SNAPSHOTS.delete().where(OLD_SNAPSHOTS.c.sequence < oldest))
        connection.execute(SEGMENTS.delete().where(SEGMENTS.c.sequence <= oldest))


def insert_sealed(connection: Connection, table: Table, rows: Sequence[Any]) -> None:  # Any: rows with checksums
    """Adds rows of one table."""
    statement = insertion(table, connection.dialect.paramstyle)
    for part in in_parts(rows, _ROWS_AT_ONCE):
        connection.exec_driver_sql(statement, list(part))


def _insert(connection: Connection, table: Table, rows: Sequence[Any]) -> None:
    if rows:
        insert_sealed(connection, table, [sealed(table, row) for row in rows])


def in_parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in order, at most so many at a time."""
    for first in range(0, len(items), size):
        yield items[first : first + size]

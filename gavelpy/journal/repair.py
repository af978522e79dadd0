"""Checks every row of a journal at the start, sets damaged rows aside, and rebuilds a damaged SQLite file.

`read` verifies the tables of either database, and `quarantine` moves rows that cannot be used to gavel_quarantine.

`salvage` collects what SQLite can still read of a damaged file and of its backups. Every row with a valid checksum
counts, and the chain of checksums orders them: forward from the newest snapshot, and backward for history. So a backup
fills a gap in the file, and the file adds what happened after the backup. An append is kept or dropped as a whole.

`gavelpy.runtime.daemon.recovery` then rebuilds the scheduler's state from the events.
"""

from __future__ import annotations

import gc
import sqlite3
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, text

from gavelpy.errors import JournalCorrupt
from gavelpy.journal.archive_tables import ROWS as ARCHIVE
from gavelpy.journal.archive_tables import forget_after, insert_sealed, is_sealed
from gavelpy.journal.codec import EVENT_NAMES, decode_state
from gavelpy.journal.loss_detection import Evidence, Loss, Marks, Numbers
from gavelpy.journal.tables import (
    EVENTS,
    INCARNATION,
    MARKED,
    META,
    QUARANTINE,
    SCHEMA_VERSION,
    SNAPSHOTS,
    SUBMISSIONS,
    Chain,
    Entry,
    EventRow,
    MetaRow,
    Position,
    Row,
    SnapshotRow,
    SubmissionRow,
    is_whole,
    meta_row,
    read_chain,
)
from gavelpy.mechanism.events import JobSubmitted

DAMAGE = "damage"  # meta value: what the next load reports
SNAPSHOTS_KEPT = 2
HEADER_BYTES = 100  # of a SQLite file; SQLite deletes the log of a file that is shorter
_BATCH = 2000
_BUSY_S = 5.0
_ROWS: dict[Table, type[Row]] = {EVENTS: EventRow, SNAPSHOTS: SnapshotRow, SUBMISSIONS: SubmissionRow, META: MetaRow}


@dataclass(frozen=True)
class Loaded:
    """The newest good snapshot, the events after it, and what was lost."""

    state: dict[str, Any] | None  # None: no snapshot, the replay starts with an empty core
    events: Iterator[Entry]
    damage: str  # "" for none; otherwise what, where, and where the rest is kept
    sequence: int  # of the last good event
    loss: Loss | None = None  # of acknowledged events, accepted by the operator


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used, and why."""

    table: Table
    key: dict[str, Any]
    why: str


@dataclass(frozen=True)
class JournalContent:
    """What the tables contain."""

    state: dict[str, Any] | None
    chain: Chain
    bad: list[BadRow] = field(default_factory=list)
    seen: int = 0  # highest sequence of an event row
    numbers: Numbers = field(default_factory=Numbers)  # in use according to submissions
    has_marks: bool = False  # whether marks are kept in a file next to this journal
    marked_crc32: int | None = None  # checksum of the event at the marks, if it is there

    def evidence(self, marks: Marks | None) -> Evidence:
        """What bears on a loss."""
        end_s = self.chain.entries[-1][1] if self.chain.entries else 0.0
        is_other = marks is not None and marks.crc32 > 0 and self.marked_crc32 not in (None, marks.crc32)
        fault = _fault_of_end(marks, self.has_marks, is_other) or self.chain.damage
        return Evidence(self.chain.end.sequence, end_s, self.seen, fault, self.numbers, is_other=is_other)

    @property
    def fault(self) -> str:
        """What is wrong with the rows; "" for nothing."""
        reasons = [bad.why for bad in self.bad]
        if self.chain.damage:
            reasons.insert(0, f"{self.chain.damage}; good up to event {self.chain.end.sequence}")
        return "; ".join(reasons)


def read(connection: Connection, marked: int = 0) -> JournalContent:
    """Checks every row that a restart needs: all but the events before the newest snapshot.

    `marked` is the sequence in the marks.
    """
    bad: list[BadRow] = []
    state, start = _newest_state(connection, bad)
    with _no_collections(), closing(rows_after(connection, start.sequence)) as rows:
        chain = read_chain(rows, start)
    count = text(f"SELECT count(*), max(sequence) FROM {EVENTS.name} WHERE sequence > :end")
    after, seen = connection.execute(count, {"end": chain.end.sequence}).one()
    jobs = connection.execute(text(f"SELECT max(first_job + jobs) FROM {SUBMISSIONS.name}")).scalar()
    jobs = jobs if isinstance(jobs, int) else 0
    after_snapshot = "WHERE NOT sequence <= :start ORDER BY sequence"  # older ones are checked when they are read
    for row in _rows(connection, SUBMISSIONS, after_snapshot, start=start.sequence):
        submission = SubmissionRow(*row)
        key = {"owner": submission.owner, "key": submission.key}
        if not is_whole(submission):
            bad.append(BadRow(SUBMISSIONS, key, f"submission {submission.key!r} does not have its checksum"))
            continue
        jobs = max(jobs, submission.first_job + submission.jobs)
        if submission.sequence > chain.end.sequence:
            bad.append(BadRow(SUBMISSIONS, key, f"submission {submission.key!r} has lost its events"))
    has_marks = False
    for row in _rows(connection, META, "ORDER BY name"):
        meta = MetaRow(*row)
        has_marks = has_marks or meta.name == MARKED
        if not is_whole(meta):
            bad.append(BadRow(META, {"name": meta.name}, f"value {meta.name!r} does not have its checksum"))
    damage = chain.damage or (f"event {chain.end.sequence + 1} is missing" if after else "")
    seen = max(chain.end.sequence, seen) if isinstance(seen, int) else chain.end.sequence
    return JournalContent(
        state, Chain(chain.end, chain.entries, damage), bad, seen, Numbers(jobs=jobs), has_marks,
        checksum_at(connection, marked),
    )  # fmt: skip


def rows_after(connection: Connection, after: int, limit: int = 0) -> Generator[tuple[Any, ...], None, None]:
    """Event rows in order, with the values that the database has."""
    tail = "WHERE sequence > :after ORDER BY sequence" + (" LIMIT :limit" if limit else "")
    return _rows(connection, EVENTS, tail, after=after, limit=limit)


def checksum_at(connection: Connection, sequence: int) -> int | None:
    """The checksum of an event, from its row or a snapshot; None if there is neither."""
    for column, table in (("crc32", EVENTS), ("event_crc32", SNAPSHOTS)):
        query = text(f"SELECT {column} FROM {table.name} WHERE sequence = :sequence")
        found = connection.execute(query, {"sequence": sequence}).scalar()
        if isinstance(found, int):
            return found
    return None


def quarantine(connection: Connection, content: JournalContent) -> None:
    """Moves every bad row, and every event after the end of the chain, to gavel_quarantine."""
    end = {"end": content.chain.end.sequence}
    _move(connection, EVENTS, "WHERE sequence > :end", content.chain.damage, end)
    forget_after(connection, content.chain.end.sequence)
    for bad in content.bad:
        where = " AND ".join(f"{name} = :{name}" for name in bad.key)
        _move(connection, bad.table, f"WHERE {where}", bad.why, bad.key)


@dataclass(frozen=True)
class Salvage:
    """Good rows of a damaged file and its backups, in order."""

    events: list[EventRow]
    snapshots: list[SnapshotRow]
    submissions: list[SubmissionRow]
    meta: dict[str, str]
    end: Position
    newest_seen: int  # highest sequence of an event row with a valid checksum
    beyond: dict[int, bool]  # such rows after the end: whether each may be a submission
    numbers: Numbers  # in use according to submissions

    @property
    def is_journal(self) -> bool:
        """Whether any row was found."""
        return bool(self.events or self.snapshots or self.submissions or self.meta or self.newest_seen)

    @property
    def incarnation(self) -> int:
        """The newest in any row."""
        noted = self.meta.get(INCARNATION, "0")
        newest = max((row.incarnation for row in self.events), default=0)
        return max(int(noted), newest, *(row.incarnation for row in self.snapshots), 0)

    @property
    def summary(self) -> str:
        """How far the rows are good, and which exist beyond."""
        good = f"good up to event {self.end.sequence}"
        lost = self.newest_seen - self.end.sequence
        return f"{good}, events up to {self.newest_seen} were seen but do not follow it" if lost > 0 else good

    def evidence(self, fault: str, marks: Marks | None) -> Evidence:
        """What bears on a loss."""
        end_s = self.events[-1].now_s if self.events else 0.0
        marked = marks.sequence if marks is not None else 0
        found = {row.crc32 for row in self.events if row.sequence == marked}
        is_other = marks is not None and marks.crc32 > 0 and bool(found) and marks.crc32 not in found
        fault = _fault_of_end(marks, MARKED in self.meta, is_other) or fault
        return Evidence(self.end.sequence, end_s, self.newest_seen, fault, self.numbers, self.beyond, is_other)

    def write(self, connection: Connection, incarnation: int, damage: str) -> None:
        """Fills the tables of a new file."""
        kept = {k: v for k, v in self.meta.items() if k not in (SCHEMA_VERSION, INCARNATION, MARKED, DAMAGE)}
        values = [meta_row(name, value)._asdict() for name, value in (kept | {DAMAGE: damage}).items()]
        own = meta_row(INCARNATION, str(incarnation))._asdict()
        connection.execute(META.update().where(META.c.name == INCARNATION), own)
        connection.execute(META.insert(), values)
        for table, rows in ((EVENTS, self.events), (SNAPSHOTS, self.snapshots), (SUBMISSIONS, self.submissions)):
            if rows:
                connection.execute(table.insert(), [row._asdict() for row in rows])


def salvage(paths: Sequence[Path]) -> Salvage:
    """The good rows of SQLite files, oldest file first; changes none of them."""
    found = _FoundRows()
    for path in paths:
        for table, kind in _ROWS.items():
            for values in _readable_rows(path, table):
                found.add(kind(*values))
    newest = max(found.snapshots.values(), key=lambda row: (row.incarnation, row.sequence), default=None)
    start = Position(newest.sequence, newest.event_crc32) if newest else Position()
    after = _whole_appends(_forward(found, start), start, found)
    events = [*_backward(found, start), *after]
    end = Position(events[-1].sequence, events[-1].crc32) if after else start
    places = {start, *(Position(row.sequence - 1, row.previous_crc32) for row in events), end}
    reachable = [row for row in sorted(found.snapshots.values()) if Position(row.sequence, row.event_crc32) in places]
    return Salvage(
        events=events,
        snapshots=reachable[-SNAPSHOTS_KEPT:],
        submissions=[row for row in found.submissions.values() if row.sequence <= end.sequence],
        meta=dict(found.meta),
        end=end,
        newest_seen=max(end.sequence, *found.events, 0),
        beyond={
            sequence: any(EVENT_NAMES.get(row.kind) is JobSubmitted for row in rows)
            for sequence, rows in found.events.items()
            if sequence > end.sequence
        },
        numbers=Numbers(jobs=max((row.first_job + row.jobs for row in found.submissions.values()), default=0)),
    )


def copy_archive(connection: Connection, paths: Sequence[Path], end: int) -> None:
    """Copies the good rows of the archives of SQLite files into a new one, but those that events after `end` made."""
    for table, kind in ARCHIVE.items():
        keys = [column.name for column in table.primary_key.columns]
        found = {}
        for path in paths:
            for values in _readable_rows(path, table):
                row = kind(*values)
                if is_sealed(table, row) and row.sequence <= end:
                    found[tuple(getattr(row, key) for key in keys)] = row
        insert_sealed(connection, table, list(found.values()))


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot change the file or its write-ahead log."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)


@dataclass
class _FoundRows:
    """Rows with valid checksums, in any order."""

    events: dict[int, list[EventRow]] = field(default_factory=lambda: defaultdict(list))
    snapshots: dict[int, SnapshotRow] = field(default_factory=dict)
    submissions: dict[tuple[str, str], SubmissionRow] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Keeps a row if its checksum is valid; the last one with the same key counts."""
        if not is_whole(row):
            return
        match row:
            case EventRow():
                if row not in self.events[row.sequence]:
                    self.events[row.sequence].append(row)
            case SnapshotRow():
                self.snapshots[row.sequence] = row
            case SubmissionRow():
                self.submissions[row.owner, row.key] = row
            case MetaRow():
                self.meta[row.name] = row.value


def _readable_rows(path: Path, table: Table) -> Iterator[tuple[Any, ...]]:
    """The rows of a table from its beginning up to damage, and from its end back to damage."""
    if not path.exists() or path.stat().st_size < HEADER_BYTES:
        return
    columns = ", ".join(column.name for column in table.columns)
    with closing(read_only(path)) as connection:
        connection.text_factory = _text
        for order in ("", " DESC"):
            try:
                found = connection.execute(f"SELECT {columns} FROM {table.name} NOT INDEXED ORDER BY rowid{order}")
                yield from found
            except sqlite3.DatabaseError:
                continue
            return


def _text(value: bytes) -> str:
    """Text; bytes that are not UTF-8 become others, so that the checksum is not valid."""
    return value.decode(errors="replace")


def _forward(found: _FoundRows, start: Position) -> list[EventRow]:
    """Rows that follow each other; where histories fork, those of the newer incarnation."""
    rows: list[EventRow] = []
    at = start
    while nexts := [row for row in found.events.get(at.sequence + 1, ()) if row.previous_crc32 == at.crc32]:
        rows.append(max(nexts, key=lambda row: row.incarnation))
        at = Position(rows[-1].sequence, rows[-1].crc32)
    return rows


def _backward(found: _FoundRows, start: Position) -> list[EventRow]:
    rows: list[EventRow] = []
    at = start
    while nexts := [row for row in found.events.get(at.sequence, ()) if row.crc32 == at.crc32]:
        rows.append(nexts[0])
        at = Position(at.sequence - 1, nexts[0].previous_crc32)
    return rows[::-1]


def _whole_appends(rows: list[EventRow], start: Position, found: _FoundRows) -> list[EventRow]:
    """The rows up to the last append that is whole and can be decoded."""
    end = read_chain(rows, start).end.sequence
    rows = [row for row in rows if row.sequence <= end]
    if rows and rows[-1].submissions > sum(row.sequence == end for row in found.submissions.values()):
        return [row for row in rows if row.append_end < end]
    return rows


def _fault_of_end(marks: Marks | None, has_marks: bool, is_other: bool) -> str:
    """Why the end of a journal cannot be verified; "" if it can."""
    if has_marks and marks is None:
        return "its marks are missing or damaged, so events that followed cannot be ruled out"
    if is_other and marks is not None:
        return f"event {marks.sequence} is not the one that was acknowledged"
    return ""


@contextmanager
def _no_collections() -> Iterator[None]:
    """Switches garbage collection off: events have no cycles, and scanning them takes half of the time of a load."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _newest_state(connection: Connection, bad: list[BadRow]) -> tuple[dict[str, Any] | None, Position]:
    for values in _rows(connection, SNAPSHOTS, "ORDER BY sequence DESC"):
        row = SnapshotRow(*values)
        why = "" if is_whole(row) else "does not have its checksum"
        try:
            if not why:
                return decode_state(row.data), Position(row.sequence, row.event_crc32)
        except JournalCorrupt as error:
            why = str(error)
        bad.append(BadRow(SNAPSHOTS, {"sequence": row.sequence}, f"snapshot after event {row.sequence} {why}"))
    return None, Position()


def _move(connection: Connection, table: Table, where: str, why: str, key: dict[str, Any]) -> None:
    ordered = text(_select(table, f"{where} ORDER BY {table.columns.values()[0].name}"))
    for rows in connection.execute(ordered, key).partitions(_BATCH):
        kept = [{"source": table.name, "why": why, "content": msgspec.msgpack.encode(list(row))} for row in rows]
        connection.execute(QUARANTINE.insert(), kept)
    connection.execute(text(f"DELETE FROM {table.name} {where}"), key)


def _rows(connection: Connection, table: Table, tail: str, **parameters: Any) -> Generator[tuple[Any, ...], None, None]:
    """Rows with the driver's values: damaged ones may have any type."""
    options = {"stream_results": True, "yield_per": _BATCH}
    with connection.execute(text(_select(table, tail)), parameters, execution_options=options) as found:
        for row in found:
            yield tuple(row)


def _select(table: Table, tail: str) -> str:
    return f"SELECT {', '.join(column.name for column in table.columns)} FROM {table.name} {tail}"

"""Loading the event store: every row checked, what is good in order, what is not taken out and kept."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, text

from gavelpy.errors import JournalCorrupt
from gavelpy.journal.codec import EVENT_NAMES, decode_state
from gavelpy.journal.loss_detection import Evidence, Loss, Numbers
from gavelpy.journal.pages import rows_of, split
from gavelpy.journal.rows import (
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
from gavelpy.journal.schema import (
    EVENTS,
    INCARNATION,
    META,
    QUARANTINE,
    SCHEMA_VERSION,
    SNAPSHOTS,
    SUBMISSIONS,
)
from gavelpy.journal.wal import read_wal
from gavelpy.mechanism.events import JobSubmitted

_BATCH = 2000


@dataclass(frozen=True)
class Loaded:
    """The newest snapshot that is good, the events after it, and what was lost."""

    state: dict[str, Any] | None  # None: there is no snapshot, replay begins with an empty core
    events: Iterator[Entry]
    damage: str  # "" for none; otherwise what, where, and where the rest is kept
    sequence: int  # of the last good event
    loss: Loss | None = None  # of events that were acknowledged; whoever loads has accepted it


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used: where it is, and why."""

    table: Table
    key: dict[str, Any]
    why: str


@dataclass(frozen=True)
class Reading:
    """All that the tables hold."""

    state: dict[str, Any] | None
    chain: Chain
    after: int  # events beyond the chain's end
    bad: list[Bad] = field(default_factory=list)
    seen: int = 0  # the last event of which there is a row
    numbers: Numbers = field(default_factory=Numbers)  # that answers to submissions tell to be taken

    @property
    def evidence(self) -> Evidence:
        """What this tells of a loss."""
        end_s = self.chain.entries[-1][1] if self.chain.entries else 0.0
        return Evidence(self.chain.end.sequence, end_s, self.seen, self.chain.damage, self.numbers)

    @property
    def fault(self) -> str:
        """What is wrong; "" for nothing."""
        reasons = [bad.why for bad in self.bad]
        if self.chain.damage:
            reasons.insert(0, f"{self.chain.damage}; good up to event {self.chain.end.sequence}")
        return "; ".join(reasons)


def read(connection: Connection) -> Reading:
    """Checks every row that a restart depends on: all but the events before the snapshot it starts from."""
    bad: list[Bad] = []
    state, start = _newest_state(connection, bad)
    with _no_collections():
        chain = read_chain(rows_after(connection, start.sequence), start)
    count = text(f"SELECT count(*), max(sequence) FROM {EVENTS.name} WHERE sequence > :end")
    after, seen = connection.execute(count, {"end": chain.end.sequence}).one()
    jobs = 0
    for row in _rows(connection, SUBMISSIONS, "ORDER BY sequence"):
        submission = SubmissionRow(*row)
        key = {"owner": submission.owner, "key": submission.key}
        if not is_whole(submission):
            bad.append(Bad(SUBMISSIONS, key, f"submission {submission.key!r} does not have its checksum"))
            continue
        jobs = max(jobs, submission.first_job + submission.jobs)
        if submission.sequence > chain.end.sequence:
            bad.append(Bad(SUBMISSIONS, key, f"submission {submission.key!r} has lost its events"))
    for row in _rows(connection, META, "ORDER BY name"):
        meta = MetaRow(*row)
        if not is_whole(meta):
            bad.append(Bad(META, {"name": meta.name}, f"value {meta.name!r} does not have its checksum"))
    damage = chain.damage or (f"event {chain.end.sequence + 1} is missing" if after else "")
    seen = max(chain.end.sequence, seen) if isinstance(seen, int) else chain.end.sequence
    return Reading(state, Chain(chain.end, chain.entries, damage), after, bad, seen, Numbers(jobs=jobs))


def rows_after(connection: Connection, after: int, limit: int = 0) -> Iterator[tuple[Any, ...]]:
    """Event rows in order, as the database has them."""
    tail = "WHERE sequence > :after ORDER BY sequence" + (" LIMIT :limit" if limit else "")
    return _rows(connection, EVENTS, tail, after=after, limit=limit)


def quarantine(connection: Connection, reading: Reading) -> None:
    """Moves every bad row, and every event that does not follow, out of the way and keeps it."""
    end = {"end": reading.chain.end.sequence}
    why = reading.chain.damage
    _move(connection, EVENTS, "WHERE sequence > :end", why, end)
    for bad in reading.bad:
        where = " AND ".join(f"{name} = :{name}" for name in bad.key)
        _move(connection, bad.table, f"WHERE {where}", bad.why, bad.key)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Events are no garbage and have no cycles: looking through them again and again takes half of a load's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _newest_state(connection: Connection, bad: list[Bad]) -> tuple[dict[str, Any] | None, Position]:
    for values in _rows(connection, SNAPSHOTS, "ORDER BY sequence DESC"):
        row = SnapshotRow(*values)
        why = "" if is_whole(row) else "does not have its checksum"
        try:
            if not why:
                return decode_state(row.data), Position(row.sequence, row.event_crc32)
        except JournalCorrupt as error:
            why = str(error)
        bad.append(Bad(SNAPSHOTS, {"sequence": row.sequence}, f"snapshot after event {row.sequence} {why}"))
    return None, Position()


def _move(connection: Connection, table: Table, where: str, why: str, key: dict[str, Any]) -> None:
    ordered = text(_select(table, f"{where} ORDER BY {table.columns.values()[0].name}"))
    for rows in connection.execute(ordered, key).partitions(_BATCH):
        kept = [{"source": table.name, "why": why, "content": msgspec.msgpack.encode(list(row))} for row in rows]
        connection.execute(QUARANTINE.insert(), kept)
    connection.execute(text(f"DELETE FROM {table.name} {where}"), key)


def _rows(connection: Connection, table: Table, tail: str, **parameters: Any) -> Iterator[tuple[Any, ...]]:
    """Rows with their values as the driver gives them: damaged ones may hold any type."""
    options = {"stream_results": True, "yield_per": _BATCH}
    with connection.execute(text(_select(table, tail)), parameters, execution_options=options) as found:
        for row in found:
            yield tuple(row)


def _select(table: Table, tail: str) -> str:
    return f"SELECT {', '.join(column.name for column in table.columns)} FROM {table.name} {tail}"


DAMAGE = "damage"  # meta value: what to tell at the next load
SNAPSHOTS_KEPT = 2
_KINDS: dict[int, type[Row]] = {9: EventRow, 5: SnapshotRow, 8: SubmissionRow, 3: MetaRow}  # by number of columns


@dataclass(frozen=True)
class Salvage:
    """The rows to go on with."""

    events: list[EventRow]
    snapshots: list[SnapshotRow]
    submissions: list[SubmissionRow]
    meta: dict[str, str]
    end: Position
    newest_seen: int  # highest sequence of any event with its checksum
    beyond: dict[int, bool]  # events with their checksums after the end: whether one may be a submission
    numbers: Numbers  # that answers to submissions tell to be taken

    @property
    def is_ours(self) -> bool:
        """Whether anything at all was found."""
        return bool(self.events or self.snapshots or self.submissions or self.meta or self.newest_seen)

    @property
    def incarnation(self) -> int:
        """The newest that left a trace."""
        told = self.meta.get(INCARNATION, "0")
        newest = max((row.incarnation for row in self.events), default=0)
        return max(int(told), newest, *(row.incarnation for row in self.snapshots), 0)

    @property
    def told(self) -> str:
        """What is good, and what was seen beyond."""
        text = f"good up to event {self.end.sequence}"
        lost = self.newest_seen - self.end.sequence
        return f"{text}, events up to {self.newest_seen} were seen but do not follow it" if lost > 0 else text

    def evidence(self, fault: str) -> Evidence:
        """What this tells of a loss."""
        end_s = self.events[-1].now_s if self.events else 0.0
        return Evidence(self.end.sequence, end_s, self.newest_seen, fault, self.numbers, self.beyond)

    def write(self, connection: Connection, incarnation: int, damage: str) -> None:
        """Fills the tables of a new file."""
        kept = {k: v for k, v in self.meta.items() if k not in (SCHEMA_VERSION, INCARNATION, DAMAGE)}
        told = [meta_row(name, value) for name, value in (kept | {DAMAGE: damage}).items()]
        connection.execute(META.update().where(META.c.name == INCARNATION), _incarnation(incarnation))
        for table, rows in (
            (META, told),
            (EVENTS, self.events),
            (SNAPSHOTS, self.snapshots),
            (SUBMISSIONS, self.submissions),
        ):
            if rows:
                connection.execute(table.insert(), [row._asdict() for row in rows])


@dataclass
class _Found:
    """Rows with their checksums, in whatever order the pages have them."""

    events: dict[int, list[EventRow]] = field(default_factory=lambda: defaultdict(list))
    snapshots: dict[int, SnapshotRow] = field(default_factory=dict)
    submissions: dict[tuple[str, str], SubmissionRow] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    def add(self, values: list[Any]) -> None:
        """Keeps a row if it is one of ours and has its checksum; a later one of the same name replaces it."""
        kind = _KINDS.get(len(values))
        if kind is None:
            return
        row = kind(*values)
        if isinstance(row, EventRow) and isinstance(row.now_s, int):
            row = row._replace(now_s=float(row.now_s))  # SQLite keeps whole numbers short
        if isinstance(row, SubmissionRow) and isinstance(row.at_s, int):
            row = row._replace(at_s=float(row.at_s))
        if not is_whole(row):
            return
        match row:
            case EventRow():
                self.events[row.sequence].append(row)
            case SnapshotRow():
                self.snapshots[row.sequence] = row
            case SubmissionRow():
                self.submissions[row.owner, row.key] = row
            case MetaRow():
                self.meta[row.name] = row.value


def salvaged(path: Path) -> Salvage:
    """Reads a file and its log; changes neither."""
    found = _scanned(path)
    newest = max(found.snapshots.values(), default=None)
    start = Position(newest.sequence, newest.event_crc32) if newest else Position()
    after = _whole_appends(_forward(found, start), start, found)
    before = _backward(found, start)
    events = [*before, *after]
    first = events[0].sequence if events else start.sequence + 1
    reachable = [row for row in sorted(found.snapshots.values()) if row.sequence >= first - 1]
    end = Position(events[-1].sequence, events[-1].crc32) if after else start
    submissions = [row for row in found.submissions.values() if row.sequence <= end.sequence]
    seen = max((sequence for sequence, rows in found.events.items() if rows), default=0)
    return Salvage(
        events, reachable[-SNAPSHOTS_KEPT:], submissions, dict(found.meta), end, max(seen, end.sequence),
        {
            sequence: any(EVENT_NAMES.get(row.kind) is JobSubmitted for row in rows)
            for sequence, rows in found.events.items()
            if sequence > end.sequence
        },
        Numbers(jobs=max((row.first_job + row.jobs for row in found.submissions.values()), default=0)),
    )  # fmt: skip


def _scanned(path: Path) -> _Found:
    found = _Found()
    file_pages = split(path.read_bytes()) if path.exists() else {}
    log_pages = read_wal(Path(f"{path}-wal")).pages
    latest = file_pages | dict(log_pages)
    for number, page in (*file_pages.items(), *log_pages):
        for values in rows_of(number, page, latest):
            found.add(values)
    return found


def _forward(found: _Found, start: Position) -> list[EventRow]:
    """Rows that follow each other; where histories fork, the newer incarnation's."""
    rows: list[EventRow] = []
    at = start
    while nexts := [row for row in found.events.get(at.sequence + 1, ()) if row.previous_crc32 == at.crc32]:
        rows.append(max(nexts, key=lambda row: row.incarnation))
        at = Position(rows[-1].sequence, rows[-1].crc32)
    return rows


def _backward(found: _Found, start: Position) -> list[EventRow]:
    rows: list[EventRow] = []
    at = start
    while nexts := [row for row in found.events.get(at.sequence, ()) if row.crc32 == at.crc32]:
        rows.append(nexts[0])
        at = Position(at.sequence - 1, nexts[0].previous_crc32)
    return rows[::-1]


def _whole_appends(rows: list[EventRow], start: Position, found: _Found) -> list[EventRow]:
    """The rows without those after the last append that is whole and can be decoded."""
    end = read_chain(rows, start).end.sequence
    rows = [row for row in rows if row.sequence <= end]
    if rows and rows[-1].submissions > sum(row.sequence == end for row in found.submissions.values()):
        return [row for row in rows if row.append_end < end]
    return rows


def _incarnation(incarnation: int) -> dict[str, Any]:
    return meta_row(INCARNATION, str(incarnation))._asdict()

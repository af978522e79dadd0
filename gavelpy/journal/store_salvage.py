"""What the pages of a damaged SQLite file still hold, put in order.

Every row that has its checksum counts, from the file and from its write-ahead log. The chain of checksums says which
of them follow each other: from the newest snapshot forward, and backward for history. A last append that is not whole,
events or submissions missing, was never acknowledged or is lost: it is left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from gavelpy.journal.codec import EVENT_NAMES
from gavelpy.journal.store_loss import Evidence
from gavelpy.journal.store_marks import Numbers
from gavelpy.journal.store_pages import rows_of, split
from gavelpy.journal.store_rows import (
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
from gavelpy.journal.store_schema import (
    EVENTS,
    INCARNATION,
    META,
    SCHEMA_VERSION,
    SNAPSHOTS,
    SUBMISSIONS,
)
from gavelpy.journal.store_wal import read_wal
from gavelpy.mechanism.events import JobSubmitted

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

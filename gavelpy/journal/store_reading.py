"""Loading the event store: every row checked, what is good in order, what is not taken out and kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, text

from gavelpy.errors import JournalCorrupt
from gavelpy.journal.codec import decode_state
from gavelpy.journal.store_loss import Evidence, Loss
from gavelpy.journal.store_marks import Numbers
from gavelpy.journal.store_rows import (
    Chain,
    Entry,
    MetaRow,
    Position,
    SnapshotRow,
    SubmissionRow,
    is_whole,
    read_chain,
)
from gavelpy.journal.store_schema import EVENTS, META, QUARANTINE, SNAPSHOTS, SUBMISSIONS

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

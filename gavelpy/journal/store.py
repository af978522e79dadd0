"""The event store: the scheduler's journal of events, submissions and snapshots in SQLite or PostgreSQL.

An append is one durable transaction. It succeeds only while its incarnation is the newest, and the check commits
together with the rows. Sequences have no gaps. `load` returns the journal up to the last good append and reports the
rest, which is set aside and never deleted. docs/journal.md describes the store for operators.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from gavelpy.errors import FencedOut, GavelError, InvalidInput, JournalCorrupt, JournalFailed, JournalInUse
from gavelpy.journal.archive_reader import ArchiveReader
from gavelpy.journal.archive_tables import Leaving, archive_upto, forget_events
from gavelpy.journal.database import Database, SchedulerMember, database_of, failing
from gavelpy.journal.loss_detection import Loss, MarkKeeper, Marks, Numbers, accepted, loss_of, parsed_marks, refused
from gavelpy.journal.migrations import bring_up_to_date
from gavelpy.journal.repair import (
    DAMAGE,
    SNAPSHOTS_KEPT,
    JournalContent,
    Loaded,
    checksum_at,
    quarantine,
    read,
    rows_after,
)
from gavelpy.journal.sqlite import BackupSettings
from gavelpy.journal.tables import (
    CURRENT,
    EVENTS,
    INCARNATION,
    MARKED,
    META,
    SCHEMA_VERSION,
    SNAPSHOTS,
    SUBMISSIONS,
    Entry,
    EventRow,
    Position,
    Submission,
    entry_of,
    event_rows,
    insertion,
    is_whole,
    meta_named,
    meta_row,
    newest_incarnation,
    prepare,
    put_meta,
    snapshot_row,
    snapshot_sequences,
    storable,
    submission_named,
    submission_row,
    version_of,
)
from gavelpy.mechanism.events import Event

__all__ = ["EventStore", "Loaded", "Submission", "open_store"]
CLUSTER_ID = "cluster_id"  # meta value
NUMBERS = "numbers"  # meta value: marks of a database without a file of marks
_RESERVED = frozenset({SCHEMA_VERSION, INCARNATION, MARKED, DAMAGE, NUMBERS})


def open_store(
    url: str, *, accept_loss: bool = False, take_over: bool = False, backups: BackupSettings | None = None,
    member: SchedulerMember | None = None,
) -> EventStore:  # fmt: skip
    """Opens the journal `sqlite:///PATH` or `postgresql://...` and migrates it to the current layout.

    Raises EventsLost, with nothing changed, if acknowledged events are lost; for PostgreSQL, `load` raises it. With
    `accept_loss`, `load` reports the loss instead, and the caller must skip the numbers of lost jobs and leases.
    Raises JournalInUse if another scheduler uses the PostgreSQL journal, here or from `begin_incarnation`, unless
    `take_over`, which fences the other scheduler out. Raises InvalidInput if a SQLite journal is in use, or its layout
    is newer; JournalCorrupt if nothing of it can be read; JournalFailed if the database fails.
    `member`: this scheduler, if others stand by.
    """
    database = database_of(url, accept_loss=accept_loss, backups=backups, member=member)
    try:
        return EventStore(database, accept_loss=accept_loss, take_over=take_over)
    except (GavelError, OSError):
        database.release()
        raise


class EventStore:
    """One connection, for one thread at a time. After JournalFailed it is unusable: open another store."""

    def __init__(self, database: Database, *, accept_loss: bool, take_over: bool = False) -> None:
        self._database = database
        self._take_over = take_over
        self._accept_loss = accept_loss
        self._incarnation = 0
        self._position: Position | None = None  # of the last good event, after a load in this incarnation
        self._failure = ""
        self._is_fenced = False
        with failing(database.name):
            self._connection = database.connect()
        try:
            with self._transaction() as connection:
                prepare(connection)
                version = version_of(connection)
            if version < CURRENT:
                bring_up_to_date(version, self._transaction, self._check_leader)
            self._keeper = MarkKeeper(database.marks or self._marks_kept(), self._keep_marks)
        except GavelError:
            self._connection.close()
            raise

    def begin_incarnation(self, after: int | None = None) -> int:
        """Starts a new incarnation: appends of older ones fail from now on.

        Raises JournalInUse if the scheduler of the last incarnation is connected, unless opened with `take_over`; and
        if the last incarnation is not `after`.
        """
        with self._transaction() as connection:
            last = newest_incarnation(connection)
            if after not in (None, last):
                raise JournalInUse(f"journal {self._database.name}: incarnation {last} has begun after {after}")
            self._check_leader(connection, last)
            newest = connection.execute(text(f"SELECT max(incarnation) FROM {EVENTS.name}")).scalar()
            number = max(last, newest or 0, self._keeper.marks.incarnation) + 1
            put_meta(connection, meta_row(INCARNATION, str(number)))
            self._database.lead(connection, number)
        self._incarnation, self._position = number, None
        self._keeper.begun(number)
        if self._database.has_mark_file and not self.meta(MARKED):
            with self._transaction() as connection:  # after the file exists: its absence counts as damage from now on
                self._check_incarnation(connection)
                put_meta(connection, meta_row(MARKED, "1"))
        return number

    def load(self) -> Loaded:
        """Reads the journal. Damaged rows are set aside if this incarnation is in force.

        Raises EventsLost if acknowledged events are lost and that is not accepted.
        """
        content, note = self._read_or_repair()
        loss = self._loss_of(content) if self._incarnation else None
        if content.fault:
            note = f"{note}; {content.fault}".removeprefix("; ")
        if self._incarnation and (content.fault or note):
            with self._transaction() as connection:
                self._check_incarnation(connection)
                quarantine(connection, content)
                connection.execute(META.delete().where(META.c.name == DAMAGE))
                put_meta(connection, meta_row(SCHEMA_VERSION, str(CURRENT)))
                put_meta(connection, meta_row(INCARNATION, str(self._incarnation)))
            note += "; the rest is kept in table gavel_quarantine" if content.fault else ""
        if self._incarnation:
            self._position = content.chain.end
        damage = "; ".join(text for text in (note, self._database.note) if text)
        damage = f"journal {self._database.name}: {damage}" if damage else ""
        return Loaded(content.state, iter(content.chain.entries), damage, content.chain.end.sequence, loss)

    def append(
        self,
        records: Sequence[tuple[float, Event]],
        submissions: Sequence[Submission] = (),
        numbers: Numbers | None = None,
        leaving: Leaving | None = None,
    ) -> int:
        """Writes (now_s, event) in order with their submissions, all or nothing; returns the last sequence.

        On return they are on disk, and `leaving` is in the archive. `numbers` are the next free numbers after these
        events: lower ones are never used again, even if the journal is lost. Raises FencedOut, InvalidInput for a key
        that its owner has used, and JournalFailed, after which the events may be in the journal or not.
        """
        assert self._incarnation, "call begin_incarnation before append"
        assert records or not submissions, "submissions need events"
        if self._position is None:
            self.load()
        assert self._position is not None
        if not records:
            return self._position.sequence
        rows = event_rows(self._incarnation, self._position, records, len(submissions))
        answers = [submission_row(submission, rows[-1].sequence) for submission in submissions]
        numbers = numbers or self._keeper.marks.numbers
        self._keeper.reserve(numbers)
        try:
            with self._transaction() as connection:
                self._check_incarnation(connection)
                connection.exec_driver_sql(insertion(EVENTS, connection.dialect.paramstyle), rows)
                if answers:
                    connection.exec_driver_sql(insertion(SUBMISSIONS, connection.dialect.paramstyle), answers)
                if leaving is not None:
                    leaving.write(connection, rows[-1].sequence)
        except IntegrityError as error:
            raise self._conflict(submissions, error) from None
        self._position = Position(rows[-1].sequence, rows[-1].crc32)
        self._keeper.committed((rows[-1].sequence, rows[-1].crc32), rows[-1].now_s, time.time(), numbers)
        self._database.loss = None
        return rows[-1].sequence

    def submission(self, owner: str, key: str) -> Submission | None:
        """The submission of a key; None if its owner has not used the key."""
        with self._transaction() as connection:
            return submission_named(connection, owner, key)

    def forget_submissions(self, before_s: float) -> int:
        """Deletes submissions from before a time; returns their number."""
        with self._transaction() as connection:
            self._check_incarnation(connection)
            return connection.execute(SUBMISSIONS.delete().where(SUBMISSIONS.c.at_s < before_s)).rowcount

    def back_up(self) -> Path | None:
        """Makes a backup of a SQLite journal as configured; None if none is. Safe in any thread.

        Raises JournalCorrupt if the journal is damaged, and JournalFailed if the backup cannot be written.
        """
        with failing(self._database.name):
            return self._database.back_up()

    def save_snapshot(self, sequence: int, state: bytes) -> None:
        """Stores the state (from `codec.encode_state`) after an event; the snapshot before it stays, older ones go."""
        with self._transaction() as connection:
            self._check_incarnation(connection)
            event_crc32 = checksum_at(connection, sequence) if sequence else 0
            if event_crc32 is None:
                raise InvalidInput(f"sequence of a snapshot must be that of an event in the journal, got {sequence!r}")
            row = snapshot_row(sequence, self._incarnation, state, event_crc32)
            connection.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.sequence == sequence))
            connection.execute(SNAPSHOTS.insert(), row._asdict())
            kept = snapshot_sequences(connection)[:SNAPSHOTS_KEPT]
            connection.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.sequence < kept[-1]))

    def truncate(self, keep_after_sequence: int, archived_from_s: float | None = None) -> int:
        """Deletes events up to a sequence, except those that the older snapshot needs; returns their number.

        With `archived_from_s` they move to the archive, which keeps what a replay from this time on needs.
        """
        with self._transaction() as connection:
            self._check_incarnation(connection)
            snapshots = snapshot_sequences(connection)
            if len(snapshots) < SNAPSHOTS_KEPT:
                return 0
            upto = min(keep_after_sequence, snapshots[-1])
            if archived_from_s is not None:
                archive_upto(connection, upto, snapshots[-1])
                forget_events(connection, archived_from_s)
            return connection.execute(EVENTS.delete().where(EVENTS.c.sequence <= upto)).rowcount

    def events(self, after: int, limit: int) -> list[Entry]:
        """At most `limit` events after a sequence, from the oldest in the journal on; raises JournalCorrupt."""
        if limit < 1:
            raise InvalidInput(f"limit must be at least 1, got {limit!r}")
        with self._transaction() as connection:
            rows = [EventRow(*row) for row in rows_after(connection, after, limit)]
        entries: list[Entry] = []
        at = Position(rows[0].sequence - 1, rows[0].previous_crc32) if rows else Position()
        for row in rows:
            entries.append(entry_of(row, at))
            at = Position(row.sequence, row.crc32)
        return entries

    def meta(self, name: str) -> str:
        """A named value; "" if there is none."""
        with self._transaction() as connection:
            found = meta_named(connection, storable("name", name))
        if found is not None and not is_whole(found):
            raise JournalCorrupt(f"value {name!r} does not have its checksum")
        return found.value if found is not None else ""

    def set_meta(self, name: str, value: str) -> None:
        """Stores a named value; after `begin_incarnation` only while that incarnation is the newest."""
        if name in _RESERVED:
            raise InvalidInput(f"name must not be one of {', '.join(sorted(_RESERVED))}, got {name!r}")
        with self._transaction() as connection:
            if self._incarnation:
                self._check_incarnation(connection)
            put_meta(connection, meta_row(storable("name", name), storable("value", value)))

    @property
    def cluster_id(self) -> str:
        """The cluster's id, from the marks if the journal has lost it; "" for a new cluster."""
        return self.meta(CLUSTER_ID) or self._keeper.marks.cluster_id

    def set_cluster_id(self, cluster_id: str) -> None:
        """Stores the cluster's id, also in the marks, so that it survives the loss of the journal."""
        self.set_meta(CLUSTER_ID, cluster_id)
        if self._keeper.marks.cluster_id != cluster_id:
            self._keeper.replaced(replace(self._keeper.marks, cluster_id=cluster_id))

    def reader(self) -> ArchiveReader:  # of the archive, in any thread
        return ArchiveReader(self._database)

    def close(self) -> None:
        """Closes the connection and releases the lock."""
        if self._incarnation and not self._failure and not self._is_fenced:
            self._keeper.closed()
        self._connection.close()
        self._database.release()

    def __enter__(self) -> EventStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        if self._failure:
            raise JournalFailed(f"journal {self._database.name} must be opened again: {self._failure}")
        try:
            with self._connection.begin():
                yield self._connection
        except IntegrityError:
            raise
        except DBAPIError as error:
            self._failure = " ".join(str(error.orig).split())
            raise JournalFailed(f"journal {self._database.name}: {self._failure}") from error

    def _marks_kept(self) -> Marks | None:
        """The marks of a database without a file of marks, from their row."""
        with self._transaction() as connection:
            found = meta_named(connection, NUMBERS)
        return parsed_marks(found.value) if found is not None and is_whole(found) else None

    def _keep_marks(self, marks: Marks, durably: bool) -> None:
        with failing(self._database.name):
            is_kept = self._database.keep_marks(marks, durably)
        if is_kept or not durably or marks.is_closed:
            return
        with self._transaction() as connection:
            self._check_incarnation(connection)
            put_meta(connection, meta_row(NUMBERS, replace(marks, boot="").text))

    def _loss_of(self, content: JournalContent) -> Loss | None:
        """What is lost, if that is accepted; else raises EventsLost, with nothing changed."""
        loss = self._database.loss or loss_of(content.evidence(self._keeper.marks), self._keeper.marks)
        if loss is not None and not self._accept_loss:
            raise refused(self._database.name, loss)
        if loss is not None:
            self._keeper.replaced(accepted(loss, self._keeper.marks))
        return loss

    def _read_or_repair(self) -> tuple[JournalContent, str]:
        """The tables, and the note of a repair; a damaged file is replaced and read again."""
        try:
            content, note = self._read(self._database.content)
            self._database.content = None
            fault = content.fault
        except JournalFailed as error:
            cause = error.__cause__
            if not (isinstance(cause, DBAPIError) and self._database.is_damage(cause.orig)):
                raise
            fault = self._failure
        if not fault:
            return content, note
        self._connection.close()
        with failing(self._database.name):
            self._database.repair(fault, self._incarnation)
            self._connection = self._database.connect()
        self._failure = ""
        return self._read()

    def _read(self, known: JournalContent | None = None) -> tuple[JournalContent, str]:
        query = select(META.c.value).where(META.c.name == DAMAGE)
        with self._transaction() as connection:
            newest = connection.execute(text(f"SELECT max(sequence) FROM {EVENTS.name}")).scalar()
            if known is not None and known.seen != (newest or 0):  # another process has written since
                known = None
            content = known or read(connection, self._keeper.marks.sequence)
            return content, str(connection.execute(query).scalar() or "")

    def _check_incarnation(self, connection: Connection) -> None:
        """Raises FencedOut unless this incarnation is in force; it stays so until the transaction ends."""
        assert self._incarnation, "call begin_incarnation first"
        newest = newest_incarnation(connection)
        if newest != self._incarnation:
            self._is_fenced = True
            raise FencedOut(
                f"journal {self._database.name}: incarnation {newest} has taken over from {self._incarnation}"
            )

    def _check_leader(self, connection: Connection, incarnation: int) -> None:
        if not self._take_over:
            self._database.check_leader(connection, incarnation)

    def _conflict(self, submissions: Sequence[Submission], error: IntegrityError) -> GavelError:
        """The error for rows that exist already: InvalidInput if a key was used, else JournalFailed."""
        seen: set[tuple[str, str]] = set()
        for submission in submissions:
            name = (submission.owner, submission.key)
            if name in seen or self.submission(*name) is not None:
                return InvalidInput(f"key of a submission must be new for its owner, got {name[1]!r} of {name[0]!r}")
            seen.add(name)
        self._failure = " ".join(str(error.orig).split())
        return JournalFailed(f"journal {self._database.name}: {self._failure}")

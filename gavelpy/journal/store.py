"""The scheduler's journal in a database: events, submissions and snapshots that outlive every crash.

An append is one durable transaction, and it counts only while its incarnation is the newest: the check and the rows
commit together. Sequences have no gaps. `load` hands out what is good up to the last good append and names the rest,
which is moved aside, never dropped. SQLite lies in one file for one process; PostgreSQL may be taken over.
docs/journal.md tells operators what is where.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType

from sqlalchemy import Connection, bindparam, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from gavelpy.errors import FencedOut, GavelError, InvalidInput, JournalCorrupt, JournalFailed
from gavelpy.journal.database import Database, database_of, failing
from gavelpy.journal.loss_detection import Keeper, Loss, Marks, Numbers, accepted, loss_of, parsed, refused
from gavelpy.journal.recovery import DAMAGE, SNAPSHOTS_KEPT, Loaded, Reading, quarantine, read, rows_after
from gavelpy.journal.rows import (
    Entry,
    EventRow,
    Position,
    Submission,
    SubmissionRow,
    entry_of,
    event_rows,
    is_whole,
    meta_row,
    snapshot_row,
    storable,
    submission_row,
)
from gavelpy.journal.schema import (
    CURRENT,
    EVENTS,
    INCARNATION,
    META,
    SCHEMA_VERSION,
    SNAPSHOTS,
    SUBMISSIONS,
    insertion,
    meta_named,
    migrate,
    newest_incarnation,
    pending,
    prepare,
    put_meta,
    version_of,
)
from gavelpy.mechanism.events import Event

__all__ = ["EventStore", "Loaded", "Submission", "open_store"]
CLUSTER_ID = "cluster_id"  # meta value
NUMBERS = "numbers"  # meta value: marks that have no place elsewhere
_RESERVED = frozenset({SCHEMA_VERSION, INCARNATION, DAMAGE, NUMBERS})
# Made once: every submission runs it.
_ANSWER = select(SUBMISSIONS).where(
    SUBMISSIONS.c.owner == bindparam("its_owner"), SUBMISSIONS.c.key == bindparam("its_key")
)


def open_store(url: str, *, create: bool = True, accept_loss: bool = False, take_over: bool = False) -> EventStore:
    """The journal that `sqlite:///PATH` or `postgresql://...` names, brought to this version's layout.

    Where acknowledged events are lost: EventsLost, and nothing is changed, unless `accept_loss`; then `load` tells of
    the loss, and its numbers are for the caller to skip. Of a database that is no file, `load` raises it.

    In PostgreSQL a journal whose scheduler is alive raises JournalInUse, here or from `begin_incarnation`, unless
    `take_over`: that scheduler is then fenced out.

    Raises InvalidInput where it is in use, of a newer version, or missing and not to be created; JournalCorrupt where
    nothing of it can be read; JournalFailed where the database does not answer.
    """
    database = database_of(url, create=create, accept_loss=accept_loss)
    try:
        return EventStore(database, create=create, accept_loss=accept_loss, take_over=take_over)
    except (GavelError, OSError):
        database.release()
        raise


class EventStore:
    """One connection; not for several threads at a time. After JournalFailed it is of no more use: open another."""

    def __init__(self, database: Database, *, create: bool, accept_loss: bool, take_over: bool = False) -> None:
        self._database = database
        self._take_over = take_over
        self._accept_loss = accept_loss
        self._incarnation = 0
        self._position: Position | None = None  # end of the good events, known after a load in this incarnation
        self._failure = ""
        self._is_fenced = False
        with failing(database.name):
            self._connection = database.connect()
        try:
            self._bring_up_to_date(create)
            self._keeper = Keeper(database.marks or self._marks_kept(), self._keep_marks)
        except GavelError:
            self._connection.close()
            raise

    def begin_incarnation(self) -> int:
        """Takes the journal over: every append of an older incarnation is refused from now on.

        Raises JournalInUse where the scheduler of the last incarnation is alive, unless opened with `take_over`.
        """
        with self._transaction() as connection:
            told = newest_incarnation(connection)
            self._check_leader(connection, told)
            newest = connection.execute(text(f"SELECT max(incarnation) FROM {EVENTS.name}")).scalar()
            number = max(told, newest or 0, self._keeper.marks.incarnation) + 1
            put_meta(connection, meta_row(INCARNATION, str(number)))
            self._database.lead(connection, number)
        self._incarnation, self._position = number, None
        self._keeper.begun(number)
        return number

    def load(self) -> Loaded:
        """The state to go on from. What is damaged is moved aside if this is the incarnation in force.

        Raises EventsLost where events are lost that were acknowledged, and nobody has accepted that.
        """
        reading, told = self._read_or_repair()
        loss = self._loss_of(reading) if self._incarnation else None
        if reading.fault:
            told = f"{told}; {reading.fault}".removeprefix("; ")
        if self._incarnation and (reading.fault or told):
            with self._transaction() as connection:
                self._check_incarnation(connection)
                quarantine(connection, reading)
                connection.execute(META.delete().where(META.c.name == DAMAGE))
                put_meta(connection, meta_row(SCHEMA_VERSION, str(CURRENT)))
                put_meta(connection, meta_row(INCARNATION, str(self._incarnation)))
            told += "; the rest is kept in table gavel_quarantine" if reading.fault else ""
        if self._incarnation:
            self._position = reading.chain.end
        damage = "; ".join(text for text in (told, self._database.note) if text)
        damage = f"journal {self._database.name}: {damage}" if damage else ""
        return Loaded(reading.state, iter(reading.chain.entries), damage, reading.chain.end.sequence, loss)

    def append(
        self,
        records: Sequence[tuple[float, Event]],
        submissions: Sequence[Submission] = (),
        numbers: Numbers | None = None,
    ) -> int:
        """Writes (now_s, event) in order and what they answer, all or nothing; returns the last sequence.

        When it returns, they are on disk. `numbers` is what may be given out after that: known as taken from now on,
        whatever becomes of the journal. Raises FencedOut, InvalidInput for a key that its owner has used, and
        JournalFailed, after which they may be there or not.
        """
        assert self._incarnation, "begin_incarnation comes before append"
        assert records or not submissions, "submissions come with their events"
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
        except IntegrityError as error:
            raise self._conflict(submissions, error) from None
        self._position = Position(rows[-1].sequence, rows[-1].crc32)
        self._keeper.committed(rows[-1].sequence, rows[-1].now_s, time.time(), numbers)
        self._database.loss = None
        return rows[-1].sequence

    def submission(self, owner: str, key: str) -> Submission | None:
        """What a key was answered with, or None where its owner has not used it."""
        named = {"its_owner": storable("owner", owner), "its_key": storable("key", key)}
        with self._transaction() as connection:
            found = connection.execute(_ANSWER, named).one_or_none()
        if found is None:
            return None
        row = SubmissionRow(*found)
        if not is_whole(row):
            raise JournalCorrupt(f"submission {key!r} of {owner!r} does not have its checksum")
        return Submission(*row[:-2])

    def forget_submissions(self, before_s: float) -> int:
        """Drops the answers to submissions from before a time; how many there were."""
        with self._transaction() as connection:
            self._check_incarnation(connection)
            return connection.execute(SUBMISSIONS.delete().where(SUBMISSIONS.c.at_s < before_s)).rowcount

    def save_snapshot(self, sequence: int, state: bytes) -> None:
        """Keeps the core's state (of `codec.encode_state`) after an event, and the snapshot before it."""
        with self._transaction() as connection:
            self._check_incarnation(connection)
            row = snapshot_row(sequence, self._incarnation, state, self._checksum_at(connection, sequence))
            connection.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.sequence == sequence))
            connection.execute(SNAPSHOTS.insert(), row._asdict())
            kept = _snapshots(connection)[:SNAPSHOTS_KEPT]
            connection.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.sequence < kept[-1]))

    def truncate(self, keep_after_sequence: int) -> int:
        """Drops events up to a sequence, but none that the older of two snapshots needs; how many there were."""
        with self._transaction() as connection:
            self._check_incarnation(connection)
            snapshots = _snapshots(connection)
            if len(snapshots) < SNAPSHOTS_KEPT:
                return 0
            upto = min(keep_after_sequence, snapshots[-1])
            return connection.execute(EVENTS.delete().where(EVENTS.c.sequence <= upto)).rowcount

    def events(self, after: int, limit: int) -> list[Entry]:
        """At most `limit` events after a sequence, from the first that is still kept; raises JournalCorrupt."""
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
        """A named value; "" where there is none."""
        with self._transaction() as connection:
            found = meta_named(connection, storable("name", name))
        if found is not None and not is_whole(found):
            raise JournalCorrupt(f"value {name!r} does not have its checksum")
        return found.value if found is not None else ""

    def set_meta(self, name: str, value: str) -> None:
        """Keeps a named value; after `begin_incarnation` only while that is the newest."""
        if name in _RESERVED:
            raise InvalidInput(f"name must not be one of {', '.join(sorted(_RESERVED))}, got {name!r}")
        with self._transaction() as connection:
            if self._incarnation:
                self._check_incarnation(connection)
            put_meta(connection, meta_row(storable("name", name), storable("value", value)))

    @property
    def cluster_id(self) -> str:
        """The cluster's id, from the marks where the journal has lost it; "" before the first."""
        return self.meta(CLUSTER_ID) or self._keeper.marks.cluster_id

    def set_cluster_id(self, cluster_id: str) -> None:
        """Keeps the cluster's id, in the marks as well, so that it survives the loss of the journal."""
        self.set_meta(CLUSTER_ID, cluster_id)
        if self._keeper.marks.cluster_id != cluster_id:
            self._keeper.replaced(replace(self._keeper.marks, cluster_id=cluster_id))

    def close(self) -> None:
        """Lets go of the database."""
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
            raise JournalFailed(f"journal {self._database.name} must be opened anew: {self._failure}")
        try:
            with self._connection.begin():
                yield self._connection
        except IntegrityError:
            raise
        except DBAPIError as error:
            self._failure = " ".join(str(error.orig).split())
            raise JournalFailed(f"journal {self._database.name}: {self._failure}") from error

    def _marks_kept(self) -> Marks | None:
        """The marks that are in a row, of a database that has no place beside it."""
        with self._transaction() as connection:
            found = meta_named(connection, NUMBERS)
        return parsed(found.value) if found is not None and is_whole(found) else None

    def _keep_marks(self, marks: Marks, durably: bool) -> None:
        with failing(self._database.name):
            is_kept = self._database.keep_marks(marks, durably)
        if is_kept or not durably or marks.is_closed:
            return
        with self._transaction() as connection:
            self._check_incarnation(connection)
            put_meta(connection, meta_row(NUMBERS, replace(marks, boot="").text))

    def _loss_of(self, reading: Reading) -> Loss | None:
        """What is lost, and accepted; raises EventsLost, and nothing has changed, where it is not."""
        loss = self._database.loss or loss_of(reading.evidence, self._keeper.marks)
        if loss is not None and not self._accept_loss:
            raise refused(self._database.name, loss)
        if loss is not None:
            self._keeper.replaced(accepted(loss, self._keeper.marks))
        return loss

    def _bring_up_to_date(self, create: bool) -> None:
        with self._transaction() as connection:
            if create:
                prepare(connection)
            if not connection.dialect.has_table(connection, META.name):
                raise InvalidInput(f"journal is not there: no table {META.name}", file=self._database.name)
            version = version_of(connection)
        for step in pending(version):
            with self._transaction() as connection:
                incarnation = newest_incarnation(connection)
                self._check_leader(connection, incarnation)
                if version_of(connection) < step.version:  # another scheduler may have been quicker
                    migrate(connection, step)
                    put_meta(connection, meta_row(INCARNATION, str(incarnation + 1)))  # nothing more in the old layout

    def _read_or_repair(self) -> tuple[Reading, str]:
        """What the tables hold, and what a repair had to tell; a damaged file is replaced and read again."""
        try:
            reading, told = self._read(self._database.reading)
            self._database.reading = None
            fault = reading.fault
        except JournalFailed as error:
            cause = error.__cause__
            if not (isinstance(cause, DBAPIError) and self._database.is_damage(cause.orig)):
                raise
            fault = self._failure
        if not fault:
            return reading, told
        self._connection.close()
        with failing(self._database.name):
            self._database.repair(fault, self._incarnation)
            self._connection = self._database.connect()
        self._failure = ""
        return self._read()

    def _read(self, known: Reading | None = None) -> tuple[Reading, str]:
        query = select(META.c.value).where(META.c.name == DAMAGE)
        with self._transaction() as connection:
            newest = connection.execute(text(f"SELECT max(sequence) FROM {EVENTS.name}")).scalar()
            if known is not None and known.seen != (newest or 0):  # somebody else has written meanwhile
                known = None
            return known or read(connection), str(connection.execute(query).scalar() or "")

    def _check_incarnation(self, connection: Connection) -> None:
        """Raises FencedOut unless ours is in force; it stays in force until the transaction ends."""
        assert self._incarnation, "begin_incarnation comes first"
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
        """Whose fault it is that rows were there already: the caller's if a key was used, else nobody's we know."""
        seen: set[tuple[str, str]] = set()
        for submission in submissions:
            name = (submission.owner, submission.key)
            if name in seen or self.submission(*name) is not None:
                return InvalidInput(f"key of a submission must be new for its owner, got {name[1]!r} of {name[0]!r}")
            seen.add(name)
        self._failure = " ".join(str(error.orig).split())
        return JournalFailed(f"journal {self._database.name}: {self._failure}")

    def _checksum_at(self, connection: Connection, sequence: int) -> int:
        if sequence == 0:
            return 0
        query = text(f"SELECT crc32 FROM {EVENTS.name} WHERE sequence = :sequence")
        found = connection.execute(query, {"sequence": sequence}).scalar()
        if found is None:
            raise InvalidInput(f"sequence of a snapshot must be that of an event in the journal, got {sequence!r}")
        return int(found)


def _snapshots(connection: Connection) -> list[int]:
    """Sequences, newest first."""
    return list(connection.execute(select(SNAPSHOTS.c.sequence).order_by(SNAPSHOTS.c.sequence.desc())).scalars())

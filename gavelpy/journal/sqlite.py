"""The event store in a SQLite file: made whole or not at all, one process at a time, looked over before it is used.

Beside the file `F` lie `F-wal` and `F-shm` (SQLite's), `F.lock` (held while the store is open), `F.marks` (how far it
had come) and, after damage, `F.damaged-N` and `F.damaged-N-wal`: what was found, untouched. Where events are lost that
were acknowledged, nothing is changed unless that is accepted. `F.recovering` and `F.recovered` are there only while a
damaged file is replaced; a crash in between is made good at the next opening.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from gavelpy.errors import InvalidInput, JournalCorrupt, JournalFailed
from gavelpy.journal.loss_detection import Evidence, Loss, MarkFile, Marks, accepted, loss_of, refused, sync
from gavelpy.journal.recovery import Reading, Salvage, read, salvaged
from gavelpy.journal.rows import MetaRow, is_whole
from gavelpy.journal.schema import CURRENT, EVENTS, INCARNATION, META, SCHEMA_VERSION, prepare, version_of
from gavelpy.journal.wal import PAGE_BYTES, read_wal

BUSY_MS = 5000
_MODE = 0o600
_HEADER_BYTES = 100
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, -1})  # -1: text that is not UTF-8
_BESIDE = ("-wal", "-shm")


class SqliteDatabase:
    """One file, locked against every other process that opens it as a store."""

    def __init__(self, path: Path, *, create: bool, accept_loss: bool = False) -> None:
        self.path = path
        self.name = str(path)
        self.note = ""  # what opening found and left as it is
        self.loss: Loss | None = None  # that was accepted
        self.reading: Reading | None = None  # what the file holds, if opening has read it
        self._accept_loss = accept_loss
        self._mark_file = MarkFile(self._beside(".marks"))
        self.marks: Marks | None = None
        if not path.parent.is_dir():
            raise InvalidInput("journal's folder must be there", file=str(path.parent))
        with ExitStack() as stack:
            self._lock = _locked(path)
            stack.callback(self.release)
            self.marks = self._mark_file.read()
            self._make_ready(create)
            stack.pop_all()

    def connect(self) -> Connection:
        """A connection with a transaction for each `begin`, durable when it has committed."""
        return _engine(self.path).connect()

    def is_damage(self, error: BaseException | None) -> bool:
        """Whether SQLite says that the file is not what it should be."""
        return isinstance(error, sqlite3.Error) and _code(error) in _DAMAGED

    def repair(self, fault: str, incarnation: int, *, reaches_events: bool = True) -> bool:
        """Replaces the file by one with all that its pages still hold, and that tells so when it is loaded: true.

        No connection may be open. Raises JournalCorrupt, and leaves the file as it is, where nothing can be read or
        events are lost and nobody has accepted that.
        """
        found = salvaged(self.path)
        if not found.is_ours:
            raise JournalCorrupt(
                "journal must be a SQLite file with our tables, and nothing of the kind can be read from it; "
                "it is left as it is, move it away to begin anew",
                file=self.name,
            )
        self._check_loss(found.evidence(fault if reaches_events else ""))
        aside = self._aside()
        told = f"{fault}; {found.told}; what was found is kept as {aside}"
        self._rebuild(found, max(incarnation, found.incarnation), told)
        self._replace(aside)
        return True

    def keep_marks(self, marks: Marks, durably: bool) -> bool:
        """Writes marks beside the file: true."""
        self._mark_file.write(marks, durably=durably)
        return True

    def check_leader(self, connection: Connection, incarnation: int) -> None:
        """No error: the file's lock, taken when it was opened, keeps every other scheduler out."""

    def lead(self, connection: Connection, incarnation: int) -> None:
        """No change: see `check_leader`."""

    def release(self) -> None:
        """Lets other processes open the file."""
        self._mark_file.close()
        os.close(self._lock)

    def _make_ready(self, create: bool) -> None:
        if self._beside(".recovered").exists():
            self._replace(self._aside())
        if not self.path.exists() and not self._beside("-wal").exists():
            self._make_new(create)
            return
        fault, reading = _fault(self.path), None
        if not fault:
            fault, reading = self._read()
        if fault:
            self.repair(fault, 0, reaches_events=reading is None or bool(reading.chain.damage))
        elif beyond := read_wal(self._beside("-wal")).beyond:
            self._look_at_wal(beyond)
        elif reading is not None:
            if self.marks is not None and self.marks.sequence > reading.chain.end.sequence:
                self._check_loss(salvaged(self.path).evidence(""))
            self.reading = reading
        if self._mark_file.is_damaged:
            told = f"{self._mark_file.path} cannot be read and is written anew"
            self.note = f"{self.note}; {told}".removeprefix("; ")

    def _read(self) -> tuple[str, Reading | None]:
        """What is wrong with the rows, and what they hold where they are of this layout; changes nothing."""
        engine = create_engine("sqlite://", creator=lambda: _reading(self.path), poolclass=NullPool)
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("BEGIN")  # one look at all tables: somebody may write whose lock failed
                reading = read(connection) if version_of(connection) == CURRENT else None
        except DBAPIError as error:
            if not self.is_damage(error.orig):
                raise
            return " ".join(str(error.orig).split()), None
        return reading.fault if reading is not None else "", reading

    def _make_new(self, create: bool) -> None:
        if not create:
            raise InvalidInput("journal is not there", file=self.name)
        self._check_loss(Evidence(end=0, end_s=0.0, seen=0))
        self._begin_file().close()
        self._beside(".recovering").replace(self.path)
        sync(self.path.parent)

    def _check_loss(self, found: Evidence) -> None:
        """Raises EventsLost, and nothing has changed, unless nothing is lost or that is accepted."""
        loss = loss_of(found, self.marks)
        if loss is None:
            return
        if not self._accept_loss:
            raise refused(self.name, loss)
        self.loss, self.marks = loss, accepted(loss, self.marks)
        self.keep_marks(self.marks, True)

    def _look_at_wal(self, beyond: int) -> None:
        """Frames that SQLite would pass over are looked through first: it would write over them."""
        found = salvaged(self.path)
        if found.end.sequence > _last_sequence(self.path):
            self.repair(f"the write-ahead log is damaged before its last {beyond} frames", 0)
            return
        self._check_loss(found.evidence(""))
        aside = self._aside()
        shutil.copy2(self._beside("-wal"), f"{aside}-wal")
        self.note = (
            f"the end of the write-ahead log is torn, {beyond} frames after event {found.end.sequence}: "
            f"an append that was never acknowledged, or damage; a copy is kept as {aside}-wal"
        )

    def _begin_file(self) -> Connection:
        """A new file under the name of one that is being made, with our tables."""
        path = self._beside(".recovering")
        for old in (path, *(Path(f"{path}{suffix}") for suffix in _BESIDE)):
            old.unlink(missing_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _MODE))
        connection = _engine(path).connect()
        with connection.begin():
            prepare(connection)
        return connection

    def _rebuild(self, found: Salvage, incarnation: int, note: str) -> None:
        with self._begin_file() as connection, connection.begin():
            found.write(connection, incarnation, note)
        making, made = self._beside(".recovering"), self._beside(".recovered")
        sync(making)
        making.replace(made)
        sync(self.path.parent)

    def _replace(self, aside: Path) -> None:
        """Puts the recovered file in the place of the damaged one; may be done again after a crash.

        The old log goes before the new file comes: SQLite would apply it to whatever has the file's name.
        """
        for suffix in ("", "-wal"):
            old, kept = Path(f"{self.path}{suffix}"), Path(f"{aside}{suffix}")
            if old.exists():
                _keep(old, kept)
        for suffix in _BESIDE:
            self._beside(suffix).unlink(missing_ok=True)
        sync(self.path.parent)
        self._beside(".recovered").replace(self.path)
        sync(self.path.parent)

    def _aside(self) -> Path:
        taken = {path.name.removesuffix("-wal") for path in self.path.parent.glob(f"{self.path.name}.damaged-*")}
        number = next(k for k in range(1, len(taken) + 2) if f"{self.path.name}.damaged-{k}" not in taken)
        return self._beside(f".damaged-{number}")

    def _beside(self, suffix: str) -> Path:
        return Path(f"{self.path}{suffix}")


def _engine(path: Path) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=NullPool,
        hide_parameters=True,
        connect_args={"check_same_thread": False, "timeout": BUSY_MS / 1000},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not guessed by the driver
        for pragma in (
            f"page_size={PAGE_BYTES}",
            f"busy_timeout={BUSY_MS}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "cache_spill=OFF",  # frames are written by commits only
            "trusted_schema=OFF",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _fault(path: Path) -> str:
    """What is wrong with a file's structure; "" where SQLite can use it. Reads only, so that evidence stays."""
    if not path.exists():
        return "the file is gone, its write-ahead log is there"
    if path.stat().st_size < _HEADER_BYTES:  # SQLite would delete the log of an empty file, and of one of a byte
        return "the file is empty" if not path.stat().st_size else "the file ends within its header"
    try:
        with closing(_reading(path)) as connection:
            answer = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
            return _fault_of_meta(connection) if answer == "ok" else f"integrity check: {' '.join(answer.split())}"
    except sqlite3.Error as error:
        if _code(error) in _DAMAGED | {sqlite3.SQLITE_ERROR}:  # the second: our tables or columns are not there
            return str(error)
        raise JournalFailed(f"journal {path} cannot be read: {error}") from error


def _fault_of_meta(connection: sqlite3.Connection) -> str:
    """Schema version and incarnation must be there, with their checksums from the version on that has them."""
    rows = connection.execute(f"SELECT * FROM {META.name} WHERE name IN (?, ?)", (SCHEMA_VERSION, INCARNATION))
    found = rows.fetchall()
    if {row[0] for row in found} != {SCHEMA_VERSION, INCARNATION}:
        return f"{META.name} lacks the schema version or the incarnation"
    broken = [row[0] for row in found if len(row) == len(MetaRow._fields) and not is_whole(MetaRow(*row))]
    return f"{META.name}: {broken[0]} does not have its checksum" if broken else ""


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary code; -1 for errors of the driver, which reads values, that SQLite knows nothing of."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else -1


def _last_sequence(path: Path) -> int:
    with closing(_reading(path)) as connection:
        return int(connection.execute(f"SELECT coalesce(max(sequence), 0) FROM {EVENTS.name}").fetchone()[0])


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_MS / 1000)


def _locked(path: Path) -> int:
    """A descriptor that holds the lock; it names its process for whoever comes second."""
    lock = Path(f"{path}.lock")
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, _MODE)
    except OSError as error:
        raise InvalidInput(f"journal cannot be written: {error.strerror}", file=str(lock)) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise InvalidInput(
            f"journal is in use by process {holder or '?'}: one scheduler a journal", file=str(path)
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _keep(old: Path, kept: Path) -> None:
    """A second name for a file, or a copy where the file system has no second names."""
    try:
        os.link(old, kept)
    except OSError:
        shutil.copy2(old, kept)

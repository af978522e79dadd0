"""The event store in a SQLite file: one process at a time, verified before SQLite may write to it, backed up online.

Files next to the journal `F`:

- `F-wal`, `F-shm`: SQLite's. `F.lock`: locked while the store is open. `F.marks`: how far the journal has come.
- `F.backup-N`: a copy up to event N, made with SQLite's online backup and verified. They may be in another directory.
- `F.damaged-K`, `F.damaged-K-wal`: a damaged journal, byte for byte.
- `F.recovering`, `F.recovered`, `F.backup-new`: only while a damaged file is replaced or a backup is made. A crash in
  between is repaired at the next start.

A damaged file is rebuilt from its readable rows and its backups (`recovery`). If acknowledged events are lost even so,
nothing is changed and EventsLost is raised, unless the loss is accepted.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from gavelpy.errors import InvalidInput, JournalCorrupt, JournalFailed
from gavelpy.journal.loss_detection import Evidence, Loss, MarkFile, Marks, accepted, loss_of, refused, sync
from gavelpy.journal.repair import HEADER_BYTES, JournalContent, Salvage, copy_archive, read, read_only, salvage
from gavelpy.journal.tables import (
    CURRENT,
    EVENTS,
    INCARNATION,
    MARKED,
    META,
    SCHEMA_VERSION,
    SNAPSHOTS,
    MetaRow,
    is_whole,
    meta_row,
    prepare,
    put_meta,
    version_of,
)

PAGE_BYTES = 4096
BUSY_MS = 5000
# Of a larger file a start checks the structure of the tables that it reads; a backup checks that of all of them.
WHOLE_BYTES, WHOLE = 64 << 20, math.inf
_MODE = 0o600
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, -1})  # -1: text that is not UTF-8
_SIDE_FILES = ("-wal", "-shm")


@dataclass(frozen=True)
class BackupSettings:
    """How many backups are kept (0 = none are made), and in which directory (default: that of the journal)."""

    kept: int = 0
    directory: Path | None = None


class SqliteDatabase:
    """One file, locked against every other process that opens it as a store."""

    has_mark_file = True

    def __init__(self, path: Path, *, accept_loss: bool = False, backups: BackupSettings | None = None) -> None:
        self.path = path
        self.name = str(path)
        self.note = ""  # what opening found and left as it is
        self.loss: Loss | None = None  # that was accepted
        self.content: JournalContent | None = None  # if opening has read it
        self.marks: Marks | None = None
        self._accept_loss = accept_loss
        self._backups = backups or BackupSettings()
        self._backup_prefix = (self._backups.directory or path.parent) / f"{path.name}.backup-"
        self._mark_file = MarkFile(self._side(".marks"))
        if not path.parent.is_dir():
            raise InvalidInput("journal's directory must exist", file=str(path.parent))
        if not self._backup_prefix.parent.is_dir():
            raise InvalidInput("directory of the journal's backups must exist", file=str(self._backup_prefix.parent))
        with ExitStack() as stack:
            self._lock = _locked(path)
            stack.callback(self.release)
            self.marks = self._mark_file.read()
            self._make_ready()
            stack.pop_all()

    def connect(self) -> Connection:
        """A connection with a transaction for each `begin`, durable after its commit."""
        return _engine(self.path).connect()

    def read(self) -> Connection:
        """A connection to read only; the write-ahead log lets it read while another one writes."""
        return create_engine("sqlite://", creator=lambda: read_only(self.path), poolclass=NullPool).connect()

    def is_damage(self, error: BaseException | None) -> bool:
        """Whether SQLite reports that the file is damaged."""
        return isinstance(error, sqlite3.Error) and _code(error) in _DAMAGED

    def repair(self, fault: str, incarnation: int, *, reaches_events: bool = True) -> bool:
        """Replaces the file by one with all rows that it and its backups still contain; true.

        No connection may be open. The next load reports the damage. Raises JournalCorrupt, and leaves the file as it
        is, if nothing can be read, and EventsLost if events are lost and that is not accepted.
        """
        found = salvage(self._sources())
        if not found.is_journal and (self.marks is None or not self.marks.record_commits):
            raise JournalCorrupt(
                "journal must be a SQLite file with gavelpy's tables, and no such row can be read from it or from a "
                "backup; it is left as it is. Put a backup in its place, try sqlite3's .recover, or move it away",
                file=self.name,
            )
        evidence = found.evidence(fault if reaches_events else "", self.marks)
        self._check_loss(evidence)
        aside = self._aside()
        why = "; ".join(text for text in (fault or evidence.fault or "its last events are missing", found.summary))
        self._rebuild(found, max(incarnation, found.incarnation), f"{why}; the damaged file is kept as {aside}")
        self._replace(aside)
        return True

    def keep_marks(self, marks: Marks, durably: bool) -> bool:
        """Writes marks to their file; true."""
        self._mark_file.write(marks, durably=durably)
        return True

    def back_up(self) -> Path | None:
        """Makes a backup while the journal is in use, verifies it, and deletes all but the newest ones.

        It has a connection of its own, so it may run in another thread than the store. Raises JournalCorrupt if the
        copy is damaged, as the journal is then; older backups stay.
        """
        if not self._backups.kept:
            return None
        copy = Path(f"{self._backup_prefix}new")
        copy.unlink(missing_ok=True)
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, _MODE))
        with closing(read_only(self.path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # one file, which can be read where it cannot be written
        fault, content = self._inspected(copy, WHOLE)
        if fault or content is None:
            copy.unlink()
            raise JournalCorrupt(f"journal is damaged, so no backup of it is kept: {fault}", file=self.name)
        sync(copy)
        kept = copy.replace(f"{self._backup_prefix}{content.chain.end.sequence}")
        for old in self._backup_files()[self._backups.kept :]:
            old.unlink()
        sync(kept.parent)
        return kept

    def check_leader(self, connection: Connection, incarnation: int) -> None:
        """No error: the lock on the file excludes every other scheduler."""

    def lead(self, connection: Connection, incarnation: int) -> None:
        """No change: see `check_leader`."""

    def release(self) -> None:
        """Lets other processes open the file."""
        self._mark_file.close()
        os.close(self._lock)

    def _make_ready(self) -> None:
        if self._side(".recovered").exists():
            self._replace(self._aside())
        is_there = self.path.exists() or self._side("-wal").exists()
        if not is_there and not self._backup_files():
            self._make_new()
            return
        fault, content = self._inspected(self.path) if is_there else ("the file is missing", None)
        if fault:
            lacks_marks = content is not None and content.has_marks and self.marks is None
            self.repair(fault, 0, reaches_events=content is None or lacks_marks or bool(content.chain.damage))
        elif content is not None and loss_of(content.evidence(self.marks), self.marks) is not None:
            self._make_up_for_loss(content)
        else:
            self.content = content
        if self._mark_file.is_damaged:
            note = f"{self._mark_file.path} cannot be read and is written again"
            self.note = f"{self.note}; {note}".removeprefix("; ")

    def _inspected(self, path: Path, whole_bytes: float = WHOLE_BYTES) -> tuple[str, JournalContent | None]:
        """What is wrong with a file, and its rows if they have the current layout. Changes nothing."""
        if fault := _structural_fault(path, whole_bytes):
            return fault, None
        engine = create_engine("sqlite://", creator=lambda: read_only(path), poolclass=NullPool)
        marked = self.marks.sequence if self.marks is not None else 0
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("BEGIN")  # one state of all tables, should another process write
                content = read(connection, marked) if version_of(connection) == CURRENT else None
        except DBAPIError as error:
            if not self.is_damage(error.orig):
                raise
            return " ".join(str(error.orig).split()), None
        return content.fault if content is not None else "", content

    def _make_up_for_loss(self, content: JournalContent) -> None:
        """Rebuilds a sound file that lacks events, from backups; keeps the old one. Does so once for a loss."""
        is_known = self.marks is not None and not self.marks.crc32  # accepted before
        if is_known and salvage(self._sources()).end.sequence <= content.chain.end.sequence:
            self._check_loss(content.evidence(self.marks))
            self.content = content
        else:
            self.repair("", 0)

    def _make_new(self) -> None:
        self._check_loss(Evidence(end=0, end_s=0.0, seen=0))
        self._begin_file().close()
        self._side(".recovering").replace(self.path)
        sync(self.path.parent)

    def _check_loss(self, found: Evidence) -> None:
        """Raises EventsLost, with nothing changed, if events are lost and that is not accepted."""
        loss = loss_of(found, self.marks)
        if loss is None:
            return
        if not self._accept_loss:
            backups = self._backup_files()
            raise refused(self.name, loss, f". The newest backup is {backups[0]}" if backups else "")
        self.loss, self.marks = loss, accepted(loss, self.marks)
        self.keep_marks(self.marks, True)

    def _backup_files(self) -> list[Path]:
        """The newest first."""
        found = self._backup_prefix.parent.glob(f"{self._backup_prefix.name}*")
        numbered = [path for path in found if path.name.removeprefix(self._backup_prefix.name).isdecimal()]
        return sorted(numbered, key=lambda path: int(path.name.removeprefix(self._backup_prefix.name)), reverse=True)

    def _sources(self) -> list[Path]:
        """Files that may contain rows of the journal, the oldest first."""
        return [*reversed(self._backup_files()), self.path]

    def _begin_file(self) -> Connection:
        """A new file with empty tables, under the name of a file that is being made."""
        path = self._side(".recovering")
        for old in (path, *(Path(f"{path}{suffix}") for suffix in _SIDE_FILES)):
            old.unlink(missing_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _MODE))
        if self.marks is None:
            self.marks = Marks()
            self.keep_marks(self.marks, True)  # first: from now on their absence counts as damage
        connection = _engine(path).connect()
        with connection.begin():
            prepare(connection)
            put_meta(connection, meta_row(MARKED, "1"))
        return connection

    def _rebuild(self, found: Salvage, incarnation: int, note: str) -> None:
        with self._begin_file() as connection, connection.begin():
            found.write(connection, incarnation, note)
            copy_archive(connection, self._sources(), found.end.sequence)
        making, made = self._side(".recovering"), self._side(".recovered")
        sync(making)
        making.replace(made)
        sync(self.path.parent)

    def _replace(self, aside: Path) -> None:
        """Puts the recovered file in the place of the damaged one; can be repeated after a crash.

        The old log is removed first: SQLite would apply it to any file of that name.
        """
        for suffix in ("", "-wal"):
            old, kept = Path(f"{self.path}{suffix}"), Path(f"{aside}{suffix}")
            if old.exists():
                _keep(old, kept)
        for suffix in _SIDE_FILES:
            self._side(suffix).unlink(missing_ok=True)
        sync(self.path.parent)
        self._side(".recovered").replace(self.path)
        sync(self.path.parent)

    def _aside(self) -> Path:
        taken = {path.name.removesuffix("-wal") for path in self.path.parent.glob(f"{self.path.name}.damaged-*")}
        number = next(k for k in range(1, len(taken) + 2) if f"{self.path.name}.damaged-{k}" not in taken)
        return self._side(f".damaged-{number}")

    def _side(self, suffix: str) -> Path:
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
        connection.isolation_level = None  # transactions begin below, not in the driver
        for pragma in (
            f"page_size={PAGE_BYTES}",
            f"busy_timeout={BUSY_MS}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "cache_spill=OFF",  # only commits write frames
            "trusted_schema=OFF",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _structural_fault(path: Path, whole_bytes: float) -> str:
    """What is wrong with the structure of a file; "" if SQLite can use it. Reads only, which preserves evidence."""
    if not path.exists():
        return "the file is missing, its write-ahead log exists"
    if path.stat().st_size < HEADER_BYTES:  # SQLite would delete the log of an empty file, and of one of a byte
        return "the file is empty" if not path.stat().st_size else "the file ends within its header"
    try:
        with closing(read_only(path)) as connection:
            is_large = path.stat().st_size > whole_bytes
            for what in ("1",) if not is_large else (META.name, EVENTS.name, SNAPSHOTS.name):
                answer = str(connection.execute(f"PRAGMA integrity_check({what})").fetchone()[0])
                if answer != "ok":
                    return f"integrity check: {' '.join(answer.split())}"
            return _fault_of_meta(connection)
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
    """SQLite's primary code; -1 for errors of the Python driver."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else -1


def _locked(path: Path) -> int:
    """A descriptor that holds the lock; the file contains the id of this process, for error messages."""
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
            f"journal is in use by process {holder or '?'}: one scheduler per journal", file=str(path)
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _keep(old: Path, kept: Path) -> None:
    """A hard link to a file, or a copy where the file system has no hard links."""
    try:
        os.link(old, kept)
    except OSError:
        shutil.copy2(old, kept)

"""Detects lost events: marks kept outside the journal record how far it has come and which numbers are in use.

The scheduler writes marks after every commit, before it acknowledges the commit, so they survive the process. A
thread then syncs them to disk; after a power loss they may lag behind by the commits of the last few milliseconds.
Job and lease numbers are reserved in blocks of 1,000, and each block is on disk before its first number is used.

For a SQLite file `F` the marks are the file `F.marks`: two slots, written in turns, each a line of JSON with a
checksum, so one of them is always whole. PostgreSQL keeps the reserved numbers in a row of gavel_meta.

`loss_of` compares three sources: the chain of events (how far it is good), whole rows beyond its end, and the marks.
An acknowledged event is in the marks, so rows beyond chain and marks were never acknowledged and are no loss. Without
exact marks, damage that reaches the events may have cost some: that counts as a loss.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gavelpy.errors import EventsLost

BLOCK = 1_000  # numbers reserved at a time
_SLOT_BYTES = 4096  # a page: one torn write cannot damage both slots
_MODE = 0o600
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Numbers:
    """The next free job number and the next free lease number."""

    jobs: int = 0
    leases: int = 0

    def above(self, other: Numbers) -> Numbers:
        """The higher of each."""
        return Numbers(max(self.jobs, other.jobs), max(self.leases, other.leases))

    @property
    def block_end(self) -> Numbers:
        """The end of the blocks that contain these numbers."""
        return Numbers((self.jobs // BLOCK + 1) * BLOCK, (self.leases // BLOCK + 1) * BLOCK)

    def covers(self, other: Numbers) -> bool:
        """Whether neither of the other's numbers is higher."""
        return self.above(other) == self


@dataclass(frozen=True)
class Marks:
    """The last commit, and the numbers in use up to it and after it."""

    incarnation: int = 0
    sequence: int = 0  # of the last acknowledged event; after a power loss, a lower bound
    now_s: float = 0.0  # time of that event
    wall_s: float = 0.0  # Unix time of that commit
    numbers: Numbers = field(default_factory=Numbers)  # next free numbers after that commit
    reserved: Numbers = field(default_factory=Numbers)  # upper bound of the numbers in use
    boot: str = ""  # boot of the machine in which they were written; "" in PostgreSQL
    is_closed: bool = False  # the scheduler has stopped: nothing was committed after them
    cluster_id: str = ""  # "" in marks of an earlier version
    crc32: int = 0  # checksum of the event at `sequence`; 0 = unknown

    @property
    def are_exact(self) -> bool:
        """Whether nothing was acknowledged after them: the machine has run since they were written."""
        return self.is_closed or self.boot == boot_id()

    @property
    def record_commits(self) -> bool:
        """Whether there has been a commit."""
        return self.sequence > 0 or self.reserved != Numbers()

    @property
    def taken(self) -> Numbers:
        """Numbers below these may be in use."""
        return self.numbers if self.are_exact else self.numbers.above(self.reserved)

    @property
    def text(self) -> str:
        """JSON."""
        return msgspec.json.encode(self).decode()


def parsed_marks(text: str | bytes) -> Marks | None:
    """Marks from JSON; None if the text is something else."""
    try:
        return msgspec.json.decode(text, type=Marks)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def boot_id() -> str:
    """Identifies the current boot of this machine; random at each call where the system has no boot id."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(8).hex()


class MarkFile:
    """The marks of a SQLite file. `read` changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_damaged = False  # the file exists and neither slot is whole
        self._turn = 0
        self._descriptor = -1
        self._syncs: ThreadPoolExecutor | None = None
        self._sync: Future[None] | None = None  # the last one requested

    def read(self) -> Marks | None:
        """The newest marks; None if there are none."""
        data = self.path.read_bytes() if self.path.exists() else b""
        slots = [_slot(data[k * _SLOT_BYTES : (k + 1) * _SLOT_BYTES]) for k in range(2)]
        found = [slot for slot in slots if slot is not None]
        self.is_damaged = bool(data) and not found
        if not found:
            return None
        self._turn, marks = max(found, key=lambda slot: slot[0])
        return marks

    def write(self, marks: Marks, *, durably: bool) -> None:
        """Writes marks. `durably`: both slots are on disk on return; otherwise one slot, synced soon after.

        Raises OSError, also for a sync that failed since the last call.
        """
        is_new = self._descriptor < 0 and not self.path.exists()
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _MODE)
        for _ in range(2 if durably else 1):
            self._turn += 1
            os.pwrite(self._descriptor, _line(self._turn, marks), self._turn % 2 * _SLOT_BYTES)
            if durably:
                os.fsync(self._descriptor)
        if not durably:
            self._sync_soon()
        if is_new and durably:
            sync(self.path.parent)

    def close(self) -> None:
        """Closes the file after the syncs that were requested."""
        if self._syncs is not None:
            self._syncs.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._syncs, self._sync = -1, None, None

    def _sync_soon(self) -> None:
        if self._syncs is None:
            self._syncs = ThreadPoolExecutor(1, "journal-marks")
        if self._sync is not None and self._sync.done():
            self._sync.result()
        elif self._sync is not None and not self._sync.running():
            return  # a sync that has not started yet includes this write
        self._sync = self._syncs.submit(os.fdatasync, self._descriptor)


class MarkKeeper:
    """The marks in force: reserves numbers before they are used, and records commits."""

    def __init__(self, marks: Marks | None, keep: Callable[[Marks, bool], None]) -> None:
        self.marks = marks or Marks()
        self._boot = boot_id()
        self._keep = keep  # arguments: the marks, and whether they must be on disk on return

    def begun(self, incarnation: int) -> None:
        """Records a new incarnation. The marks are not exact until its first commit."""
        numbers = self.marks.taken
        self.replaced(replace(self.marks, incarnation=incarnation, numbers=numbers, boot="", is_closed=False))

    def replaced(self, marks: Marks) -> None:
        """Replaces the marks, durably."""
        self.marks = marks
        self._keep(marks, True)

    def reserve(self, numbers: Numbers) -> None:
        """Reserves numbers below these, durably, if they are not reserved yet."""
        if not self.marks.reserved.covers(numbers):
            self.replaced(replace(self.marks, reserved=self.marks.reserved.above(numbers.block_end)))

    def committed(self, at: tuple[int, int], now_s: float, wall_s: float, numbers: Numbers) -> None:
        """Records a commit before it is acknowledged; `at` is sequence and checksum of its last event."""
        old = self.marks
        self.marks = Marks(
            old.incarnation, at[0], now_s, wall_s, numbers, old.reserved, self._boot, False, old.cluster_id, at[1]
        )  # fmt: skip
        self._keep(self.marks, False)

    def closed(self) -> None:
        """Records that the scheduler has stopped."""
        self.replaced(replace(self.marks, is_closed=True))


@dataclass(frozen=True)
class Evidence:
    """What the journal contains, as far as it bears on a loss."""

    end: int  # sequence of the last good event
    end_s: float  # its time
    seen: int  # highest sequence of a whole event row
    fault: str = ""  # why events may be missing; "" for no reason
    numbers: Numbers = field(default_factory=Numbers)  # in use according to submissions, good or not
    events_seen: Mapping[int, bool] = field(default_factory=dict)  # beyond the end: whether each is a submission
    is_other: bool = False  # the event at the marks is not the one that was acknowledged


@dataclass(frozen=True)
class Loss:
    """Events that are gone and that were acknowledged, or may have been."""

    first: int
    last: int  # as far as known; less than `first` if no event is known to be lost
    first_s: float  # time of the last good event
    last_s: float
    epoch_s: float  # Unix time of time 0; 0 = unknown
    jobs_max: int
    numbers: Numbers  # numbers below these may be in use
    margin: int  # to add to the numbers that the good events use; 0 if `numbers` suffice
    fault: str

    @property
    def span(self) -> str:
        """Which events, and their time."""
        if self.last < self.first:
            return f"events from {self.first} on may be lost, after {_date(self.epoch_s, self.first_s)}"
        count = self.last - self.first + 1
        which = f"events {self.first} to {self.last} are lost" if count > 1 else f"event {self.first} is lost"
        when = f"after {_date(self.epoch_s, self.first_s)}"
        return f"{which} ({count}), {when}" + (
            f" up to {_date(self.epoch_s, self.last_s)}" if self.last_s > self.first_s else ""
        )

    @property
    def summary(self) -> str:
        """One sentence: events, jobs and the fault."""
        below = f", with numbers below {self.numbers.jobs}" if self.numbers.jobs else ""
        why = f": {self.fault}" if self.fault else ""
        jobs = "1 job" if self.jobs_max == 1 else f"{self.jobs_max} jobs"
        return f"{self.span}, and at most {jobs} with them{below}{why}"


def loss_of(found: Evidence, marks: Marks | None) -> Loss | None:
    """What is lost of acknowledged events, or may be; None if nothing is."""
    if marks is not None and not marks.record_commits:
        marks = None
    known = marks.sequence if marks is not None else 0
    is_known = marks is not None and marks.are_exact and not found.is_other
    if known <= found.end and not found.is_other and (is_known or not found.fault):
        return None
    last = known if is_known else max(known, found.seen)
    missing = range(found.end + 1, last + 1)
    jobs_max = sum(found.events_seen.get(sequence, True) for sequence in missing)
    if not is_known:
        jobs_max = max(jobs_max, BLOCK)
    timed = marks is not None and marks.wall_s > 0
    return Loss(
        first=found.end + 1,
        last=last,
        first_s=found.end_s,
        last_s=marks.now_s if marks is not None and known == last else found.end_s,
        epoch_s=marks.wall_s - marks.now_s if marks is not None and timed else 0.0,
        jobs_max=jobs_max,
        numbers=(marks.taken if marks is not None else Numbers()).above(found.numbers),
        margin=0 if marks is not None else len(missing) + BLOCK,  # the extent of the loss is unknown
        fault=found.fault,
    )


def refused(name: str, loss: Loss, advice: str = "") -> EventsLost:
    """The error with which the scheduler refuses to start; `advice` names a backup, for example."""
    return EventsLost(
        f"journal {name}: {loss.summary}. Nothing was changed. Put a whole copy in its place if you have one; else "
        f"start once with --accept-loss: the scheduler continues with the good events, keeps the damaged files aside, "
        f"and never uses the numbers of lost jobs and leases again{advice}"
    )


def accepted(loss: Loss, marks: Marks | None) -> Marks:
    """Marks that record an accepted loss until the journal does, in case of a crash in between."""
    marks = marks or Marks()
    sequence = max(marks.sequence, loss.last, loss.first)
    reserved = marks.reserved.above(loss.numbers.block_end)
    return replace(marks, sequence=sequence, numbers=loss.numbers, reserved=reserved, crc32=0)


def _date(epoch_s: float, now_s: float) -> str:
    if not epoch_s:
        return f"{now_s:.0f} s of the scheduler's time"
    return datetime.fromtimestamp(epoch_s + now_s, tz=UTC).isoformat(timespec="seconds")


def _line(turn: int, marks: Marks) -> bytes:
    content = f"{turn} {marks.text}".encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _slot(data: bytes) -> tuple[int, Marks] | None:
    line, newline, _ = data.partition(b"\n")
    checksum, _, content = line.partition(b" ")
    turn, _, text = content.partition(b" ")
    if not newline or checksum != b"%08x" % zlib.crc32(content) or not turn.isdigit():
        return None
    marks = parsed_marks(text)
    return (int(turn), marks) if marks is not None else None


def sync(path: Path) -> None:
    """Syncs a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

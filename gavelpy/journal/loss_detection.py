"""How far a journal has come, kept apart from it: what is lost with the journal is known, and its numbers stay taken.

Marks are written after every commit, without waiting for the disk: they outlive the process. Before numbers are given
out beyond a block of a thousand, the next block is reserved, and that is on disk first: it outlives the machine.

Beside a SQLite file `F` they are the file `F.marks`: two slots that are written in turns, each a line of JSON behind
its checksum, so that one of them is always whole. In PostgreSQL a row of gavel_meta holds the reserved numbers.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gavelpy.errors import EventsLost

BLOCK = 1_000  # numbers reserved at a time
_SLOT_BYTES = 4096  # a page: no two slots are torn by one write
_MODE = 0o600
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Numbers:
    """The first job and the first lease that nobody has been given."""

    jobs: int = 0
    leases: int = 0

    def above(self, other: Numbers) -> Numbers:
        """The higher of each."""
        return Numbers(max(self.jobs, other.jobs), max(self.leases, other.leases))

    @property
    def block_end(self) -> Numbers:
        """The end of the blocks that these are in."""
        return Numbers((self.jobs // BLOCK + 1) * BLOCK, (self.leases // BLOCK + 1) * BLOCK)

    def covers(self, other: Numbers) -> bool:
        """Whether neither of the other's is higher."""
        return self.above(other) == self


@dataclass(frozen=True)
class Marks:
    """The last commit, and the numbers that it and later ones may have given out."""

    incarnation: int = 0
    sequence: int = 0  # of the last event that was acknowledged, at least
    now_s: float = 0.0  # of that event
    wall_s: float = 0.0  # Unix time of that commit
    numbers: Numbers = field(default_factory=Numbers)  # given out up to that commit
    reserved: Numbers = field(default_factory=Numbers)  # given out at most
    boot: str = ""  # in which they were written; "" = in a database
    is_closed: bool = False  # in good order, and on disk: nothing came after
    cluster_id: str = ""  # "" where an earlier version wrote them

    @property
    def are_last(self) -> bool:
        """Whether nothing can have been acknowledged after them: no machine has stopped since they were written."""
        return self.is_closed or self.boot == boot_id()

    @property
    def are_telling(self) -> bool:
        """Whether anything was committed under them."""
        return self.sequence > 0 or self.reserved != Numbers()

    @property
    def taken(self) -> Numbers:
        """What must not be given out again."""
        return self.numbers if self.are_last else self.numbers.above(self.reserved)

    @property
    def text(self) -> str:
        """JSON."""
        return msgspec.json.encode(self).decode()


def parsed(text: str | bytes) -> Marks | None:
    """The marks of a text; None where it is none."""
    try:
        return msgspec.json.decode(text, type=Marks)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def boot_id() -> str:
    """The same for all processes of one boot of one machine; another one each time where the system does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(8).hex()


class MarkFile:
    """The marks beside a SQLite file. Reading changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_damaged = False  # it is there, and nothing in it can be read
        self._turn = 0
        self._descriptor = -1

    def read(self) -> Marks | None:
        """The newest; None where there are none."""
        data = self.path.read_bytes() if self.path.exists() else b""
        slots = [_slot(data[k * _SLOT_BYTES : (k + 1) * _SLOT_BYTES]) for k in range(2)]
        found = [slot for slot in slots if slot is not None]
        self.is_damaged = bool(data) and not found
        if not found:
            return None
        self._turn, marks = max(found, key=lambda slot: slot[0])
        return marks

    def write(self, marks: Marks, *, durably: bool) -> None:
        """Keeps marks; `durably` when it returns they are on disk, twice."""
        is_new = self._descriptor < 0 and not self.path.exists()
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _MODE)
        for _ in range(2 if durably else 1):
            self._turn += 1
            os.pwrite(self._descriptor, _line(self._turn, marks), self._turn % 2 * _SLOT_BYTES)
            if durably:
                os.fsync(self._descriptor)
        if is_new and durably:
            sync(self.path.parent)

    def close(self) -> None:
        """Lets go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class Keeper:
    """The marks in force: raises them before numbers are given out and after commits."""

    def __init__(self, marks: Marks | None, keep: Callable[[Marks, bool], None]) -> None:
        self.marks = marks or Marks()
        self._boot = boot_id()
        self._keep = keep  # marks, and whether durably

    def begun(self, incarnation: int) -> None:
        """A scheduler has taken over. Whether anything came after these marks is open until its first commit."""
        numbers = self.marks.taken
        self.replaced(replace(self.marks, incarnation=incarnation, numbers=numbers, boot="", is_closed=False))

    def replaced(self, marks: Marks) -> None:
        """Other marks are in force, and on disk."""
        self.marks = marks
        self._keep(marks, True)

    def reserve(self, numbers: Numbers) -> None:
        """Makes sure that these are known as taken, whatever happens."""
        if not self.marks.reserved.covers(numbers):
            self.replaced(replace(self.marks, reserved=self.marks.reserved.above(numbers.block_end)))

    def committed(self, sequence: int, now_s: float, wall_s: float, numbers: Numbers) -> None:
        """An append is on disk and is about to be acknowledged; `numbers` are all that may be given out so far."""
        old = self.marks
        self.marks = Marks(
            old.incarnation, sequence, now_s, wall_s, numbers, old.reserved, self._boot, cluster_id=old.cluster_id
        )
        self._keep(self.marks, False)

    def closed(self) -> None:
        """Nothing comes after this."""
        self.replaced(replace(self.marks, is_closed=True))


def _line(turn: int, marks: Marks) -> bytes:
    content = f"{turn} {marks.text}".encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _slot(data: bytes) -> tuple[int, Marks] | None:
    line, newline, _ = data.partition(b"\n")
    checksum, _, content = line.partition(b" ")
    turn, _, text = content.partition(b" ")
    if not newline or checksum != b"%08x" % zlib.crc32(content) or not turn.isdigit():
        return None
    marks = parsed(text)
    return (int(turn), marks) if marks is not None else None


def sync(path: Path) -> None:
    """Puts a file, or what a folder lists, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Evidence:
    """What the journal itself tells."""

    end: int  # the last event that is good
    end_s: float  # its time
    seen: int  # the last event of which there is a whole row
    fault: str = ""  # why events may be missing; "" = nothing says so
    numbers: Numbers = field(default_factory=Numbers)  # known to be taken, also by rows that are kept out
    events_seen: Mapping[int, bool] = field(default_factory=dict)  # beyond the end: whether one is a submission


@dataclass(frozen=True)
class Loss:
    """Events that were acknowledged, or may have been, and are gone."""

    first: int
    last: int  # as far as is known; before `first` where none is known for certain
    first_s: float  # of the last good event
    last_s: float
    epoch_s: float  # Unix time of time 0; 0 = not known
    jobs_max: int
    numbers: Numbers  # may have been given out up to here
    margin: int  # beyond what the good events gave out; 0 where `numbers` say it
    fault: str

    @property
    def span(self) -> str:
        """Which events, and from when to when."""
        if self.last < self.first:
            return f"events from {self.first} on may be lost, after {_date(self.epoch_s, self.first_s)}"
        count = self.last - self.first + 1
        which = f"events {self.first} to {self.last} are lost" if count > 1 else f"event {self.first} is lost"
        when = f"after {_date(self.epoch_s, self.first_s)}"
        return f"{which} ({count}), {when}" + (
            f" up to {_date(self.epoch_s, self.last_s)}" if self.last_s > self.first_s else ""
        )

    @property
    def told(self) -> str:
        """All of it in a sentence."""
        below = f", none of a number from {self.numbers.jobs} on" if self.numbers.jobs else ""
        why = f": {self.fault}" if self.fault else ""
        jobs = "1 job" if self.jobs_max == 1 else f"{self.jobs_max} jobs"
        return f"{self.span}, and at most {jobs} with them{below}{why}"


def loss_of(found: Evidence, marks: Marks | None) -> Loss | None:
    """None where nothing that was acknowledged is missing."""
    if marks is not None and not marks.are_telling:
        marks = None
    known = marks.sequence if marks is not None else 0
    is_known = marks is not None and marks.are_last
    if known <= found.end and (is_known or not found.fault):
        return None
    last = known if is_known else max(known, found.seen)
    missing = range(found.end + 1, last + 1)
    jobs_max = sum(found.events_seen.get(sequence, True) for sequence in missing)
    numbers = marks.taken if marks is not None else Numbers()
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
        numbers=numbers.above(found.numbers),
        margin=0 if marks is not None else len(missing) + BLOCK,  # nothing tells how much is missing
        fault=found.fault,
    )


def refused(name: str, loss: Loss) -> EventsLost:
    """What a scheduler says that does not start."""
    return EventsLost(
        f"journal {name}: {loss.told}. Nothing was changed. Put a whole copy in its place if there is one; else start "
        "once with --accept-loss: what is good is gone on with, the rest is kept aside, and the numbers of lost jobs "
        "and leases are not given out again"
    )


def accepted(loss: Loss, marks: Marks | None) -> Marks:
    """Marks that say so until the journal does: a crash in between must not make the loss forgotten."""
    marks = marks or Marks()
    sequence = max(marks.sequence, loss.last, loss.first)
    reserved = marks.reserved.above(loss.numbers.block_end)
    return replace(marks, sequence=sequence, numbers=loss.numbers, reserved=reserved)


def _date(epoch_s: float, now_s: float) -> str:
    if not epoch_s:
        return f"{now_s:.0f} s of the scheduler's time"
    return datetime.fromtimestamp(epoch_s + now_s, tz=UTC).isoformat(timespec="seconds")

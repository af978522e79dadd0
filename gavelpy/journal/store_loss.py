"""Whether events of a journal are lost, which, and which numbers they may have given out.

Three witnesses: the chain of events (how far it is good), rows beyond its end that are whole, and the marks, which lie
elsewhere. An event that is acknowledged is in the marks, so rows beyond both were never acknowledged: no loss. Without
marks, or where the machine has stopped since they were written, damage that reaches the events may have cost some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gavelpy.errors import EventsLost
from gavelpy.journal.store_marks import BLOCK, Marks, Numbers


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

"""What the driver has written: events since the last snapshot, how many stay in the journal, and the next numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gavelpy.journal.loss_detection import Numbers
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationFailed,
    AllocationSolved,
    Event,
    IdsReserved,
    JobSubmitted,
    NodeJoined,
    WakeupDue,
)

SNAPSHOT_EVENTS = 10_000  # events that a restart replays, at most; REPLAY_S_MAX bounds their time
REPLAY_S_MAX = 0.2
READING_S = 5e-5  # to read an event, approximately, without applying it
EVENTS_KEPT = 100_000  # for `gavel events`; fewer if they are large
BYTES_KEPT = 256 << 20
LEASES_A_GPU_MAX = 2  # granted by one decision
_DECISIONS = (WakeupDue, AllocationSolved, AllocationFailed)  # events that may grant leases


class Written:
    """Counts events since the last snapshot, and decides how many stay in the journal."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.replay_s = 0.0  # time to apply them
        self._bytes = 0
        self._segments: deque[tuple[int, int]] = deque()  # last event before each snapshot, bytes since the one before

    @property
    def is_much(self) -> bool:
        """Whether a snapshot is due, because a restart would take long without it."""
        return self.count >= SNAPSHOT_EVENTS or self.replay_s + READING_S * self.count >= REPLAY_S_MAX

    def add(self, records: Sequence[tuple[float, Event]]) -> None:
        """Counts a batch."""
        self.count += len(records)
        self._bytes += sum(_size_of(event) for _, event in records)

    def keep_after(self, sequence: int) -> int:
        """Last event that may be truncated when the snapshot that begins now is written."""
        self._segments.append((sequence, self._bytes))
        self._bytes = 0
        upto = max(0, sequence - EVENTS_KEPT)
        while sum(size for _, size in self._segments) > BYTES_KEPT and len(self._segments) > 1:
            upto = max(upto, self._segments.popleft()[0])
        return upto

    def snapshot_taken(self) -> None:  # and no event since it began
        self.count, self.replay_s = 0, 0.0


def numbers_after(core: SchedulerCore, events: Sequence[Event]) -> Numbers:
    """Upper bounds of the next job and lease number after a core has handled these events."""
    gpus = len(core.pool.job) + sum(event.gpu_count for event in events if isinstance(event, NodeJoined))
    decisions = sum(isinstance(event, _DECISIONS) for event in events)
    skipped = [Numbers(event.jobs, event.leases) for event in events if isinstance(event, IdsReserved)]
    first = Numbers(core.jobs.ids.next_serial, core.leases.next_lease)
    for numbers in skipped:
        first = first.above(numbers)
    submitted = sum(isinstance(event, JobSubmitted) for event in events)
    return Numbers(first.jobs + submitted, first.leases + decisions * gpus * LEASES_A_GPU_MAX)


def _size_of(event: Event) -> int:
    """Approximate size of an event in the journal, in bytes."""
    return 100 + sum(getattr(value, "nbytes", 0) for value in vars(event).values())

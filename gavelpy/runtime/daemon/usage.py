"""Accounts of GPU time under lease: by hour, owner, entity and GPU type, for as long as the journal exists.

The book is computed from the journal's events and stored in its snapshots, so it outlives both restarts and the
truncation of old events. It has one row per hour and holder; after a month one per day, so that a year of a busy
cluster is some ten thousand rows. Leases that still run are kept with their start, and count up to now in answers.
Times are the scheduler's (`now_s`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from gavelpy.errors import JournalCorrupt
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import LeaseEnded, LeaseStarted
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.job import JobSpec

HOUR_S, DAY_S = 3_600, 86_400
HOURLY_S = 31 * DAY_S  # rows of full days that are older have a day
_SEPARATOR = "\x1f"  # is in no name, as it cannot be printed


class Holder(NamedTuple):
    """Whose GPU time it is, and on which type."""

    owner: str
    entity: str
    gpu_type: str


class OpenLease(NamedTuple):
    """A lease that runs."""

    job: int
    started_s: float
    gpus: int
    holder: Holder


class UsageBook:
    """GPU-seconds by hour and holder."""

    def __init__(self) -> None:
        self._gpu_s: dict[str, float] = {}  # by start, length and holder, see _key
        self._open: dict[int, OpenLease] = {}  # by lease
        self._lease_of: dict[int, int] = {}  # by job, of these
        self._daily_s = 0.0  # rows that end before this have a day

    def started(self, event: LeaseStarted, core: SchedulerCore, now_s: float) -> None:
        """Leases began to run. The core has applied the event."""
        pool, specs = core.pool, core.jobs.specs
        offsets, gpus = event.gpu_offsets.tolist(), event.gpus
        for k, (job, lease) in enumerate(zip(event.jobs.tolist(), event.leases.tolist(), strict=True)):
            if job in self._lease_of:  # a repeated start, or its end is not in the journal
                self._close(self._lease_of[job], now_s)
            gpu_type = pool.gpu_types[pool.type_of[gpus[offsets[k]]]]
            self._begin(lease, OpenLease(job, now_s, offsets[k + 1] - offsets[k], _holder(specs[job], gpu_type)))

    def ended(self, event: LeaseEnded, now_s: float) -> None:
        """Leases ended. Ends that were booked before, or of leases that never started, do not count."""
        for lease in event.leases.tolist():
            self._close(lease, now_s)
        if now_s >= self._daily_s + HOURLY_S + DAY_S:
            self._merge(now_s)

    def since(self, since_s: float, now_s: float) -> tuple[float, dict[Holder, float]]:
        """Start of the first period that counts, and GPU-seconds by holder up to now.

        Whole periods count: of hours, and of days that are more than a month ago. So it starts up to a day before
        `since_s`.
        """
        found: defaultdict[Holder, float] = defaultdict(float)
        length_s = DAY_S if since_s < self._daily_s else HOUR_S
        first_s = max(math.floor(since_s / length_s) * length_s, 0)
        for key, gpu_s in self._gpu_s.items():
            start_s, _, holder = _parts(key)
            if start_s >= first_s:
                found[holder] += gpu_s
        for lease in self._open.values():
            found[lease.holder] += max(now_s - max(lease.started_s, first_s), 0.0) * lease.gpus
        return float(first_s), {holder: gpu_s for holder, gpu_s in found.items() if gpu_s}

    def _begin(self, number: int, lease: OpenLease) -> None:
        self._open[number] = lease
        self._lease_of[lease.job] = number

    def _close(self, number: int, now_s: float) -> None:
        lease = self._open.pop(number, None)
        if lease is None:
            return
        if self._lease_of.get(lease.job) == number:
            del self._lease_of[lease.job]
        for start_s, length_s, seconds in _periods(lease.started_s, now_s, self._daily_s):
            key = _key(start_s, length_s, lease.holder)
            self._gpu_s[key] = self._gpu_s.get(key, 0.0) + seconds * lease.gpus

    def _merge(self, now_s: float) -> None:
        """Replaces the rows of hours that are more than a month ago by rows of days."""
        self._daily_s = math.floor((now_s - HOURLY_S) / DAY_S) * DAY_S
        merged: dict[str, float] = {}
        for key, gpu_s in self._gpu_s.items():
            start_s, _, holder = _parts(key)
            if start_s < self._daily_s:
                key = _key(start_s // DAY_S * DAY_S, DAY_S, holder)
            merged[key] = merged.get(key, 0.0) + gpu_s
        self._gpu_s = merged

    # Snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:  # Any: plain values
        """Plain values and copies."""
        running = {str(number): [*lease[:3], *lease.holder] for number, lease in self._open.items()}
        return {"gpu_s": self._gpu_s.copy(), "open": running, "daily_s": self._daily_s}

    @classmethod
    def restore(cls, state: dict[str, Any] | None, core: SchedulerCore) -> UsageBook:
        """The book of a snapshot; of an older one, which has none, the running leases of its core.

        Raises JournalCorrupt.
        """
        book = cls()
        if state is None:
            book._adopt(core)
            return book
        try:
            book._gpu_s = {str(key): float(gpu_s) for key, gpu_s in state["gpu_s"].items()}
            book._daily_s = float(state["daily_s"])
            for number, (job, started_s, gpus, owner, entity, gpu_type) in state["open"].items():
                holder = Holder(str(owner), str(entity), str(gpu_type))
                book._begin(int(number), OpenLease(int(job), float(started_s), int(gpus), holder))
            for key in book._gpu_s:
                _parts(key)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise JournalCorrupt(f"usage in the snapshot is corrupt: {error!r}") from None
        return book

    def _adopt(self, core: SchedulerCore) -> None:
        jobs = core.jobs
        for job in jobs.leased.tolist():
            if jobs.state[job] == JobState.RUNNING:
                gpu_type = core.pool.gpu_types[jobs.lease_type[job]]
                lease = OpenLease(
                    job, float(jobs.began_s[job]), int(jobs.gpus[job]), _holder(jobs.specs[job], gpu_type)
                )
                self._begin(int(jobs.lease[job]), lease)


def _holder(spec: JobSpec, gpu_type: str) -> Holder:
    return Holder(spec.owner, spec.entity, gpu_type)


def _key(start_s: int, length_s: int, holder: Holder) -> str:
    return _SEPARATOR.join((str(start_s), str(length_s), *holder))


def _parts(key: str) -> tuple[int, int, Holder]:
    start_s, length_s, owner, entity, gpu_type = key.split(_SEPARATOR)
    return int(start_s), int(length_s), Holder(owner, entity, gpu_type)


def _periods(start_s: float, end_s: float, daily_s: float) -> Iterator[tuple[int, int, float]]:
    """Start and length of each period between two times, and the seconds in it; days before `daily_s`, then hours."""
    while start_s < end_s:
        length_s = DAY_S if start_s < daily_s else HOUR_S
        first_s = math.floor(start_s / length_s) * length_s
        until_s = min(end_s, first_s + length_s)
        yield first_s, length_s, until_s - start_s
        start_s = until_s

"""Accounts of GPU time under lease: by hour, owner, entity and GPU type, and by job.

The book is computed from the journal's events and stored in its snapshots, so it outlives both restarts and the
truncation of old events. It has one row per hour and holder: GPU time, cost at the prices of the time, the time that
jobs had waited for the leases that started in the hour, and leases that ended before their jobs did. Rows of past hours
and accounts of past jobs leave for the archive (JobsArchived). Rows of full days that are more than a month old, if
nothing is archived, become one per day. Leases that still run are kept with their start, and count up to now in
answers. Times are the scheduler's (`now_s`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from gavelpy.errors import JournalCorrupt
from gavelpy.journal.archive_tables import UsageEntry
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import LeaseEnded, LeaseStarted
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.model.job import JobSpec

HOUR_S, DAY_S = 3_600, 86_400
HOURLY_S = 31 * DAY_S  # rows of full days that are older have a day
_SEPARATOR = "\x1f"  # is in no name, as it cannot be printed
Sums = list[float]  # gpu_s, cost_usd, waited_s, leases, preemptions
_NOTHING = (0.0, 0.0, 0.0, 0.0, 0.0)


class Holder(NamedTuple):
    """Whose GPU time it is, and on which type."""

    owner: str
    entity: str
    gpu_type: str


class OpenLease(NamedTuple):
    """A lease that runs."""

    job: int
    started_s: float  # up to then its time is booked
    gpus: int
    holder: Holder


class UsageBook:
    """Sums by hour and holder, and by job."""

    def __init__(self) -> None:
        self._sums: dict[str, Sums] = {}  # by start, length and holder, see _key
        self._of_job: dict[int, dict[str, Sums]] = {}  # by GPU type
        self._idle_s: dict[int, float] = {}  # end of the last lease, of jobs that ran and are not over
        self._open: dict[int, OpenLease] = {}  # by lease
        self._lease_of: dict[int, int] = {}  # by job, of these
        self._usd_per_gpu_h: dict[str, float] = {}
        self._daily_s = 0.0  # rows that end before this have a day
        self.generation = 0  # grows when rows leave

    def started(self, event: LeaseStarted, core: SchedulerCore, now_s: float) -> None:
        """Leases began to run. The core has applied the event."""
        pool, jobs = core.pool, core.jobs.by_serial
        offsets, gpus = event.gpu_offsets.tolist(), event.gpus
        for k, (job, lease) in enumerate(zip(event.jobs.tolist(), event.leases.tolist(), strict=True)):
            if job in self._lease_of:  # a repeated start, or its end is not in the journal
                self._close(self._lease_of[job], now_s)
                self._idle_s.setdefault(job, now_s)
            gpu_type = pool.gpu_types[pool.type_of[gpus[offsets[k]]]]
            holder = _holder(jobs.specs[job], gpu_type)
            self._begin(lease, OpenLease(job, now_s, offsets[k + 1] - offsets[k], holder))
            first_s = max(float(jobs.submitted_s[job]), float(jobs.begin_at_s[job]))
            waited_s = max(now_s - self._idle_s.pop(job, first_s), 0.0)
            self._add(job, holder, now_s, [0.0, 0.0, waited_s, 1.0, 0.0])

    def ended(self, event: LeaseEnded, now_s: float, core: SchedulerCore | None = None) -> None:
        """Leases ended. Ends that were booked before, or of leases that never started, do not count.

        Preemptions are counted if the core is given, which has applied the event.
        """
        for lease in event.leases.tolist():
            closed = self._close(lease, now_s)
            if closed is not None and core is not None and core.jobs.by_serial.state[closed.job] <= LAST_ALIVE:
                self._add(closed.job, closed.holder, now_s, [0.0, 0.0, 0.0, 0.0, 1.0])
                self._idle_s[closed.job] = now_s
        if now_s >= self._daily_s + HOURLY_S + DAY_S:
            self._merge(now_s)

    def priced(self, gpu_type: str, usd_per_gpu_h: float, now_s: float) -> None:
        """The price of a type changed: running leases cost the former price up to now."""
        self._settle(now_s, gpu_type)
        self._usd_per_gpu_h[gpu_type] = usd_per_gpu_h

    def since(self, since_s: float, now_s: float) -> tuple[float, dict[Holder, float]]:
        """As `sums_since`, GPU-seconds only."""
        first_s, found = self.sums_since(since_s, now_s)
        return first_s, {holder: sums[0] for holder, sums in found.items() if sums[0]}

    def sums_since(self, since_s: float, now_s: float) -> tuple[float, dict[Holder, Sums]]:
        """Start of the first period that counts, and the sums by holder up to now.

        Whole periods count: of hours, and of days that are more than a month ago. So it starts up to a day before
        `since_s`.
        """
        found: defaultdict[Holder, Sums] = defaultdict(lambda: list(_NOTHING))
        length_s = DAY_S if since_s < self._daily_s else HOUR_S
        first_s = max(math.floor(since_s / length_s) * length_s, 0)
        for key, sums in self._sums.items():
            start_s, _, holder = _parts(key)
            if start_s >= first_s:
                _plus(found[holder], sums)
        for lease in self._open.values():
            gpu_s = max(now_s - max(lease.started_s, first_s), 0.0) * lease.gpus
            _plus(found[lease.holder], [gpu_s, self._cost_usd(lease, gpu_s), 0.0, 0.0, 0.0])
        return float(first_s), {holder: sums for holder, sums in found.items() if any(sums)}

    def of_job(self, job: int) -> dict[str, Sums]:
        """The sums of a job by GPU type."""
        return self._of_job.get(job, {})

    def leaving(self, before_s: float) -> list[UsageEntry]:
        """The rows of periods that end before this time, which no event changes any more."""
        self._settle(before_s)
        entries = []
        for key, (gpu_s, cost_usd, waited_s, leases, preemptions) in self._sums.items():
            start_s, length_s, holder = _parts(key)
            if start_s + length_s <= before_s:
                counts = (round(leases), round(preemptions))
                entries.append(UsageEntry(start_s, length_s, *holder, gpu_s, cost_usd, waited_s, *counts))
        return entries

    def archived(self, jobs: Collection[int], before_s: float) -> None:
        """Past jobs, and the rows that `leaving` returns, have left."""
        self.generation += 1
        for job in jobs:
            self._of_job.pop(job, None)
            self._idle_s.pop(job, None)
        gone = {_key(row.start_s, row.length_s, Holder(*row[2:5])) for row in self.leaving(before_s)}
        self._sums = {key: sums for key, sums in self._sums.items() if key not in gone}

    def _begin(self, number: int, lease: OpenLease) -> None:
        self._open[number] = lease
        self._lease_of[lease.job] = number

    def _close(self, number: int, now_s: float) -> OpenLease | None:
        lease = self._open.pop(number, None)
        if lease is None:
            return None
        if self._lease_of.get(lease.job) == number:
            del self._lease_of[lease.job]
        self._book(lease, now_s)
        return lease

    def _settle(self, until_s: float, gpu_type: str = "") -> None:
        """Books the time of running leases up to then; of one GPU type, or of all."""
        for number, lease in self._open.items():
            if lease.started_s < until_s and gpu_type in ("", lease.holder.gpu_type):
                self._book(lease, until_s)
                self._open[number] = lease._replace(started_s=until_s)

    def _book(self, lease: OpenLease, until_s: float) -> None:
        for start_s, length_s, seconds in periods(lease.started_s, until_s, self._daily_s):
            gpu_s = seconds * lease.gpus
            sums = [gpu_s, self._cost_usd(lease, gpu_s), 0.0, 0.0, 0.0]
            _plus(self._sums.setdefault(_key(start_s, length_s, lease.holder), list(_NOTHING)), sums)
            _plus(self._account(lease.job, lease.holder), sums)

    def _add(self, job: int, holder: Holder, now_s: float, sums: Sums) -> None:
        """Adds what happened now."""
        key = _key(int(now_s // HOUR_S * HOUR_S), HOUR_S, holder)
        _plus(self._sums.setdefault(key, list(_NOTHING)), sums)
        _plus(self._account(job, holder), sums)

    def _account(self, job: int, holder: Holder) -> Sums:
        return self._of_job.setdefault(job, {}).setdefault(holder.gpu_type, list(_NOTHING))

    def _cost_usd(self, lease: OpenLease, gpu_s: float) -> float:
        return gpu_s / HOUR_S * self._usd_per_gpu_h.get(lease.holder.gpu_type, 0.0)

    def _merge(self, now_s: float) -> None:
        """Replaces the rows of hours that are more than a month ago by rows of days."""
        self._daily_s = math.floor((now_s - HOURLY_S) / DAY_S) * DAY_S
        merged: dict[str, Sums] = {}
        for key, sums in self._sums.items():
            start_s, _, holder = _parts(key)
            if start_s < self._daily_s:
                key = _key(start_s // DAY_S * DAY_S, DAY_S, holder)
            _plus(merged.setdefault(key, list(_NOTHING)), sums)
        self._sums = merged

    # Snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:  # Any: plain values
        """Plain values and copies."""
        running = {str(number): [*lease[:3], *lease.holder] for number, lease in self._open.items()}
        return {
            "sums": {key: list(sums) for key, sums in self._sums.items()},
            "of_job": {str(job): {kind: list(s) for kind, s in of.items()} for job, of in self._of_job.items()},
            "idle_s": {str(job): idle_s for job, idle_s in self._idle_s.items()},
            "open": running,
            "daily_s": self._daily_s,
        }

    @classmethod
    def restore(cls, state: dict[str, Any] | None, core: SchedulerCore) -> UsageBook:
        """The book of a snapshot; of an older one, which has none, the running leases of its core.

        Raises JournalCorrupt.
        """
        book = cls()
        book._usd_per_gpu_h = dict(zip(core.pool.gpu_types, core.pool.price_usd_per_gpu_h, strict=True))
        if state is None:
            book._adopt(core)
            return book
        try:
            older = {key: [gpu_s, *_NOTHING[1:]] for key, gpu_s in state.get("gpu_s", {}).items()}  # GPU time only
            book._sums = {str(key): _numbers(sums) for key, sums in (older | state.get("sums", {})).items()}
            book._daily_s = float(state["daily_s"])
            for job, kinds in state.get("of_job", {}).items():
                book._of_job[int(job)] = {str(kind): _numbers(sums) for kind, sums in kinds.items()}
            book._idle_s = {int(job): float(idle_s) for job, idle_s in state.get("idle_s", {}).items()}
            for number, (job, started_s, gpus, owner, entity, gpu_type) in state["open"].items():
                holder = Holder(str(owner), str(entity), str(gpu_type))
                book._begin(int(number), OpenLease(int(job), float(started_s), int(gpus), holder))
            for key in book._sums:
                _parts(key)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise JournalCorrupt(f"usage in the snapshot is corrupt: {error!r}") from None
        return book

    def _adopt(self, core: SchedulerCore) -> None:
        jobs = core.jobs.by_serial
        for job in jobs.leased.tolist():
            if jobs.state[job] == JobState.RUNNING:
                gpu_type = core.pool.gpu_types[jobs.lease_type[job]]
                lease = OpenLease(
                    job, float(jobs.began_s[job]), int(jobs.gpus[job]), _holder(jobs.specs[job], gpu_type)
                )
                self._begin(int(jobs.lease[job]), lease)


def _numbers(sums: Any) -> Sums:  # Any: a value of a snapshot
    found = [float(value) for value in sums]
    if len(found) != len(_NOTHING):
        raise ValueError(f"usage must be {len(_NOTHING)} numbers, got {len(found)}")
    return found


def _plus(total: Sums, sums: Sums) -> None:
    for k, value in enumerate(sums):
        total[k] += value


def _holder(spec: JobSpec, gpu_type: str) -> Holder:
    return Holder(spec.owner, spec.entity, gpu_type)


def _key(start_s: int, length_s: int, holder: Holder) -> str:
    return _SEPARATOR.join((str(start_s), str(length_s), *holder))


def _parts(key: str) -> tuple[int, int, Holder]:
    start_s, length_s, owner, entity, gpu_type = key.split(_SEPARATOR)
    return int(start_s), int(length_s), Holder(owner, entity, gpu_type)


def periods(start_s: float, end_s: float, daily_s: float) -> Iterator[tuple[int, int, float]]:
    """Start and length of each period between two times, and the seconds in it; days before `daily_s`, then hours."""
    while start_s < end_s:
        length_s = DAY_S if start_s < daily_s else HOUR_S
        first_s = math.floor(start_s / length_s) * length_s
        until_s = min(end_s, first_s + length_s)
        yield first_s, length_s, until_s - start_s
        start_s = until_s

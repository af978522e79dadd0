"""What happened to each job and GPU, folded from events one by one; nothing else is known here."""

from __future__ import annotations

import math

import numpy as np

from gavelpy.mechanism.events import (
    AllocationSolved,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    Outcome,
    PriceChanged,
    WakeupDue,
)
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import JobSpec

NOBODY = -1
_FIRST_ROWS = 64
_INTS = ("gpus", "type_now", "gpu_before", "preemptions", "migrations")
_FLOATS = ("arrival_s", "first_start_s", "finish_s", "start_s", "gpu_s", "owed_since_s")


class History:
    """Per job: when, where, how often. Per stay on the same GPUs: an interval. Rows of jobs are serials."""

    gpus: Ints
    type_now: Ints  # GPU type of the lease that runs, -1 = none
    gpu_before: Ints  # first GPU of the last lease
    preemptions: Ints  # times the job was stopped before its end
    migrations: Ints  # times it started on other GPUs than it last ran on
    arrival_s: Floats
    first_start_s: Floats
    finish_s: Floats
    start_s: Floats  # of the lease that runs
    gpu_s: Floats  # GPU time received
    owed_since_s: Floats

    def __init__(self) -> None:
        self.count = 0
        self.now_s = 0.0
        self.specs: list[JobSpec] = []
        self.gpu_types: list[str] = []
        self.gpu_counts: list[int] = []
        self._gpu_type_of: list[int] = []
        self._gpu_type_array: Ints = np.zeros(0, dtype=np.int64)  # the same, once it is asked for
        self.price_usd_per_gpu_h: dict[str, float] = {}
        self.solves = 0
        self.wakeups = 0
        for name in _INTS:
            setattr(self, name, np.full(_FIRST_ROWS, NOBODY))
        for name in _FLOATS:
            setattr(self, name, np.full(_FIRST_ROWS, math.nan))
        self.target: Floats = np.zeros((_FIRST_ROWS, 0))  # (N, T) shares in force
        self.owed_s: Floats = np.zeros((_FIRST_ROWS, 0))
        self._gang_before: dict[int, bytes] = {}
        self._stays: list[tuple[Ints, Ints, Floats, Floats]] = []  # jobs, types, start, end

    def apply(self, event: Event, now_s: float) -> None:
        """Takes one more event into account."""
        self.now_s = now_s
        match event:
            case LeaseStarted():
                self._started(event, now_s)
            case LeaseEnded():
                self._ended(event, now_s)
            case AllocationSolved():
                self._solved(event, now_s)
            case WakeupDue():
                self.wakeups += 1
            case JobSubmitted():
                self._submitted(event.spec, now_s)
            case NodeJoined():
                self._joined(event)
            case PriceChanged():
                self.price_usd_per_gpu_h[event.gpu_type] = event.price_usd_per_gpu_h
            case _:
                pass

    def stays(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Uninterrupted stays on the same GPUs: job, GPU type, start and end, (K,) each; those under way end now."""
        running = np.flatnonzero(self.type_now[: self.count] != NOBODY)
        now = np.full(len(running), self.now_s)
        parts = [*self._stays, (running, self.type_now[running], self.start_s[running], now)]
        jobs, types, starts, ends = (np.concatenate([part[k] for part in parts]) for k in range(4))
        return jobs, types, starts, ends

    def owed(self) -> Floats:
        """Seconds of share that the policy owed each job on each type up to now, (J, T)."""
        self._settle(np.flatnonzero(np.isnan(self.finish_s[: self.count])), self.now_s)
        return self.owed_s[: self.count]

    def _submitted(self, spec: JobSpec, now_s: float) -> None:
        row = self.count
        if row == len(self.gpus):
            for name in (*_INTS, *_FLOATS, "target", "owed_s"):
                column = getattr(self, name)
                fill = NOBODY if name in _INTS else 0.0 if column.ndim == 2 else math.nan
                setattr(self, name, np.concatenate([column, np.full(column.shape, fill, dtype=column.dtype)]))
        self.count += 1
        self.specs.append(spec)
        self.gpus[row] = spec.gpus
        self.preemptions[row] = self.migrations[row] = 0
        self.arrival_s[row] = self.owed_since_s[row] = now_s
        self.gpu_s[row] = 0.0

    def _joined(self, event: NodeJoined) -> None:
        if event.gpu_type not in self.gpu_types:
            self.gpu_types.append(event.gpu_type)
            self.gpu_counts.append(0)
            self.target = np.pad(self.target, ((0, 0), (0, 1)))
            self.owed_s = np.pad(self.owed_s, ((0, 0), (0, 1)))
        kind = self.gpu_types.index(event.gpu_type)
        self.gpu_counts[kind] += event.gpu_count
        self._gpu_type_of.extend([kind] * event.gpu_count)

    def _started(self, event: LeaseStarted, now_s: float) -> None:
        rows = event.jobs
        first = event.gpus[event.gpu_offsets[:-1]]
        moved = (self.gpu_before[rows] != NOBODY) & (self.gpu_before[rows] != first)
        for k in np.flatnonzero(self.gpus[rows] > 1).tolist():
            held = np.sort(event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]]).tobytes()
            before = self._gang_before.get(int(rows[k]), held)
            moved[k] = before != held
            self._gang_before[int(rows[k])] = held
        self.migrations[rows] += moved
        self.gpu_before[rows] = first
        if len(self._gpu_type_array) < len(self._gpu_type_of):
            self._gpu_type_array = np.array(self._gpu_type_of)
        self.type_now[rows] = self._gpu_type_array[first]
        self.start_s[rows] = now_s
        self.first_start_s[rows] = np.where(np.isnan(self.first_start_s[rows]), now_s, self.first_start_s[rows])

    def _ended(self, event: LeaseEnded, now_s: float) -> None:
        rows = event.jobs[self.type_now[event.jobs] != NOBODY]  # a lease may end before it started
        self._stays.append((rows, self.type_now[rows], self.start_s[rows], np.full(len(rows), now_s)))
        self.gpu_s[rows] += (now_s - self.start_s[rows]) * self.gpus[rows]
        self.type_now[rows] = NOBODY
        if event.outcome is Outcome.FINISHED:
            self._settle(event.jobs, now_s)
            self.finish_s[event.jobs] = now_s
        else:
            self.preemptions[rows] += 1

    def _solved(self, event: AllocationSolved, now_s: float) -> None:
        self.solves += 1
        alive = np.flatnonzero(np.isnan(self.finish_s[: self.count]))
        self._settle(alive, now_s)
        self.target[alive] = 0.0
        self.target[event.jobs, event.gpu_type] = event.share

    def _settle(self, rows: Ints, now_s: float) -> None:
        self.owed_s[rows] += self.target[rows] * (now_s - self.owed_since_s[rows])[:, None]
        self.owed_since_s[rows] = now_s

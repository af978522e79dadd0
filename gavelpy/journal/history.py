"""What happened to each job and GPU, folded from events one by one; nothing else is known here.

A journal holds what nodes told, also what they told twice or late. Lease serials grow, so a start counts if its lease
is newer than the last that started, and an end if it is that of the lease that runs. Stays also end with their server,
or when it comes back without them.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gavelpy.mechanism.events import (
    NO_INTS,
    AgentRejoined,
    AllocationSolved,
    Event,
    IdsReserved,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLost,
    Outcome,
    PriceChanged,
    WakeupDue,
)
from gavelpy.mechanism.jobs import lost_spec
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.ids import NodeId
from gavelpy.model.job import JobSpec

NONE = -1
_FIRST_ROWS = 64
_INTS = ("gpus", "type_now", "lease", "preemptions", "migrations")
NO_GPUS = np.uint64(0)
_FLOATS = ("arrival_s", "first_start_s", "finish_s", "cancelled_s", "start_s", "gpu_s", "owed_since_s")


class History:
    """Per job: when, where, how often. Per stay on the same GPUs: an interval. Rows of jobs are serials."""

    gpus: Ints
    type_now: Ints  # GPU type of the lease that runs, -1 = none
    lease: Ints  # the last that started
    preemptions: Ints  # times the job was stopped before its end
    migrations: Ints  # times it started on other GPUs than it last ran on
    arrival_s: Floats
    first_start_s: Floats
    finish_s: Floats
    cancelled_s: Floats
    start_s: Floats  # of the lease that runs
    gpu_s: Floats  # GPU time received
    owed_since_s: Floats

    def __init__(self) -> None:
        self.count = 0
        self.now_s = 0.0
        self.specs: list[JobSpec] = []
        self.gpu_types: list[str] = []
        self.gpu_counts: list[int] = []
        self._nodes: dict[NodeId, tuple[list[int], int, int]] = {}  # its GPUs, how many of them are there, their type
        self._gpu_type_of: list[int] = []
        self._gpu_type_array: Ints = np.zeros(0, dtype=np.int64)  # the same, once it is asked for
        self._gpu_job: Ints = np.zeros(0, dtype=np.int64)  # (G,) who last ran there
        self._gpu_lease: Ints = np.zeros(0, dtype=np.int64)  # (G,) and under which lease
        self._gpu_beside: Ints = np.zeros(0, dtype=np.int64)  # (G,) who was there and went on when that one came
        self._gpu_beside_lease: Ints = np.zeros(0, dtype=np.int64)
        self._packs = False  # whether any policy has let jobs share GPUs
        self.sharing = Sharing()
        self.price_usd_per_gpu_h: dict[str, float] = {}
        self._prices: list[tuple[float, str, float]] = []  # since when, of which type, USD per GPU-hour
        self.solves = 0
        self.wakeups = 0
        for name in _INTS:
            setattr(self, name, np.full(_FIRST_ROWS, NONE))
        for name in _FLOATS:
            setattr(self, name, np.full(_FIRST_ROWS, math.nan))
        self.target: Floats = np.zeros((_FIRST_ROWS, 0))  # (N, T) shares in force
        self.owed_s: Floats = np.zeros((_FIRST_ROWS, 0))
        self._gpus_before = np.full(_FIRST_ROWS, NO_GPUS, dtype=np.uint64)  # (N,) the set of GPUs last run on
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
            case JobCancelled():
                self._cancelled(event.job, now_s)
            case IdsReserved():
                for row in range(self.count, event.jobs):
                    self._submitted(lost_spec(row), now_s)
                    self._cancelled(row, now_s)
            case NodeJoined():
                self._joined(event, now_s)
            case NodeLost() | AgentRejoined():
                self._absent(event, now_s)
            case PriceChanged():
                self.price_usd_per_gpu_h[event.gpu_type] = event.price_usd_per_gpu_h
                self._prices.append((now_s, event.gpu_type, event.price_usd_per_gpu_h))
            case _:
                pass

    def stays(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Uninterrupted stays on the same GPUs: job, GPU type, start and end, (K,) each; those under way end now."""
        running = np.flatnonzero(self.type_now[: self.count] != NONE)
        now = np.full(len(running), self.now_s)
        parts = [*self._stays, (running, self.type_now[running], self.start_s[running], now)]
        jobs, types, starts, ends = (np.concatenate([part[k] for part in parts]) for k in range(4))
        return jobs, types, starts, ends

    def held(self) -> tuple[Ints, Floats, Ints, Floats, Floats]:
        """Times for which GPUs were under lease: GPU type, how many, the job, start and end, (K,) each.

        The number is negative where a GPU stands in two stays at once, so that sums count it once.
        """
        jobs, types, starts, ends = self.stays()
        shared, _, shared_types, since_s, until_s = self.sharing.times(self.now_s)
        return (
            np.concatenate([types, shared_types]),
            np.concatenate([self.gpus[jobs], -self.gpus[shared]]).astype(np.float64),
            np.concatenate([jobs, shared]),
            np.concatenate([starts, since_s]),
            np.concatenate([ends, until_s]),
        )

    def cost_usd(self) -> float:
        """What the GPUs under lease cost, each moment at the price that was then in force; a shared GPU costs once."""
        types, gpus, jobs, starts, ends = self.held()
        if not any(since_s > 0 for since_s, _, _ in self._prices):
            price_usd_per_gpu_s = np.array([self.price_usd_per_gpu_h.get(t, 0.0) for t in self.gpu_types]) / 3600
            return float(((ends - starts) * gpus * price_usd_per_gpu_s[types]).sum())
        spent = np.zeros(len(jobs))
        for kind, gpu_type in enumerate(self.gpu_types):
            here = types == kind
            changes = [(since_s, price) for since_s, name, price in self._prices if name == gpu_type]
            for (since_s, price), (until_s, _) in pairwise([(0.0, 0.0), *changes, (math.inf, 0.0)]):
                time_s = np.minimum(ends[here], until_s) - np.maximum(starts[here], since_s)
                spent[here] += time_s.clip(min=0.0) * price / 3600
        return float((spent * gpus).sum())

    def owed(self) -> Floats:
        """Seconds of share that the policy owed each job on each type up to now, (J, T)."""
        self._settle(self._alive(), self.now_s)
        return self.owed_s[: self.count]

    def _submitted(self, spec: JobSpec, now_s: float) -> None:
        row = self.count
        if row == len(self.gpus):
            for name in (*_INTS, *_FLOATS, "target", "owed_s", "_gpus_before"):
                column = getattr(self, name)
                fill = NONE if name in _INTS else math.nan if name in _FLOATS else 0
                setattr(self, name, np.concatenate([column, np.full(column.shape, fill, dtype=column.dtype)]))
        self.count += 1
        self.specs.append(spec)
        self.gpus[row] = spec.gpus
        self.preemptions[row] = self.migrations[row] = 0
        self.arrival_s[row] = self.owed_since_s[row] = now_s
        self.gpu_s[row] = 0.0

    def _cancelled(self, row: int, now_s: float) -> None:
        if 0 <= row < self.count and math.isnan(self.cancelled_s[row]) and math.isnan(self.finish_s[row]):
            self._settle(np.array([row]), now_s)
            self.cancelled_s[row] = now_s

    def _joined(self, event: NodeJoined, now_s: float) -> None:
        """A server comes for the first time, or again, perhaps with other GPUs; those it had keep their numbers."""
        if event.gpu_type not in self.gpu_types:
            self.gpu_types.append(event.gpu_type)
            self.gpu_counts.append(0)
            self.target = np.pad(self.target, ((0, 0), (0, 1)))
            self.owed_s = np.pad(self.owed_s, ((0, 0), (0, 1)))
        kind = self.gpu_types.index(event.gpu_type)
        gpus, count, kind_before = self._nodes.get(event.node_id, ([], 0, kind))
        if (count, kind_before) == (event.gpu_count, kind):
            return
        gone = gpus if kind_before != kind else gpus[event.gpu_count :]
        if gone:
            self._leave_gpus(np.array(gone), NO_INTS, now_s)
        first = len(self._gpu_type_of)
        fresh = list(range(first, first + event.gpu_count - len(gpus)))
        self._gpu_type_of.extend([kind] * len(fresh))
        for gpu in gpus:
            self._gpu_type_of[gpu] = kind
        self.gpu_counts[kind_before] -= count
        self.gpu_counts[kind] += event.gpu_count
        self._nodes[event.node_id] = [*gpus, *fresh], event.gpu_count, kind
        self._gpu_type_array = NO_INTS

    def _absent(self, event: NodeLost | AgentRejoined, now_s: float) -> None:
        """Nothing runs on a server but what it says itself."""
        gpus, _, _ = self._nodes.get(event.node_id, ([], 0, 0))
        runs = event.leases if isinstance(event, AgentRejoined) else NO_INTS
        self._leave_gpus(np.array(gpus, dtype=np.int64), runs, now_s)

    def _leave_gpus(self, gpus: Ints, runs: Ints, now_s: float) -> None:
        """Who runs on any of these GPUs leaves all of theirs, but for the leases `runs`."""
        gpus = gpus[gpus < len(self._gpu_job)]
        jobs, leases = self._gpu_job[gpus], self._gpu_lease[gpus]
        if self._packs:
            jobs = np.concatenate([jobs, self._gpu_beside[gpus]])
            leases = np.concatenate([leases, self._gpu_beside_lease[gpus]])
        running = self._runs(jobs, leases)
        rows = np.unique(jobs[running & ~np.isin(leases, runs)])
        self._leave(rows, now_s)
        self.preemptions[rows] += 1

    def _started(self, event: LeaseStarted, now_s: float) -> None:
        fresh = event.leases > self.lease[event.jobs]
        rows = event.jobs[fresh]
        unheard = rows[self.type_now[rows] != NONE]
        if len(unheard):  # nobody heard the end of their last lease
            self._leave(unheard, now_s)
        self.lease[rows] = event.leases[fresh]
        first = event.gpus[event.gpu_offsets[:-1]][fresh]
        where, before = gpu_set(event.gpus, event.gpu_offsets)[fresh], self._gpus_before[rows]
        moved = (before != NO_GPUS) & (before != where)
        self._gpus_before[rows] = where
        self.migrations[rows] += moved
        if len(self._gpu_type_array) < len(self._gpu_type_of):
            self._gpu_type_array = np.array(self._gpu_type_of)
            room = len(self._gpu_type_of) - len(self._gpu_job)
            for name in ("_gpu_job", "_gpu_lease", "_gpu_beside", "_gpu_beside_lease"):
                setattr(self, name, np.concatenate([getattr(self, name), np.full(room, NONE)]))
        counts = np.diff(event.gpu_offsets)
        where_fresh = np.repeat(fresh, counts)
        self.type_now[rows] = self._gpu_type_array[first]
        if self._packs:
            for k in np.flatnonzero(fresh).tolist():
                gpus = event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]]
                self._comes(int(event.jobs[k]), gpus, now_s)
                self._gpu_job[gpus], self._gpu_lease[gpus] = event.jobs[k], event.leases[k]
        self._gpu_job[event.gpus[where_fresh]] = np.repeat(event.jobs, counts)[where_fresh]
        self._gpu_lease[event.gpus[where_fresh]] = np.repeat(event.leases, counts)[where_fresh]
        self.start_s[rows] = now_s
        self.first_start_s[rows] = np.where(np.isnan(self.first_start_s[rows]), now_s, self.first_start_s[rows])

    def _comes(self, job: int, gpus: Ints, now_s: float) -> None:
        """A job is about to start on these GPUs; who runs there goes on beside it."""
        last, other = (np.array([column[gpus[0]]]) for column in (self._gpu_job, self._gpu_beside))
        if self._runs(last, self._gpu_lease[gpus[:1]])[0]:
            self._gpu_beside[gpus], self._gpu_beside_lease[gpus] = self._gpu_job[gpus], self._gpu_lease[gpus]
        elif self._runs(other, self._gpu_beside_lease[gpus[:1]])[0]:
            last = other
        else:
            return
        self.sharing.begin(job, int(last[0]), int(self.type_now[last[0]]), now_s)

    def _runs(self, jobs: Ints, leases: Ints) -> Bools:
        """Whether these jobs run under these leases, as far as has been heard, (K,)."""
        return np.asarray((jobs != NONE) & (self.lease[jobs] == leases) & (self.type_now[jobs] != NONE))

    def _ended(self, event: LeaseEnded, now_s: float) -> None:
        last = self.lease[event.jobs]
        rows = event.jobs[(event.leases == last) & (self.type_now[event.jobs] != NONE)]  # not before it started
        self._leave(rows, now_s)
        if event.outcome is Outcome.FINISHED:
            over = event.jobs[event.leases >= last]
            over = over[np.isnan(self.finish_s[over]) & np.isnan(self.cancelled_s[over])]
            self._settle(over, now_s)
            self.finish_s[over] = now_s
        else:
            self.preemptions[rows] += 1

    def _leave(self, rows: Ints, now_s: float) -> None:
        """These jobs leave the GPUs they run on."""
        self._stays.append((rows, self.type_now[rows], self.start_s[rows], np.full(len(rows), now_s)))
        self.sharing.leave(rows, now_s)
        self.gpu_s[rows] += (now_s - self.start_s[rows]) * self.gpus[rows]
        self.type_now[rows] = NONE

    def _solved(self, event: AllocationSolved, now_s: float) -> None:
        self.solves += 1
        alive = self._alive()
        self._settle(alive, now_s)
        self.target[alive] = 0.0
        self.target[event.jobs, event.gpu_type] = event.share
        if len(event.pair_share):
            self._packs = True
            np.add.at(self.target, (event.pair_jobs, event.pair_gpu_type[:, None]), event.pair_share[:, None])

    def _alive(self) -> Ints:
        n = self.count
        return np.flatnonzero(np.isnan(self.finish_s[:n]) & np.isnan(self.cancelled_s[:n]))

    def _settle(self, rows: Ints, now_s: float) -> None:
        self.owed_s[rows] += self.target[rows] * (now_s - self.owed_since_s[rows])[:, None]
        self.owed_since_s[rows] = now_s


def gpu_set(gpus: Ints, offsets: Ints) -> npt.NDArray[np.uint64]:
    """One number for each set gpus[offsets[k]:offsets[k + 1]], whatever its order: the sum of mixed GPU numbers, (K,).

    Different sets have different numbers but for one chance in 2^64. The mix is SplitMix64's (Steele et al., 2014).
    """
    mixed = (gpus.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.add.reduceat(mixed ^ (mixed >> np.uint64(31)), offsets[:-1])


NONE = -1


class Sharing:
    """Times in which two jobs had leases on the same GPUs. Rows of jobs are serials."""

    def __init__(self) -> None:
        self._partner: dict[int, int] = {}
        self._since: dict[int, tuple[float, int]] = {}  # when they came together, and on which GPU type
        self._times: list[tuple[int, int, int, float, float]] = []

    def begin(self, one: int, other: int, gpu_type: int, now_s: float) -> None:
        """A job starts on the GPUs of another that runs there."""
        self._partner[one], self._partner[other] = other, one
        self._since[one] = self._since[other] = (now_s, gpu_type)

    def leave(self, rows: Ints, now_s: float) -> None:
        """These jobs leave their GPUs."""
        if not self._partner:
            return
        for row in rows.tolist():
            other = self._partner.pop(row, NONE)
            if other != NONE:
                del self._partner[other]
                since_s, gpu_type = self._since[row]
                self._times.append((min(row, other), max(row, other), gpu_type, since_s, now_s))

    def times(self, now_s: float) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        """Job, partner, GPU type, start and end, (K,) each; those under way end now."""
        under_way = [
            (row, other, self._since[row][1], self._since[row][0], now_s)
            for row, other in self._partner.items()
            if row < other
        ]
        table = np.array([*self._times, *under_way], dtype=np.float64).reshape(-1, 5)
        job, partner, gpu_type = table[:, :3].astype(np.int64).T
        return job, partner, gpu_type, table[:, 3], table[:, 4]

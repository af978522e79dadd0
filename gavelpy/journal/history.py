"""Histories of jobs and GPUs, computed from events only: starts, ends, preemptions, migrations, GPU time, cost.

A journal contains what nodes reported, also twice or late. Lease serials increase, so a start counts if its lease is
newer than the last one that started, and an end counts if it is of the running lease. Runs also end when their node is
lost, or rejoins without them.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gavelpy.journal.runs import Runs, Sharing
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
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.job import JobSpec, NodeId, lost_spec

NONE = -1
_FIRST_ROWS = 64
_INTS = ("gpus", "gpus_now", "type_now", "lease", "preemptions", "migrations")
NO_GPUS = np.uint64(0)
_FEW_GPUS = 8  # for which Python is faster than numpy
_WORD = 2**64 - 1
_FLOATS = ("arrival_s", "first_start_s", "finish_s", "cancelled_s", "start_s", "gpu_s", "owed_since_s")


class History:
    """Columns per job (row = serial), and an interval per run: an uninterrupted time on the same GPUs."""

    gpus: Ints  # that the job requested
    gpus_now: Ints  # of the last lease that started
    type_now: Ints  # GPU type of the running lease, -1 = none
    lease: Ints  # the last one that started
    preemptions: Ints  # times the job was stopped before its end
    migrations: Ints  # starts on other GPUs than the last run
    arrival_s: Floats
    first_start_s: Floats
    finish_s: Floats
    cancelled_s: Floats
    start_s: Floats  # of the running lease
    gpu_s: Floats  # GPU time received
    owed_since_s: Floats

    def __init__(self) -> None:
        self.count = 0
        self.now_s = 0.0
        self.specs: list[JobSpec] = []
        self.gpu_types: list[str] = []
        self.gpu_counts: list[int] = []
        self._nodes: dict[NodeId, tuple[list[int], int, int]] = {}  # its GPUs, how many exist now, their type
        self._gpu_type_of: list[int] = []
        self._gpu_type_array: Ints = np.zeros(0, dtype=np.int64)  # the same, on demand
        self._gpu_job: Ints = np.zeros(0, dtype=np.int64)  # (G,) the last job
        self._gpu_lease: Ints = np.zeros(0, dtype=np.int64)  # (G,) and its lease
        self._gpu_colocated: Ints = np.zeros(0, dtype=np.int64)  # (G,) the job that was running when that one started
        self._gpu_colocated_lease: Ints = np.zeros(0, dtype=np.int64)
        self._packs = False  # whether an allocation has co-located jobs
        self.sharing = Sharing()
        self.price_usd_per_gpu_h: dict[str, float] = {}
        self._prices: list[tuple[float, str, float]] = []  # start, GPU type, USD per GPU-hour
        self.solves = 0
        self.wakeups = 0
        for name in _INTS:
            setattr(self, name, np.full(_FIRST_ROWS, NONE))
        for name in _FLOATS:
            setattr(self, name, np.full(_FIRST_ROWS, math.nan))
        self.target: Floats = np.zeros((_FIRST_ROWS, 0))  # (N, T) shares in force
        self.owed_s: Floats = np.zeros((_FIRST_ROWS, 0))
        self._gpus_before = np.full(_FIRST_ROWS, NO_GPUS, dtype=np.uint64)  # (N,) set of GPUs of the last run
        self._shared: Ints = np.zeros(0, dtype=np.int64)  # jobs with shares in force, some several times,
        self._types: Ints = np.zeros(0, dtype=np.int64)  # and the types of these shares
        self._runs = Runs()
        self._any_sizes = False  # whether any job has several sizes

    def apply(self, event: Event, now_s: float) -> None:
        """Adds one event."""
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

    def run_intervals(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Runs: job, GPU type, start and end, (K,) each; current runs end now."""
        jobs, types, starts, ends, _ = self.sized_runs()
        return jobs, types, starts, ends

    def sized_runs(self) -> tuple[Ints, Ints, Floats, Floats, Ints]:
        """As `run_intervals`, and the GPUs of each run, (K,)."""
        running = np.flatnonzero(self.type_now[: self.count] != NONE)
        columns = self.type_now[running], self.start_s[running], self.gpus_now[running]
        return self._runs.until(self.now_s, running, *columns)

    def leased_intervals(self) -> tuple[Ints, Floats, Ints, Floats, Floats]:
        """Intervals in which GPUs were leased: GPU type, number of GPUs, job, start and end, (K,) each.

        The number is negative where co-located jobs share GPUs, so that sums count each GPU once.
        """
        jobs, types, starts, ends, gpus = self.sized_runs()
        shared, _, shared_types, since_s, until_s = self.sharing.times(self.now_s)
        return (
            np.concatenate([types, shared_types]),
            np.concatenate([gpus, -self.gpus[shared]]).astype(np.float64),
            np.concatenate([jobs, shared]),
            np.concatenate([starts, since_s]),
            np.concatenate([ends, until_s]),
        )

    def cost_usd(self) -> float:
        """Cost of the leased GPUs at the prices of the time; a shared GPU costs once."""
        types, gpus, jobs, starts, ends = self.leased_intervals()
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
        """Integral of the target shares of each job on each GPU type up to now, in seconds, (J, T)."""
        self._settle(self._shared[self._not_over(self._shared)], self.now_s)
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
        self.gpus[row] = self.gpus_now[row] = spec.gpus
        self._any_sizes |= bool(spec.sizes)
        self.preemptions[row] = self.migrations[row] = 0
        self.arrival_s[row] = self.owed_since_s[row] = now_s
        self.gpu_s[row] = 0.0

    def ended_early(self, row: int, now_s: float) -> None:
        """The core has cancelled a job itself: it lost in its app, or can never start."""
        self._cancelled(row, now_s)

    def _cancelled(self, row: int, now_s: float) -> None:
        if 0 <= row < self.count and math.isnan(self.cancelled_s[row]) and math.isnan(self.finish_s[row]):
            self._settle(np.array([row]), now_s)
            self.cancelled_s[row] = now_s

    def _joined(self, event: NodeJoined, now_s: float) -> None:
        """A node joins or rejoins, perhaps with other GPUs; GPUs that it had keep their numbers."""
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
        """Ends all runs on a node but those that it reports."""
        gpus, _, _ = self._nodes.get(event.node_id, ([], 0, 0))
        runs = event.leases if isinstance(event, AgentRejoined) else NO_INTS
        self._leave_gpus(np.array(gpus, dtype=np.int64), runs, now_s)

    def _leave_gpus(self, gpus: Ints, runs: Ints, now_s: float) -> None:
        """Ends the runs on any of these GPUs, except those of the leases `runs`."""
        gpus = gpus[gpus < len(self._gpu_job)]
        jobs, leases = self._gpu_job[gpus], self._gpu_lease[gpus]
        if self._packs:
            jobs = np.concatenate([jobs, self._gpu_colocated[gpus]])
            leases = np.concatenate([leases, self._gpu_colocated_lease[gpus]])
        running = self._are_running(jobs, leases)
        rows = np.unique(jobs[running & ~np.isin(leases, runs)])
        self._leave(rows, now_s)
        self.preemptions[rows] += 1

    def _started(self, event: LeaseStarted, now_s: float) -> None:
        if len(event.jobs) == 1 and not self._packs and len(self._gpu_type_array):
            self._one_started(event, now_s)
            return
        fresh = event.leases > self.lease[event.jobs]
        rows = event.jobs[fresh]
        unended = rows[self.type_now[rows] != NONE]
        if len(unended):  # the end of their last lease was not reported
            self._leave(unended, now_s)
        self.lease[rows] = event.leases[fresh]
        first = event.gpus[event.gpu_offsets[:-1]][fresh]
        where, before = gpu_set(event.gpus, event.gpu_offsets)[fresh], self._gpus_before[rows]
        moved = (before != NO_GPUS) & (before != where)
        self._gpus_before[rows] = where
        self.migrations[rows] += moved
        if len(self._gpu_type_array) < len(self._gpu_type_of):
            self._gpu_type_array = np.array(self._gpu_type_of)
            added = len(self._gpu_type_of) - len(self._gpu_job)
            for name in ("_gpu_job", "_gpu_lease", "_gpu_colocated", "_gpu_colocated_lease"):
                setattr(self, name, np.concatenate([getattr(self, name), np.full(added, NONE)]))
        counts = event.gpu_offsets[1:] - event.gpu_offsets[:-1]
        if self._any_sizes:
            self.gpus_now[rows] = counts[fresh]
        where_fresh = fresh.repeat(counts)
        self.type_now[rows] = self._gpu_type_array[first]
        if self._packs:
            for k in np.flatnonzero(fresh).tolist():
                gpus = event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]]
                self._co_locate(int(event.jobs[k]), gpus, now_s)
                self._gpu_job[gpus], self._gpu_lease[gpus] = event.jobs[k], event.leases[k]
        self._gpu_job[event.gpus[where_fresh]] = event.jobs.repeat(counts)[where_fresh]
        self._gpu_lease[event.gpus[where_fresh]] = event.leases.repeat(counts)[where_fresh]
        self.start_s[rows] = now_s
        self.first_start_s[rows] = np.where(np.isnan(self.first_start_s[rows]), now_s, self.first_start_s[rows])

    def _one_started(self, event: LeaseStarted, now_s: float) -> None:
        """As `_started`, of one job that cannot be co-located."""
        row, lease, gpus = event.jobs.item(), event.leases.item(), event.gpus
        if lease <= self.lease[row]:
            return
        if self.type_now[row] != NONE:  # the end of its last lease was not reported
            self._leave(event.jobs, now_s)
        where, before = gpu_set(gpus, event.gpu_offsets)[0], self._gpus_before[row]
        self.migrations[row] += NO_GPUS != before != where
        self._gpus_before[row], self.lease[row] = where, lease
        self.type_now[row] = self._gpu_type_array[gpus[0]]
        self._gpu_job[gpus], self._gpu_lease[gpus] = row, lease
        if self._any_sizes:
            self.gpus_now[row] = len(gpus)
        self.start_s[row] = now_s
        if math.isnan(self.first_start_s[row]):
            self.first_start_s[row] = now_s

    def _co_locate(self, job: int, gpus: Ints, now_s: float) -> None:
        """A job starts on these GPUs, co-located with the job that is running there, if any."""
        last, other = (np.array([column[gpus[0]]]) for column in (self._gpu_job, self._gpu_colocated))
        if self._are_running(last, self._gpu_lease[gpus[:1]])[0]:
            self._gpu_colocated[gpus], self._gpu_colocated_lease[gpus] = self._gpu_job[gpus], self._gpu_lease[gpus]
        elif self._are_running(other, self._gpu_colocated_lease[gpus[:1]])[0]:
            last = other
        else:
            return
        self.sharing.begin(job, int(last[0]), int(self.type_now[last[0]]), now_s)

    def _are_running(self, jobs: Ints, leases: Ints) -> Bools:
        """Whether these jobs are running under these leases, (K,)."""
        return np.asarray((jobs != NONE) & (self.lease[jobs] == leases) & (self.type_now[jobs] != NONE))

    def _ended(self, event: LeaseEnded, now_s: float) -> None:
        if len(event.jobs) == 1:
            self._one_ended(event, now_s)
            return
        last = self.lease[event.jobs]
        rows = event.jobs[(event.leases == last) & (self.type_now[event.jobs] != NONE)]  # and it has started
        self._leave(rows, now_s)
        if event.outcome is Outcome.FINISHED:
            over = event.jobs[event.leases >= last]
            over = over[np.isnan(self.finish_s[over]) & np.isnan(self.cancelled_s[over])]
            self._settle(over, now_s)
            self.finish_s[over] = now_s
        else:
            self.preemptions[rows] += 1

    def _one_ended(self, event: LeaseEnded, now_s: float) -> None:
        """As `_ended`, of one lease."""
        row, lease, last = event.jobs.item(), event.leases.item(), self.lease.item(event.jobs.item())
        runs, is_finish = lease == last and self.type_now[row] != NONE, event.outcome is Outcome.FINISHED
        if runs and self._packs:
            self.sharing.leave(event.jobs, now_s)
        if runs:
            self._leave_one(row, now_s)
            self.preemptions[row] += not is_finish
        if is_finish and lease >= last and math.isnan(self.finish_s[row]) and math.isnan(self.cancelled_s[row]):
            self._settle_one(row, now_s)
            self.finish_s[row] = now_s

    def _settle_one(self, row: int, now_s: float) -> None:
        """As `_settle`, for one job."""
        self.owed_s[row] += self.target[row] * (now_s - self.owed_since_s[row])
        self.owed_since_s[row] = now_s

    def _leave(self, rows: Ints, now_s: float) -> None:
        """Ends the runs of these jobs."""
        self._runs.extend(rows, self.type_now[rows], self.start_s[rows], now_s, self.gpus_now[rows])
        self.sharing.leave(rows, now_s)
        self.gpu_s[rows] += (now_s - self.start_s[rows]) * self.gpus_now[rows]
        self.type_now[rows] = NONE

    def _leave_one(self, row: int, now_s: float) -> None:
        """As `_leave`, for one job."""
        start_s = self.start_s.item(row)
        gpus = self.gpus_now.item(row)
        self._runs.add(row, self.type_now.item(row), start_s, now_s, gpus)
        self.gpu_s[row] += (now_s - start_s) * gpus
        self.type_now[row] = NONE

    def _solved(self, event: AllocationSolved, now_s: float) -> None:
        self.solves += 1
        before = self._not_over(self._shared)
        rows, types = self._shared[before], self._types[before]
        owed_s = self.target[rows, types] * (now_s - self.owed_since_s[rows])
        self.owed_s[rows, types] = self.owed_s[rows, types] + owed_s  # the same where a pair is there twice
        self.target[rows, types] = 0.0
        self._shared, self._types = event.jobs, event.gpu_type
        if len(event.pair_share):
            self._shared = np.concatenate([event.jobs, event.pair_jobs.ravel()])
            self._types = np.concatenate([event.gpu_type, event.pair_gpu_type.repeat(2)])
        self.owed_since_s[self._shared] = now_s
        if len(event.sizes):
            np.add.at(self.target, (event.jobs, event.gpu_type), event.share)
        else:
            self.target[event.jobs, event.gpu_type] = event.share
        if len(event.pair_share):
            self._packs = True
            np.add.at(self.target, (event.pair_jobs, event.pair_gpu_type[:, None]), event.pair_share[:, None])

    def _not_over(self, rows: Ints) -> Bools:
        """Whether these jobs are not over, (K,): no others are owed more time."""
        return np.asarray(np.isnan(self.finish_s[rows]) & np.isnan(self.cancelled_s[rows]))

    def _settle(self, rows: Ints, now_s: float) -> None:
        owed_s = self.target.take(rows, axis=0) * (now_s - self.owed_since_s[rows])[:, None]
        self.owed_s[rows] = self.owed_s.take(rows, axis=0) + owed_s
        self.owed_since_s[rows] = now_s


def gpu_set(gpus: Ints, offsets: Ints) -> npt.NDArray[np.uint64]:
    """A hash of each set gpus[offsets[k]:offsets[k + 1]], independent of the order: the sum of mixed GPU numbers, (K,).

    Two different sets have the same hash with probability 2^-64. The mix is that of SplitMix64 (Steele et al., 2014).
    """
    if len(offsets) == 2 and len(gpus) <= _FEW_GPUS:  # one lease, the usual case within a round
        return np.array([sum(map(_mixed, gpus.tolist())) & _WORD], dtype=np.uint64)
    mixed = (gpus.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.add.reduceat(mixed ^ (mixed >> np.uint64(31)), offsets[:-1])


@cache
def _mixed(gpu: int) -> int:
    mixed = ((gpu + 1) * 0x9E3779B97F4A7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return mixed ^ (mixed >> 31)

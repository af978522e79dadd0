"""A model of a machine: its clock, its GPUs, the processes of leases, and their records on disk.

A lease runs as one `Copy` of its job on each of its machines; the copies of a gang advance together or not at all. A
copy obeys its lease's record on the disk, as a shim obeys its files, whether or not the agent is alive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gavelpy.mechanism.events import Outcome
from gavelpy.runtime.agent.leases.orders import NodeAssignment
from gavelpy.runtime.agent.leases.reconcile import LocalPhase
from tests.mechanism.faults.truth import SHARED, Checkpoint, Truth

GRACE_S = 2.0
STOP_LEAD_S = 2.0  # a job begins to stop this long before the end of its lease
CHECKPOINT_S = 0.5
EXIT_S_MAX = 20  # longest time the processes of a job need after the last step
HUNG_UP_S = 3.0  # a gang breaks this long after losing one of its processes


@dataclass(eq=False)
class Record:
    """The record of a lease on a machine's disk."""

    lease: int
    job: int
    assignment: NodeAssignment | None
    until_clock_s: float
    phase: LocalPhase = LocalPhase.PREPARED
    stop: bool = False
    kill: bool = False
    killed_clock_s: float = math.inf
    steps_acknowledged: float = 0.0
    steps_done: float = 0.0
    steps_saved: float = 0.0
    start_due_s: float = math.inf
    copy: Copy | None = None
    last_word: Outcome | None = None
    outcome: Outcome | None = None  # once ended
    has_lost_shim: bool = False

    def conclude(self, outcome: Outcome) -> None:
        """Ends the lease on this machine; saved steps count."""
        self.outcome, self.phase, self.has_lost_shim, self.start_due_s = outcome, LocalPhase.ENDED, False, math.inf


@dataclass(eq=False)
class Copy:
    """The processes of a lease on one machine."""

    run: Run
    machine: Machine
    record: Record
    is_alive: bool = True
    is_frozen: bool = False
    stops_since_s: float = math.inf

    @property
    def gpus(self) -> frozenset[int]:
        """The GPUs of this copy on its machine."""
        assert self.record.assignment is not None
        return frozenset(self.record.assignment.gpus)

    @property
    def is_spent(self) -> bool:
        """Whether its lease has expired with the grace period: nothing it still does may count."""
        return self.machine.clock_s > self.record.until_clock_s + GRACE_S

    def end(self, outcome: Outcome | None) -> None:
        """Ends the processes with this outcome; None: without a reported outcome."""
        self.is_alive = False
        self.record.last_word = outcome
        self.record.steps_done = self.run.saved if outcome is not Outcome.FINISHED else self.run.steps

    def thaw(self) -> None:
        """Resumes after a freeze."""
        self.is_frozen = False

    def look(self, now_s: float) -> None:
        """Reacts to orders and to the clock, as a shim does."""
        record, clock_s = self.record, self.machine.clock_s
        is_done = self.run.is_done
        if record.kill:
            self.end(Outcome.FINISHED if is_done else Outcome.LOST)
        elif self.is_spent or (not is_done and now_s > self.stops_since_s + GRACE_S + STOP_LEAD_S):
            self.end(Outcome.FINISHED if is_done else Outcome.STOPPED)
        elif is_done:
            pass  # a stop waits for the exit
        elif record.stop or clock_s >= record.until_clock_s - STOP_LEAD_S:
            self.stops_since_s = min(self.stops_since_s, now_s)


@dataclass(eq=False)
class Run:
    """The state that all copies of a lease share."""

    job: int
    lease: int
    rate: float
    steps_total: float
    steps: float
    node_count: int
    checkpoint_every_s: float
    truth: Truth
    copies: list[Copy] = field(default_factory=list)
    saved: float = 0.0
    saved_at_s: float = 0.0
    stopping_at_s: float = math.inf
    hangs_since_s: float = math.inf
    exits_at_s: float = math.inf  # set after the last step
    saves: bool = True  # a job that never saves uses no checkpoint directory

    @property
    def is_done(self) -> bool:
        """Whether the last step is done."""
        return self.steps == self.steps_total

    def advance(self, now_s: float, elapsed_s: float) -> None:
        """Advances the job by a short time."""
        if not any(copy.is_alive for copy in self.copies):
            return
        if not self._is_moving:
            self._hang(now_s)
            return
        self.hangs_since_s = math.inf
        if self._waits_for_directory(now_s):
            return
        if self.is_done:
            if now_s >= self.exits_at_s:
                self._end(Outcome.FINISHED)
            return
        if now_s >= self.stopping_at_s:
            self._save(now_s)
            self._end(Outcome.STOPPED)
            return
        if any(copy.stops_since_s <= now_s for copy in self.copies):
            self.stopping_at_s = min(self.stopping_at_s, now_s + CHECKPOINT_S)
            return
        self.steps = min(self.steps + self.rate * elapsed_s, self.steps_total)
        if self.steps == self.steps_total:
            self.truth.done.add((self.job, self.lease))
            self.exits_at_s = now_s + self.lease * 7 % EXIT_S_MAX
        elif now_s - self.saved_at_s >= self.checkpoint_every_s:
            self._save(now_s)

    def _waits_for_directory(self, now_s: float) -> bool:
        """Whether it is blocked in a call to a hung directory."""
        is_due = now_s >= self.stopping_at_s or now_s - self.saved_at_s >= self.checkpoint_every_s
        return self.saves and is_due and any(copy.machine.is_hung for copy in self.copies)

    @property
    def _is_moving(self) -> bool:
        return len(self.copies) == self.node_count and all(c.is_alive and not c.is_frozen for c in self.copies)

    def _hang(self, now_s: float) -> None:
        """A process of the gang is missing: collective operations wait and eventually fail."""
        is_broken = len(self.copies) == self.node_count and any(not copy.is_alive for copy in self.copies)
        self.hangs_since_s = min(self.hangs_since_s, now_s) if is_broken else math.inf
        for copy in self.copies:
            if copy.is_alive and not copy.is_frozen and now_s > self.hangs_since_s + HUNG_UP_S:
                copy.end(Outcome.FAILED)

    def _save(self, now_s: float) -> None:
        self.saved_at_s = now_s
        if not self.saves or math.floor(self.steps) <= self.saved:
            return
        self.saved = self.steps = float(math.floor(self.steps))
        first = self.copies[0].machine
        self.truth.checkpoints[self.job, self.lease].append(
            Checkpoint(self.saved, SHARED if first.sees else first.name)
        )
        for copy in self.copies:
            assert not copy.is_spent, f"job {self.job} writes a checkpoint after its lease {self.lease} was over"
            copy.record.steps_saved = self.saved

    def _end(self, outcome: Outcome) -> None:
        for copy in self.copies:
            assert not copy.is_spent, f"job {self.job} ends in good order after its lease {self.lease} was over"
            copy.end(outcome)


class Machine:
    """A machine with GPUs, a clock, a disk and processes."""

    def __init__(self, name: str, gpu_type: str, gpu_count: int, *, sees: bool, ahead_s: float, drift: float) -> None:
        self.name = name
        self.gpu_type = gpu_type
        self.gpu_count = gpu_count
        self.sees = sees
        self.is_on = True
        self.boots = 1
        self.records: dict[int, Record] = {}
        self.trouble = ""  # why it accepts no leases
        self.hung_until_s = -math.inf  # until then its checkpoint directory answers no call
        self.is_hung = False
        self._ahead_s, self._drift = ahead_s, drift
        self.clock_s = ahead_s

    @property
    def copies(self) -> list[Copy]:
        """The live processes on this machine."""
        return [r.copy for r in self.records.values() if r.copy is not None and r.copy.is_alive]

    def make_room(self) -> None:
        """Frees disk space."""
        self.trouble = ""

    def tick(self, now_s: float) -> None:
        """Advances the clock and lets the processes react."""
        self.clock_s = self._ahead_s + now_s * (1 + self._drift)
        self.is_hung = now_s < self.hung_until_s
        for copy in self.copies:
            if not copy.is_frozen:
                copy.look(now_s)

    def spawn(self, record: Record, runs: dict[int, Run], truth: Truth, now_s: float) -> None:
        """Starts the processes of a lease."""
        told = record.assignment
        assert told is not None
        copies = self.copies
        taken = [copy.record.lease for copy in copies if copy.gpus & frozenset(told.gpus)]
        assert not taken, f"lease {record.lease} starts on GPUs of {self.name} on which {taken} run"
        resumed = truth.resume(record.job, told.resume_lease, told.resume_steps, self.name, sees=self.sees)
        resumed = truth.choices.setdefault(record.lease, resumed)
        run = runs.get(record.lease)
        if run is None:
            others = [copy for other in runs.values() if other.job == record.job for copy in other.copies]
            living = [copy.record.lease for copy in others if copy.is_alive and not copy.is_spent]
            assert truth.is_fencing or not living, f"job {record.job} starts under {record.lease}, {living} still runs"
            run = runs[record.lease] = Run(
                record.job, record.lease, told.rate_steps_per_s, told.steps_total, resumed, told.node_count,
                told.checkpoint_every_s, truth, saved=resumed, saved_at_s=now_s,
                saves=record.job not in truth.plain,
            )  # fmt: skip
        record.copy = Copy(run, self, record)
        run.copies.append(record.copy)
        run.copies.sort(key=lambda copy: copy.record.assignment.node_rank if copy.record.assignment else 0)
        record.phase = LocalPhase.RUNNING

    def die(self) -> None:
        """Cuts the power; the disk survives."""
        self.is_on = False
        for copy in self.copies:
            copy.end(None)

    def boot(self, ahead_s: float, now_s: float) -> None:
        """Boots: no earlier process runs, and the clock has another offset."""
        self.is_on, self._ahead_s = True, ahead_s - now_s * (1 + self._drift)
        self.clock_s = ahead_s
        self.boots += 1
        for record in self.records.values():
            if record.outcome is None:
                record.conclude(record.last_word if record.last_word is not None else Outcome.LOST)

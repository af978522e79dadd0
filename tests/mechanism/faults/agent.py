"""A model of a node's agent: its state, its messages, and the actions of the real reconciliation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from gavelpy.mechanism.events import Outcome
from gavelpy.runtime.agent.leases.orders import Orders, is_newer
from gavelpy.runtime.agent.leases.reconcile import (
    Accept,
    Action,
    Amend,
    Cancel,
    Forget,
    Kill,
    LocalLease,
    LocalPhase,
    NodeGpus,
    Refuse,
    StartLease,
    Withdraw,
    extended,
    reconcile,
)
from gavelpy.runtime.agent.quorum_member import QuorumMember
from gavelpy.runtime.daemon.leases.lease import PartReport, Phase
from gavelpy.runtime.quorum import Contact, Member, MemberAnswer
from tests.mechanism.faults.machine import Machine, Record, Run
from tests.mechanism.faults.truth import Truth

CLUSTER = "cluster"
HEARTBEAT_S = 1.0
SILENCE_S = 8.0  # after which the agent closes its connection
RETRY_S = 1.0
START_S_MAX = 1.5
PORT = 29500
_PHASES = {
    LocalPhase.PREPARED: Phase.PREPARED,
    LocalPhase.STARTING: Phase.STARTING,
    LocalPhase.RUNNING: Phase.RUNNING,
    LocalPhase.STOPPING: Phase.STOPPING,
    LocalPhase.ENDED: Phase.ENDED,
}


@dataclass(frozen=True)
class Said:
    """One message from an agent."""

    node: str
    stream: int
    sequence: int
    clock_s: float
    boot: int
    reports: tuple[PartReport, ...]
    is_first: bool
    is_confirmed_dead: bool = False
    trouble: str = ""
    finished: tuple[tuple[int, int], ...] = ()  # (job, lease) of leases on this node alone that it reports as finished
    obeyed: int = 0
    view_epoch: int = 0


class Agent:
    """The agent process: its state on the machine's disk outlives it; its orders and its connection do not."""

    def __init__(self, machine: Machine, runs: dict[int, Run], truth: Truth, rng: Random, disk: Path) -> None:
        self.disk = disk
        self.machine, self.runs, self.truth, self.rng = machine, runs, truth, rng
        self.is_alive = False
        self.is_frozen = False
        self.incarnation = 0  # on the disk: the newest incarnation obeyed
        self.has_memory = False  # on the disk
        self.streams = 0  # never reset, so that the scheduler can distinguish streams of different agent processes
        self.begin()

    def begin(self) -> None:
        """Starts a new agent process."""
        self.is_alive, self.is_frozen = True, False
        self.knew_before, self.has_memory = self.has_memory, True
        self.was_heard = self.is_connected = False
        self.orders: Orders | None = None
        self.sequence = self.obeyed = 0
        name, boot, clock_s = self.machine.name, f"boot {self.machine.boots}", self.machine.clock_s
        member = Member(name, f"of {name}", f"{name}:1")
        self.orphans = QuorumMember(self.disk, member, CLUSTER, self.incarnation, boot, clock_s)
        self.ask_clock_s = -math.inf
        self.next_heartbeat_s = self.heard_at_s = self.retry_s = -math.inf
        self.told: tuple[object, ...] = ()
        for record in self.machine.records.values():
            if record.phase is LocalPhase.STARTING and record.copy is None:
                record.phase, record.start_due_s = LocalPhase.PREPARED, math.inf

    def thaw(self) -> None:
        """Resumes after a freeze and handles the messages that arrived during it."""
        self.is_frozen = False

    def end(self) -> None:
        """Kills the agent."""
        self.is_alive = self.is_connected = False

    # Sending ------------------------------------------------------------------------------------------------------

    def speak(self, now_s: float, *, is_reachable: bool) -> Said | None:
        """The message to send now, if any."""
        if self.is_connected and now_s - self.heard_at_s > SILENCE_S:
            self.disconnect(now_s)
        if not self.is_connected:
            if now_s < self.retry_s or not is_reachable:
                return None
            self.streams += 1
            self.sequence, self.orders, self.is_connected, self.heard_at_s = 0, None, True, now_s
            self.obeyed = 0
            return self._said(now_s, is_first=True)
        told = tuple((r.lease, r.phase, r.outcome, r.steps_saved) for r in self.machine.records.values())
        if now_s >= self.next_heartbeat_s or told != self.told:
            return self._said(now_s, is_first=False)
        return None

    def disconnect(self, now_s: float) -> None:
        """Closes the connection; the agent reconnects soon."""
        self.is_connected, self.retry_s = False, now_s + self.rng.uniform(0.1, RETRY_S)

    def _said(self, now_s: float, *, is_first: bool) -> Said:
        self.sequence += 1
        self.next_heartbeat_s = now_s + HEARTBEAT_S
        records = self.machine.records.values()
        self.told = tuple((r.lease, r.phase, r.outcome, r.steps_saved) for r in records)
        is_dead = is_first and self.knew_before and not self.was_heard
        reports = tuple(_report(record) for record in records)
        clock_s = self.machine.clock_s
        return Said(
            self.machine.name,
            self.streams,
            self.sequence,
            clock_s,
            self.machine.boots,
            reports,
            is_first,
            is_dead,
            self.machine.trouble or self.machine.is_hung * "the checkpoint directory does not answer",
            tuple((record.job, record.lease) for record in records if _has_finished_alone(record)),
            self.obeyed,
            self.orphans.view.epoch if self.orphans.view is not None else 0,
        )

    def hear(self, orders: Orders, now_s: float) -> None:
        """Receives orders, if they arrive on the open connection."""
        if not self.is_connected or orders.stream != self.streams:
            return
        self.was_heard, self.heard_at_s = True, now_s
        if orders.incarnation < self.incarnation or not is_newer(orders, self.orders):
            return
        self.incarnation, self.orders = orders.incarnation, orders
        if self.orphans.record_contact(orders.incarnation, orders.echo_clock_s, self.machine.clock_s):
            self.obeyed = orders.sequence
        if orders.view is not None:
            self.orphans.store_view(orders.view, orders.view_key)

    # Other agents -------------------------------------------------------------------------------------------------

    @property
    def is_asking(self) -> bool:
        """Whether it queries other agents now."""
        clock_s = self.machine.clock_s
        if clock_s < self.ask_clock_s or not self.orphans.must_query(clock_s):
            return False
        self.ask_clock_s = clock_s + self.orphans.query_interval_s
        return any(record.outcome is None for record in self.machine.records.values())

    def contact(self) -> MemberAnswer:
        """Its answer to another agent; the caller decides when that arrives."""
        me, incarnation = self.orphans.me, self.orphans.contact.incarnation
        return MemberAnswer(me.node_id, me.state_id, incarnation, self.orphans.heard_ago_s(self.machine.clock_s), 0.0)

    def answered(self, contact: Contact, answers: Sequence[MemberAnswer], asked_clock_s: float) -> None:
        """Receives the answers to a query sent at `asked_clock_s`."""
        arrived = [replace(answer, arrived_clock_s=self.machine.clock_s) for answer in answers]
        self.orphans.count_answers(contact, arrived, asked_clock_s)

    # Acting -------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Observes every lease and executes the actions of the reconciliation."""
        for record in list(self.machine.records.values()):
            self._observe(record, now_s)
        local = [_local(record) for record in self.machine.records.values()]
        place = NodeGpus(self.machine.gpu_type, self.machine.gpu_count)
        for action in reconcile(local, self.orders, place, self.machine.clock_s):
            self._act(action, now_s)
        local = [_local(record) for record in self.machine.records.values()]
        for action in extended(local, self.orphans.until_clock_s, self.machine.clock_s):
            self._act(action, now_s)

    def _observe(self, record: Record, now_s: float) -> None:
        copy = record.copy
        if record.outcome is not None or record.phase is LocalPhase.PREPARED:
            return
        if copy is None:
            if now_s >= record.start_due_s:
                self._start(record, now_s)
        elif copy.is_alive:
            record.steps_done = copy.run.steps
            record.phase = LocalPhase.STOPPING if record.stop or record.kill else LocalPhase.RUNNING
        elif record.last_word is not None:
            record.conclude(record.last_word)
        else:
            record.has_lost_shim = True

    def _start(self, record: Record, now_s: float) -> None:
        """Starts a lease as the real starter does: it checks the orders again once the preparation is complete."""
        if record.kill:
            record.conclude(Outcome.LOST)
        elif record.stop or self.machine.clock_s >= record.until_clock_s:
            record.conclude(Outcome.STOPPED)
        elif not self.machine.is_hung or record.job in self.truth.plain:  # otherwise the preparation waits
            self.machine.spawn(record, self.runs, self.truth, now_s)

    def _act(self, action: Action, now_s: float) -> None:
        records = self.machine.records
        match action:
            case Accept(order, assignment, start):
                told = replace(assignment, rendezvous_port=assignment.rendezvous_port or PORT)
                record = Record(order.lease, order.job, told if told.is_first_node else assignment, order.until_clock_s)
                record.steps_done = record.steps_saved = assignment.steps_done
                records[order.lease] = record
                if start:
                    self._begin(record, now_s)
            case Refuse(order, outcome, _):
                records[order.lease] = Record(order.lease, order.job, order.assignment, order.until_clock_s)
                records[order.lease].conclude(Outcome[outcome.name])
            case StartLease(lease, assignment):
                records[lease].assignment = assignment
                self._begin(records[lease], now_s)
            case Amend(lease, until_clock_s, stop, kill, steps_saved):
                record = records[lease]
                if kill and not record.kill:
                    record.killed_clock_s = self.machine.clock_s
                record.until_clock_s, record.stop, record.kill = until_clock_s, stop, kill
                record.steps_acknowledged = steps_saved
            case Cancel(lease, _):
                records[lease].conclude(Outcome.STOPPED)
            case Withdraw(lease):
                if records[lease].copy is None:
                    records[lease].conclude(Outcome.STOPPED)
            case Kill(lease):
                self._destroy(records[lease])
            case Forget(lease):
                del records[lease]

    def _begin(self, record: Record, now_s: float) -> None:
        record.phase, record.start_due_s = LocalPhase.STARTING, now_s + self.rng.uniform(0.0, START_S_MAX)

    def _destroy(self, record: Record) -> None:
        record.kill = True
        if record.copy is None and record.phase is LocalPhase.STARTING and not record.has_lost_shim:
            return  # the start under preparation will handle it
        if record.copy is not None and record.copy.is_alive:
            record.copy.end(None)
        record.conclude(Outcome.LOST)


def _local(record: Record) -> LocalLease:
    return LocalLease(
        record.lease,
        record.job,
        record.phase,
        record.assignment,
        record.until_clock_s,
        record.stop,
        record.kill,
        record.killed_clock_s,
        record.steps_acknowledged,
        has_lost_shim=record.has_lost_shim,
    )


def _has_finished_alone(record: Record) -> bool:
    is_alone = record.assignment is not None and record.assignment.node_count == 1
    return is_alone and record.outcome is Outcome.FINISHED


def _report(record: Record) -> PartReport:
    is_first = record.assignment is not None and record.assignment.is_first_node
    return PartReport(
        record.lease,
        record.job,
        _PHASES[record.phase],
        steps_done=record.steps_done,
        steps_saved=record.steps_saved,
        rendezvous_port=record.assignment.rendezvous_port if is_first and record.assignment else 0,
        is_done=record.copy is not None and record.copy.run.is_done,
        is_by_time=record.copy is not None and not record.copy.run.saves,
        steps_total=record.copy.run.steps_total if record.copy is not None and record.job % 4 else 0.0,
        outcome=record.outcome if record.outcome is not None else Outcome.LOST,
    )

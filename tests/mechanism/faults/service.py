"""A model of the scheduler's process: the real core, lease table and command executor on a journal that outlives it.

It replaces the driver and the gRPC service: events go to the journal, then to the core, and then take effect. A crash
loses everything but the journal; it may happen between the commit of a batch and its effects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import msgspec
import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.commands import EstimateThroughput, RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationFailed,
    AllocationSolved,
    ConfigChanged,
    Event,
    LastStepReported,
    LeaseEnded,
    PolicyChanged,
    SchedulerRestarted,
    ThroughputEstimated,
    WakeupDue,
)
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore
from gavelpy.model.job import FEATURES, NodeId
from gavelpy.runtime.agent.leases.orders import LeaseOrder, NodeAssignment, OrderKind, Orders
from gavelpy.runtime.daemon.command_executor import CommandExecutor
from gavelpy.runtime.daemon.config_sections import NodeSettings
from gavelpy.runtime.daemon.job_history import JobHistory
from gavelpy.runtime.daemon.leases.lease import Order
from gavelpy.runtime.daemon.metrics import SchedulerMetrics
from gavelpy.runtime.daemon.nodes.registry import Hello, Node, Stream
from tests.mechanism.faults.agent import CLUSTER, Said
from tests.mechanism.faults.machine import GRACE_S, Machine
from tests.mechanism.faults.truth import Truth

NODES = NodeSettings(
    heartbeat_interval_s=1.0,
    silent_after_s=4.0,
    lease_overlap_s=5.0,
    unsaved_overlap_s=9.0,
    lease_margin_s=2.0,
    grace_s=GRACE_S,
)
REFRESH_S = 1.0
PROGRESS_S = 10.0
SNAPSHOT_EVENTS = 150
ENGINE_S_MAX = 2.0
CHECKPOINT_EVERY_S = 4.0
_METRICS = SchedulerMetrics()


class Crash(Exception):
    """The process is killed at this point."""


@dataclass
class Clock:
    """A clock that shows the virtual time of the world."""

    time_s: float = 0.0
    slack_s: float = 0.0

    def now_s(self) -> float:
        """The current virtual time."""
        return self.time_s


class Engine:
    """Queues requests; the world delivers the answers later."""

    def __init__(self) -> None:
        self.asked: list[SolveAllocation | EstimateThroughput] = []

    def ask(self, question: SolveAllocation | EstimateThroughput) -> None:
        """Queues a request."""
        self.asked.append(question)

    def plan_within(self, settings: MechanismSettings) -> None:
        """Does nothing: there is no policy."""


class Service:
    """Successive schedulers on one journal."""

    def __init__(
        self,
        settings: MechanismSettings,
        machines: dict[str, Machine],
        truth: Truth,
        rng: Random,
        on_node_lost: str,
        orphan_max_s: float,
    ) -> None:
        self.machines, self.truth, self.rng = machines, truth, rng
        self.settings = msgspec.structs.replace(NODES, on_node_lost=on_node_lost, orphan_max_s=orphan_max_s)
        self.views = ""  # on the disk
        self.journal: list[bytes] = []
        self.snapshot: tuple[int, bytes] = (0, b"")
        self.metrics = _METRICS
        self.cluster_id = CLUSTER
        self.clock = Clock()
        self.incarnation = 0
        self.is_alive = False
        self.crash_chance = 0.0  # after a commit
        self.begin(0.0, [ConfigChanged(settings)])

    # Start and end -------------------------------------------------------------------------------------------------

    def begin(self, now_s: float, first: Sequence[Event] = ()) -> None:
        """Starts a new incarnation from snapshot and replay."""
        position, state = self.snapshot
        self.core, self.history = SchedulerCore(), JobHistory()
        if state:
            kept = decode_state(state)
            self.core = restore(kept["core"])
            self.history = JobHistory.restore(kept["facts"], self.core)
        for record in self.journal[position:]:
            then_s, event = decode(record)
            with suppress(InvalidInput):  # as in the original run
                self.core.handle(event, then_s)
                self.history.apply(event, then_s, self.core)
            if isinstance(event, LeaseEnded):
                self.truth.ended(event)
        self.truth.recovered(self.core)
        self.clock.time_s = max(now_s, self.core.now_s)
        self.incarnation += 1
        self.engine = Engine()
        self.execution = CommandExecutor(self, self.settings, "the scheduler's host", views=self.views)
        self.execution.quorum_views.keep = self._keep_views
        self.streams: dict[tuple[str, int], Stream] = {}
        self.sent: dict[str, tuple[int, float]] = {}  # sequence number and time of the last orders, by node
        self.queue: list[tuple[Event, Callable[[], None] | None]] = [
            (event, None) for event in (SchedulerRestarted(self.incarnation), *first)
        ]
        self.progress_s = -math.inf
        self.is_alive = True
        self.step(self.clock.time_s)

    def end(self) -> None:
        """Kills the scheduler."""
        self.is_alive = False

    def policy_changed(self, event: PolicyChanged) -> None:
        """Does nothing: the engine has no policy."""

    def batch_applied(self) -> None:
        """Does nothing: no client waits for events."""

    def _keep_views(self, text: str, done: Callable[[], None]) -> None:
        self.views = text
        done()

    # Driver --------------------------------------------------------------------------------------------------------

    def step(self, now_s: float) -> None:
        """Processes all pending events."""
        self.clock.time_s = now_s
        try:
            while batch := self._collect(now_s):
                self._commit(batch, now_s)
        except Crash:
            self.end()

    def _collect(self, now_s: float) -> list[tuple[Event, Callable[[], None] | None]]:
        batch = [(event, None) for event in self.execution.drain(now_s)] + self.queue
        self.queue = []
        is_due = self.core.wakeup_s <= now_s
        if now_s - self.progress_s >= PROGRESS_S or (is_due and self.core.needs_progress(now_s)):
            self.progress_s = now_s
            batch += [(event, None) for event in self.execution.progress()]
        return batch + ([(WakeupDue(), None)] if is_due else [])

    def _commit(self, batch: list[tuple[Event, Callable[[], None] | None]], now_s: float) -> None:
        if self.rng.random() < self.crash_chance:
            raise Crash  # before it is written
        self.journal += [encode(event, now_s) for event, _ in batch]
        for event, done in batch:
            if self.rng.random() < self.crash_chance:
                raise Crash  # written, and partly applied
            commands = self.core.handle(event, now_s)
            check(self.core)
            if isinstance(event, LastStepReported):
                self.truth.last_step(event.leases.tolist(), now_s)
            elif isinstance(event, LeaseEnded):
                self.truth.ended(event)
            self.truth.believed(self.core)
            for command in commands:
                if isinstance(command, RoundPlan):
                    self.truth.granted(command.grant_leases.tolist())
                    self.truth.revoked(self._revoked_at_will(command), now_s)
            self.execution.applied(event, now_s, commands)
            if done is not None:
                done()
        self.execution.batch_applied()
        if len(self.journal) - self.snapshot[0] > SNAPSHOT_EVENTS:
            self.snapshot = len(self.journal), encode_state(self.execution.state()())

    def _revoked_at_will(self, plan: RoundPlan) -> list[int]:
        """Leases that a plan ends although no node must be free: those on nodes under maintenance must end."""
        jobs, reserved = self.core.jobs.by_serial, self.core.pool.reserved
        revoked = zip(plan.revoke_jobs.tolist(), plan.revoke_leases.tolist(), strict=True)
        return [lease for job, lease in revoked if not reserved[jobs.gpus_stopping(job)].any()]

    def look(self, now_s: float) -> None:
        """Checks for silent nodes and expired leases, then runs the core's timer."""
        self.execution.look(now_s)
        self.step(now_s)

    def put(self, event: Event, done: Callable[[], None] | None = None) -> None:
        """Queues an event for the next batch."""
        self.queue.append((event, done))

    # Engine --------------------------------------------------------------------------------------------------------

    def answers(self) -> list[Event]:
        """Answers to all requests since the last call."""
        asked, self.engine.asked = self.engine.asked, []
        return [self._answer(question) for question in asked]

    def _answer(self, question: SolveAllocation | EstimateThroughput) -> Event:
        if isinstance(question, EstimateThroughput):
            known = [[self._rate(kind) for kind in question.gpu_types] for _ in question.jobs]
            return ThroughputEstimated(question.jobs, np.array(known).reshape(len(question.jobs), -1))
        if self.rng.random() < 0.1:
            return AllocationFailed(question.epoch, "no answer")
        rates = question.problem.member_rate_steps_per_s
        usable = rates > 0
        wish = np.where(usable, np.array([self.rng.random() for _ in range(rates.size)]).reshape(rates.shape), 0.0)
        share = wish / np.maximum(wish.sum(axis=1, keepdims=True), 1.0)
        row, kind = np.nonzero(share)
        return AllocationSolved(question.epoch, question.jobs[row], kind, share[row, kind])

    def _rate(self, gpu_type: str) -> float:
        """A rate that is unknown on some types but known on one; a job without any would rightly wait forever."""
        return 4.0 if gpu_type == "v100" else self.rng.choice([2.0, math.nan])

    # Service -------------------------------------------------------------------------------------------------------

    def hear(self, said: Said, now_s: float) -> None:
        """Receives one message of an agent, as AgentService does."""
        key, machine = (said.node, said.stream), self.machines[said.node]
        if said.is_first and not self._connect(said, key, machine):
            return
        found, known = self.execution.nodes.get(said.node), self.streams.get(key)
        if found is None or known is None or found.stream is not known or said.sequence <= known.sequence:
            return
        node, known.sequence = found, said.sequence
        node.clock_s, node.received_at_s, node.trouble = said.clock_s, now_s, said.trouble
        self.execution.quorum_views.acknowledged(node.node_id, said.obeyed, said.view_epoch)
        if said.is_first:
            self.execution.connected(node)
        self.execution.reported(node, said.reports, now_s, is_first=said.is_first)
        self.step(now_s)
        if self.is_alive:
            for job, lease in said.finished:
                self.truth.reported_finish(self.core, job, lease)

    def _connect(self, said: Said, key: tuple[str, int], machine: Machine) -> bool:
        """Whether this is the first message of a stream that is still open."""
        hello = Hello(
            NodeId(said.node),
            f"host {said.boot}",
            machine.gpu_type,
            machine.gpu_count,
            "",
            checkpoint_marker=CLUSTER if machine.sees else "",
            is_confirmed_dead=said.is_confirmed_dead,
            state_id=f"of {said.node}",
            peer_address=f"{said.node}:1",
            features=frozenset(FEATURES),
        )
        known = self.execution.nodes.get(said.node)
        if key in self.streams or (known is not None and known.is_past(hello, said.clock_s)):
            return False
        stream = self.streams[key] = Stream()
        self.execution.nodes.connect(hello, stream)
        self.execution.quorum_views.connected(hello.node_id, hello.state_id)
        self.sent.pop(said.node, None)  # sequence numbers restart with each stream
        return True

    def disconnected(self, name: str, stream: int) -> None:
        """Handles a broken connection."""
        node, known = self.execution.nodes.get(name), self.streams.get((name, stream))
        if node is not None and known is not None:
            self.execution.nodes.disconnect(node, known)

    def orders(self, now_s: float) -> list[tuple[str, Orders]]:
        """The orders to send to nodes now."""
        mail = []
        for (name, number), stream in self.streams.items():
            node = self.execution.nodes.get(name)
            if node is None or node.stream is not stream or not node.is_ready:
                continue
            sequence, sent_s = self.sent.get(name, (0, -math.inf))
            if not stream.wake.is_set() and now_s - sent_s < REFRESH_S:
                continue
            stream.wake.clear()
            stream.sent_s = now_s
            self.sent[name] = sequence + 1, now_s
            mail.append((name, self._orders(node, number, sequence + 1, now_s)))
        return mail

    def _orders(self, node: Node, stream: int, sequence: int, now_s: float) -> Orders:
        leases = self.execution.leases
        told = tuple(self._order(order, node) for order in leases.orders(node.node_id))
        forget = frozenset(leases.forgotten(node.node_id))
        view = self.execution.quorum_views.sending(node.node_id, sequence, now_s)
        return Orders(self.incarnation, stream, sequence, told, forget, CLUSTER, node.clock_s, view, b"key")

    def _order(self, order: Order, node: Node) -> LeaseOrder:
        start, until_clock_s, spec = order.start, node.clock_of(order.until_s), self.core.jobs.specs[order.job]
        kind = OrderKind[order.wish.name]
        if start is None:
            return LeaseOrder(order.lease, order.job, until_clock_s, kind, order.steps_saved, withdraw=order.withdraw)
        assignment = NodeAssignment(
            argv=("train",), working_directory="/", gpus=start.gpus, gpu_type=start.gpu_type,
            node_rank=start.node_rank, node_count=start.node_count, first_rank=start.first_rank,
            world_size=start.world_size, rendezvous_port=start.rendezvous_port, round=start.round,
            steps_total=self.truth.totals.get(spec.id, spec.steps_total), steps_done=start.resume_steps,
            rate_steps_per_s=start.rate_steps_per_s, resume_lease=start.resume_lease,
            resume_steps=start.resume_steps, grace_s=GRACE_S, checkpoint_every_s=CHECKPOINT_EVERY_S,
        )  # fmt: skip
        return LeaseOrder(
            order.lease, order.job, until_clock_s, kind, order.steps_saved, assignment, withdraw=order.withdraw
        )

"""Executes the core's commands on nodes and the engine, and turns reports of nodes into events.

Reports update memory at once; the resulting events wait for the driver's next batch. A node receives orders after its
NodeJoined or AgentRejoined was applied, when the core knows the leases that run there.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, assert_never

from gavelpy.mechanism.commands import (
    Command,
    EstimateThroughput,
    KillLease,
    QueryAgent,
    Report,
    RoundPlan,
    SolveAllocation,
)
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    ConfigChanged,
    DirectorySeen,
    Event,
    LeaseEnded,
    LeaseStarted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
    PolicyChanged,
    PriceChanged,
)
from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.mechanism.snapshot import copied, snapshot
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.config_sections import NodeSettings, ThroughputSettings
from gavelpy.runtime.daemon.engine.engine_process import EngineProcess
from gavelpy.runtime.daemon.engine.measuring import Measuring
from gavelpy.runtime.daemon.job_history import JobHistory
from gavelpy.runtime.daemon.leases.lease import PartReport, Patience
from gavelpy.runtime.daemon.leases.table import LeaseTable
from gavelpy.runtime.daemon.metrics import SchedulerMetrics
from gavelpy.runtime.daemon.nodes.quorum_views import QuorumViews
from gavelpy.runtime.daemon.nodes.registry import (
    Node,
    NodeRegistry,
    differs,
    directory_seen,
    has_other_features,
    joined,
)
from gavelpy.runtime.daemon.nodes.watch import WATCH_EVERY_S, NodeWatch
from gavelpy.runtime.daemon.recovery import SchedulerClock

logger = logging.getLogger(__name__)
HEARTBEATS_MISSED = 4  # at least, before a node counts as unreachable
WRITE_TIMEOUT_S = 10.0
TALK_TIMEOUT_S_MIN = 20.0  # of a stream; `silent_after_s` if that is longer
HEARTBEATS_PER_S = 500  # of all nodes: with more nodes, the interval is longer
REFRESH_S = 1.0  # after which orders are repeated, for few nodes
NODES_REFRESHED_PER_S, REFRESH_S_MAX = 500, 10.0  # for many nodes
WOKEN_AT_ONCE = 50  # streams, in a turn of the event loop; a message takes about 0.1 ms
IDLE_REFRESHED_PER_S, IDLE_REFRESH_S_MAX = 200, 5.0  # for many nodes without leases
NodeEvent = NodeUnreachable | NodeLost | NodeDraining | NodeUnhealthy | DirectorySeen | NodeJoined | AgentRejoined
UNMEASURED = ThroughputSettings(estimate=False)


class ExecutorContext(Protocol):
    """The parts of the scheduler that commands need."""

    core: SchedulerCore
    history: JobHistory
    clock: SchedulerClock
    cluster_id: str
    engine: EngineProcess
    metrics: SchedulerMetrics

    def policy_changed(self, event: PolicyChanged) -> None:
        """The policy has changed."""

    def batch_applied(self) -> None:
        """A batch of events was applied."""


class CommandExecutor:
    """The driver's shell: the lease table and the nodes."""

    def __init__(
        self,
        context: ExecutorContext,
        settings: NodeSettings,
        host_id: str,
        throughputs: ThroughputSettings = UNMEASURED,
        views: str = "",
    ) -> None:
        self.context = context
        self.settings = settings
        self.core = context.core  # read only
        patience = Patience(
            settings.lease_overlap_s,
            max(settings.lease_overlap_s, settings.unsaved_overlap_s),
            settings.grace_s,
            settings.lease_margin_s,
        )
        self.leases = LeaseTable(context.core, patience, context.history.starts)
        self.leases.rebuild(context.clock.slack_s)
        history, began_s = context.history, context.clock.now_s()
        self.nodes = NodeRegistry(host_id, began_s, lambda node_id: history.agents.get(node_id, ""))
        self.quorum_views = QuorumViews(settings, views, began_s)
        self.leases.runs_until_s = self._runs_until_s
        self._look = asyncio.Event()  # check nodes now
        self._watch = NodeWatch(context.core, self.nodes, self.leases, settings, began_s)
        self.neighbors = self._watch.neighbors
        self.measuring = Measuring(context.core, throughputs)
        self.wake_driver: Callable[[], None] = lambda: None  # wakes the driver to drain events
        self.usd_per_gpu_h: Mapping[str, float] = {}  # by GPU type, as configured
        self.unreported = set(self._watch.living())  # not yet since the start, or unreachable
        self._events: list[Callable[[], Event]] = []  # of nodes, for the next batch
        self._pending: set[tuple[type, NodeId]] = set()  # kinds of events that are not applied yet

    @property
    def heartbeat_interval_s(self) -> float:
        """Interval of a node's heartbeats: longer with many nodes, but HEARTBEATS_MISSED within `silent_after_s`."""
        many_s = min(len(self.nodes) / HEARTBEATS_PER_S, self.settings.silent_after_s / HEARTBEATS_MISSED)
        return max(self.settings.heartbeat_interval_s, many_s)

    # From agents --------------------------------------------------------------------------------------------------

    def connected(self, node: Node) -> None:
        """A node has opened a stream; its first report follows at once."""
        state = self._state(node.node_id)
        is_other = state is not None and differs(self.core.pool, node, self.context.cluster_id)
        if state not in (None, NodeState.LOST) and (
            is_other or self._is_anew(node) or has_other_features(self.core.pool, node)
        ):
            is_drained = state is NodeState.DRAINING and not is_other
            force = self.core.pool.node_forced[self.core.pool.node_row[node.node_id]]
            self._join(node)
            if is_drained:  # it stays so with a new agent
                self._queue(NodeDraining(node.node_id, force))
        logger.info("node connected", extra={"node_id": node.node_id, "address": node.hello.address})

    def reported(self, node: Node, reports: Sequence[PartReport], now_s: float, *, is_first: bool) -> None:
        """Processes one message of a node, with the state of all its leases."""
        self.nodes.watch(node, [report.shim for report in reports if report.shim[0]])
        is_confirmed_dead = is_first and node.hello.is_confirmed_dead
        self.leases.reported(node.node_id, reports, now_s, is_confirmed_dead=is_confirmed_dead)
        if self._state(node.node_id) in (None, NodeState.LOST):
            self._join(node)
        elif node.node_id in self.unreported:
            node.is_ready = False
            self._queue_later(AgentRejoined, node.node_id, lambda: self.leases.rejoined(node.node_id))
        if node.is_draining and self._state(node.node_id) is NodeState.UP:
            force = self.core.settings.keep_unsaved  # the node shuts down in any case
            self._queue(NodeDraining(node.node_id, force))
        if (seen := directory_seen(self.core.pool, node, self.context.cluster_id)) is not None:
            self._queue(seen)
        if node.trouble != self._hindrance(node.node_id):
            self._queue_later(NodeUnhealthy, node.node_id, lambda: NodeUnhealthy(node.node_id, node.trouble))
        self.context.metrics.heartbeats.inc()
        if self.leases.has_events:
            self.wake_driver()
        self.wake_changed()

    def _join(self, node: Node) -> None:
        node.is_ready = False
        self._queue_later(NodeJoined, node.node_id, lambda: joined(self.core.pool, node, self.context.cluster_id))

    def _hindrance(self, node_id: NodeId) -> str:
        """Why a node cannot start leases, by the core's state; empty = it can."""
        row = self.core.pool.node_row.get(node_id)
        return "" if row is None else self.core.pool.node_unhealthy[row]

    def _is_anew(self, node: Node) -> bool:
        """Whether the node has another agent than the journal's, or the journal has none."""
        identity = node.hello.identity
        return bool(identity) and self.context.history.agents.get(node.node_id) != identity

    def _state(self, node_id: NodeId) -> NodeState | None:
        row = self.core.pool.node_row.get(node_id)
        return None if row is None else self.core.pool.node_state[row]

    def _queue(self, event: NodeEvent) -> None:
        """Adds an event of a node to the next batch, unless one of its kind is pending."""
        self._queue_later(type(event), event.node_id, lambda: event)

    def _queue_later(self, kind: type, node_id: NodeId, make: Callable[[], Event]) -> None:
        """As `_queue`, but makes the event when the batch is collected."""
        if (kind, node_id) not in self._pending:
            self._pending.add((kind, node_id))
            self._events.append(make)
            self.wake_driver()

    # For the driver -----------------------------------------------------------------------------------------------

    def drain(self, now_s: float) -> list[Event]:  # noqa: ARG002 the protocol's
        """Ends of leases before events of nodes: reports that a node sent before its loss count."""
        events = self.leases.drain()
        made, self._events = self._events, []
        return events + [make() for make in made]

    def progress(self) -> list[Event]:
        """Progress of running jobs."""
        return self.leases.progress()

    def applied(self, event: Event, now_s: float, commands: Sequence[Command]) -> None:
        """Executes the commands that the core returned for an event."""
        self.context.history.apply(event, now_s, self.core)
        self.context.metrics.count_event(event)
        match event:
            case LeaseStarted():
                for lease in event.leases.tolist():
                    self.measuring.started(lease, now_s)
                self.context.metrics.leases_started(event, self.core, self.context.history, now_s)
            case LeaseEnded():
                leases = [self.leases.leases.get(lease) for lease in event.leases.tolist()]
                self.context.metrics.leases_ended(event, self.core, leases)
                for ended in leases:
                    if ended is not None:
                        self.measuring.ended(ended, now_s)
                self.leases.applied(event)
            case NodeJoined() | AgentRejoined():
                self._is_back(event.node_id)
                if isinstance(event, NodeJoined):
                    self._events += [partial(_same, price) for price in self.priced([event.gpu_type])]
            case NodeUnhealthy():
                self.leases.changed.add(event.node_id)
            case NodeUnreachable():
                self._watch.silent.add(event.node_id)
                self.unreported.add(event.node_id)
            case NodeLost():
                self.leases.lost(event.node_id, now_s, f"node {event.node_id} was lost")
                self.nodes.declared_lost(event.node_id, is_forgotten=event.is_forgotten)
                self.unreported.discard(event.node_id)
            case PolicyChanged():
                self.context.policy_changed(event)
            case ConfigChanged():
                self.context.engine.plan_within(event.settings)
            case _:
                pass
        if isinstance(event, NodeEvent):
            self._pending.discard((type(event), event.node_id))
            logger.info("node", extra={"event": type(event).__name__, "node_id": event.node_id})
        for command in commands:
            self._execute(command)

    def priced(self, gpu_types: Iterable[str]) -> list[PriceChanged]:
        """Events that set the prices of these types as configured, where they differ."""
        pool = self.core.pool
        now = dict(zip(pool.gpu_types, pool.price_usd_per_gpu_h, strict=True))
        wanted = {kind: self.usd_per_gpu_h.get(kind, 0.0) for kind in gpu_types}
        return [PriceChanged(kind, price) for kind, price in wanted.items() if price != now[kind]]

    def _is_back(self, node_id: NodeId) -> None:
        node = self.nodes.get(node_id)
        self._watch.silent.discard(node_id)
        if node is not None and node.is_connected:
            self.unreported.discard(node_id)
            node.is_ready = True
            self.leases.changed.add(node_id)

    def batch_applied(self) -> None:
        """Wakes streams with new orders and callers that wait for a change."""
        self.wake_changed()
        self.context.batch_applied()
        if self.leases.has_events:
            self.wake_driver()

    def state(self) -> Callable[[], dict[str, Any]]:
        """A function that encodes the state of now, for a snapshot."""
        core, history = copied(self.core), self.context.history.snapshot()
        return lambda: {"core": snapshot(core), "facts": history}

    def measured(self, what: str, seconds: float) -> None:
        """Records a duration in the metrics."""
        self.context.metrics.measured(what, seconds)

    def _execute(self, command: Command) -> None:
        match command:
            case SolveAllocation() | EstimateThroughput():
                self.context.engine.ask(command)
            case RoundPlan():
                self.context.metrics.planned(command, self.core)
                self.leases.plan(command)
                _log_plan(command)
            case KillLease():
                self.leases.kill(command.lease)
                logger.info("lease killed", extra={"job_id": command.job, "lease_id": command.lease})
            case Report():
                logger.warning(command.text, extra={"topic": command.topic})
            case QueryAgent():
                pass  # the next report of the node answers it: see `unreported`
            case _:
                assert_never(command)

    def wake_changed(self) -> None:
        """Sends orders to the nodes where they have changed."""
        if self.leases.changed:
            changed, self.leases.changed = self.leases.changed, set()
            self._wake([node for node_id in changed if (node := self.nodes.get(node_id)) is not None])

    def _wake(self, nodes: list[Node]) -> None:
        """Wakes the streams of nodes, some in each turn of the event loop, as other calls wait for several turns."""
        for node in nodes[:WOKEN_AT_ONCE]:
            if node.stream is not None:
                node.stream.wake.set()
        if len(nodes) > WOKEN_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._wake, nodes[WOKEN_AT_ONCE:])

    # Watching -----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Looks periodically for nodes that are unreachable or dead, and for leases that have expired."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_EVERY_S):
                    await self._look.wait()
            self._look.clear()
            self.look(max(self.context.clock.now_s(), self.core.now_s))

    def look_soon(self) -> None:
        """A stream has ended, or an agent has seen processes of another one end."""
        self._look.set()

    def look(self, now_s: float) -> None:
        """Checks all streams, nodes and leases once."""
        talk_s = max(self.settings.silent_after_s, TALK_TIMEOUT_S_MIN)
        busy_s, idle_s = self._refresh_s()
        are_on = self.leases.are_on
        due = [
            node
            for node in self.nodes
            if node.is_due(now_s, talk_s, WRITE_TIMEOUT_S, busy_s if are_on(node.hello.node_id) else idle_s)
        ]
        self._wake(due)
        for event in self._watch.look(now_s):
            self._queue(event)
        self.quorum_views.update(self.quorum_views.members(self.nodes, self._watch.living()), now_s)
        self.leases.expire(now_s, self._watch.silent)
        if (question := self.measuring.look(self.leases.leases, now_s)) is not None:
            self.context.engine.ask(question)
        if self.leases.has_events:
            self.wake_driver()
        self.wake_changed()

    def _refresh_s(self) -> tuple[float, float]:
        """After which time orders are repeated, for nodes with leases and for others.

        While leases are on a silent node, the answers of all other nodes show whether it is cut off.
        """
        busy_s, idle_s = refresh_times_s(len(self.nodes), self.settings.silent_after_s)
        is_urgent = any(self.leases.are_on(node_id) for node_id in self._watch.silent)
        return busy_s, busy_s if is_urgent else idle_s

    def _runs_until_s(self, node_id: NodeId, promised_s: float, now_s: float) -> float:
        """Until when a lease may run on an unreachable node: other agents may have agreed to extend it."""
        node = self.nodes.get(node_id)
        received_s = node.received_at_s if node is not None else -math.inf
        return self.quorum_views.runs_until_s(node_id, promised_s, received_s, now_s)


def refresh_times_s(nodes: int, silent_after_s: float) -> tuple[float, float]:
    """After which time orders are repeated in a cluster with this many nodes: for nodes with leases, and for others.

    The agent of a node with leases requests the agreement of other agents when it has received no message for half of
    `silent_after_s`; every agent closes its stream after 20 s without a message.
    """
    busy_s = min(nodes / NODES_REFRESHED_PER_S, silent_after_s / HEARTBEATS_MISSED, REFRESH_S_MAX)
    idle_s = min(nodes / IDLE_REFRESHED_PER_S, IDLE_REFRESH_S_MAX)
    return max(REFRESH_S, busy_s), max(REFRESH_S, busy_s, idle_s)


def _same(event: Event) -> Event:
    return event


def _log_plan(plan: RoundPlan) -> None:
    logger.info(
        "round planned",
        extra={
            "round": plan.round,
            "granted": plan.grant_leases.tolist(),
            "revoked": plan.revoke_leases.tolist(),
            "extended": len(plan.extend_leases),
        },
    )

"""Detects nodes that are unreachable or dead.

A node is unreachable when its last message is too old, or sooner if it is dead to a majority of its peers
(`peer_reports`). With `on_node_lost = "fence"` it then counts as lost, unless it is alive to one of them. It is dead
for certain if its agent and all its shims have ended: as this process sees on this host, where ends of leases that the
shims have recorded count first, or as another agent saw on the node's host, which is still connected.

Nodes fail one by one. If nearly all stop reporting at the same time, they share the cause: a switch, or a scheduler
that was suspended and has not read its messages. Declaring them unreachable would end their leases for no reason, so
their deadline is extended for a bounded time; when they return, the others have the usual time. A single node, and
nodes that were unreachable before, are no evidence of such an event. A look that comes late is: this process did not
run for that long, and messages of all nodes may be unread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import NodeLost, NodeUnreachable, Outcome
from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.model.job import NodeId
from gavelpy.runtime import lease_files
from gavelpy.runtime.daemon.config_sections import NodeSettings
from gavelpy.runtime.daemon.leases.lease import Part, PartReport, Phase
from gavelpy.runtime.daemon.leases.table import LeaseTable
from gavelpy.runtime.daemon.nodes.peer_reports import NO_EVIDENCE, PeerEvidence
from gavelpy.runtime.daemon.nodes.registry import Node, NodeRegistry, ProcessName

logger = logging.getLogger(__name__)
NODES_MIN: Final = 2
SHARE_MIN: Final = 0.8  # of the nodes that are expected to report
WATCH_EVERY_S: Final = 0.25
DEAD_AFTER_S: Final = 2.0  # of silence: then a node that is dead to its peers counts as unreachable
DEAD_HEARTBEATS: Final = 3.0  # that are missing, if this takes longer
_LATE: Final = 0.25  # of `silent_after_s`: a look that comes so much later
_QUIET: Final = 0.5  # of `silent_after_s`: longer than the interval of a healthy node


class SilenceJudge:
    """Decides by the ages of the nodes' last messages. `extension_s`: the longest delay."""

    def __init__(self, silent_after_s: float, extension_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._extension_s = extension_s
        self._began_s = math.inf  # of a common silence
        self._excused_until_s = -math.inf
        self._looked_s = math.inf
        self._late_s = self._late_since_s = -math.inf  # the last late look, and the first of those that led to it

    def is_excused(self, now_s: float) -> bool:
        """Whether no node may be declared unreachable now."""
        return now_s < self._excused_until_s

    def look(self, ages_s: Sequence[float], now_s: float) -> bool:
        """Takes the ages of all nodes that are expected to report; returns whether a common event has just begun."""
        is_late = self._is_late(now_s)
        overdue = any(age_s >= self._silent_after_s for age_s in ages_s)
        if is_late:
            self._excuse(self._late_since_s, now_s)
        quiet = sum(age_s >= _QUIET * self._silent_after_s for age_s in ages_s)
        if quiet < NODES_MIN or quiet < SHARE_MIN * len(ages_s) or not overdue:
            self._began_s = math.inf
            return is_late and overdue and self.is_excused(now_s)
        is_new = math.isinf(self._began_s)
        self._began_s = min(self._began_s, now_s)
        self._excuse(self._began_s, now_s)
        return is_new and self._extension_s > 0

    def _is_late(self, now_s: float) -> bool:
        """Whether this process did not run for a while until now."""
        late_s = now_s - self._looked_s - WATCH_EVERY_S
        self._looked_s = now_s
        if late_s < _LATE * self._silent_after_s:
            return False
        if now_s - late_s - self._late_s > self._silent_after_s:
            self._late_since_s = now_s
        self._late_s = now_s
        return True

    def _excuse(self, since_s: float, now_s: float) -> None:
        """Extends all deadlines, because of an event that began at `since_s`."""
        until_s = min(now_s + self._silent_after_s, since_s + self._extension_s)
        self._excused_until_s = max(self._excused_until_s, until_s)


class NodeWatch:
    """Decides which nodes are unreachable or dead. `silent`: nodes that the core counts as unreachable."""

    def __init__(
        self, core: SchedulerCore, nodes: NodeRegistry, leases: LeaseTable, settings: NodeSettings, began_s: float
    ) -> None:
        pool = core.pool
        self.silent = {node for node, is_silent in zip(pool.node_ids, pool.node_unreachable, strict=True) if is_silent}
        self._core, self._nodes, self._leases = core, nodes, leases  # read only, except for ends of leases
        self._settings = settings
        self._began_s = began_s
        self._dead_after_s = max(DEAD_AFTER_S, DEAD_HEARTBEATS * settings.heartbeat_interval_s)
        self._silence = SilenceJudge(settings.silent_after_s, settings.mass_silence_s)

    def living(self) -> list[NodeId]:
        """Nodes that are not lost."""
        pool = self._core.pool
        states = zip(pool.node_ids, pool.node_state, strict=True)
        return [node_id for node_id, state in states if state is not NodeState.LOST]

    def look(self, now_s: float) -> list[NodeLost | NodeUnreachable]:
        """Events of nodes that are lost or unreachable now. Passes ends that dead nodes have recorded to the leases."""
        living = self.living()
        silent_after_s, ages_s, late = self._settings.silent_after_s, [], []
        for node_id in living:
            node = self._nodes.get(node_id)
            age_s = now_s - (self._began_s if node is None else node.received_at_s)
            if node_id not in self.silent:
                ages_s.append(age_s)
            if node is None or node.stream is None or age_s >= min(silent_after_s, self._dead_after_s):
                late.append(node_id)
        if self._silence.look(ages_s, now_s):
            extra = {"nodes": len(ages_s), "oldest_s": round(max(ages_s), 1)}
            logger.warning(
                "no messages of nearly all nodes, or this process did not run: declaring nodes unreachable is delayed",
                extra=extra,
            )
        found = (self._look_at(node_id, now_s) for node_id in late)
        return [event for event in found if event is not None]

    def neighbors(self, node: Node) -> list[ProcessName]:
        """Processes of other agents on a node's host, which its agent watches for the scheduler."""
        found = []
        for other in self._nodes.hosts.of(node):
            found += [other.hello.agent, *(shim for shim in self._shims(other) if shim[0])]
        return found

    def _received_s(self, node_id: NodeId) -> float:
        """Time of the last message of a node."""
        node = self._nodes.get(node_id)
        return self._began_s if node is None else node.received_at_s

    def _look_at(self, node_id: NodeId, now_s: float) -> NodeLost | NodeUnreachable | None:
        node = self._nodes.get(node_id)
        if node is not None and not node.is_connected and (shims := self._shims(node)):
            if self._nodes.is_gone(node, shims):
                ends = self._recorded_ends(node)
                if ends:  # its jobs ended by themselves while the agent was away
                    self._leases.recorded(node_id, ends, now_s)
                    return None
                if ends is not None:
                    return NodeLost(node_id)
            elif self._nodes.hosts.is_gone(node, shims):
                logger.info("other agents on its host saw its processes end", extra={"node_id": node_id})
                return NodeLost(node_id)
        return None if self._silence.is_excused(now_s) else self._judged(node_id, now_s)

    def _judged(self, node_id: NodeId, now_s: float) -> NodeLost | NodeUnreachable | None:
        """Decides by the silence of a node and the evidence of other agents."""
        settings, age_s = self._settings, now_s - self._received_s(node_id)
        found = self.evidence(node_id, now_s)
        is_dead = found.dead_to > 0 and age_s >= self._dead_after_s
        if not is_dead and age_s < settings.silent_after_s:
            return None
        if settings.on_node_lost == "fence" and not found.alive_to:
            return NodeLost(node_id)
        pool = self._core.pool
        if node_id in self.silent and found.is_like(PeerEvidence(*pool.node_peers[pool.node_row[node_id]])):
            return None
        return NodeUnreachable(node_id, *found)

    def evidence(self, node_id: NodeId, now_s: float) -> PeerEvidence:
        """What the other agents found of a node."""
        node = self._nodes.get(node_id)
        if node is None:
            return NO_EVIDENCE
        return self._nodes.peer_reports.evidence(node_id, node.hello.state_id, now_s)

    def _shims(self, node: Node) -> list[ProcessName]:
        """The shims of a node's leases; (0, 0) for one that it has not reported. A node without leases has none."""
        parts = [lease.parts[node.node_id] for lease in self._leases.on_node(node.node_id)]
        return [part.report.shim if part.report is not None else (0, 0) for part in parts if part.is_sent]

    def _recorded_ends(self, node: Node) -> list[PartReport] | None:
        """Ends of leases of a node on this host, as its shims have recorded them; None if unknown."""
        leases = self._leases.on_node(node.node_id)
        parts = [(lease.lease, lease.job, lease.parts[node.node_id]) for lease in leases]
        return recorded_ends(node.hello.state_directory, [entry for entry in parts if entry[2].is_sent])


def recorded_ends(state_directory: str, parts: Iterable[tuple[int, int, Part]]) -> list[PartReport] | None:
    """Ends of these (lease, job, part) that shims on this host have recorded; None if they cannot be read.

    A shim writes `end.json` last, when no process of its lease is left. A shim that has ended without this file was
    killed. The agent sends its state directory when it connects; the scheduler reads it only if both run on one host
    and the file permissions allow it.
    """
    leases = Path(state_directory) / lease_files.LEASES_DIRECTORY
    if not state_directory:
        return None
    ends = []
    for lease, job, part in parts:
        directory = lease_files.lease_directory(leases, lease)
        try:
            if not directory.is_dir():
                return None
            end = lease_files.read_end(directory)
        except (OSError, RemoteViolation) as error:
            logger.warning("record of a lease cannot be read: %s", error, extra={"lease_id": lease})
            return None
        if end is not None:
            ends.append(_report(lease, job, part, end))
    return ends


def _report(lease: int, job: int, part: Part, end: lease_files.End) -> PartReport:
    """The report that the agent would send, without checkpoints that it has not reported: only it can verify them."""
    last = part.report or PartReport(lease, job, Phase.ENDED)
    return PartReport(
        lease,
        job,
        Phase.ENDED,
        steps_done=end.steps_done,
        steps_saved=last.steps_saved,
        steps_total=last.steps_total,
        outcome=Outcome[end.outcome.name],
        exit_code=end.exit_code,
        detail="".join(c if c.isprintable() else " " for c in end.detail),
        is_by_time=last.is_by_time,
    )

"""Events that a trace carries next to its jobs: nodes that join, drain or are lost, and jobs that users cancel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import JobCancelled, NodeDraining, NodeJoined, NodeLost
from gavelpy.model.cluster import Cluster, ClusterNode
from gavelpy.model.cluster_changes import ChangeKind, ClusterChange
from gavelpy.model.job import Trace

TraceEvent = NodeJoined | NodeLost | NodeDraining | JobCancelled


def with_events(trace: Trace, cluster: Cluster) -> tuple[Cluster, list[tuple[float, TraceEvent]]]:
    """The cluster with all nodes of the trace's changes, and the events in order of time; nodes come first."""
    whole, changes = _with_changing_nodes(cluster, trace.node_changes) if trace.node_changes else (cluster, [])
    events: list[tuple[float, TraceEvent]] = [(change.at_s, _node_event(change)) for change in changes]
    events += _cancellations(trace)
    return whole, sorted(events, key=lambda one: one[0])


def _with_changing_nodes(cluster: Cluster, changes: Sequence[ClusterChange]) -> tuple[Cluster, list[ClusterChange]]:
    """The cluster with all nodes that ever join, and the changes, with the loss at 0 of those that join later.

    So all GPU types are known from the beginning. Raises InvalidInput unless times do not decrease, and each node is
    there when it drains or is lost, and absent when it joins.
    """
    up = {node.node_id for node in cluster.nodes}
    absent: dict[str, ClusterNode] = {}
    last_s = 0.0
    for i, change in enumerate(changes):
        name, kind = change.node.node_id, change.kind
        if change.at_s < last_s:
            raise InvalidInput(
                f"at_s of node change {i} must be >= {last_s:g}, as of the one before, got {change.at_s:g}"
            )
        if (kind is ChangeKind.JOINED) is (name in up):
            state = "there already" if name in up else "not there"
            raise InvalidInput(f"node change {i} must fit node {name!r}, which is {state}, got {kind.value!r}")
        last_s = change.at_s
        if kind is ChangeKind.JOINED:
            absent.setdefault(name, change.node)
            up.add(name)
        elif kind is ChangeKind.LOST:
            up.remove(name)
    later = [node for name, node in absent.items() if name not in {node.node_id for node in cluster.nodes}]
    lost = [ClusterChange(0.0, ChangeKind.LOST, node) for node in later]
    types = dict.fromkeys([*cluster.gpu_types, *(node.gpu_type for node in later)])
    return replace(cluster, nodes=(*cluster.nodes, *later), gpu_types=tuple(types)), [*lost, *changes]


def _node_event(change: ClusterChange) -> TraceEvent:
    node = change.node
    match change.kind:
        case ChangeKind.JOINED:
            return NodeJoined(
                node.node_id,
                node.gpu_type,
                node.gpu_count,
                cpus=node.cpus,
                memory_gib=node.memory_gib,
                rack=node.rack,
                zone=node.zone,
                region=node.region,
            )
        case ChangeKind.LOST:
            return NodeLost(node.node_id)
        case ChangeKind.DRAINING:
            return NodeDraining(node.node_id)


def _cancellations(trace: Trace) -> Iterator[tuple[float, TraceEvent]]:
    """A job that is cancelled at the time of its arrival is cancelled right after it."""
    for row, (at_s, arrival_s) in enumerate(zip(trace.cancelled_s.tolist(), trace.arrival_s.tolist(), strict=True)):
        if at_s < math.inf:
            yield max(at_s, math.nextafter(arrival_s, math.inf)), JobCancelled(row)

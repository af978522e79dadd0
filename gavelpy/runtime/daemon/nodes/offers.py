"""Compares a node's GPUs and checkpoint directory with the core's state, and makes events for differences."""

from __future__ import annotations

from gavelpy.mechanism.events import DirectorySeen, NodeJoined
from gavelpy.mechanism.gpus import CLUSTERS, GpuPool
from gavelpy.model.ids import NodeId
from gavelpy.runtime.daemon.nodes.registry import Node, SightState


def joined(pool: GpuPool, node: Node, cluster_id: str) -> NodeJoined:
    """The event that a node offers its GPUs."""
    return node.joined(cluster_id, is_known=_uses_clusters_directory(pool, node.node_id))


def differs(pool: GpuPool, node: Node, cluster_id: str) -> bool:
    """Whether a node's GPUs differ from the core's; for an older agent, also its directory."""
    row = pool.node_row[node.node_id]
    count = int((pool.present & pool.on(node.node_id)).sum())
    had = pool.gpu_types[pool.node_type[row]], count, _uses_clusters_directory(pool, node.node_id)
    is_untold = node.sight.state is SightState.UNTOLD
    uses = node.uses_clusters_directory(cluster_id, is_known=had[2]) if is_untold else had[2]
    return had != (node.hello.gpu_type, node.hello.gpu_count, uses)


def directory_seen(pool: GpuPool, node: Node, cluster_id: str) -> DirectorySeen | None:
    """An event if a node uses another checkpoint directory than the core's state; none if it is unavailable."""
    sight, row = node.sight, pool.node_row.get(node.node_id)
    if sight.state is not SightState.SEEN:
        return None
    is_clusters = sight.cluster_id == cluster_id
    is_named = bool(pool.directories[CLUSTERS]) or not is_clusters
    if row is not None and is_named and pool.directories[pool.node_directory[row]] == sight.directory:
        return None
    return DirectorySeen(node.node_id, sight.directory, is_clusters)


def _uses_clusters_directory(pool: GpuPool, node_id: NodeId) -> bool:
    row = pool.node_row.get(node_id)
    return row is not None and pool.node_directory[row] == CLUSTERS

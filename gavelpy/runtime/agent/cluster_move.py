"""Leave one cluster for another.

Ids of leases, jobs and incarnations are unique within one cluster only. So nothing of the old cluster may be taken for
the new one's: first its leases are killed and forgotten, then its logs and the checkpoints on this node's own disk are
archived, and only then are the new cluster's orders accepted, on a new stream.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from gavelpy.runtime.agent.agent_state import AgentState
from gavelpy.runtime.agent.leases.reconcile import LocalLease
from gavelpy.runtime.agent.leases.retention import ENDED, FORMER
from gavelpy.runtime.agent.orders import Orders
from gavelpy.runtime.checkpoint_directory import marker


class OrdersKind(StrEnum):
    """Which scheduler sent orders."""

    CURRENT = "current"
    OUTDATED = "outdated"  # of this cluster, but a newer one has taken over
    OTHER_CLUSTER = "other cluster"


def classify_orders(orders: Orders, known: AgentState) -> OrdersKind:
    """Which scheduler sent the orders. If either side has no cluster id, it counts as this cluster's."""
    if orders.cluster_id and known.cluster_id and orders.cluster_id != known.cluster_id:
        return OrdersKind.OTHER_CLUSTER
    return OrdersKind.OUTDATED if orders.incarnation < known.incarnation else OrdersKind.CURRENT


def final_orders(local: Iterable[LocalLease]) -> Orders:
    """Orders that kill all living leases and forget all that have ended."""
    return Orders(0, 0, 0, forget=frozenset(lease.lease for lease in local if not lease.is_living))


def archive(state: Path, checkpoints: Path | None, cluster_id: str) -> None:
    """Moves the old cluster's logs and checkpoints to STATE/former, replacing what is there.

    `checkpoints`: the checkpoint directory on the node's own disk; None if it is elsewhere and shared. A directory that
    is marked for the new cluster, `cluster_id`, stays.
    """
    _move(state / ENDED, state / FORMER / ENDED)
    if checkpoints is not None and marker(checkpoints) != cluster_id:
        _move(checkpoints, state / FORMER / "checkpoints")


def _move(source: Path, target: Path) -> None:
    """Moves the entries of a directory. Does nothing for an empty one, so that it can be repeated."""
    entries = sorted(source.iterdir()) if source.is_dir() else []
    if entries:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700, parents=True)
    for entry in entries:
        entry.rename(target / entry.name)

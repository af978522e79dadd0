"""Which cluster the node belongs to, and how it leaves one for another.

Numbers of leases, jobs and incarnations mean something within one cluster only. So nothing of the old cluster may be
taken for the new one's: its leases are killed and forgotten first, its logs and the checkpoints on this node's own
disk are put aside, and only then are the new cluster's orders taken, on a stream that begins with this.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from gavelpy.runtime.agent.ended import ENDED, FORMER
from gavelpy.runtime.agent.memory import Memory
from gavelpy.runtime.agent.orders import Orders
from gavelpy.runtime.agent.reconcile import LocalLease
from gavelpy.runtime.checkpoint_directory import marker


class Regard(StrEnum):
    """What a node thinks of orders."""

    ITS_OWN = "its own"
    OLDER = "older"  # of a scheduler that another one has taken over from
    ANOTHER_CLUSTER = "another cluster"


def regard(orders: Orders, known: Memory) -> Regard:
    """Whose orders these are. One who does not say which cluster it is of, on either side, counts as the node's own."""
    if orders.cluster_id and known.cluster_id and orders.cluster_id != known.cluster_id:
        return Regard.ANOTHER_CLUSTER
    return Regard.OLDER if orders.incarnation < known.incarnation else Regard.ITS_OWN


def farewell(local: Iterable[LocalLease]) -> Orders:
    """Orders after which nothing is left: kill what lives, forget what has ended."""
    return Orders(0, 0, 0, forget=frozenset(lease.lease for lease in local if not lease.is_living))


def put_aside(state: Path, checkpoints: Path | None, cluster_id: str) -> None:
    """Moves what the old cluster has left here out of the way of the new one, `cluster_id`, over what one before left.

    `checkpoints`: the checkpoint directory on the node's own disk. One elsewhere (None) is others', too; one that the
    new cluster has marked is its own.
    """
    _move(state / ENDED, state / FORMER / ENDED)
    if checkpoints is not None and marker(checkpoints) != cluster_id:
        _move(checkpoints, state / FORMER / "checkpoints")


def _move(source: Path, target: Path) -> None:
    """All that is in a directory; an empty one leaves the target as it is, so that this may be done again."""
    entries = sorted(source.iterdir()) if source.is_dir() else []
    if entries:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700, parents=True)
    for entry in entries:
        entry.rename(target / entry.name)

"""Forgotten leases: their logs stay for a while, without the job's environment; a cluster that the node leaves.

STATE/ended/00000042/    log/, end.json and the other files of a lease, without launch.json
STATE/former/            logs and checkpoints of the previous cluster

Ids of leases, jobs and incarnations are unique within one cluster only. So nothing of the old cluster may be taken for
the new one's: first its leases are killed and forgotten, then its logs and the checkpoints on this node's own disk are
archived, and only then are the new cluster's orders accepted, on a new stream.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.agent_state import AgentState
from gavelpy.runtime.agent.leases.directory import ASSIGNMENT_FILE, AssignmentRecord
from gavelpy.runtime.agent.leases.job_directory import STAGED
from gavelpy.runtime.agent.leases.orders import Orders
from gavelpy.runtime.agent.leases.reconcile import LocalLease
from gavelpy.runtime.checkpoint_directory import marker
from gavelpy.runtime.snapshots import CODE_DIRECTORY
from gavelpy.runtime.whole_files import read_text_whole, write_text_whole

logger = logging.getLogger(__name__)

ENDED: Final = "ended"
DAMAGED: Final = "damaged"
FORMER: Final = "former"  # of the previous cluster


def lease_directories(parent: Path) -> list[Path]:
    """Directories of leases, oldest lease first."""
    return sorted(entry for entry in parent.iterdir() if entry.name.isdecimal() and entry.is_dir())


def read_assignment(directory: Path) -> AssignmentRecord | None:
    """The contents of assignment.json; None if it cannot be read."""
    try:
        text = read_text_whole(directory / ASSIGNMENT_FILE)
        return msgspec.json.decode(text, type=AssignmentRecord) if text is not None else None
    except (RemoteViolation, msgspec.DecodeError) as error:
        logger.warning("file of a lease ignored: %s", error)
        return None


class LeaseLogs(NamedTuple):
    """The directory with the logs of a lease of a job."""

    directory: Path
    lease: int
    job: int


def logs_of_leases(current: Sequence[LeaseLogs], ended: Path) -> list[LeaseLogs]:
    """The current leases and those in the directory `ended`, oldest lease first. Blocks.

    A lease that is forgotten moves to `ended`: what is missing in its place was moved before that directory is listed.
    """
    found = {one.lease: one for one in current if one.directory.is_dir()}
    for directory in lease_directories(ended):
        if (kept := read_assignment(directory)) is not None:
            found[kept.lease] = LeaseLogs(directory, kept.lease, kept.job)
    return [found[lease] for lease in sorted(found)]


def scrub(directory: Path) -> None:
    """Removes the environment of an ended job, which can contain secrets, from its lease directory."""
    (directory / lease_files.LAUNCH_FILE).unlink(missing_ok=True)
    shutil.rmtree(directory / STAGED, ignore_errors=True)
    found = read_assignment(directory)
    if found is not None and found.assignment is not None:
        bare = AssignmentRecord(found.lease, found.job, None)
        write_text_whole(directory / ASSIGNMENT_FILE, msgspec.json.encode(bare).decode())


def prune(state: Path, *, bytes_max: int, retention_s: float, now_s: float) -> int:
    """Removes leases older than the retention, and the oldest logs above `bytes_max`; returns the number of leases.

    `now_s` is Unix time. The age counts from the last change of a directory: scrubbing, when its lease is forgotten.
    """
    total, removed = 0, 0
    for directory in reversed(lease_directories(state / ENDED)):
        with suppress(OSError):  # for example a full disk: retried at the next call
            scrub(directory)  # if the agent died before it did
        shutil.rmtree(directory / CODE_DIRECTORY, ignore_errors=True)  # if the shim was killed
        total += sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())
        if total > bytes_max or _is_older(directory, now_s - retention_s):
            shutil.rmtree(directory, ignore_errors=True)
            removed += 1
    for directory in _others(state):
        if _is_older(directory, now_s - retention_s):
            shutil.rmtree(directory, ignore_errors=True)
            removed += 1
    return removed


def _others(state: Path) -> Iterator[Path]:
    """Directories of damaged leases and of the previous cluster."""
    for parent in (state / DAMAGED, state / FORMER / ENDED):
        if parent.is_dir():
            yield from parent.iterdir()


def _is_older(directory: Path, moment_s: float) -> bool:
    with suppress(FileNotFoundError):
        return directory.stat().st_mtime < moment_s
    return False


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

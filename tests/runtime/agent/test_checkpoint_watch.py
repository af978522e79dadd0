"""Reports about a checkpoint directory that answers, fails or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.agent.checkpoint_watch import CheckpointWatch, DirectoryAvailability, DirectoryStatus
from gavelpy.runtime.checkpoint_directory import ID_FILE, mark
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, until
from tests.runtime.agent.storage_that_hangs import Storage

SILENT = "does not answer"
Watching = Callable[[CheckpointWatch, Storage], Coroutine[Any, Any, None]]


def sights(root: Path, work: Watching, known: str = "") -> list[DirectoryStatus]:
    """All reports of a node while a test does its work."""
    found: list[DirectoryStatus] = []

    async def run() -> None:
        storage = Storage()
        watch = CheckpointWatch(storage, str(root), 0, found.append, known=known, timeout_s=0.2, probe_s=0.02)
        looking = asyncio.create_task(watch.keep_probing())
        try:
            async with asyncio.timeout(60.0):
                await work(watch, storage)
        finally:
            looking.cancel()
            storage.close()

    asyncio.run(run())
    return found


async def becomes(watch: CheckpointWatch, state: DirectoryAvailability) -> None:
    while watch.status.state is not state:
        await asyncio.sleep(0.005)


def test_hang_keeps_the_known_id_and_the_end_of_the_hang_is_noticed_at_once(tmp_path: Path) -> None:
    mark(str(tmp_path), "c1")

    async def work(watch: CheckpointWatch, storage: Storage) -> None:
        await becomes(watch, DirectoryAvailability.AVAILABLE)
        storage.is_hung = True
        await becomes(watch, DirectoryAvailability.UNKNOWN)
        storage.is_hung = False
        await becomes(watch, DirectoryAvailability.AVAILABLE)

    *_, seen, unknown, again = sights(tmp_path, work)

    assert (seen.cluster, seen.trouble, again.trouble) == ("c1", "", "")
    assert unknown.directory == seen.directory == again.directory == (tmp_path / ID_FILE).read_text().strip()
    assert unknown.cluster == "c1"
    assert unknown.trouble == f"the checkpoint directory ({str(tmp_path)!r}) {SILENT}"
    assert unknown.since_clock_s > seen.since_clock_s


def test_directory_that_hangs_from_the_start_is_not_known(tmp_path: Path) -> None:
    async def work(watch: CheckpointWatch, storage: Storage) -> None:
        storage.is_hung = True
        await watch.wait_first(30.0)

    [sight] = sights(tmp_path, work)

    assert (sight.state, sight.directory) == (DirectoryAvailability.UNKNOWN, "")
    assert sight.trouble


def test_mount_that_is_missing_is_not_seen_and_nothing_is_written_below_it(tmp_path: Path) -> None:
    async def work(watch: CheckpointWatch, storage: Storage) -> None:
        await becomes(watch, DirectoryAvailability.UNAVAILABLE)

    *_, sight = sights(tmp_path, work, known="0123abcd")

    assert sight.directory == "0123abcd"
    assert "is the file system mounted?" in sight.trouble
    assert not list(tmp_path.iterdir())


# With a real agent ----------------------------------------------------------------------------------------------


def storage_workers(agent: int) -> list[int]:
    """Process ids of an agent's storage workers."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [int(child) for child in children if b"storage_worker" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.fixture
def hung(peer: Peer, node: Node) -> list[int]:
    """The node's storage hangs: its workers are stopped, like processes that wait in a system call."""
    until(lambda: any(message.checkpoints.state == pb.CHECKPOINT_SIGHT_STATE_SEEN for message in peer.heard))
    assert node.process is not None
    workers = storage_workers(node.process.pid)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    return workers


def test_agent_reports_that_its_storage_hangs_and_that_it_answers_again(
    peer: Peer, node: Node, hung: list[int]
) -> None:
    silent = until(lambda: next((m for m in peer.heard if m.trouble), None))
    heard, began_s = len(peer.heard), time.monotonic()
    until(lambda: len(peer.heard) > heard + 3)

    assert silent.checkpoints.state == pb.CHECKPOINT_SIGHT_STATE_UNKNOWN
    assert silent.checkpoints.directory_id == (node.checkpoints / ID_FILE).read_text().strip()
    assert SILENT in silent.trouble
    assert time.monotonic() - began_s < 30.0
    for worker in hung:
        os.kill(worker, signal.SIGCONT)
    until(lambda: not peer.heard[-1].trouble)
    assert peer.heard[-1].checkpoints.state == pb.CHECKPOINT_SIGHT_STATE_SEEN


def test_agent_with_hung_storage_stops_at_once(node: Node, hung: list[int]) -> None:
    began_s = time.monotonic()

    assert node.send(signal.SIGTERM) == 0

    assert time.monotonic() - began_s < 10.0
    for worker in hung:
        with contextlib.suppress(ProcessLookupError):  # it may have ended with its parent
            os.kill(worker, signal.SIGKILL)


def test_lease_is_refused_where_the_directory_is_another_than_the_scheduler_expects(
    shared: tuple[Peer, Node],
) -> None:
    peer, _ = shared
    wanted = order(70, "true", checkpoint_directory_id="another")

    peer.order(wanted)

    ended = peer.until_phase(70, pb.LEASE_PHASE_ENDED)
    assert ended.outcome == pb.LEASE_OUTCOME_LOST
    assert "the scheduler expects another" in ended.detail

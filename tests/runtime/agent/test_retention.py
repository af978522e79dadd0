"""Files of ended leases: no environment, nothing older than the retention period, readable by their user only."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.housekeeping import earliest_date_s
from gavelpy.runtime.agent.leases.directory import ASSIGNMENT_FILE
from gavelpy.runtime.agent.leases.retention import prune
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, until

SECRET = "s3cr3t-of-a-user"
DAY_S = 86_400.0


def texts(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.rglob("*") if path.is_file())


def test_a_lease_that_is_forgotten_leaves_no_environment_on_disk(peer: Peer, node: Node) -> None:
    told = order(1, "true")
    told.launch.environment["API_KEY"] = SECRET
    peer.order(told)
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)
    living, paths = texts(node.lease(1)), [node.state, *node.state.glob("*.json"), *(node.state / "leases").rglob("*")]
    open_to_others = [path for path in paths if path.lstat().st_mode & 0o077 and not path.is_symlink()]

    peer.orders.clear()
    peer.forget = [1]
    peer.push()
    ended = node.state / "ended" / "00000001"
    kept = ended / ASSIGNMENT_FILE
    until(lambda: kept.exists() and SECRET not in kept.read_text())

    assert SECRET in living
    assert open_to_others == []
    assert SECRET not in texts(node.state / "ended")
    assert (ended / lease_files.LOG_DIRECTORY).is_dir()


def test_directories_of_all_kinds_are_removed_after_the_retention(tmp_path: Path) -> None:
    now_s = time.time()
    old = [tmp_path / name for name in ("ended/00000001", "damaged/00000002-5.0", "former/ended/00000003")]
    young = tmp_path / "ended" / "00000004"
    for directory in (*old, young):
        directory.mkdir(parents=True)
        (directory / "text").write_text("x")
    for directory in old:
        os.utime(directory, (now_s - 8 * DAY_S, now_s - 8 * DAY_S))

    assert prune(tmp_path, bytes_max=1 << 30, retention_s=7 * DAY_S, now_s=now_s) == 3

    assert not any(directory.exists() for directory in old)
    assert young.exists()


@pytest.mark.parametrize("set_forward_s", [-7_200.0, 0.0, 40 * 86_400.0])
def test_a_date_that_is_set_forward_makes_no_file_old(tmp_path: Path, set_forward_s: float) -> None:
    log = tmp_path / "ended" / "7"
    log.mkdir(parents=True)
    began = time.time(), lease_files.clock_s()

    now_s = earliest_date_s(began, (began[0] + 60.0 + set_forward_s, began[1] + 60.0))
    removed = prune(tmp_path, bytes_max=1 << 20, retention_s=3_600.0, now_s=now_s)

    assert (removed, log.is_dir()) == (0, True)


def test_launch_files_that_an_earlier_version_kept_are_removed(tmp_path: Path) -> None:
    ended = tmp_path / "ended" / "00000001"
    ended.mkdir(parents=True)
    (ended / lease_files.LAUNCH_FILE).write_text(SECRET)

    prune(tmp_path, bytes_max=1 << 30, retention_s=DAY_S, now_s=time.time())

    assert texts(ended) == ""

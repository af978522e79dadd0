"""Disk space for an agent and its jobs, and the messages when it runs low."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from gavelpy.runtime.checkpoint_directory import in_units, shortage
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, until

MIB = 1 << 20
STATE = Path("/state")


def filesystem(
    free_mib: int = 1_000, *, files: int = 1_000_000, files_free: int = 1_000, flags: int = 0
) -> os.statvfs_result:
    """File system statistics with blocks of 4 KiB."""
    free = free_mib * 256
    return os.statvfs_result((4096, 4096, 1 << 30, free, free, files, files_free, files_free, flags, 255))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (filesystem(64), ""),
        (filesystem(63), "less than 64 MiB are free in the state directory ('/state')"),
        (filesystem(files_free=63), "less than 64 files can be made in the state directory ('/state')"),
        (filesystem(files=0, files_free=0), ""),
        (filesystem(flags=os.ST_RDONLY), "the state directory ('/state') is read-only"),
    ],
)
def test_message_about_a_file_system(found: os.statvfs_result, said: str) -> None:
    assert shortage({"state": STATE}, 64 * MIB, lambda _: found) == said


def test_without_a_limit_only_a_full_disk_counts() -> None:
    almost, full = (shortage({"state": STATE}, 0, lambda _, free=free: filesystem(free)) for free in (1, 0))

    assert (almost, full) == ("", "the state directory ('/state') is full")


def test_the_checkpoint_directory_counts_and_one_that_is_not_there_is_where_its_parent_is(tmp_path: Path) -> None:
    free = {tmp_path: filesystem(1)}

    said = shortage({"checkpoint": tmp_path / "a" / "b"}, 64 * MIB, free.__getitem__)

    assert said == f"less than 64 MiB are free in the checkpoint directory ('{tmp_path}/a/b')"


def test_a_file_system_that_does_not_answer_has_no_space() -> None:
    def look(_: Path) -> NoReturn:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    assert shortage({"state": STATE}, MIB, look) == "the state directory ('/state') cannot be used: Stale file handle"


def test_bytes_are_formatted_in_units() -> None:
    assert [in_units(count) for count in (5, 64 * MIB, 1_536 * MIB)] == ["5 bytes", "64 MiB", "1.5 GiB"]


def test_idle_node_reports_lack_of_disk_space_in_its_first_message(peer: Peer, make_node: Callable[..., Node]) -> None:
    node = make_node(more="free_bytes_min = 1125899906842624\n")

    first = until(lambda: peer.heard)[0]

    assert first.trouble == f"less than 1024 TiB are free in the state directory ('{node.state}')"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, if this user can mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_disk_that_fills_up_and_is_emptied_is_reported_without_leases(
    peer: Peer, make_node: Callable[..., Node], small_disk: Path
) -> None:
    make_node("--checkpoint-dir", str(small_disk), more="free_bytes_min = 2097152\n")
    until(lambda: peer.heard)
    before = peer.heard[-1].trouble

    (small_disk / "core").write_bytes(bytes(3 * MIB))
    told = until(lambda: peer.heard[-1].trouble)
    (small_disk / "core").unlink()

    assert (before, told) == ("", f"less than 2 MiB are free in the checkpoint directory ('{small_disk}')")
    until(lambda: not peer.heard[-1].trouble)

"""Snapshots of code: the same files give the same archive, and only what belongs into one is unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.snapshots import archive_file, make_archive, store_snapshot, unpack


def tree(root: Path) -> Path:
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("print('hello')\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    (root / "pkg" / "model.py").write_text("x = 1\n")
    (root / "pkg" / "latest.py").symlink_to("model.py")
    return root


def git(root: Path, *arguments: str) -> None:
    identity = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, env={**os.environ, **identity}
    )


def crafted(directory: Path, *members: tuple[str, bytes, str], content: bytes = b"x") -> str:
    """An archive with these members (name, type, link); returns its digest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content))
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    archive_file(directory, digest).write_bytes(packed.getvalue())
    return digest


def test_same_files_give_the_same_archive_whatever_their_dates(tmp_path: Path) -> None:
    one, two, shared = tree(tmp_path / "one"), tree(tmp_path / "two"), tmp_path / "shared"
    os.utime(two / "train.py", (0, 0))

    digests = [store_snapshot(one, shared), store_snapshot(two, shared)]

    assert digests[0] == digests[1]
    assert [path.name for path in shared.iterdir()] == [f"{digests[0]}.tar.gz"]


def test_unpacked_snapshot_has_the_files_links_and_modes(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "source"), tmp_path / "target"
    target.mkdir()
    digest = store_snapshot(source, tmp_path)

    unpack(archive_file(tmp_path, digest), digest, target)

    assert (target / "train.py").read_text() == "print('hello')\n"
    assert (target / "pkg" / "latest.py").read_text() == "x = 1\n"
    assert str((target / "pkg" / "latest.py").readlink()) == "model.py"
    assert os.access(target / "run.sh", os.X_OK)
    assert sorted(path.name for path in target.iterdir()) == ["pkg", "run.sh", "train.py"]


def test_git_work_tree_gives_tracked_and_new_files_but_no_ignored_ones(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "source"), tmp_path / "target"
    target.mkdir()
    (source / ".gitignore").write_text("data/\n*.log\n")
    (source / "data").mkdir()
    (source / "data" / "huge.bin").write_bytes(bytes(1000))
    (source / "out.log").write_text("old")
    git(source, "init", "-q")
    git(source, "add", "train.py", "run.sh")
    (source / "run.sh").unlink()

    digest = store_snapshot(source, tmp_path)
    unpack(archive_file(tmp_path, digest), digest, target)

    assert sorted(path.name for path in target.iterdir()) == [".gitignore", "pkg", "train.py"]


def test_virtual_environment_of_a_plain_directory_is_left_out(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    before = store_snapshot(source, None)
    (source / ".venv" / "bin").mkdir(parents=True)
    (source / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin")
    (source / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")

    assert store_snapshot(source, None) == before


def test_directory_above_the_limit_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    (source / "weights.bin").write_bytes(bytes(2 << 20))

    with pytest.raises(InvalidInput, match=r"at most 1\.0 MiB of files, got 2\.0 MiB.*'weights\.bin' \(2\.0 MiB\)"):
        store_snapshot(source, tmp_path / "shared", bytes_max=1 << 20)
    assert not (tmp_path / "shared").exists()


@pytest.mark.parametrize("link", ["/etc/passwd", "../other/file", "pkg/../../x"])
def test_link_out_of_the_directory_is_refused(tmp_path: Path, link: str) -> None:
    source = tree(tmp_path / "source")
    (source / "data").symlink_to(link)

    with pytest.raises(InvalidInput, match="links within the directory only, got 'data'"):
        store_snapshot(source, tmp_path / "shared")


def test_special_file_is_refused(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    os.mkfifo(source / "pipe")

    with pytest.raises(InvalidInput, match="files, directories and links only, got 'pipe'"):
        store_snapshot(source, tmp_path / "shared")


def test_dry_run_stores_nothing_and_gives_the_same_digest(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")

    planned = store_snapshot(source, None)

    with (tmp_path / "archive").open("w+b") as archive:
        assert make_archive(source, archive) == planned


def test_changed_archive_is_not_unpacked(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "source"), tmp_path / "target"
    target.mkdir()
    digest = store_snapshot(source, tmp_path)
    with archive_file(tmp_path, digest).open("ab") as archive:
        archive.write(gzip.compress(b"more"))

    with pytest.raises(RemoteViolation, match=r"is damaged: its SHA-256 is [0-9a-f]{64}"):
        unpack(archive_file(tmp_path, digest), digest, target)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    "members",
    [
        [("../escaped", tarfile.REGTYPE, "")],
        [("/tmp/escaped", tarfile.REGTYPE, "")],
        [("a/../../escaped", tarfile.REGTYPE, "")],
        [("door", tarfile.SYMTYPE, "/etc")],
        [("door", tarfile.SYMTYPE, "../..")],
        [("inner", tarfile.DIRTYPE, ""), ("inner/door", tarfile.SYMTYPE, ".."), ("inner/door/x", tarfile.REGTYPE, "")],
        [("file", tarfile.REGTYPE, ""), ("hard", tarfile.LNKTYPE, "file")],
        [("null", tarfile.CHRTYPE, "")],
        [("pipe", tarfile.FIFOTYPE, "")],
    ],
)
def test_hostile_archive_leaves_nothing_outside(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    target = tmp_path / "lease" / "code"
    target.mkdir(parents=True)
    digest = crafted(tmp_path, *members)

    with pytest.raises(RemoteViolation, match="a snapshot must have"):
        unpack(archive_file(tmp_path, digest), digest, target)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name in ("escaped", "x", "hard", "pipe")) == []


def test_archive_that_is_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    os.mkfifo(tmp_path / f"{'a' * 64}.tar.gz")
    (tmp_path / f"{'b' * 64}.tar.gz").symlink_to("/etc/passwd")

    with pytest.raises(RemoteViolation, match="must be a regular file"):
        unpack(archive_file(tmp_path, "a" * 64), "a" * 64, target)
    with pytest.raises(OSError, match="symbolic links"):
        unpack(archive_file(tmp_path, "b" * 64), "b" * 64, target)

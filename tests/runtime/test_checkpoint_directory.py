"""Nodes that share a checkpoint directory report the same id for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.checkpoint_directory import (
    ID_FILE,
    MARKER_FILE,
    DirectoryUnknown,
    check_owner,
    identify,
    look,
    mark,
)


def test_concurrent_processes_agree_on_one_id(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: identify(tmp_path / "root", is_new=True), range(16)))

    assert len(set(found)) == 1
    assert [file.name for file in (tmp_path / "root").iterdir()] == [ID_FILE]


def test_directories_of_their_own_have_ids_of_their_own(tmp_path: Path) -> None:
    assert identify(tmp_path / "a", is_new=True) != identify(tmp_path / "b", is_new=True)


def test_directory_that_lost_its_id_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """An unmounted directory is an empty one on the node's own disk."""
    with pytest.raises(DirectoryUnknown, match="is the file system mounted"):
        identify(tmp_path, is_new=False)

    found = look(str(tmp_path), False, 0)

    assert found["directory"] == ""
    assert found["trouble"].startswith(f"the checkpoint directory ({str(tmp_path)!r}) has no file .gavel-directory")
    assert not list(tmp_path.iterdir())


def test_operator_makes_it_a_new_one(tmp_path: Path) -> None:
    (tmp_path / ID_FILE).touch()

    made = identify(tmp_path, is_new=False)

    assert identify(tmp_path, is_new=False) == made


def test_what_a_node_sees_is_its_id_its_cluster_and_its_space(tmp_path: Path) -> None:
    assert mark(str(tmp_path), "c1") == "c1"

    found = look(str(tmp_path), False, 1 << 62)

    assert found["directory"] == (tmp_path / ID_FILE).read_text().strip()
    assert found["cluster"] == "c1"
    assert found["trouble"].startswith("less than")


def test_directory_of_another_cluster_is_not_marked(tmp_path: Path) -> None:
    (tmp_path / MARKER_FILE).write_text("c1\n")

    owner = mark(str(tmp_path), "c2")

    with pytest.raises(InvalidInput, match=r"must be this cluster's; .*\.gavel-cluster says it is of 'c1'"):
        check_owner(str(tmp_path), "c2", owner)
    assert (tmp_path / MARKER_FILE).read_text() == "c1\n"


def test_directory_that_cannot_be_used_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    found = look(str(tmp_path / "file" / "below"), True, 0)

    assert (found["directory"], found["cluster"]) == ("", "")
    assert found["trouble"].endswith("cannot be used: Not a directory")


def test_id_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / ID_FILE).write_text("../etc")

    assert "holds no id: '../etc'" in look(str(tmp_path), True, 0)["trouble"]

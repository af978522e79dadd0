"""Files that commands write: whole or as they were before, also on a full disk."""

from __future__ import annotations

import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.fields import write_text


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_file_that_cannot_be_written_to_its_end_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    file.write_text("measured for hours\n")

    with (
        files_of_at_most(4_096),
        pytest.raises(InvalidInput, match=r"file must be writable, got .* \(File too large\)"),
    ):
        write_text(file, "x" * 100_000)

    assert file.read_text() == "measured for hours\n"
    assert list(tmp_path.iterdir()) == [file]


def test_link_and_mode_of_a_file_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "data", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)

    write_text(link, "new\r\n")

    assert link.is_symlink()
    assert file.read_bytes() == b"new\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()

    write_text(tmp_path / "new", "text")

    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_fifo_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_text()))
    reader.start()

    write_text(tmp_path / "fifo", "text")
    reader.join()

    assert read == ["text"]
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)

"""Captured output of a job as files of lines."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.runtime.shim.log_files import FLUSH_S, LINE_BYTES_MAX, LogWriter, log_files, parse_lines, removed_lines
from tests.runtime.shim.driver import CapturedLine, parse_line

NOW_S = 1_700_000_000.25


def writer(directory: Path, *, bytes_max: int = 1 << 20, files_max: int = 2) -> LogWriter:
    return LogWriter(directory, 3, is_error_stream=False, bytes_max=bytes_max, files_max=files_max)


def lines(directory: Path) -> list[CapturedLine]:
    content = b"".join(file.path.read_bytes() for file in log_files(directory))
    return [parse_line(line) for line in content.split(b"\n")[:-1]]


def test_line_is_kept_with_its_time(tmp_path: Path) -> None:
    writer(tmp_path).write(b"hello\n\n", NOW_S)

    assert lines(tmp_path) == [CapturedLine(NOW_S, "hello", False), CapturedLine(NOW_S + 1e-6, "", False)]


def test_line_written_in_pieces_is_one(tmp_path: Path) -> None:
    log = writer(tmp_path)

    log.write(b"hel", NOW_S)
    log.write(b"lo\nwo", NOW_S)
    log.close(NOW_S)

    assert [(line.text, line.is_continued) for line in lines(tmp_path)] == [("hello", False), ("wo", False)]


def test_times_rise_from_line_to_line(tmp_path: Path) -> None:
    log = writer(tmp_path)

    log.write(b"a\nb\n", NOW_S)
    log.write(b"c\n", NOW_S - 5.0)

    assert [line.time_s for line in lines(tmp_path)] == [NOW_S, NOW_S + 1e-6, NOW_S + 2e-6]


def test_unfinished_line_is_written_after_a_while_and_marked(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.write(b"50 %", NOW_S)

    log.flush(NOW_S + FLUSH_S / 2)
    early = lines(tmp_path)
    log.flush(NOW_S + FLUSH_S)

    assert early == []
    assert lines(tmp_path) == [CapturedLine(NOW_S + FLUSH_S, "50 %", True)]


def test_huge_line_is_cut_without_loss(tmp_path: Path) -> None:
    log = writer(tmp_path)
    huge = b"x" * (3 * LINE_BYTES_MAX + 5)

    log.write(huge, NOW_S)
    log.write(b"y\n", NOW_S)

    found = lines(tmp_path)
    assert "".join(line.text for line in found) == huge.decode() + "y"
    assert [line.is_continued for line in found] == [True, True, True, False]


def test_full_files_are_numbered_and_the_oldest_removed(tmp_path: Path) -> None:
    log = writer(tmp_path, bytes_max=100, files_max=2)
    for number in range(20):
        log.write(b"line %03d\n" % number, NOW_S)

    files = log_files(tmp_path)

    assert [file.path.name for file in files] == [
        f"rank-3.out.{files[0].number}",
        f"rank-3.out.{files[1].number}",
        "rank-3.out",
    ]
    assert [file.number for file in files] == [files[0].number + more for more in range(3)]
    assert all(file.path.stat().st_size <= 100 for file in files)
    assert [line.text for line in lines(tmp_path)][-1] == "line 019"


def test_large_write_keeps_the_size_limit_of_a_file(tmp_path: Path) -> None:
    writer(tmp_path, bytes_max=100, files_max=50).write(b"x\n" * 50, NOW_S)

    assert all(file.path.stat().st_size <= 100 for file in log_files(tmp_path))
    assert [line.text for line in lines(tmp_path)] == ["x"] * 50


def test_lines_that_cannot_be_written_are_counted_and_reported(tmp_path: Path) -> None:
    log = writer(tmp_path)
    full, kept = os.open("/dev/full", os.O_WRONLY), os.dup(log._file)

    os.dup2(full, log._file)
    log.write(b"a\nb\n", NOW_S)
    os.dup2(kept, log._file)
    log.write(b"c\n", NOW_S)

    assert [line.text for line in lines(tmp_path)] == ["[2 lines were lost: the log could not be written]", "c"]
    os.close(full)
    os.close(kept)


@pytest.mark.parametrize("files_max", [0, 2])
def test_lines_that_were_removed_are_counted(tmp_path: Path, files_max: int) -> None:
    log = writer(tmp_path, bytes_max=100, files_max=files_max)
    before = removed_lines(tmp_path, -1)
    for number in range(20):
        log.write(b"line %03d\n" % number, NOW_S)

    assert before is None
    assert removed_lines(tmp_path, -1) == removed_lines(tmp_path, 3) == 20 - len(lines(tmp_path)) > 0
    assert removed_lines(tmp_path, 0) is None


def test_lines_that_an_older_shim_removed_are_noticed_without_a_number(tmp_path: Path) -> None:
    log = writer(tmp_path, bytes_max=100, files_max=2)
    for number in range(20):
        log.write(b"line %03d\n" % number, NOW_S)

    (tmp_path / "log" / "rank-3.out.removed").unlink()

    assert removed_lines(tmp_path, -1) == 0


@pytest.mark.parametrize("put", [os.mkfifo, Path.mkdir, partial(Path.symlink_to, target="/proc/version")])
def test_what_a_job_puts_in_place_of_the_number_is_not_read(tmp_path: Path, put: Callable[[Path], None]) -> None:
    writer(tmp_path).write(b"a\n", NOW_S)

    put(tmp_path / "log" / "rank-3.out.removed")

    assert removed_lines(tmp_path, -1) is None


def test_other_files_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "rank-x.out").write_text("")

    assert log_files(tmp_path) == ()
    assert parse_lines(b"not ours") == []


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_every_byte_is_kept_in_order(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        log = LogWriter(Path(name), 3, is_error_stream=False, bytes_max=1 << 20, files_max=1)
        for piece in pieces:
            log.write(piece, NOW_S)
        log.close(NOW_S)
        raw = (Path(name) / "log" / "rank-3.out").read_bytes()

    texts = [line[len(b"1700000000.250000 ") :] for line in raw.split(b"\n")[:-1]]
    assert b"\n".join(texts) == b"".join(pieces).removesuffix(b"\n")


@contextmanager
def limited(what: int, limit: int) -> Iterator[None]:
    """Limits a resource of this process."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def test_partly_written_line_is_removed(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.write(b"a\n", NOW_S)

    with limited(resource.RLIMIT_FSIZE, 40):
        log.write(b"much too long for what is left of the disk\n", NOW_S)
    log.write(b"b\n", NOW_S)

    assert [line.text for line in lines(tmp_path)] == [
        "a", "[1 lines were lost: the log could not be written]", "b",
    ]  # fmt: skip


def test_log_continues_after_a_failed_rotation(tmp_path: Path) -> None:
    log = writer(tmp_path, bytes_max=60)
    log.write(b"first\n", NOW_S)
    free = os.dup(0)
    os.close(free)

    with limited(resource.RLIMIT_NOFILE, free):  # leaves no file descriptor to open a file
        log.write(b"a line that would need a new file\n", NOW_S)
    log.write(b"second, in a new file by now\n", NOW_S)

    assert [line.text for line in lines(tmp_path)] == [
        "first", "[1 lines were lost: the log could not be written]", "second, in a new file by now",
    ]  # fmt: skip
    assert [file.path.name for file in log_files(tmp_path)] == ["rank-3.out.1", "rank-3.out"]

"""Pages and logs as we read them are what SQLite reads."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.journal.pages import rows_of, split
from gavelpy.journal.wal import PAGE_BYTES, read_wal

VALUES: list[Any] = [None, 0, 1, -1, 127, -(2**15), 2**23, -(2**31), 2**47, 2**63 - 1, 0.5, -1e300, "", "Ω", b"", b"\0"]


def make_database(path: Path, rows: list[tuple[Any, Any]], log: bool = False) -> None:
    """A table of (key, a, b) with one commit a row; with `log` as a crash leaves it, nothing checkpointed."""
    made = path.with_suffix(".made") if log else path
    with closing(sqlite3.connect(made, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute(f"PRAGMA journal_mode = {'WAL' if log else 'DELETE'}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, a, b)")
        connection.executemany("INSERT INTO t (a, b) VALUES (?, ?)", rows)
        if log:
            shutil.copy(made, path)
            shutil.copy(f"{made}-wal", f"{path}-wal")


def read_rows(path: Path) -> dict[int, list[Any]]:
    """The last version of every row that any page holds."""
    file_pages, frames = split(path.read_bytes()), read_wal(Path(f"{path}-wal"))
    latest = file_pages | dict(frames.pages)
    found = (row for number, page in latest.items() for row in rows_of(number, page, latest))
    return {row[0]: row[1:] for row in found if len(row) == 3}


def test_every_type_of_value_is_read(tmp_path: Path) -> None:
    rows = [(a, b) for a in VALUES for b in VALUES]
    make_database(tmp_path / "db", rows)

    assert list(read_rows(tmp_path / "db").values()) == [list(row) for row in rows]


@pytest.mark.parametrize("around", [0, 1, 60, 488, 489, 4050, 4061, 4062, 4091, 4092, 4093, 8184, 100_000])
def test_values_longer_than_a_page_are_read(tmp_path: Path, around: int) -> None:
    rows = [(random.Random(size).randbytes(size), "end") for size in range(max(0, around - 12), around + 12)]
    make_database(tmp_path / "db", rows)

    assert list(read_rows(tmp_path / "db").values()) == [list(row) for row in rows]


def test_a_log_is_read_to_its_last_frame(tmp_path: Path) -> None:
    rows = [(k, b"x" * 50 * k) for k in range(100)]
    make_database(tmp_path / "db", rows, log=True)

    assert read_wal(tmp_path / "db-wal").beyond == 0
    assert list(read_rows(tmp_path / "db").values()) == [list(row) for row in rows]


def test_there_is_nothing_in_a_log_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "short-wal").write_bytes(b"\x37\x7f\x06\x82" * 20)

    assert read_wal(tmp_path / "none-wal").pages == []
    assert read_wal(tmp_path / "short-wal").pages == []


@pytest.mark.parametrize("frame", [0, 7, 60])
@pytest.mark.parametrize("offset", [0, 4, 8, 12, 16, 23, 24, 3000, 4119])
def test_frames_that_sqlite_would_pass_over_are_counted(tmp_path: Path, frame: int, offset: int) -> None:
    path = tmp_path / "db"
    make_database(path, [(k, "x") for k in range(100)], log=True)
    log = Path(f"{path}-wal")
    whole = len(read_wal(log).pages)
    data = bytearray(log.read_bytes())
    data[32 + frame * (24 + PAGE_BYTES) + offset] ^= 1
    log.write_bytes(data)

    found = read_wal(log)
    with closing(sqlite3.connect(path)) as connection:
        applied = connection.execute("PRAGMA wal_checkpoint").fetchone()[1]

    assert applied == frame == whole - found.beyond
    assert len(found.pages) == whole


@given(data=st.binary(max_size=3 * PAGE_BYTES), cut=st.integers(0, PAGE_BYTES))
def test_any_bytes_are_pages(data: bytes, cut: int) -> None:
    page = (b"\x0d" + data + bytes(PAGE_BYTES))[:PAGE_BYTES]
    pages = {1: page[cut:] + page[:cut], 2: page}

    assert len([row for number in pages for row in rows_of(number, pages[number], pages)]) <= 2 * PAGE_BYTES

"""Journals in files: written, read, truncated, damaged."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import msgspec
import pytest

from gavelpy.errors import InvalidInput, JournalCorrupt, JournalTooNew
from gavelpy.journal.codec import encode
from gavelpy.journal.file import MAGIC, JournalWriter, read, recover
from gavelpy.mechanism.events import JobCancelled


def make_journal(folder: Path, events: int = 3) -> Path:
    path = folder / "test.journal"
    with JournalWriter(path) as journal:
        for k in range(events):
            journal.append(JobCancelled(k), float(k))
    return path


def test_events_come_back_in_order(tmp_path: Path) -> None:
    path = make_journal(tmp_path)

    found = list(read(path))

    assert [encode(event, now_s) for now_s, event in found] == [encode(JobCancelled(k), float(k)) for k in range(3)]


@pytest.mark.parametrize("lost_bytes", range(1, 30))
def test_a_torn_journal_gives_the_events_before_the_tear(tmp_path: Path, lost_bytes: int) -> None:
    path = make_journal(tmp_path)
    path.write_bytes(path.read_bytes()[:-lost_bytes])

    good, complaint = recover(path)

    assert len(good) == 2
    assert "torn" in complaint
    assert "after 2 good events" in complaint


def test_a_damaged_record_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = make_journal(tmp_path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)

    with pytest.raises(JournalCorrupt, match=r"damaged at byte .* after 2 good events"):
        list(read(path))


def test_a_record_of_another_version_is_named_by_file_and_place(tmp_path: Path) -> None:
    path = make_journal(tmp_path, 1)
    record = msgspec.msgpack.encode([99, "WakeupDue", 0.0, []])
    path.write_bytes(path.read_bytes() + struct.pack("<II", len(record), zlib.crc32(record)) + record)

    with pytest.raises(JournalTooNew, match=rf"{path}: event 2: version must be at most \d+, got 99"):
        list(read(path))


def test_a_whole_journal_recovers_without_complaint(tmp_path: Path) -> None:
    good, complaint = recover(make_journal(tmp_path))

    assert len(good) == 3
    assert complaint == ""


@pytest.mark.parametrize("content", [b"", b"gavelpy-journal 9\n", b"\x00\x01binary"])
def test_another_file_is_no_journal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)

    with pytest.raises(JournalCorrupt, match="must begin with 'gavelpy-journal 1'"):
        list(read(path))


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        list(read(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="cannot be written"):
        JournalWriter(tmp_path / "none" / "x")


def test_the_first_line_says_what_it_is(tmp_path: Path) -> None:
    assert make_journal(tmp_path, 0).read_bytes() == MAGIC

"""Records of the version before: this version reads them, and writes what that one reads.

A field of a job that the older version does not know is ignored by it, so it must be empty unless the record is newer.

`fixtures/version_12.journal` has the examples of the first version with standbys (c352b8d), written by its code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gavelpy.journal.codec import EVENT_NAMES, decode, encode, journal_name
from gavelpy.journal.file import read

VERSION_12 = Path(__file__).parent / "fixtures" / "version_12.journal"
EVENTS = list(read(VERSION_12))
MAGIC, HEAD = 18, 8  # bytes before the first record, and before each


def records() -> list[bytes]:
    """The records of the file as they are."""
    data, position, found = VERSION_12.read_bytes(), MAGIC, []
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "little")
        found.append(data[position + HEAD : position + HEAD + length])
        position += HEAD + length
    return found


def known(value: Any, before: Any) -> Any:
    """A value without the empty fields that the older version lacks."""
    if not isinstance(value, dict):
        return value
    return {name: field for name, field in value.items() if name in before or field}


@pytest.mark.parametrize("record", records(), ids=[journal_name(event) for _, event in EVENTS])
def test_a_record_of_the_version_before_is_written_again_so_that_it_reads_it(record: bytes) -> None:
    now_s, event = decode(record)

    *head, values = msgspec.msgpack.decode(encode(event, now_s))
    *head_then, then = msgspec.msgpack.decode(record)
    assert head == head_then  # the version, too
    assert [known(value, before) for value, before in zip(values, then, strict=True)] == then


def test_the_version_before_wrote_events_of_nearly_all_kinds() -> None:
    missing = EVENT_NAMES.keys() - {journal_name(event) for _, event in EVENTS}

    assert len(EVENTS) == 57
    assert len(missing) < 5, missing

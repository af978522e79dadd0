"""Rows in the pages of a SQLite file, read without SQLite: for files that it refuses.

Every leaf of every table is looked at, reachable or not; what a row is worth, its checksum tells.
Format: https://www.sqlite.org/fileformat2.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from gavelpy.journal.wal import PAGE_BYTES

_TABLE_LEAF = 0x0D
_LOCAL_MAX = PAGE_BYTES - 35
_LOCAL_MIN = (PAGE_BYTES - 12) * 32 // 255 - 23
_INT_BYTES = (0, 1, 2, 3, 4, 6, 8)  # by serial type

Pages = Mapping[int, bytes]


def split(data: bytes) -> dict[int, bytes]:
    """The pages of a file by number, from 1; a torn last page is left out."""
    return {k + 1: data[k * PAGE_BYTES : (k + 1) * PAGE_BYTES] for k in range(len(data) // PAGE_BYTES)}


def rows_of(number: int, page: bytes, pages: Pages) -> Iterator[list[Any]]:
    """The rows of a page that can be read, each with its row id in place of a first column that is NULL.

    `pages` is where values too long for the page go on.
    """
    start = 100 if number == 1 else 0
    if page[start] != _TABLE_LEAF:
        return
    count = int.from_bytes(page[start + 3 : start + 5], "big")
    for k in range(min(count, (PAGE_BYTES - start - 8) // 2)):
        pointer = start + 8 + 2 * k
        try:
            row = _row(page, int.from_bytes(page[pointer : pointer + 2], "big"), pages)
        except (IndexError, KeyError, ValueError, struct.error):
            continue
        yield row


def _row(page: bytes, at: int, pages: Pages) -> list[Any]:
    length, at = _varint(page, at)
    row_id, at = _varint(page, at)
    values = _values(_payload(page, at, length, pages))
    if values and values[0] is None:
        values[0] = row_id if row_id < 1 << 63 else row_id - (1 << 64)
    return values


def _payload(page: bytes, at: int, length: int, pages: Pages) -> bytes:
    if length > PAGE_BYTES * (len(pages) + 1):
        raise ValueError("longer than the file")
    if length <= _LOCAL_MAX:
        return page[at : at + length]
    local = _LOCAL_MIN + (length - _LOCAL_MIN) % (PAGE_BYTES - 4)
    local = local if local <= _LOCAL_MAX else _LOCAL_MIN
    parts, left = [page[at : at + local]], length - local
    following = int.from_bytes(page[at + local : at + local + 4], "big")
    while left > 0:
        overflow = pages[following]
        parts.append(overflow[4 : 4 + left])
        left -= PAGE_BYTES - 4
        following = int.from_bytes(overflow[:4], "big")
    return b"".join(parts)


def _values(payload: bytes) -> list[Any]:
    header_end, at = _varint(payload, 0)
    kinds: list[int] = []
    while at < header_end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[Any] = []
    for kind in kinds:
        value, at = _value(payload, at, kind)
        values.append(value)
    return values


def _value(payload: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    size = _INT_BYTES[kind] if kind < 7 else 8 if kind == 7 else (kind - 12) // 2
    data = payload[at : at + size]
    if size < 0 or len(data) != size:
        raise ValueError("value is torn")
    if kind < 7:
        return int.from_bytes(data, "big", signed=True), at + size
    if kind == 7:
        return struct.unpack(">d", data)[0], at + size
    return (data.decode() if kind % 2 else data), at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for k in range(8):
        byte = data[at + k]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + k + 1
    return value << 8 | data[at + 8], at + 9

"""SQLite's write-ahead log, read without SQLite: which frames it will apply, and which it will silently pass over.

SQLite stops at the first frame whose running checksum is wrong. After a crash that is the append that was never
acknowledged; after damage it may be any. Frames of the current generation (by their salts) beyond that point tell.
Format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 4096
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_FRAME_BYTES = _FRAME.size + PAGE_BYTES
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}  # with the byte order of the checksums
_MASK = 0xFFFFFFFF

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class WalFrames:
    """Frames of the current generation in order, as (page number, image)."""

    pages: list[tuple[int, bytes]]
    beyond: int  # how many of them SQLite will pass over although they look written


def read_wal(path: Path) -> WalFrames:
    """The frames of a log; none where there is no log or not one whole frame."""
    data = path.read_bytes() if path.exists() else b""
    count = (len(data) - _HEADER.size) // _FRAME_BYTES
    if count < 1:
        return WalFrames([], 0)
    frames = [_HEADER.size + k * _FRAME_BYTES for k in range(count)]
    header = _HEADER.unpack_from(data)
    order = _MAGIC.get(header[0], "")
    sound = bool(order) and _stepped((0, 0), data[:24], order) == header[6:8]
    salts = header[4:6] if sound else _FRAME.unpack_from(data, frames[0])[2:4]
    valid = _valid_frames(data, frames, header, order) if sound else 0
    written = [at for k, at in enumerate(frames) if k < valid or _is_of(salts, _FRAME.unpack_from(data, at)[2:4])]
    pages = [(_FRAME.unpack_from(data, at)[0], data[at + _FRAME.size : at + _FRAME_BYTES]) for at in written]
    return WalFrames(pages, len(written) - valid)


def _is_of(salts: tuple[int, ...], found: tuple[int, ...]) -> bool:
    """Whether a frame is of this generation; one salt will do, lest a flipped bit hide the frame."""
    return salts[0] == found[0] or salts[1] == found[1]


def _valid_frames(data: bytes, frames: list[int], header: tuple[int, ...], order: str) -> int:
    """How many frames from the beginning have the right salts and checksum."""
    running = (header[6], header[7])
    pages = np.stack([np.frombuffer(data, f"{order}u4", PAGE_BYTES // 4, at + _FRAME.size) for at in frames])
    powers, weights = _page_step()
    added: Words = pages.astype(np.uint32) @ weights  # (frames, 2); wraps at 2**32, as it should
    for k, at in enumerate(frames):
        found = _FRAME.unpack_from(data, at)
        first, second = _stepped(running, data[at : at + 8], order)
        running = (
            (powers[0][0] * first + powers[0][1] * second + int(added[k, 0])) & _MASK,
            (powers[1][0] * first + powers[1][1] * second + int(added[k, 1])) & _MASK,
        )
        if found[2:4] != header[4:6] or found[4:6] != running:
            return k
    return len(frames)


def _stepped(running: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    first, second = running
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for a, b in zip(words[::2], words[1::2], strict=True):
        first = (first + a + second) & _MASK
        second = (second + b + first) & _MASK
    return first, second


@cache
def _page_step() -> tuple[list[list[int]], Words]:
    """What a page does to the checksum, which is linear: s -> powers s + words . weights, modulo 2**32.

    Of a pair (a, b): s -> M s + a (1, 1) + b (0, 1) with M = ((1, 1), (1, 2)).
    """
    weights = np.zeros((PAGE_BYTES // 4, 2), dtype=np.uint32)
    power = [[1, 0], [0, 1]]
    for k in range(PAGE_BYTES // 4 - 2, -1, -2):
        (p, q), (r, s) = power
        weights[k] = (p + q) & _MASK, (r + s) & _MASK
        weights[k + 1] = q, s
        power = [[(p + q) & _MASK, (p + 2 * q) & _MASK], [(r + s) & _MASK, (r + 2 * s) & _MASK]]
    return power, weights

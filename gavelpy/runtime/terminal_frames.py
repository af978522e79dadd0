"""Messages between the terminal of a job (in its shim) and the agent, over a Unix socket in the lease directory.

A message is a kind of one byte, a length of four bytes and the content: `d` data, in both directions; `w` the size of
the window, from the agent; `x` the exit code, from the shim, last. Standard library only: the shim loads this.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOCKET_FILE: Final = "terminal.sock"
DATA: Final = b"d"
WINDOW: Final = b"w"
EXIT: Final = b"x"
_HEAD = struct.Struct("!cI")
_WINDOW = struct.Struct("!HH")
_EXIT = struct.Struct("!i")
_CREDENTIALS = struct.Struct("3i")
CONTENT_BYTES_MAX: Final = 1 << 20


class FrameReader:
    """Splits a stream of bytes into messages. Raises ValueError for what is none."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, content: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The (kind, content) of the messages that are complete with these bytes."""
        self._rest += content
        while len(self._rest) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest)
            if kind not in (DATA, WINDOW, EXIT) or length > CONTENT_BYTES_MAX:
                raise ValueError(f"a message must be of kind d, w or x, got {kind!r} of {length} bytes")
            if len(self._rest) < _HEAD.size + length:
                return
            found = bytes(self._rest[_HEAD.size : _HEAD.size + length])
            del self._rest[: _HEAD.size + length]
            yield kind, found


def data_frame(content: bytes) -> bytes:
    """A message with data."""
    return _HEAD.pack(DATA, len(content)) + content


def window_frame(rows: int, columns: int) -> bytes:
    """A message with the size of the window."""
    return _HEAD.pack(WINDOW, _WINDOW.size) + _WINDOW.pack(rows, columns)


def exit_frame(code: int) -> bytes:
    """A message with the exit code of the program; -n = by signal n."""
    return _HEAD.pack(EXIT, _EXIT.size) + _EXIT.pack(code)


def window_of(content: bytes) -> tuple[int, int]:
    """(rows, columns) of a message; raises ValueError."""
    if len(content) != _WINDOW.size:
        raise ValueError(f"a size must have {_WINDOW.size} bytes, got {len(content)}")
    rows, columns = _WINDOW.unpack(content)
    return int(rows), int(columns)


def exit_of(content: bytes) -> int:
    """The exit code of a message; raises ValueError."""
    if len(content) != _EXIT.size:
        raise ValueError(f"an exit code must have {_EXIT.size} bytes, got {len(content)}")
    return int(_EXIT.unpack(content)[0])


@contextmanager
def socket_path(directory: Path) -> Iterator[str]:
    """A path of the socket that is short enough for the kernel (108 bytes), while the context lasts."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"
    finally:
        os.close(descriptor)


def has_own_user(connection: socket.socket) -> bool:
    """Whether the process at the other end has the user of this process."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1]) == os.geteuid()

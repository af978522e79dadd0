"""Sends and receives length-prefixed pickles between the scheduler and its worker processes."""

from __future__ import annotations

import pickle
import struct
from typing import IO, TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from asyncio import StreamWriter

LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 18


def read_message(stream: BinaryIO) -> Any:  # any object that the peer has pickled
    """The next message; None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return pickle.loads(stream.read(LENGTH.unpack(head)[0]))


def write_message(stream: IO[bytes], message: object) -> None:
    """Sends one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


async def send(pipe: StreamWriter, message: bytes) -> None:
    """Sends a pickled message in pieces, because copying a large one whole would block the event loop."""
    pipe.write(LENGTH.pack(len(message)))
    whole = memoryview(message)
    for first in range(0, len(whole), _PIECE_BYTES):
        pipe.write(whole[first : first + _PIECE_BYTES])
        await pipe.drain()

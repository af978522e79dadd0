"""Messages between the scheduler and the processes that it starts: pickles behind their length."""

from __future__ import annotations

import pickle
import struct
from typing import IO, TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from asyncio import StreamWriter

LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 18


def read_message(stream: BinaryIO) -> Any:  # whatever the peer pickled
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
    """Sends one message that is pickled already, in pieces: to copy a large one whole would take long in one turn."""
    pipe.write(LENGTH.pack(len(message)))
    whole = memoryview(message)
    for first in range(0, len(whole), _PIECE_BYTES):
        pipe.write(whole[first : first + _PIECE_BYTES])
        await pipe.drain()

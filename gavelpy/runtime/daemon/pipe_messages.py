"""Messages between the scheduler and the processes that it starts: pickles behind their length."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any, BinaryIO

LENGTH = struct.Struct("<Q")


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

"""Reserve the rendezvous port of a job from its assignment until its lease ends.

Rank 0 binds the port seconds after its start, once its libraries are loaded, so the port must be free then. Two others
could take it. The kernel gives ports of its local range (`ip_local_port_range`) to connections and to programs that let
it choose: the port is below that range. Other agents of the machine look for ports, too: a Unix socket with a name in
the abstract namespace, which has the scope of ports, marks the port as taken while nothing is bound to it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOCAL_RANGE: Final = "/proc/sys/net/ipv4/ip_local_port_range"
PORTS: Final = range(10_000, 1 << 16)  # those that are not in the kernel's range
_TRIES: Final = 200


class ReservedPort:
    """A TCP port of this machine that no other agent takes until `close`, and no other process until `release`."""

    def __init__(self, preferred: int = 0, local_range: str = LOCAL_RANGE) -> None:
        attempts = (_take(number) for number in _candidates(preferred, local_range))
        taken = next(filter(None, attempts), None)
        self._socket = taken[0] if taken is not None else _bound(0)
        self._mark = taken[1] if taken is not None else None
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Unbinds the port for rank 0; it stays marked."""
        self._socket.close()

    def close(self) -> None:
        """Unbinds the port and removes the mark."""
        self._socket.close()
        if self._mark is not None:
            self._mark.close()


def _candidates(preferred: int, local_range: str) -> Iterator[int]:
    """The preferred port (0 = none), then some that the kernel does not choose."""
    if preferred:
        yield preferred
    low, high = map(int, Path(local_range).read_text().split())
    ours = [number for number in PORTS if not low <= number <= high]
    yield from random.sample(ours, min(_TRIES, len(ours)))


def _take(number: int) -> tuple[socket.socket, socket.socket] | None:
    """The bound port and its mark; None if one of them is in use."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mark.bind(f"\0gavel-rendezvous-{number}")
        return _bound(number), mark
    except OSError:
        mark.close()
        return None


def _bound(number: int) -> socket.socket:
    """A socket that is bound to a port, 0 = of the kernel's choice; raises OSError."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.bind(("", number))
    except OSError:
        found.close()
        raise
    return found

"""Keep the rendezvous port of a gang free until its ranks start."""

from __future__ import annotations

import socket


class ReservedPort:
    """A TCP port that is bound until `release`, so that no other process takes it before the ranks start."""

    def __init__(self, preferred: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.bind(("", preferred))
        except OSError:
            self._socket.bind(("", 0))  # it is in use
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Unbinds the port."""
        self._socket.close()

"""A TCP port where the ranks of a job will meet, kept from others until they start."""

from __future__ import annotations

import socket


class ReservedPort:
    """A port that is bound and not listened on; `release` it just before its user starts."""

    def __init__(self, preferred: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.bind(("", preferred))
        except OSError:
            self._socket.bind(("", 0))  # somebody has taken it meanwhile
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Lets others bind it."""
        self._socket.close()

"""Counts a connection's calls: beyond what the scheduler takes on one connection, gRPC would queue them in silence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gavelpy.runtime.client.failures import CallFailed

CALLS_A_CONNECTION_MAX = 900  # the scheduler takes 1,000


class UnderWay:
    """The calls of one connection, of all its threads."""

    def __init__(self, most: int = CALLS_A_CONNECTION_MAX) -> None:
        self._most, self._count = most, 0
        self._lock = threading.Lock()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Counts a call while it lasts; raises CallFailed where the connection has no place for it."""
        with self._lock:
            if self._count >= self._most:
                raise CallFailed(
                    f"this client has {self._count} calls and streams under way, as many as one connection takes: end "
                    "some of them, or open another Client for more"
                )
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1

"""Limits of connections at the port of the web page, before and around aiohttp's handler of each.

A connection without a whole request costs its opener nothing, so there are at most HALF_OPEN_MAX of them: a further one
ends the oldest, and an honest caller, who sends its request at once, is served. One that sends no request within
REQUEST_S is closed, and so is one that does not read its answer or stream for UNREAD_S. An address has at most
`connections_an_address_max` of `[limits]`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

HALF_OPEN_MAX = 512
REQUEST_S = 10.0
UNREAD_S = 60.0


class Connections:
    """A factory of protocols for asyncio, around `handlers`, a factory of those of aiohttp."""

    def __init__(self, handlers: Callable[[], asyncio.Protocol], an_address_max: int) -> None:
        self.half_open: dict[asyncio.BaseProtocol, Connection] = {}  # by handler, the oldest first
        self.by_address: Counter[str] = Counter()
        self.an_address_max = an_address_max
        self._handlers = handlers

    def __call__(self) -> Connection:
        return Connection(self, self._handlers())

    def has_request(self, handler: asyncio.BaseProtocol) -> None:
        """A whole request has come at the connection of this handler."""
        if (found := self.half_open.pop(handler, None)) is not None:
            found.has_request()

    def add(self, connection: Connection) -> bool:
        """Counts a connection; false if its address has too many."""
        if connection.address:
            if self.by_address[connection.address] >= self.an_address_max:
                return False
            self.by_address[connection.address] += 1
        if len(self.half_open) >= HALF_OPEN_MAX:
            next(iter(self.half_open.values())).end()
        self.half_open[connection.handler] = connection
        return True

    def remove(self, connection: Connection) -> None:
        """Counts a connection no more."""
        self.half_open.pop(connection.handler, None)
        if connection.address:
            self.by_address[connection.address] -= 1
            if not self.by_address[connection.address]:
                del self.by_address[connection.address]


class Connection(asyncio.Protocol):
    """One connection; its bytes go to the handler."""

    def __init__(self, connections: Connections, handler: asyncio.Protocol) -> None:
        self.handler = handler
        self.address = ""  # empty at a Unix socket
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._is_counted = False
        self._ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuses it, or gives it to the handler."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        if not self._connections.add(self):
            transport.abort()
            return
        self._is_counted = True
        self._end_after(REQUEST_S)
        self.handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._end_after(None)
        if self._is_counted:
            self._connections.remove(self)
            self.handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """For the handler."""
        if self._is_counted:
            self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        """For the handler."""
        return self.handler.eof_received() if self._is_counted else None

    def pause_writing(self) -> None:
        """The peer does not read."""
        self._end_after(UNREAD_S)
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._end_after(None)
        self.handler.resume_writing()

    def has_request(self) -> None:
        """It is not half-open any more."""
        self._end_after(None)

    def end(self) -> None:
        """Ends it at once."""
        self._connections.half_open.pop(self.handler, None)
        if self._transport is not None:
            self._transport.abort()

    def _end_after(self, seconds: float | None) -> None:
        """Sets the time after which it ends; None = it does not."""
        if self._ending is not None:
            self._ending.cancel()
        self._ending = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.end)

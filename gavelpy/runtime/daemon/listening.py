"""Opens the addresses of the HTTP servers, before the scheduler acknowledges anything and before aiohttp is imported.

Connections wait in the sockets' queues until a server takes them.
"""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gavelpy.errors import InvalidInput
from gavelpy.runtime.daemon.config_sections import ServerSettings

BACKLOG = 64  # connections that wait to be accepted; asyncio accepts as many in one turn of its loop
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # of one of several addresses of a name: IPv6 without a network


def opened_sockets(field: str, listen: str) -> list[socket.socket]:
    """Listening sockets of `unix:PATH` or HOST:PORT, one for each address of a name; no host = all addresses.

    Raises InvalidInput with `field`, the address and the reason, if it cannot be opened.
    """
    opened: list[socket.socket] = []
    try:
        if listen.startswith("unix:"):
            opened.append(_opened_path(listen.removeprefix("unix:")))
        else:
            _open_all(listen, opened)
    except OSError as error:
        close(opened)
        raise refused(field, listen, error.strerror or str(error)) from None
    return opened


def refused(field: str, listen: str, reason: str) -> InvalidInput:
    """The error that an address of the configuration cannot be opened."""
    return InvalidInput(f"scheduler.{field} must be an address that can be opened, got {listen!r} ({reason})")


class HttpPorts:
    """The listening sockets of the metrics and of the web page; empty where none is configured."""

    def __init__(self, settings: ServerSettings) -> None:
        self.http, self.web = list[socket.socket](), list[socket.socket]()
        try:
            if settings.http_listen:
                self.http = opened_sockets("http_listen", settings.http_listen)
            if settings.web_listen:
                self.web = opened_sockets("web_listen", settings.web_listen)
        except InvalidInput:
            self.close()
            raise

    def close(self) -> None:
        """Closes those that no server has closed."""
        close((*self.http, *self.web))


def port_of(sockets: Sequence[socket.socket]) -> int:
    """The port of listening sockets; 0 for a path."""
    name = sockets[0].getsockname()
    return int(name[1]) if isinstance(name, tuple) else 0


def close(sockets: Sequence[socket.socket]) -> None:
    """Closes those that are open."""
    for one in sockets:
        one.close()


def _open_all(listen: str, opened: list[socket.socket]) -> None:
    host, _, port = listen.rpartition(":")
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = socket.getaddrinfo(host.strip("[]") or None, int(port), type=kind, flags=flags)
    failed: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        one = socket.socket(family, kind, protocol)
        opened.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            one.bind(address)
            one.listen(BACKLOG)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            failed = error
            opened.remove(one)
            one.close()
    if failed is not None and not opened:
        raise failed


def _opened_path(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(Path(path).stat().st_mode):
            Path(path).unlink()  # of an earlier process
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.bind(path)
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one

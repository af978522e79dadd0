"""The port of the web page: TLS, headers, static files, and errors as JSON.

Every answer has a content security policy that allows only the page's own files: no inline scripts or styles, no other
hosts, no frames. Files under `static/` are part of the package; there is no build step.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from typing import Any, Final

import grpc
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gavelpy.errors import FencedOut, GavelError, JournalFailed, Stopping
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.listening import BACKLOG, opened_sockets, port_of
from gavelpy.runtime.daemon.web.access import answer
from gavelpy.runtime.daemon.web.connections import REQUEST_S, Connections
from gavelpy.runtime.security.exposure import tls_context
from gavelpy.runtime.security.identity import Refusal
from gavelpy.runtime.security.well_formed import ANSWERED, JOURNAL_GONE, status_of

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = 1 << 16
STOP_S = 0.5  # for requests in progress
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}
_CODES = {400: "bad_input", 401: "not_allowed", 403: "not_allowed", 404: "not_found", 429: "limit_reached"}
_REFUSED_VALUE = re.compile(r"(?P<field>[\w.\[\]'-]+) must be (?P<allowed>.*), got (?P<value>.*)", re.DOTALL)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a record is not about bytes that are no HTTP: any client may send those, and is answered with 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


logger.addFilter(_is_ours)


class WebServer:
    """Listens from `start` to `stop`. Raises InvalidInput for certificates that cannot be read."""

    def __init__(self, config: Config, routes: Sequence[web.RouteDef]) -> None:
        self._listen, self._tls = config.scheduler.web_listen, tls_context(config.security)
        self._servers: list[asyncio.Server] = []
        self._connections: Connections | None = None
        self._an_address_max = config.limits.connections_an_address_max
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._note, _answer_errors])
        application.on_response_prepare.append(_add_headers)
        application.add_routes([*routes, *_files()])
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=logger,
            keepalive_timeout=config.limits.connection_idle_s,
            shutdown_timeout=STOP_S,
            handler_cancellation=True,
        )

    async def start(self, sockets: Sequence[socket.socket] = ()) -> int:
        """Takes connections from listening sockets, which it closes in `stop`; returns the port (0 for a path).

        Without sockets it opens those of the configuration; raises InvalidInput if that fails.
        """
        sockets = sockets or opened_sockets("web_listen", self._listen)
        port = port_of(sockets)
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections = Connections(self._runner.server, self._an_address_max)
        loop, handshake_s = asyncio.get_running_loop(), REQUEST_S if self._tls is not None else None
        how: dict[str, Any] = {"ssl": self._tls, "ssl_handshake_timeout": handshake_s, "backlog": BACKLOG}
        self._servers = [await loop.create_server(self._connections, sock=one, **how) for one in sockets]
        return port

    async def stop(self) -> None:
        """Closes the port and ends streams."""
        for server in self._servers:
            server.close()
        await self._runner.cleanup()

    @web.middleware
    async def _note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Notes that the connection of a request is not half-open."""
        assert self._connections is not None
        self._connections.has_request(request.protocol)
        return await handler(request)


def standby_routes(leader: Callable[[], str]) -> list[web.RouteDef]:
    """The routes of a standby, which answers with the address of the leader."""

    async def refuse(_: web.Request) -> web.Response:
        raise Refusal(grpc.StatusCode.UNAVAILABLE, f"a standby; {leader() or 'no scheduler'} leads")

    return [web.route("*", "/api/{path:.*}", refuse)]


def _files() -> list[web.RouteDef]:
    """One route for each file; `/` is the page."""
    routes = []
    for file in resources.files(__package__).joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        path = "/" if file.name == "index.html" else f"/static/{file.name}"
        routes.append(web.get(path, _file(file.read_bytes(), _TYPES[suffix])))
    return routes


def _file(content: bytes, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=content_type, charset="utf-8")

    return serve


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers[name] = value
    response.headers.popall("Server", None)


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers errors of the caller and of the journal as JSON; others are bugs, logged and answered with 500."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path[:200]}: {error.reason}")
    except (JournalFailed, FencedOut):
        return _error(503, JOURNAL_GONE)
    except Stopping as error:
        return _error(503, str(error))
    except ANSWERED as error:
        return _error(http_status(error), str(error))


def http_status(error: GavelError) -> int:
    """The status of an error that a caller receives."""
    return _STATUS.get(status_of(error), 500)


def error_values(status: int, message: str) -> dict[str, object]:
    """An error as JSON values: with field, value and what is allowed, where a value is wrong."""
    message = " ".join(message.split())
    found = _REFUSED_VALUE.fullmatch(message)
    code = _CODES.get(status, "bad_input" if status < 500 else "unavailable" if status == 503 else "failed")
    return {"error": {"code": code, "status": status, "message": message} | (found.groupdict() if found else {})}


def _error(status: int, message: str) -> web.Response:
    response = answer(error_values(status, message), status=status)
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="gavelpy"'
    if status in (429, 503):
        response.headers["Retry-After"] = "1"
    return response

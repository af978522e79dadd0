"""Who calls the web page's JSON, and what a call may do: tokens, roles and budgets as for gRPC.

A browser sends requests that pages of other sites cause. Tokens are sent in a header, which such pages cannot set, and
there are no cookies. Without tokens every process of the host may call, but no page of another site: the host of a
request must then be a name of loopback (else a site could resolve its own name to 127.0.0.1), and changes must have a
JSON body and, if the browser names an origin, the page's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import msgspec
from aiohttp import web

from gavelpy.errors import InvalidInput
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.rpc.server import budget_of
from gavelpy.runtime.security.budgets import Budgets
from gavelpy.runtime.security.exposure import is_loopback
from gavelpy.runtime.security.identity import Caller, Operation, Refusal, set_caller, verifier_of
from gavelpy.runtime.security.interceptor import admitted

Answer = TypeVar("Answer", bound=msgspec.Struct)
Handler = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
Plain = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODY_S = 10.0  # for the body of a request
_OWN_ORIGIN = ("same-origin", "none")  # none: typed by a person


class Access:
    """Checks calls under a scheduler's configuration. Raises InvalidInput for an invalid tokens file."""

    def __init__(self, config: Config) -> None:
        self._verifier = verifier_of(config.security.tokens_path)
        self._has_tokens = config.security.tokens_path is not None
        self._scheme = "https" if config.security.has_tls else "http"
        self._budgets = Budgets(budget_of(config.limits))

    def guarded(self, operation: Operation, handler: Handler, *, is_stream: bool = False) -> Plain:
        """The handler of an operation, for callers that may call it."""

        async def serve(request: web.Request) -> web.StreamResponse:
            caller = self.admit(request, operation)
            with self._taken(caller, request, is_stream=is_stream):
                set_caller(caller)
                return await handler(request, caller)

        return serve

    def admit(self, request: web.Request, operation: Operation) -> Caller:
        """The caller; raises Refusal."""
        self._check_origin(request)
        authorization = request.headers.get("Authorization", "")
        return admitted(self._verifier, authorization, operation, operation.value)

    def still(self, request: web.Request, operation: Operation) -> None:
        """Raises Refusal if the call would be refused now, unless the tokens are temporarily unavailable."""
        try:
            self.admit(request, operation)
        except Refusal:
            if self._verifier.is_sure:
                raise

    @contextmanager
    def _taken(self, caller: Caller, request: web.Request, *, is_stream: bool) -> Iterator[None]:
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        connection = str(peer) if peer else ""  # a Unix socket has none
        address, is_sole = request.remote or "", caller.is_sole
        with self._budgets.taken(caller.name, address, is_stream=is_stream, connection=connection, is_sole=is_sole):
            yield

    def _check_origin(self, request: web.Request) -> None:
        """Raises Refusal for requests that a page of another site sent."""
        host = request.headers.get("Host", "")
        if not self._has_tokens and not _is_of_loopback(host):
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                f"Host must be localhost or an address of loopback where there are no tokens, got {host[:80]!r}",
            )
        if request.method in ("GET", "HEAD"):
            return
        if request.content_type != "application/json":
            raise InvalidInput(f"Content-Type must be application/json, got {request.content_type[:80]!r}")
        origin, site = request.headers.get("Origin", ""), request.headers.get("Sec-Fetch-Site", "none")
        if (origin and origin != f"{self._scheme}://{host}") or site not in _OWN_ORIGIN:
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                f"Origin must be {self._scheme}://{host[:80]}: changes come from the scheduler's own page, got "
                f"{origin[:80]!r}",
            )


def _is_of_loopback(host: str) -> bool:
    """Whether a Host header, with or without its port, names loopback."""
    has_port = host.rpartition(":")[2].isdecimal() and ":" in host
    with_port = host if has_port else f"{host}:80"
    try:
        return not with_port.startswith("unix") and is_loopback(with_port)
    except InvalidInput:
        return False


async def body_of(request: web.Request, kind: type[Answer]) -> Answer:
    """The JSON body of a request; raises InvalidInput with the field that is wrong."""
    try:
        async with asyncio.timeout(BODY_S):
            content = await request.read()
    except TimeoutError:
        raise InvalidInput(f"body must arrive within {BODY_S:g} s") from None
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        field = place.rstrip("`") or "body"
        raise InvalidInput(f"{field} must be valid: {message}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"body must be JSON: {error}") from None


def answer(values: dict[str, Any], *, status: int = 200) -> web.Response:
    """A JSON answer. NaN and infinite numbers become null."""
    return web.Response(
        body=msgspec.json.encode({"version": 1} | values), content_type="application/json", status=status
    )

"""The door of the gRPC server: who calls, and whether they may. What is not allowed is refused unread.

A stream is let in once and may last for days, so it is asked for its token again and again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from gavelpy.runtime.security.identity import Caller, set_caller
from gavelpy.runtime.security.open_streams import Handler, OpenStreams
from gavelpy.runtime.security.refusal import Refusal
from gavelpy.runtime.security.roles import OPEN, roles_that_may
from gavelpy.runtime.security.verifier import Verifier

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


class Door(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Asks each call for its token and sets the caller for what serves it."""

    def __init__(self, verifier: Verifier, clock_s: Callable[[], float] = time.time) -> None:
        self._verifier = verifier
        self._clock_s = clock_s
        self._streams = OpenStreams(self._still)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler of a call that may be made, else one that refuses it."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method in OPEN:  # grpc answers UNIMPLEMENTED where there is no handler
            return handler
        try:
            authorization = _authorization(handler_call_details)
            who = self.admit(method, authorization)
        except Refusal as refusal:
            return _refusing(refusal)
        set_caller(who)
        return handler if who.is_sole else self._streams.guarded(handler, method, authorization)

    def _still(self, method: str, authorization: str) -> None:
        """Raises Refusal for who would not be let in now; not because the tokens cannot be looked up just now."""
        try:
            self.admit(method, authorization)
        except Refusal:
            if self._verifier.is_sure:
                raise

    def admit(self, method: str, authorization: str) -> Caller:
        """Who calls; raises Refusal if nobody known, or not allowed to."""
        who = self._verifier.caller(authorization, self._clock_s())
        if who is None:
            said = "the token is not known here, or its time is over" if authorization else "no token was sent"
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, f"{said}; an operator makes one: gavel token create")
        allowed = roles_that_may(method)
        if who.role not in allowed and not who.is_sole:
            name, roles = method.rpartition("/")[2], " or ".join(sorted(allowed)) or "nobody"
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, f"{name} is for {roles}; the token is of a {who.role}")
        return who


def _authorization(details: grpc.HandlerCallDetails) -> str:
    """What the call presents; empty = nothing."""
    for key, value in details.invocation_metadata or ():
        if key == "authorization":
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""


def _refusing(refusal: Refusal) -> Handler:
    """Answers any kind of call with the refusal, without reading what was sent."""

    async def refuse(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:  # noqa: ARG001
        await context.abort(refusal.code, str(refusal))

    handler: Handler = grpc.stream_stream_rpc_method_handler(refuse)
    return handler

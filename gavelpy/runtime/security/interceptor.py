"""The gRPC interceptor that authenticates callers and checks their role; refused requests are not read.

A stream may last for days, so its token is checked again periodically.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from gavelpy.runtime.security.identity import ROLES, Caller, Operation, Refusal, Verifier, set_caller
from gavelpy.runtime.security.open_streams import Handler, OpenStreams

# Open without a token, for load balancers and service managers.
OPEN = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
_AGENT = frozenset({Operation.CONNECT, Operation.SERVE_LOGS})
_REFLECTION = frozenset({Operation.DESCRIBE_SERVICES})
OPERATIONS: Mapping[str, Operation] = {  # by method, /package.Service/Method; methods that are not listed are refused
    f"/{service}/{operation}": operation
    for service, operations in {
        "gavelpy.v1.SchedulerService": frozenset(Operation) - _AGENT - _REFLECTION,
        "gavelpy.v1.AgentService": _AGENT,
        "grpc.reflection.v1alpha.ServerReflection": _REFLECTION,
    }.items()
    for operation in operations
}
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


class Door(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Checks the token of each call and sets its caller."""

    def __init__(self, verifier: Verifier, clock_s: Callable[[], float] = time.time) -> None:
        self._verifier = verifier
        self._clock_s = clock_s
        self._streams = OpenStreams(self._still)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler of an allowed call, else a handler that refuses it."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method in OPEN:  # grpc answers UNIMPLEMENTED if there is no handler
            return handler
        try:
            authorization = _authorization(handler_call_details)
            identity = self.admit(method, authorization)
        except Refusal as refusal:
            return _refusing(refusal)
        set_caller(identity)
        return handler if identity.is_sole else self._streams.guarded(handler, method, authorization)

    def _still(self, method: str, authorization: str) -> None:
        """Raises Refusal if the call would be refused now, unless the tokens are temporarily unavailable."""
        try:
            self.admit(method, authorization)
        except Refusal:
            if self._verifier.is_sure:
                raise

    def admit(self, method: str, authorization: str) -> Caller:
        """The caller; raises Refusal if it is unknown or lacks the role."""
        identity = self._verifier.caller(authorization, self._clock_s())
        if identity is None:
            problem = "the token is unknown or has expired" if authorization else "no token was sent"
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, f"{problem}; an operator creates one: gavel token create")
        operation = OPERATIONS.get(method)
        if not identity.is_sole and (operation is None or not identity.may(operation)):
            roles = " or ".join(sorted(ROLES[operation])) if operation is not None else "no role"
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{method.rpartition('/')[2]} requires the role {roles}; the token is of a {identity.role}",
            )
        return identity


def _authorization(details: grpc.HandlerCallDetails) -> str:
    """The call's `authorization` metadata; empty = none."""
    for key, value in details.invocation_metadata or ():
        if key == "authorization":
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""


def _refusing(refusal: Refusal) -> Handler:
    """A handler that answers any kind of call with the refusal, without reading the request."""

    async def refuse(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:  # noqa: ARG001
        await context.abort(refusal.code, str(refusal))

    handler: Handler = grpc.stream_stream_rpc_method_handler(refuse)
    return handler

"""The gRPC interceptor that authenticates callers and checks their role; refused requests are not read.

A stream may last for days, so its token is checked again periodically; `OpenStreams` ends the stream when the token is
revoked or expires.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import grpc.aio

from gavelpy.runtime.security.identity import ROLES, Caller, Operation, Refusal, Verifier, set_caller

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # of any messages; generic in the stubs only
Context = grpc.aio.ServicerContext[Any, Any]
LOOK_EVERY_S = 1.0
_AT_ONCE = 200  # streams between two yields to the event loop


# Open without a token, for load balancers and service managers.
OPEN = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
_AGENT = frozenset({Operation.CONNECT, Operation.SERVE_LOGS, Operation.SERVE_TUNNEL})
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

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
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
        return admitted(self._verifier, authorization, OPERATIONS.get(method), method.rpartition("/")[2])


def admitted(verifier: Verifier, authorization: str, operation: Operation | None, name: str) -> Caller:
    """The caller of an operation (None = one that no role may call); raises Refusal if unknown or without the role."""
    identity = verifier.caller(authorization, time.time())
    if identity is None:
        problem = "the token is unknown or has expired" if authorization else "no token was sent"
        raise Refusal(grpc.StatusCode.UNAUTHENTICATED, f"{problem}; an operator creates one: gavel token create")
    if not identity.is_sole and (operation is None or not identity.may(operation)):
        roles = " or ".join(sorted(ROLES[operation])) if operation is not None else "no role"
        raise Refusal(
            grpc.StatusCode.PERMISSION_DENIED, f"{name} requires the role {roles}; the token is of a {identity.role}"
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


@dataclass(eq=False)
class _Open:
    """One stream."""

    method: str
    authorization: str
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    why: Refusal | None = None


class OpenStreams:
    """`check` raises Refusal for a method and a token without (or no longer with) the right to call it."""

    def __init__(self, check: Callable[[str, str], None]) -> None:
        self._check = check
        self._open: set[_Open] = set()
        self._watching: asyncio.Task[None] | None = None

    def guarded(self, handler: Handler, method: str, authorization: str) -> Handler:
        """The handler with repeated checks if it streams responses; other handlers are unchanged."""
        if not handler.response_streaming:
            return handler
        behaviour = behaviour_of(handler)

        async def serve(request: Any, context: Context) -> None:
            await self._serve(written(behaviour, request, context), context, _Open(method, authorization))

        return with_behaviour(handler, serve)

    async def _serve(self, serving: Coroutine[Any, Any, None], context: Context, stream: _Open) -> None:
        self._open.add(stream)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        tasks = [asyncio.create_task(serving), asyncio.create_task(stream.cut.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(stream)
            is_served = tasks[0].done()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if is_served:
            tasks[0].result()
        elif stream.why is not None:
            await context.abort(stream.why.code, str(stream.why))

    async def _watch(self) -> None:
        """Checks all streams periodically, while there are any."""
        while self._open:
            await asyncio.sleep(LOOK_EVERY_S)
            for row, stream in enumerate(list(self._open), 1):
                self._look_at(stream)
                if not row % _AT_ONCE:
                    await asyncio.sleep(0)

    def _look_at(self, stream: _Open) -> None:
        try:
            self._check(stream.method, stream.authorization)
        except Refusal as refusal:
            stream.why = refusal
            stream.cut.set()


class Wrapped:
    """The handlers of methods, wrapped once instead of at each call. `wrap`: arguments are a handler and its method."""

    def __init__(self, wrap: Callable[[Handler, str], Handler]) -> None:
        self._wrap = wrap
        self._known: dict[str, tuple[Handler, Handler]] = {}  # by method: as given and as wrapped

    def of(self, handler: Handler, method: str) -> Handler:
        """The wrapped handler."""
        known = self._known.get(method)
        if known is None or known[0] is not handler:
            known = self._known[method] = handler, self._wrap(handler, method)
        return known[1]


def behaviour_of(handler: Any) -> Any:  # Any: its stubs lack asyncio servers
    """The function of a handler, of any kind of call."""
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def with_behaviour(handler: Any, behaviour: Any, reading: Any = None) -> Handler:
    """A handler of the same kind of call with another function and, if given, another deserializer."""
    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    made: Handler = make(behaviour, reading or handler.request_deserializer, handler.response_serializer)
    return made


async def written(behaviour: Any, request: Any, context: Context) -> None:
    """Runs a handler that yields responses or writes them itself."""
    if not inspect.isasyncgenfunction(behaviour):
        await behaviour(request, context)
        return
    async for response in behaviour(request, context):
        await context.write(response)

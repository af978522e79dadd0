"""The gRPC interceptor that answers malformed messages and handlers' errors with a status and a message.

gRPC itself answers INTERNAL to malformed bytes and UNKNOWN to exceptions. If the request is at fault, this answers
INVALID_ARGUMENT instead. Other exceptions are bugs and pass through.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gavelpy.errors import (
    FencedOut,
    GavelError,
    InvalidInput,
    JournalCorrupt,
    JournalFailed,
    LimitReached,
    NotFound,
    RemoteViolation,
    Stopping,
)
from gavelpy.runtime.security.identity import Refusal
from gavelpy.runtime.security.interceptor import Continuation, Handler, Wrapped, behaviour_of, with_behaviour

OURS = "/gavelpy."
JOURNAL_GONE = (
    "the journal failed and the scheduler stops; the request may or may not have been executed, and can be repeated"
)
_DETAIL_CHARACTERS_MAX = 2_000  # a status is sent in a header, which has a size limit

ANSWERED = (InvalidInput, LimitReached, RemoteViolation, Refusal)  # errors with a status for the caller
Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Any, Context], Awaitable[Any]]  # Any: a message of the method


@dataclass(frozen=True)
class _Malformed:
    """In place of a message that could not be parsed."""

    detail: str


class WellFormed(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Wraps the handlers of gavelpy's services."""

    def __init__(self) -> None:
        self._known = Wrapped(lambda handler, _: _wrapped(handler))

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler with its errors as statuses."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OURS):
            return handler
        return self._known.of(handler, handler_call_details.method)


def status_of(error: GavelError) -> grpc.StatusCode:
    """The status of an error."""
    match error:
        case Refusal():
            return error.code
        case NotFound():
            return grpc.StatusCode.NOT_FOUND
        case LimitReached():
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case JournalCorrupt():
            return grpc.StatusCode.DATA_LOSS
        case _:
            return grpc.StatusCode.INVALID_ARGUMENT


def _wrapped(handler: Any) -> Handler:  # Any: its stubs lack asyncio servers
    given = handler.request_deserializer
    wrap = _streaming if handler.response_streaming else _unary
    behaviour = wrap(behaviour_of(handler), _checked if handler.request_streaming else _checked_one)
    return with_behaviour(handler, behaviour, _reading(given) if given is not None else None)


def _reading(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(message: bytes) -> Any:
        try:
            return deserialize(message)
        except (DecodeError, ValueError) as error:
            return _Malformed(str(error) or "not a message")

    return read


def _unary(behaviour: Unary, checked: Callable[[Any], Any]) -> Any:  # Any: a behaviour of grpc
    async def answer(request: Any, context: Context) -> Any:
        async with _answering(context):
            return await behaviour(checked(request), context)

    return answer


def _streaming(behaviour: Any, checked: Callable[[Any], Any]) -> Any:
    """Wraps a handler that yields its responses or writes them to the context."""
    if not inspect.isasyncgenfunction(behaviour):
        return _unary(behaviour, checked)

    async def answer(request: Any, context: Context) -> AsyncIterator[Any]:
        async with _answering(context):
            async for response in behaviour(checked(request), context):
                yield response

    return answer


@asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
    """Answers errors inside with their status."""
    try:
        yield
    except ANSWERED as error:
        await _abort(context, error)
    except (JournalFailed, FencedOut):  # the daemon's main loop logs the reason
        await context.abort(grpc.StatusCode.UNAVAILABLE, JOURNAL_GONE)
    except Stopping as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def _checked_one(request: Any) -> Any:
    if isinstance(request, _Malformed):
        raise Refusal(
            grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a message of this method: {request.detail}"
        )
    return request


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _checked_one(request)


async def _abort(context: Context, error: GavelError) -> NoReturn:
    message = " ".join(str(error).split())
    await context.abort(status_of(error), message[:_DETAIL_CHARACTERS_MAX])

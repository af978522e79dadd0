"""Ends open streams when their token is revoked or expires."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import grpc.aio

from gavelpy.runtime.security.identity import Refusal

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # of any messages; generic in the stubs only
Context = grpc.aio.ServicerContext[Any, Any]
LOOK_EVERY_S = 1.0
_AT_ONCE = 200  # streams between two yields to the event loop


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
        given: Any = handler  # its stubs lack asyncio servers
        reading, writing = given.request_deserializer, given.response_serializer
        if not given.response_streaming:
            return handler
        behaviour = given.stream_stream if given.request_streaming else given.unary_stream

        async def serve(request: Any, context: Context) -> None:
            await self._serve(written(behaviour, request, context), context, _Open(method, authorization))

        if given.request_streaming:
            return grpc.stream_stream_rpc_method_handler(serve, reading, writing)
        return grpc.unary_stream_rpc_method_handler(serve, reading, writing)

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


async def written(behaviour: Any, request: Any, context: Context) -> None:
    """Runs a handler that yields responses or writes them itself."""
    if not inspect.isasyncgenfunction(behaviour):
        await behaviour(request, context)
        return
    async for response in behaviour(request, context):
        await context.write(response)

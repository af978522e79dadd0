"""Limits the concurrent calls and streams of a user, an address and all users; agents are exempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from gavelpy.runtime.security.identity import Refusal, caller
from gavelpy.runtime.security.interceptor import (
    OPEN,
    Context,
    Handler,
    Wrapped,
    behaviour_of,
    with_behaviour,
    written,
)

_AGENTS = "/gavelpy.v1.AgentService/"
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


@dataclass(frozen=True)
class Budget:
    """Limits of concurrent calls and streams."""

    calls_a_user: int
    streams_a_user: int
    calls_an_address: int
    streams_an_address: int
    calls: int  # of all users


class Budgets(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses a call above a limit with RESOURCE_EXHAUSTED, the limit's name and advice. Runs after `Door`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._under_way: Counter[tuple[str, str]] = Counter()  # by limit, and user or address
        self._wrapped = Wrapped(self._counted)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler of a call, which counts while it lasts."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_AGENTS):
            return handler
        return self._wrapped.of(handler, method)

    def _counted(self, handler: Handler, method: str) -> Handler:
        counted = self._counted_stream if handler.response_streaming else self._counted_call
        return with_behaviour(handler, counted(behaviour_of(handler), method))

    @contextmanager
    def taken(self, user: str, address: str, *, is_stream: bool) -> Iterator[None]:
        """Counts a call while it lasts; raises Refusal above a limit. Empty names have no limit."""
        budget, kind = self._budget, "streams" if is_stream else "calls"
        limits = [
            (f"{kind}_a_user_max", user, budget.streams_a_user if is_stream else budget.calls_a_user),
            (f"{kind}_an_address_max", address, budget.streams_an_address if is_stream else budget.calls_an_address),
            ("calls_max", "all users", budget.calls),
        ]
        limits = [limit for limit in limits if limit[1]]
        for name, holder, most in limits:
            if self._under_way[name, holder] >= most:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"limits.{name} is {most}: {holder} has as many {kind} in progress; end some of them, wait, or "
                    "request a higher limit from an operator",
                )
        for name, holder, _ in limits:
            self._under_way[name, holder] += 1
        try:
            yield
        finally:
            for name, holder, _ in limits:
                self._under_way[name, holder] -= 1
                if not self._under_way[name, holder]:
                    del self._under_way[name, holder]

    def _counted_call(self, behaviour: Any, method: str) -> Callable[[Any, Context], Awaitable[Any]]:
        async def serve(request: Any, context: Context) -> Any:
            try:
                with self.taken(_user(method), address_of(context.peer()), is_stream=False):
                    return await behaviour(request, context)
            except Refusal as refusal:
                await context.abort(refusal.code, str(refusal))

        return serve

    def _counted_stream(self, behaviour: Any, method: str) -> Callable[[Any, Context], Awaitable[None]]:
        async def serve(request: Any, context: Context) -> None:
            try:
                with self.taken(_user(method), address_of(context.peer()), is_stream=True):
                    await written(behaviour, request, context)
            except Refusal as refusal:
                await context.abort(refusal.code, str(refusal))

        return serve


def address_of(peer: str) -> str:
    """The address of a peer (`ipv4:10.0.0.7:4711`) without its port; empty for a Unix socket."""
    kind, _, rest = peer.partition(":")
    return f"{kind}:{rest.rpartition(':')[0]}" if kind in ("ipv4", "ipv6") else ""


def _user(method: str) -> str:
    """The caller's name; empty for a method that is open to all."""
    return "" if method in OPEN else caller().name

"""Limits what a user, an address and all users have at once, and their requests per second; agents are exempt.

A refusal has the time after which to call again, in gRPC's own field for that, which our client obeys.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from gavelpy.runtime.security.exposure import PUSHBACK
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
_AGAIN_S = 1.0  # when a call that is too many may be called again: others end at any time
_BURST_S = 10.0  # over which requests per second are averaged
_HOLDERS_MAX = 10_000  # of rates, before those that are at rest are forgotten
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]
Limit = tuple[str, str, float]  # its name, the user or address, and its value


@dataclass(frozen=True)
class Budget:
    """Limits of concurrent calls, streams and connections, and of requests per second (0 = any)."""

    calls_a_user: int
    streams_a_user: int
    calls_an_address: int
    streams_an_address: int
    calls: int  # of all users
    connections_a_user: int = 1_000  # with calls in progress
    connections_an_address: int = 2_000
    requests_a_user_per_s: float = 0.0
    requests_an_address_per_s: float = 0.0


class Budgets(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses a call above a limit with RESOURCE_EXHAUSTED, the limit's name and advice. Runs after `Door`."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._under_way: Counter[tuple[str, str]] = Counter()  # by limit, and user or address
        self._calls_on: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # the same by connection
        self._rates = Rates(clock)
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
    def taken(
        self, user: str, address: str, *, is_stream: bool, connection: str = "", is_sole: bool = False
    ) -> Iterator[None]:
        """Counts a call while it lasts; raises Refusal above a limit. Empty names have no limit.

        The requests of a sole user per second are not limited.
        """
        budget, kind = self._budget, "streams" if is_stream else "calls"
        calls: list[Limit] = [
            (f"{kind}_a_user_max", user, budget.streams_a_user if is_stream else budget.calls_a_user),
            (f"{kind}_an_address_max", address, budget.streams_an_address if is_stream else budget.calls_an_address),
            ("calls_max", "all users", budget.calls),
        ]
        calls = [limit for limit in calls if limit[1]]
        connections: list[Limit] = [
            ("connections_a_user_max", user, budget.connections_a_user),
            ("connections_an_address_max", address, budget.connections_an_address),
        ]
        connections = [limit for limit in connections if limit[1] and connection]
        if not is_sole:
            self._rates.take("requests_a_user_per_s", user, budget.requests_a_user_per_s)
            self._rates.take("requests_an_address_per_s", address, budget.requests_an_address_per_s)
        for name, holder, most in calls:
            if self._under_way[name, holder] >= most:
                raise _too_many(name, holder, most, kind)
        for name, holder, most in connections:
            known = self._calls_on.get((name, holder), ())
            if connection not in known and len(known) >= most:
                raise _too_many(name, holder, most, "connections with calls")
        self._count(calls, connections, connection, 1)
        try:
            yield
        finally:
            self._count(calls, connections, connection, -1)

    def _count(self, calls: list[Limit], connections: list[Limit], connection: str, change: int) -> None:
        for name, holder, _ in calls:
            self._under_way[name, holder] += change
            if not self._under_way[name, holder]:
                del self._under_way[name, holder]
        for name, holder, _ in connections:
            known = self._calls_on[name, holder]
            known[connection] += change
            if not known[connection]:
                del known[connection]
            if not known:
                del self._calls_on[name, holder]

    def _taken(self, method: str, context: Context, *, is_stream: bool) -> AbstractContextManager[None]:
        peer, is_open = context.peer(), method in OPEN
        user, is_sole = ("", False) if is_open else (caller().name, caller().is_sole)
        address = address_of(peer)
        connection = peer if address else ""
        return self.taken(user, address, is_stream=is_stream, connection=connection, is_sole=is_sole)

    def _counted_call(self, behaviour: Any, method: str) -> Callable[[Any, Context], Awaitable[Any]]:
        async def serve(request: Any, context: Context) -> Any:
            try:
                with self._taken(method, context, is_stream=False):
                    return await behaviour(request, context)
            except Refusal as refusal:
                await refuse(context, refusal)

        return serve

    def _counted_stream(self, behaviour: Any, method: str) -> Callable[[Any, Context], Awaitable[None]]:
        async def serve(request: Any, context: Context) -> None:
            try:
                with self._taken(method, context, is_stream=True):
                    await written(behaviour, request, context)
            except Refusal as refusal:
                await refuse(context, refusal)

        return serve


class Rates:
    """Requests per second of users and addresses, averaged over `_BURST_S`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at_rest_s: dict[tuple[str, str], float] = {}  # when a holder would be at rest without further requests

    def take(self, name: str, holder: str, per_s: float) -> None:
        """Counts a request; raises Refusal above the rate. An empty holder and a rate of 0 have no limit."""
        if not (holder and per_s):
            return
        now_s, key = self._clock(), (name, holder)
        at_rest_s = max(self._at_rest_s.get(key, now_s), now_s) + 1.0 / per_s
        if (wait_s := at_rest_s - now_s - max(_BURST_S, 1.0 / per_s)) > 0.0:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"limits.{name} is {per_s:g}: {holder} sends more; wait {wait_s:.2g} s and send fewer",
                wait_s=wait_s,
            )
        if len(self._at_rest_s) >= _HOLDERS_MAX:
            self._at_rest_s = {known: until_s for known, until_s in self._at_rest_s.items() if until_s > now_s}
        self._at_rest_s[key] = at_rest_s


def _too_many(name: str, holder: str, most: float, kind: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"limits.{name} is {most:g}: {holder} has as many {kind} in progress; end some of them, wait, or "
        "request a higher limit from an operator",
        wait_s=_AGAIN_S,
    )


async def refuse(context: Context, refusal: Refusal) -> NoReturn:
    """Ends a call with a refusal, and with how long its caller is to wait."""
    hint = ((PUSHBACK, str(math.ceil(1_000 * refusal.wait_s))),) if refusal.wait_s else ()
    await context.abort(refusal.code, str(refusal), hint)


def address_of(peer: str) -> str:
    """The address of a peer (`ipv4:10.0.0.7:4711`) without its port; empty for a Unix socket."""
    kind, _, rest = peer.partition(":")
    return f"{kind}:{rest.rpartition(':')[0]}" if kind in ("ipv4", "ipv6") else ""

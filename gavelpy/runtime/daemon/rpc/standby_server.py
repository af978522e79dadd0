"""The gRPC server of a scheduler that stands by: it refuses calls with the address of the leader, but stale reads.

Clients and agents with several addresses try the next one. A read with the metadata STALE_OK is answered from the
standby's replica, after the checks that the leader makes; the trailing metadata of the answer has its age.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]  # the stubs lack it

from gavelpy.runtime.addresses import STALE_AGE_MS, STALE_LEADER, STALE_OK, STALE_SEQUENCE, STANDS_BY
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.follower import FollowedState, Follower
from gavelpy.runtime.daemon.rpc.client_reads import ReadService
from gavelpy.runtime.daemon.rpc.server import AGENT_CALLS_MAX, SERVICES, budget_of, made, opened
from gavelpy.runtime.security.budgets import Budgets
from gavelpy.runtime.security.exposure import server_credentials
from gavelpy.runtime.security.identity import verifier_of
from gavelpy.runtime.security.interceptor import Continuation, Door, Handler
from gavelpy.runtime.security.well_formed import WellFormed
from gavelpy.runtime.wire import client_pb2

_SERVICE = client_pb2.DESCRIPTOR.services_by_name["SchedulerService"]
READS = (
    "GetServerInfo", "ListJobs", "GetJob", "WaitJobs", "ListNodes", "ListReservations", "GetCluster", "GetUsage",
    "GetShadowPrices",
)  # fmt: skip
HINT = " (--stale-ok reads from a standby)"
Context = grpc.aio.ServicerContext[Any, Any]


class StandbyServer:
    """From `start` to `stop` answers stale reads and health checks, and refuses others with the leader's address."""

    def __init__(self, config: Config, leader: Callable[[], str], follower: Follower) -> None:
        self._listens = [listen for listen in (config.scheduler.listen, config.scheduler.agents_listen) if listen]
        self._credentials = server_credentials(config.security)
        verifier, budgets = verifier_of(config.security.tokens_path), Budgets(budget_of(config.limits))
        self.reads = StaleReads(leader, follower)
        self._server = made(
            config,
            [_ForReads(one) for one in (Door(verifier), budgets, WellFormed())],
            AGENT_CALLS_MAX,
            [self.reads, _Refusing(leader)],
        )
        health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, self._server)
        self._health = health

    async def start(self) -> int:
        """Opens the ports and returns the number of the clients'; raises InvalidInput if that fails."""
        port, *_ = [opened(self._server, listen, self._credentials) for listen in self._listens]
        for service in ("", *SERVICES):
            await self._health.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Closes the port."""
        await self.reads.end()
        await self._server.stop(None)


class StaleReads(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Answers reads from the replica of a follower while that may be read."""

    def __init__(self, leader: Callable[[], str], follower: Follower) -> None:
        self._leader, self._follower = leader, follower
        self._closed = asyncio.Event()
        self._state: FollowedState | None = None
        self._service: ReadService | None = None
        self._serving: set[asyncio.Task[Any]] = set()
        self._handlers = {f"/{_SERVICE.full_name}/{name}": self._handler(name) for name in READS}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a read that may be stale; None for other calls."""
        return self._handlers.get(handler_call_details.method) if _is_stale_ok(handler_call_details) else None

    async def pause(self) -> None:
        """Ends all reads; until `resume` others are refused, because another thread changes the replica."""
        self._closed.set()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def resume(self) -> None:
        """Answers reads again."""
        self._closed.clear()

    async def end(self) -> None:
        """Ends all reads for good."""
        await self.pause()
        await self._replace(None)

    def _handler(self, name: str) -> grpc.RpcMethodHandler[Any, Any]:
        method = _SERVICE.methods_by_name[name]
        asked, answer = (message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type))

        async def serve(request: Any, context: Context) -> Any:
            return await self._answer(name, request, context)

        return grpc.unary_unary_rpc_method_handler(serve, asked.FromString, answer.SerializeToString)

    async def _answer(self, name: str, request: Any, context: Context) -> Any:
        began_s, state, fresh = time.monotonic(), self._follower.state, self._follower.freshness
        if state is None or fresh is None or self._closed.is_set():
            why = self._follower.refused or "it has not read the journal yet"
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{refusal(self._leader())}: {why}")
        service = await self._replace(state)
        assert service is not None
        serving = asyncio.create_task(getattr(service, name)(request, context))
        ending = asyncio.create_task(self._closed.wait())
        self._serving.add(serving)
        try:
            await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            serving.cancel()
            self._serving.discard(serving)
        if not serving.done():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this standby takes over")
        response = serving.result()
        age_s = fresh.age_s + time.monotonic() - began_s
        age = ((STALE_AGE_MS, f"{1_000 * age_s:.0f}"), (STALE_SEQUENCE, str(fresh.sequence)))
        context.set_trailing_metadata((*age, (STALE_LEADER, self._leader())))
        return response

    async def _replace(self, state: FollowedState | None) -> ReadService | None:
        """The service of a state; the one of an earlier state ends."""
        if state is not self._state:
            before, self._state = self._service, state
            self._service = ReadService(state) if state is not None else None
            if before is not None:
                await before.close()
        return self._service


class _Refusing(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Refuses all methods but those of the health service as unavailable, so that callers try the next address."""

    def __init__(self, leader: Callable[[], str]) -> None:
        self._leader = leader

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """One handler for methods of all kinds: it answers before it reads."""
        method = str(handler_call_details.method)
        if method.startswith("/grpc.health."):
            return None
        hint = HINT if method.rpartition("/")[2] in READS else ""

        async def refuse(_: Any, context: Context) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, refusal(self._leader()) + hint)

        return grpc.stream_stream_rpc_method_handler(refuse)


class _ForReads(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Another interceptor, for calls that may be answered; the others are refused without a check."""

    def __init__(self, interceptor: grpc.aio.ServerInterceptor[Any, Any]) -> None:
        self._interceptor = interceptor

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler of the call."""
        if not _is_stale_ok(handler_call_details):
            return await continuation(handler_call_details)
        checked: Handler = await self._interceptor.intercept_service(continuation, handler_call_details)
        return checked


def refusal(leader: str) -> str:
    """Why a standby does not answer."""
    return f"{STANDS_BY}{leader or 'no scheduler'} leads"


def _is_stale_ok(details: grpc.HandlerCallDetails) -> bool:
    return any(key == STALE_OK for key, _ in details.invocation_metadata or ())

"""The gRPC server of a scheduler that stands by: it refuses all calls, with the address of the leader.

Clients and agents with several addresses try the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]  # the stubs lack it

from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.rpc.server import AGENT_CALLS_MAX, HANDSHAKE_MS, SERVICES, opened
from gavelpy.runtime.security.exposure import server_credentials


class StandbyServer:
    """Refuses all calls, with the address of the leader, from `start` to `stop`; the health service answers."""

    def __init__(self, config: Config, leader: Callable[[], str]) -> None:
        self._listens = [listen for listen in (config.scheduler.listen, config.scheduler.agents_listen) if listen]
        self._credentials = server_credentials(config.security)
        self._server = grpc.aio.server(
            handlers=[_Refusing(leader)],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_connection_idle_ms", round(1_000 * config.limits.connection_idle_s)),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ],
            maximum_concurrent_rpcs=AGENT_CALLS_MAX,
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
        await self._server.stop(None)


class _Refusing(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Refuses all methods but those of the health service as unavailable, so that callers try the next address."""

    def __init__(self, leader: Callable[[], str]) -> None:
        self._leader = leader

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """One handler for methods of all kinds: it answers before it reads."""
        if str(handler_call_details.method).startswith("/grpc.health."):
            return None

        async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            leader = self._leader()
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"a standby; {leader or 'no scheduler'} leads")

        return grpc.stream_stream_rpc_method_handler(refuse)

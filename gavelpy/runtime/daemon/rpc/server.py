"""The gRPC server: services, authentication, and limits on messages, calls and connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]  # the stubs lack it

from gavelpy.runtime.daemon.capacity import shortages
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.config_sections import LimitSettings
from gavelpy.runtime.daemon.listening import close, opened_sockets, refused
from gavelpy.runtime.daemon.rpc.agent_service import AgentService
from gavelpy.runtime.daemon.rpc.client_service import SchedulerService
from gavelpy.runtime.daemon.scheduler import Scheduler
from gavelpy.runtime.security.budgets import Budget, Budgets
from gavelpy.runtime.security.exposure import server_credentials
from gavelpy.runtime.security.identity import missing_tokens, verifier_of
from gavelpy.runtime.security.interceptor import Door
from gavelpy.runtime.security.well_formed import WellFormed
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc, client_pb2, client_pb2_grpc

logger = logging.getLogger(__name__)
SENT_BYTES_MAX = 256 << 20  # large, because this server makes the messages
STREAMS_A_CONNECTION = 4  # multiple of one user's limits, so that excess calls are refused instead of queued
AGENT_CALLS_MAX = 20_000  # concurrent, reserved for agents, which have two each
HANDSHAKE_MS = 10_000  # timeout of a connection's handshake
STOP_GRACE_S = 2.0
SERVICES = (
    client_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name,
    agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name,
)


class Server:
    """Listens from `start` to `stop`; agents have a port of their own if one is configured."""

    def __init__(self, scheduler: Scheduler) -> None:
        config = scheduler.config
        self._listen, self._agents_listen = config.scheduler.listen, config.scheduler.agents_listen
        self._credentials = server_credentials(config.security)
        for note in shortages(config.limits):
            logger.warning(note)
        if missing := missing_tokens(config.security.tokens_path):
            logger.warning(missing)
        verifier, budgets = verifier_of(config.security.tokens_path), Budgets(budget_of(config.limits))
        self._server = made(config, [Door(verifier), budgets, WellFormed()], AGENT_CALLS_MAX + config.limits.calls_max)
        self._agents = self._server
        if self._agents_listen:
            self._agents = made(config, [Door(verifier), budgets, WellFormed()], AGENT_CALLS_MAX)
            elsewhere = AgentsElsewhere(self._agents_listen)
            agent_pb2_grpc.add_AgentServiceServicer_to_server(elsewhere, self._server)
        self._health = health_aio.HealthServicer()
        self._clients = SchedulerService(scheduler)
        client_pb2_grpc.add_SchedulerServiceServicer_to_server(self._clients, self._server)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(AgentService(scheduler), self._agents)
        for server in self._servers:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if config.scheduler.reflection:
            from grpc_reflection.v1alpha import reflection

            reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME), self._server)

    @property
    def _servers(self) -> list[grpc.aio.Server]:
        return [self._server] if self._agents is self._server else [self._server, self._agents]

    async def start(self) -> int:
        """Opens the ports and returns the number of the clients' (0 for a path); raises InvalidInput if that fails."""
        port = opened(self._server, self._listen, self._credentials)
        if self._agents_listen:
            opened(self._agents, self._agents_listen, self._credentials, "agents_listen")
        for server in self._servers:
            await server.start()
        self._clients.start()
        return port

    async def set_health(self, *, is_serving: bool) -> None:
        """Sets the status of the gRPC health service."""
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *SERVICES):
            await self._health.set(service, status)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Refuses new calls; pending ones have `grace_s` to complete."""
        await self.set_health(is_serving=False)
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        await self._clients.close()


class AgentsElsewhere(agent_pb2_grpc.AgentServiceServicer):
    """Refuses agents at the port of the clients, with the address of their own."""

    def __init__(self, listen: str) -> None:
        self._listen = listen

    async def _refuse(self, _: AsyncIterator[object], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        text = f"agents connect to agents_listen of the scheduler, which is {self._listen!r}, not to this port"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    Connect = ServeLogs = ServeTunnel = _refuse  # type: ignore[assignment]  # gRPC's kind of method


def made(
    config: Config,
    interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]],
    calls_max: int,
    handlers: Sequence[grpc.GenericRpcHandler[Any, Any]] = (),
) -> grpc.aio.Server:
    """A server with the limits of the configuration."""
    limits = config.limits
    keepalive_ms = round(1_000 * limits.keepalive_s)
    return grpc.aio.server(
        handlers=handlers,
        interceptors=interceptors,
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", limits.message_bytes_max),
            ("grpc.max_send_message_length", SENT_BYTES_MAX),
            ("grpc.max_concurrent_streams", _streams_a_connection(limits)),
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", keepalive_ms),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_connection_idle_ms", round(1_000 * limits.connection_idle_s)),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ],
        maximum_concurrent_rpcs=calls_max,
    )


def opened(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None, field: str = "listen"
) -> int:
    """Opens an address; returns its port, 0 for a path. Raises InvalidInput if that fails."""
    try:
        port = server.add_insecure_port(listen) if credentials is None else server.add_secure_port(listen, credentials)
    except RuntimeError as error:  # it does not have the reason
        if not listen.startswith("unix"):
            close(opened_sockets(field, listen))
        raise refused(field, listen, str(error)) from None
    return 0 if listen.startswith("unix") else port


def _streams_a_connection(limits: LimitSettings) -> int:
    return STREAMS_A_CONNECTION * (limits.calls_a_user_max + limits.streams_a_user_max)


def budget_of(limits: LimitSettings) -> Budget:
    """The limits of calls and streams that are configured."""
    return Budget(
        calls_a_user=limits.calls_a_user_max,
        streams_a_user=limits.streams_a_user_max,
        calls_an_address=limits.calls_an_address_max,
        streams_an_address=limits.streams_an_address_max,
        calls=limits.calls_max,
        connections_a_user=limits.connections_a_user_max,
        connections_an_address=limits.connections_an_address_max,
        requests_a_user_per_s=limits.requests_a_user_per_s,
        requests_an_address_per_s=limits.requests_an_address_per_s,
    )

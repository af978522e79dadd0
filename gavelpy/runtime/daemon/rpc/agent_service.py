"""The gRPC service for agents: one stream per node, with independent reader and writer; neither waits for the journal.

Messages that arrive twice or out of order are dropped by their sequence number. Orders are sent when they change, and
repeated periodically in case a message was lost. `CommandExecutor.look` ends streams that neither send nor receive.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.daemon.nodes.registry import Hello, Node, Stream
from gavelpy.runtime.daemon.rpc import agent_messages
from gavelpy.runtime.security.identity import Refusal, caller
from gavelpy.runtime.security.tokens import NODE_ID
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

logger = logging.getLogger(__name__)
WRITE_TIMEOUT_S = 10.0
FIRST_MESSAGE_TIMEOUT_S = 10.0
Message = TypeVar("Message", agent_pb2.ConnectRequest, agent_pb2.ServeLogsRequest, agent_pb2.ServeTunnelRequest)
Context = grpc.aio.ServicerContext[agent_pb2.ConnectRequest, agent_pb2.ConnectResponse]
TunnelContext = grpc.aio.ServicerContext[agent_pb2.ServeTunnelRequest, agent_pb2.ServeTunnelResponse]
LogContext = grpc.aio.ServicerContext[agent_pb2.ServeLogsRequest, agent_pb2.ServeLogsResponse]


class AgentService(agent_pb2_grpc.AgentServiceServicer):
    """Serves all nodes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._execution = scheduler.execution

    async def Connect(  # type: ignore[override]  # noqa: N802 - gRPC's names and kind of method
        self, requests: AsyncIterator[agent_pb2.ConnectRequest], context: Context
    ) -> None:
        """Serves the stream of a node."""
        with _in_time():
            await self._connect(aiter(requests), context)

    async def _connect(self, messages: AsyncIterator[agent_pb2.ConnectRequest], context: Context) -> None:
        first = await _next(messages, FIRST_MESSAGE_TIMEOUT_S)
        if first is None or not first.HasField("node"):
            raise RemoteViolation("node must be in the first message, got none")
        hello = agent_messages.hello_of(first.node)
        caller().check_node(hello.node_id)
        if first.node.cluster_id not in ("", self._scheduler.cluster_id):
            await self._send_away(first.node, context)
            return
        agent_messages.reports_of(first)  # before anything changes
        agent_messages.trouble_of(first)
        agent_messages.reported_directory_of(first)
        agent_messages.reported_peers_of(first)
        self._check_identity(hello)
        known = self._execution.nodes.get(hello.node_id)
        if known is not None and known.is_past(hello, agent_messages.clock_of(first)):
            raise Refusal(grpc.StatusCode.ABORTED, f"node {known.node_id} has spoken since on a newer stream")
        stream = Stream()
        node = self._execution.nodes.connect(hello, stream)
        self._execution.quorum_views.connected(hello.node_id, hello.state_id)
        try:
            self._receive(node, stream, first, is_first=True)
            await _first_of(self._read(node, stream, messages), self._write(node, stream, context), stream.ended.wait())
        finally:
            self._execution.nodes.disconnect(node, stream)
            self._execution.look_soon()
            logger.info("node disconnected", extra={"node_id": node.node_id})
        if stream.is_late:
            raise TimeoutError
        if stream.ended.is_set():
            raise Refusal(grpc.StatusCode.ABORTED, f"node {node.node_id} has opened a newer stream")

    def _check_identity(self, hello: Hello) -> None:
        execution = self._execution
        held = len(execution.leases.on_node(hello.node_id))
        silent_after_s = execution.settings.silent_after_s
        objection = execution.nodes.objection(hello, self._scheduler.now_s(), silent_after_s, held)
        if objection:
            logger.warning("agent refused", extra={"node_id": hello.node_id, "detail": objection})
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, objection)

    async def _send_away(self, node: agent_pb2.Node, context: Context) -> None:
        """Sends only this cluster's id: the node drops the leases of its old cluster and connects again."""
        logger.warning("node of another cluster", extra={"node_id": node.node_id, "cluster_id": node.cluster_id[:80]})
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await context.write(self._message([], [], 1, 0.0))

    async def _read(self, node: Node, stream: Stream, messages: AsyncIterator[agent_pb2.ConnectRequest]) -> None:
        async for message in messages:
            self._receive(node, stream, message, is_first=False)

    def _receive(self, node: Node, stream: Stream, message: agent_pb2.ConnectRequest, *, is_first: bool) -> None:
        if message.sequence <= stream.sequence or node.stream is not stream:
            return
        clock_s, reports, trouble = (
            agent_messages.clock_of(message),
            agent_messages.reports_of(message),
            agent_messages.trouble_of(message),
        )
        reported_directory = agent_messages.reported_directory_of(message)
        peers, ended = agent_messages.reported_peers_of(message), agent_messages.ended_neighbors_of(message)
        gpu_sharing = agent_messages.gpu_sharing_of(message)
        stream.sequence = message.sequence
        now_s = self._scheduler.now_s()
        node.clock_s, node.received_at_s, node.is_draining = clock_s, now_s, message.draining
        node.unreached, node.gpu_sharing = message.view_unreached, gpu_sharing
        self._execution.quorum_views.acknowledged(node.node_id, message.obeyed, message.view_epoch)
        if trouble != node.trouble:
            logger.warning("trouble on a node", extra={"node_id": node.node_id, "detail": trouble or "over"})
            node.trouble = trouble
        node.reported_directory = reported_directory
        if node.hello.probe_port:
            self._execution.nodes.peer_reports.reported(node.node_id, peers, now_s)
        if ended != node.ended_neighbors:
            self._execution.nodes.hosts.saw_ends(node, ended)
            self._execution.look_soon()
        if is_first:
            self._execution.connected(node)
        self._execution.reported(node, reports, now_s, is_first=is_first)

    async def _write(self, node: Node, stream: Stream, context: Context) -> None:
        sequence = 0
        while True:
            stream.wake.clear()
            if node.is_ready and node.stream is stream:
                sequence += 1
                message = self._orders(node, sequence)
                stream.sent_s = stream.writing_s = self._scheduler.now_s()
                await context.write(message)
                stream.writing_s = math.inf
            await stream.wake.wait()

    def _orders(self, node: Node, sequence: int) -> agent_pb2.ConnectResponse:
        settings, leases = self._execution.settings, self._execution.leases
        specs, finish_grace_s = self._scheduler.core.jobs.by_serial.specs, self._scheduler.core.settings.finish_grace_s
        messages = []
        for order in leases.orders(node.node_id):
            start = order.start
            meeting = self._execution.nodes.get(start.rendezvous_node) if start is not None else None
            address = meeting.hello.address if meeting is not None else ""
            messages.append(
                agent_messages.order_message(order, specs[order.job], node, address, settings, finish_grace_s)
            )
        quorum_views = self._execution.quorum_views
        view = quorum_views.sending(node.node_id, sequence, self._scheduler.now_s())
        carried = agent_messages.view_message(view, quorum_views.key) if view is not None else None
        neighbors = self._execution.neighbors(node)
        return self._message(messages, leases.forgotten(node.node_id), sequence, node.clock_s, carried, neighbors)

    def _message(
        self,
        leases: Sequence[agent_pb2.LeaseOrder],
        forget: Sequence[int],
        sequence: int,
        clock_s: float,
        view: agent_pb2.View | None = None,
        neighbors: Sequence[tuple[int, int]] = (),
    ) -> agent_pb2.ConnectResponse:
        return agent_messages.orders_message(
            leases,
            forget,
            sequence=sequence,
            incarnation=self._scheduler.incarnation,
            clock_s=clock_s,
            heartbeat_interval_s=self._execution.heartbeat_interval_s,
            cluster_id=self._scheduler.cluster_id,
            view=view,
            neighbors=neighbors,
        )

    async def ServeLogs(  # type: ignore[override]  # noqa: N802 - gRPC's names and kind of method
        self, requests: AsyncIterator[agent_pb2.ServeLogsRequest], context: LogContext
    ) -> None:
        """Serves the stream of a node for log requests."""
        messages = aiter(requests)
        with _in_time():
            first = await _next(messages, FIRST_MESSAGE_TIMEOUT_S)
            if first is None or not NODE_ID.fullmatch(first.node_id):
                raise RemoteViolation("node_id must be in the first message, got none")
            caller().check_node(first.node_id)
            if self._execution.nodes.has_other_agent(first.node_id, first.state_id, first.identity_key):
                raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, f"node {first.node_id} belongs to another agent")
            async for question in self._scheduler.logs.serve(first.node_id, messages):
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await context.write(question)

    async def ServeTunnel(  # type: ignore[override]  # noqa: N802 - gRPC's names and kind of method
        self, requests: AsyncIterator[agent_pb2.ServeTunnelRequest], context: TunnelContext
    ) -> None:
        """Joins the stream of a node to the client that waits for it."""
        messages = aiter(requests)
        with _in_time():
            first = await _next(messages, FIRST_MESSAGE_TIMEOUT_S)
        if first is None or not NODE_ID.fullmatch(first.node_id):
            raise RemoteViolation("node_id must be in the first message, got none")
        caller().check_node(first.node_id)
        if self._execution.nodes.has_other_agent(first.node_id, first.state_id, first.identity_key):
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, f"node {first.node_id} belongs to another agent")
        async for message in self._scheduler.tunnels.serve_agent(first, messages):
            await context.write(message)


@contextmanager
def _in_time() -> Iterator[None]:
    """Refuses a stream that runs into a timeout. The interceptors turn other errors into statuses."""
    try:
        yield
    except TimeoutError:
        raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "the node sent or received no message in time") from None


async def _next(messages: AsyncIterator[Message], timeout_s: float) -> Message | None:
    """The next message; None at the end of the stream. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        return await anext(messages, None)


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Waits for the first to complete, cancels the others, and raises its exception."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()

"""A scheduler for tests: serves the agent protocol on a real socket and sends the orders of a test."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import grpc

from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.wire import agent_pb2 as pb
from gavelpy.runtime.wire import agent_pb2_grpc as rpc

PATIENCE_S = 60.0  # on a busy machine; every wait returns as soon as it can
HEARTBEAT_S = 0.1
Value = TypeVar("Value")


def until(look: Callable[[], Value | None], patience_s: float = PATIENCE_S) -> Value:
    """Waits until `look` returns a true value and returns it; fails after the time limit."""
    deadline_s = time.monotonic() + patience_s
    while not (value := look()):
        assert time.monotonic() < deadline_s, f"waited {patience_s} s in vain"
        time.sleep(0.01)
    return value


class Peer(rpc.AgentServiceServicer):
    """Sends `orders` and `forget` in reply to each message and after each change."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.cluster_id = "c1"
        self.orders: dict[int, pb.LeaseOrder] = {}
        self.forget: list[int] = []
        self.heard: list[pb.ConnectRequest] = []
        self.nodes: list[pb.Node] = []
        self.answers: list[pb.ServeLogsRequest] = []
        self.metadata: list[dict[str, str]] = []
        self._outboxes: list[queue.Queue[pb.ConnectResponse | None]] = []
        self._questions: list[queue.Queue[pb.ServeLogsResponse | None]] = []
        self._sequence = 0
        self.is_mute = False

    # Called by tests.

    def order(self, order: pb.LeaseOrder) -> None:
        """Adds an order."""
        self.orders[order.lease] = order
        self.push()

    def drop(self, lease: int) -> None:
        """Removes an order."""
        del self.orders[lease]
        self.push()

    def wish(self, lease: int, wish: pb.LeaseWish.ValueType) -> None:
        """Changes the requested state of an order."""
        self.orders[lease].wish = wish
        self.push()

    def push(self) -> None:
        """Sends the current orders to the agent."""
        self.say(self.response())

    def say(self, message: pb.ConnectResponse) -> None:
        """Sends this message."""
        for outbox in self._outboxes[-1:]:
            outbox.put(message)

    def hang_up(self) -> None:
        """Ends the streams."""
        for outbox in self._outboxes:
            outbox.put(None)

    def response(self) -> pb.ConnectResponse:
        """The requested state, as the next message."""
        self._sequence += 1
        return pb.ConnectResponse(
            sequence=self._sequence,
            incarnation=self.incarnation,
            cluster_id=self.cluster_id,
            heartbeat_interval_s=HEARTBEAT_S,
            api_version=1,
            leases=self.orders.values(),
            forget=self.forget,
        )

    def report(self, lease: int) -> pb.LeaseReport | None:
        """The report about a lease in the newest message."""
        newest = self.heard[-1].leases if self.heard else ()
        return next((report for report in newest if report.lease == lease), None)

    def until_phase(self, lease: int, phase: pb.LeasePhase.ValueType) -> pb.LeaseReport:
        """The report about a lease, as soon as it is in this phase."""

        def look() -> pb.LeaseReport | None:
            report = self.report(lease)
            return report if report is not None and report.phase == phase else None

        return until(look)

    def until_running_on_the_edge(self, lease: int, seconds: float) -> pb.LeaseReport:
        """Waits until a lease runs; until then its end stays this far in the future, and does not change afterwards."""

        def look() -> pb.LeaseReport | None:
            report = self.report(lease)
            if report is not None and report.phase == pb.LEASE_PHASE_RUNNING:
                return report
            self.orders[lease].until_clock_s = clock_s() + seconds
            return None

        return until(look)

    def until_heard_anew(self, times: int = 2) -> pb.ConnectRequest:
        """The newest message, after this many more have arrived."""
        before = len(self.heard)
        return until(lambda: self.heard[-1] if len(self.heard) >= before + times else None)

    def ask(self, **question: object) -> list[pb.ServeLogsRequest]:
        """The messages that answer a query about logs."""
        number = len(self.answers) + 1_000
        channel = until(lambda: self._questions[-1] if self._questions else None)
        channel.put(pb.ServeLogsResponse(question=number, **question))  # type: ignore[arg-type]  # fields of any type

        def look() -> list[pb.ServeLogsRequest] | None:
            found = [answer for answer in self.answers if answer.question == number]
            return found if found and found[-1].last else None

        return until(look)

    # Called by the agent.

    def Connect(  # noqa: N802 the protocol's name
        self, request_iterator: Iterator[pb.ConnectRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ConnectResponse]:
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
        outbox: queue.Queue[pb.ConnectResponse | None] = queue.Queue()
        self._outboxes.append(outbox)

        def hear() -> None:
            try:
                for request in request_iterator:
                    if request.HasField("node"):
                        self.nodes.append(request.node)
                        if request.node.cluster_id not in ("", self.cluster_id):
                            outbox.put(pb.ConnectResponse(cluster_id=self.cluster_id))
                            break
                    self.heard.append(request)
                    if not self.is_mute:
                        outbox.put(self.response())
            except grpc.RpcError:
                pass
            outbox.put(None)

        threading.Thread(target=hear, daemon=True).start()
        yield from iter(outbox.get, None)

    def ServeLogs(  # noqa: N802 the protocol's name
        self, request_iterator: Iterator[pb.ServeLogsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ServeLogsResponse]:
        questions: queue.Queue[pb.ServeLogsResponse | None] = queue.Queue()

        def hear() -> None:
            try:
                for answer in request_iterator:
                    self.answers.append(answer)
            except grpc.RpcError:
                pass
            questions.put(None)

        threading.Thread(target=hear, daemon=True).start()
        self._questions.append(questions)
        yield from iter(questions.get, None)


@contextmanager
def serving(peer: Peer, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    """Serves a peer on loopback while the context is open; yields the port."""
    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
    rpc.add_AgentServiceServicer_to_server(peer, server)
    address = f"127.0.0.1:{port}"
    taken = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield taken
    finally:
        peer.hang_up()
        server.stop(0).wait()


def order(
    lease: int,
    command: str,
    *,
    job: int = 0,
    gpus: tuple[int, ...] = (0,),
    seconds: float = 60.0,
    grace_s: float = 5.0,
    wish: pb.LeaseWish.ValueType = pb.LEASE_WISH_RUN,
    **launch: object,
) -> pb.LeaseOrder:
    """An order for a lease that ends this many seconds from now."""
    values: dict[str, object] = {
        "command": command,
        "working_directory": "/",
        "gpus": gpus,
        "gpu_type": "v100",
        "node_count": 1,
        "world_size": len(gpus),
        "resume_lease": -1,
        "grace_s": grace_s,
        "job_name": f"job-{job}",
        **launch,
    }
    return pb.LeaseOrder(
        lease=lease,
        job=job,
        until_clock_s=clock_s() + seconds,
        wish=wish,
        launch=pb.Launch(**values),  # type: ignore[arg-type]  # fields of any type
    )

"""Nodes whose answers to requests for log lines come from a function."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import grpc

from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc
from tests.runtime.client.serving import Serving, until

Reply = Callable[[agent_pb2.ServeLogsResponse], agent_pb2.ServeLogsRequest]


@contextmanager
def answering(scheduler: Serving, node_id: str, reply: Reply) -> Iterator[None]:
    """Connects a node while the context is open."""
    answers: queue.Queue[agent_pb2.ServeLogsRequest | None] = queue.Queue()
    answers.put(agent_pb2.ServeLogsRequest(node_id=node_id))
    with grpc.insecure_channel(scheduler.address) as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.ServeLogs(iter(answers.get, None), metadata=scheduler.metadata(node_id))

        def serve() -> None:
            with suppress(grpc.RpcError):  # cancelled at the end
                for request in call:
                    answers.put(reply(request))

        thread = threading.Thread(target=serve)
        thread.start()
        until(lambda: node_id in scheduler.service.scheduler.logs.node_ids, "the node is connected")
        yield
        answers.put(None)
        call.cancel()
        thread.join()
        until(lambda: node_id not in scheduler.service.scheduler.logs.node_ids, "the node is disconnected")

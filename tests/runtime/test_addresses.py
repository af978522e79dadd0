"""Addresses of several schedulers, and channels that take them in turn."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from gavelpy.errors import InvalidInput, SchedulerUnreachable
from gavelpy.runtime.addresses import Turns, addresses_of, are_loopback
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.local_cluster import free_port
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import client_pb2_grpc


@pytest.mark.parametrize("text", ["h:1", "a.example:7077,b.example:7077", "[::1]:7077, 127.0.0.1:7078", "unix:/run/g"])
def test_addresses_are_read(text: str) -> None:
    assert addresses_of(text) == tuple(part.strip() for part in text.split(","))


@pytest.mark.parametrize("text", ["", "h", "h:0", "h:70000", "a:1,", "a:1,a:1", ",".join(f"h{k}:1" for k in range(10))])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^scheduler must be "):
        addresses_of(text)


def test_all_addresses_must_be_on_this_host_to_be_called_loopback() -> None:
    assert are_loopback("127.0.0.1:1,[::1]:2")
    assert not are_loopback("127.0.0.1:1,10.0.0.1:2")


def test_turns_pause_once_all_addresses_have_failed() -> None:
    turns = Turns("a:1,b:1,c:1")

    assert [(turns.current, turns.failed()) for _ in range(4)] == [
        ("a:1", False), ("b:1", False), ("c:1", True), ("a:1", False)
    ]  # fmt: skip
    turns.answered()
    assert [turns.failed() for _ in range(3)] == [False, False, True]
    assert Turns("a:1").failed()


class _Leader(client_pb2_grpc.SchedulerServiceServicer):
    def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.GetServerInfoResponse:  # noqa: N802
        return pb.GetServerInfoResponse(api_version=1, cluster_name="found")


@contextmanager
def serving(*, leads: bool) -> Iterator[str]:
    """A server that answers, or that refuses as a standby does."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    if leads:
        client_pb2_grpc.add_SchedulerServiceServicer_to_server(_Leader(), server)
    else:

        class Standby(_Leader):
            def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
                context.abort(grpc.StatusCode.UNAVAILABLE, "a standby; h:1 leads")

        client_pb2_grpc.add_SchedulerServiceServicer_to_server(Standby(), server)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_a_client_goes_on_to_the_scheduler_that_leads() -> None:
    with serving(leads=False) as standby, serving(leads=True) as leader:
        gone = f"127.0.0.1:{free_port()}"
        with Client(ClientSettings(scheduler=f"{gone},{standby},{leader}", timeout_s=5.0)) as client:
            assert client.server_info().cluster_name == "found"
            assert client.server_info().cluster_name == "found"


def test_a_client_without_a_leader_says_so() -> None:
    with serving(leads=False) as standby:
        gone = f"127.0.0.1:{free_port()}"
        with (
            Client(ClientSettings(scheduler=f"{gone},{standby}", timeout_s=0.5)) as client,
            pytest.raises(SchedulerUnreachable, match=rf"at {gone},{standby} does not answer"),
        ):
            client.server_info()

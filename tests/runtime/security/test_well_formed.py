"""The status codes that clients receive when handlers fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from gavelpy.errors import FencedOut, JournalFailed, Stopping
from gavelpy.runtime.client.connection import is_transient
from gavelpy.runtime.security.well_formed import JOURNAL_GONE, WellFormed
from gavelpy.runtime.wire import client_pb2, client_pb2_grpc


class Broken(client_pb2_grpc.SchedulerServiceServicer):
    """A service with a failed journal."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    async def SubmitJobs(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        raise self.failure

    async def ListEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's name
        yield client_pb2.ListEventsResponse(sequence=1)
        raise self.failure


async def codes(failure: Exception) -> list[tuple[grpc.StatusCode, str | None]]:
    """The statuses of a call and of a stream."""
    server = grpc.aio.server(interceptors=[WellFormed()])
    client_pb2_grpc.add_SchedulerServiceServicer_to_server(Broken(failure), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = client_pb2_grpc.SchedulerServiceStub(channel)
        call, stream = stub.SubmitJobs(client_pb2.SubmitJobsRequest()), stub.ListEvents(client_pb2.ListEventsRequest())
        with suppress(grpc.RpcError):
            await call
        with suppress(grpc.RpcError):
            assert [message.sequence async for message in stream] == [1]
        found = [(await call.code(), await call.details()), (await stream.code(), await stream.details())]
    await server.stop(0)
    return found


@pytest.mark.parametrize("failure", [JournalFailed("journal postgresql://secret: gone"), FencedOut("by a newer one")])
def test_a_journal_that_fails_is_answered_as_something_to_ask_again(failure: Exception) -> None:
    found = asyncio.run(codes(failure))

    assert found == [(grpc.StatusCode.UNAVAILABLE, JOURNAL_GONE)] * 2
    assert is_transient(found[0][0])


def test_a_scheduler_that_stops_is_something_to_ask_again() -> None:
    found = asyncio.run(codes(Stopping("the scheduler is stopping")))

    assert found == [(grpc.StatusCode.UNAVAILABLE, "the scheduler is stopping")] * 2

"""A client during outages: calls are retried, and a repeated submission creates no second job."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gavelpy.errors import CallFailed, SchedulerUnreachable
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.local_cluster import reserved_port
from gavelpy.runtime.security.exposure import PUSHBACK
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import client_pb2_grpc
from tests.runtime.client.serving import make_description, serving, until
from tests.runtime.slow_link import slow_link

IN_TIME_S = 9.0  # on a busy machine; the default timeout is ten seconds
SILENT_S = 30.0
CALLS: dict[str, Callable[[Client], object]] = {
    "quick": lambda client: client.jobs(),
    "forecast": lambda client: client.job("train"),
    "wait": lambda client: client.wait(["train"], wait_s=60.0),
}


@pytest.fixture
def listen() -> Iterator[str]:
    """An address without a listener."""
    with reserved_port() as port:
        yield f"127.0.0.1:{port}"


@contextmanager
def refusing_once(silent_s: float = SILENT_S) -> Iterator[str]:
    """A scheduler at its limit for one call, with a wait of 0.3 s; it answers later calls after `silent_s`."""
    calls, over = [0], threading.Event()

    class Refusing(client_pb2_grpc.SchedulerServiceServicer):
        def GetServerInfo(self, *_: object) -> pb.GetServerInfoResponse:  # noqa: N802  # of the protocol
            return pb.GetServerInfoResponse(api_version=1)

        def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:  # noqa: N802
            calls[0] += 1
            if calls[0] == 1:
                context.set_trailing_metadata(((PUSHBACK, "300"),))
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "limits.calls_max is 3")
            over.wait(silent_s)
            return pb.ListJobsResponse(next_after=-1)

    server = grpc.server(ThreadPoolExecutor(4))
    client_pb2_grpc.add_SchedulerServiceServicer_to_server(Refusing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        over.set()
        server.stop(None).wait()


@pytest.mark.parametrize("call", CALLS)
def test_scheduler_that_is_not_there_is_given_up_in_time(call: str, listen: str) -> None:
    began_s = time.monotonic()

    client = Client(ClientSettings(scheduler=listen, timeout_s=0.5))
    with client, pytest.raises(SchedulerUnreachable, match="does not answer"):
        CALLS[call](client)

    assert time.monotonic() - began_s < IN_TIME_S


def test_scheduler_that_accepts_a_call_without_answering_times_out() -> None:
    began_s = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings = ClientSettings(scheduler=f"127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.5)
        with Client(settings) as client, pytest.raises(SchedulerUnreachable, match="does not answer"):
            client.jobs()

    assert time.monotonic() - began_s < IN_TIME_S


def test_limit_that_persists_is_the_error_although_the_last_attempt_is_cut_short() -> None:
    with (
        refusing_once() as address,
        Client(ClientSettings(scheduler=address, timeout_s=1.0)) as client,
        pytest.raises(CallFailed, match=r"RESOURCE_EXHAUSTED: limits\.calls_max is 3"),
    ):
        client.jobs()


def test_client_that_waits_through_outages_gives_an_attempt_after_a_refusal_its_full_time() -> None:
    noted: list[str] = []
    with refusing_once(silent_s=0.8) as address, Client(ClientSettings(scheduler=address, timeout_s=1.0)) as client:
        client.wait_through_outages(noted.append)

        found = client.jobs()

    assert found == noted == []


def test_scheduler_at_the_end_of_a_slow_link_is_reached(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as scheduler,
        slow_link(scheduler.address, 1.2) as relay,
        Client(ClientSettings(scheduler=relay, timeout_s=60.0)) as client,
    ):
        assert client.jobs() == []


def test_call_that_comes_too_early_is_answered_when_the_scheduler_is_up(listen: str, tmp_path: Path) -> None:
    answers: list[str] = []

    def ask() -> None:
        with Client(ClientSettings(scheduler=listen, timeout_s=60.0)) as client:
            answers.append(client.submit([make_description("early")]).jobs[0].name)

    asking = threading.Thread(target=ask)
    asking.start()
    with serving(tmp_path, scheduler={"listen": listen}):
        until(lambda: bool(answers), "the call is answered")
        asking.join()

    assert answers == ["early"]


def test_restarted_scheduler_knows_its_jobs_and_the_keys_they_came_with(listen: str, tmp_path: Path) -> None:
    with Client(ClientSettings(scheduler=listen, timeout_s=60.0)) as client:
        with serving(tmp_path, scheduler={"listen": listen}):
            first = client.submit([make_description("kept"), make_description()], key="k")
        with serving(tmp_path, scheduler={"listen": listen}):
            again = client.submit([make_description("kept"), make_description()], key="k")
            later = client.submit([make_description("new")])
            known = {job.job: job.name for job in client.jobs()}

    assert again.repeated_submission
    assert [job.job for job in again.jobs] == [job.job for job in first.jobs] == [0, 1]
    assert known == {0: "kept", 1: "job-1", 2: "new"}
    assert later.jobs[0].job == 2


def test_events_that_are_followed_go_on_after_a_restart_without_a_gap(listen: str, tmp_path: Path) -> None:
    with Client(ClientSettings(scheduler=listen, timeout_s=60.0)) as client:
        with serving(tmp_path, scheduler={"listen": listen}):
            followed = client.events(follow=True)
            told = [next(followed)]
            client.submit([make_description("before")])
        with serving(tmp_path, scheduler={"listen": listen}):
            client.submit([make_description("after")])
            while "(after)" not in told[-1].text:
                told.append(next(followed))
            followed.close()

    sequences = [event.sequence for event in told]
    assert sequences == list(range(1, len(told) + 1))
    assert any("(before)" in event.text for event in told)

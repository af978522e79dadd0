"""Commands that wait or follow continue through an outage of the scheduler, and report it once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import typer

from gavelpy.cli.output import TIMED_OUT
from gavelpy.cli.top import answered
from gavelpy.cli.top_view import Frame
from gavelpy.cli.wait import wait_for
from gavelpy.errors import SchedulerUnreachable
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.local_cluster import reserved_port
from gavelpy.runtime.wire import client_pb2
from tests.cli.commands import Gavel
from tests.runtime.client.serving import make_description, serving, until

SHORT_S = 0.3


@pytest.fixture
def listen() -> Iterator[str]:
    """An address without a listener."""
    with reserved_port() as port:
        yield f"127.0.0.1:{port}"


def test_call_outlasts_the_timeout_and_reports_the_outage_once(listen: str, tmp_path: Path) -> None:
    said: list[str] = []
    names: list[str] = []
    with Client(ClientSettings(scheduler=listen, timeout_s=20.0)) as client:
        with serving(tmp_path, scheduler={"listen": listen}):
            client.submit([make_description("train")])
            client.wait_through_outages(said.append)
        client.settings = ClientSettings(scheduler=listen, timeout_s=SHORT_S)
        asking = threading.Thread(target=lambda: names.extend(job.name for job in client.jobs()))
        asking.start()
        time.sleep(4 * SHORT_S)
        with serving(tmp_path, scheduler={"listen": listen}):
            until(lambda: bool(names), "the call is answered")
            asking.join()

    assert names == ["train"]
    assert [text.partition(" at ")[0] for text in said[:1]] == ["the scheduler"]
    assert said[0].endswith("waiting for it")
    assert said[1:] == ["the scheduler answers again"]


def test_wait_that_times_out_during_an_outage_exits_with_124(listen: str, tmp_path: Path) -> None:
    with Client(ClientSettings(scheduler=listen, timeout_s=20.0)) as client:
        with serving(tmp_path, scheduler={"listen": listen}):
            client.submit([make_description("train")])
            client.wait_through_outages(lambda _: None)
        with pytest.raises(typer.Exit) as left:
            wait_for(client, ["train"], 2 * SHORT_S)

    assert left.value.exit_code == TIMED_OUT


def test_a_wrong_address_is_no_outage(listen: str) -> None:
    with Client(ClientSettings(scheduler=listen, timeout_s=SHORT_S)) as client, pytest.raises(SchedulerUnreachable):
        client.wait_through_outages(lambda _: None)


def test_with_a_timeout_a_wait_gives_up(gavel: Gavel, listen: str) -> None:
    answer = gavel("wait", "train", "--scheduler", listen, "--timeout", str(SHORT_S))

    assert answer.code != 0
    assert "does not answer" in answer.err


def answer_of(error: Exception) -> Future[Frame]:
    failed: Future[Frame] = Future()
    failed.set_exception(error)
    return failed


def test_top_shows_the_last_frame_while_the_scheduler_is_away() -> None:
    last = Frame(client_pb2.GetClusterResponse(cluster_name="main"), (), ())

    away = answered(answer_of(SchedulerUnreachable("the scheduler does not answer")), last, outlasts=True)

    assert away.cluster is last.cluster
    assert away.notice == "the scheduler does not answer; waiting for it. Last known state:"


def test_top_with_a_timeout_ends_when_the_scheduler_is_away() -> None:
    last = Frame(client_pb2.GetClusterResponse(), (), ())

    with pytest.raises(SchedulerUnreachable):
        answered(answer_of(SchedulerUnreachable("the scheduler does not answer")), last, outlasts=False)

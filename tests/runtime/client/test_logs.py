"""Lines of jobs, gathered over nodes that answer as tests want them to."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import grpc
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.security.tokens import Role
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.client.serving import Serving, make_description, serving, until

USERS = {"alice": Role.USER, "bob": Role.USER, "root": Role.ADMIN, "n0": Role.NODE, "n1": Role.NODE}
Line = tuple[int, float, str]  # job, time, text


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """With job 0 of alice, job 1 of bob, and two nodes."""
    with serving(tmp_path_factory.mktemp("logs"), users=USERS) as served, ExitStack() as stack:
        for user in ("alice", "bob"):
            with served.client(user) as client:
                client.submit([make_description("train")])
        for node in ("n0", "n1"):
            stack.callback(served.join_node(node, name=node))
        yield served


@contextmanager
def node_with(scheduler: Serving, node_id: str, lines: Sequence[Line], *, page: int = 2) -> Iterator[None]:
    """A node that holds these lines and gives a few at a time."""
    answers: queue.Queue[agent_pb2.ServeLogsRequest | None] = queue.Queue()
    answers.put(agent_pb2.ServeLogsRequest(node_id=node_id))
    with grpc.insecure_channel(scheduler.address) as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.ServeLogs(iter(answers.get, None), metadata=scheduler.metadata(node_id))

        def serve() -> None:
            with suppress(grpc.RpcError):  # called off at the end
                for question in call:
                    answers.put(answer(question, lines[question.offset : question.offset + page]))

        def answer(question: agent_pb2.ServeLogsResponse, found: Sequence[Line]) -> agent_pb2.ServeLogsRequest:
            told = [agent_pb2.LogLine(job=job, time_s=time_s, text=text) for job, time_s, text in found]
            return agent_pb2.ServeLogsRequest(
                question=question.question, lines=told, next_offset=question.offset + len(found), last=True
            )

        thread = threading.Thread(target=serve)
        thread.start()
        until(lambda: node_id in scheduler.service.scheduler.logs.node_ids, "the node can be asked")
        yield
        answers.put(None)
        call.cancel()
        thread.join()
        until(lambda: node_id not in scheduler.service.scheduler.logs.node_ids, "the scheduler knows that it is away")


def read(scheduler: Serving, user: str, **request: object) -> tuple[list[str], list[str]]:
    """Texts of lines, and notices."""
    with scheduler.client(user) as client:
        found = list(client.logs(pb.ReadLogsRequest(**{"rank": -1, **request})))  # type: ignore[arg-type]
    return [text for message in found for text in message.batch.text], [one.notice for one in found if one.notice]


FIRST = [(0, 1.0, "a"), (1, 2.0, "bob's"), (0, 4.0, "d"), (0, 6.0, "f")]
SECOND = [(0, 3.0, "c"), (0, 5.0, "e"), (7, 5.5, "of no job")]


def test_lines_of_all_nodes_come_in_the_order_of_their_times(scheduler: Serving) -> None:
    with node_with(scheduler, "n0", FIRST), node_with(scheduler, "n1", SECOND):
        lines, notices = read(scheduler, "alice", job="train")

    assert lines == ["a", "c", "d", "e", "f"]
    assert notices == []


def test_lines_of_other_users_are_not_shown_whatever_a_node_sends(scheduler: Serving) -> None:
    with node_with(scheduler, "n0", FIRST), node_with(scheduler, "n1", SECOND):
        everything = [read(scheduler, user)[0] for user in ("alice", "bob", "root")]

    assert everything == [["a", "c", "d", "e", "f"], ["bob's"], ["a", "bob's", "c", "d", "e", "f"]]


def test_tail_is_the_last_lines_over_all_nodes(scheduler: Serving) -> None:
    with node_with(scheduler, "n0", FIRST), node_with(scheduler, "n1", SECOND):
        lines, _ = read(scheduler, "alice", job="0", tail_lines=2)

    assert lines == ["e", "f"]


def test_node_that_is_away_is_told_of(scheduler: Serving) -> None:
    with node_with(scheduler, "n0", FIRST):
        lines, notices = read(scheduler, "alice", job="train")

    assert lines == ["a", "d", "f"]
    assert notices == ["not connected: n1; lines written there are missing"]


@pytest.mark.parametrize(
    ("request_fields", "complaint"),
    [
        ({"pattern": "("}, "pattern must be a regular expression"),
        ({"pattern": "x" * 1_001}, "pattern must be at most 1000 characters"),
        ({"rank": -2}, r"rank must be in \[-1, 1000000\]"),
        ({"tail_lines": 100_001}, "tail_lines must be at most 100000"),
        ({"job": "1"}, "job must be the number or name of one of yours"),
    ],
)
def test_question_that_makes_no_sense_is_refused(
    scheduler: Serving, request_fields: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read(scheduler, "alice", **request_fields)

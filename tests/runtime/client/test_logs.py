"""Lines of jobs, gathered over nodes that answer as tests want them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.security.tokens import Role
from gavelpy.runtime.wire import agent_pb2, log_pb2
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.client.log_nodes import answering
from tests.runtime.client.serving import Serving, make_description, serving

USERS = {"alice": Role.USER, "bob": Role.USER, "root": Role.ADMIN, "n0": Role.NODE, "n1": Role.NODE}
Line = tuple[int, float, str]  # job, time, text
Question, Answer = agent_pb2.ServeLogsResponse, agent_pb2.ServeLogsRequest


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
    """A node that holds these lines, gives a few at a time, and knows no batches."""

    def answer(question: Question) -> Answer:
        found = lines[question.offset : question.offset + page]
        told = [agent_pb2.LogLine(job=job, time_s=time_s, text=text) for job, time_s, text in found]
        return Answer(question=question.question, lines=told, next_offset=question.offset + len(found), last=True)

    with answering(scheduler, node_id, answer):
        yield


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
        ({"pattern": "x" * 1_001}, "pattern must have at most 1000 characters"),
        ({"pattern": r"(a)\1"}, r"RE2 has no back-references"),
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


def growing(end: int, *, page: int = 100) -> Callable[[Question], Answer]:
    """How a node answers whose log has so many lines at first and grows faster than anybody reads it."""

    def answer(question: Question) -> Answer:
        first = question.offset or (end - question.tail_lines if question.tail_lines else 0)
        rows = range(first, first + page)
        batch = log_pb2.LogBatch(
            origins=[log_pb2.LogOrigin(job=0, lease=3, rank=1)],
            origin=[0] * page,
            time_s=[float(row) for row in rows],
            text=[f"line {row}" for row in rows],
            offset=[row + 1 for row in rows],
        )
        return Answer(question=question.question, batch=batch, next_offset=first + page, end_offset=end, last=True)

    return answer


@pytest.mark.parametrize(("tail_lines", "first"), [(0, 0), (2, 248)])
def test_who_does_not_follow_gets_what_was_there_though_the_log_grows_faster(
    scheduler: Serving, tail_lines: int, first: int
) -> None:
    with answering(scheduler, "n0", growing(250)):
        lines, _ = read(scheduler, "alice", job="train", tail_lines=tail_lines)

    assert lines == [f"line {row}" for row in range(first, 250)]


def test_many_lines_come_in_few_messages_that_say_where_they_are_from(scheduler: Serving) -> None:
    request = pb.ReadLogsRequest(job="train", rank=-1)
    with answering(scheduler, "n0", growing(20_000, page=1_000)), scheduler.client("alice") as client:
        messages = [message for message in client.logs(request) if not message.notice]

    origins = {(one.job, one.job_name, one.lease, one.rank, one.node_id) for m in messages for one in m.batch.origins}
    assert sum(len(message.batch.text) for message in messages) == 20_000
    assert len(messages) < 10
    assert origins == {(0, "train", 3, 1, "n0")}


def test_older_client_gets_a_line_a_message(scheduler: Serving) -> None:
    request = pb.ReadLogsRequest(job="train", rank=-1)
    with answering(scheduler, "n0", growing(250)), scheduler.client("alice") as client:
        found = list(client._stub.ReadLogs(request, metadata=scheduler.metadata("alice")))

    lines = [one for one in found if not one.notice]
    assert [line.text for line in lines] == [f"line {row}" for row in range(250)]
    assert (lines[7].job_name, lines[7].lease, lines[7].rank, lines[7].time_s) == ("train", 3, 1, 7.0)


def test_who_comes_again_with_positions_gets_what_follows_them(scheduler: Serving) -> None:
    with node_with(scheduler, "n1", SECOND), answering(scheduler, "n0", growing(250)):
        lines, _ = read(scheduler, "alice", job="train", after={"n0": 248, "n1": 1})

    assert lines == ["e", "line 248", "line 249"]


def test_positions_that_are_told_are_those_of_the_lines_so_far(scheduler: Serving) -> None:
    request = pb.ReadLogsRequest(job="train", rank=-1, tail_lines=30_000)
    with answering(scheduler, "n0", growing(40_000, page=1_000)), scheduler.client("alice") as client:
        messages = [message for message in client.logs(request) if message.HasField("batch")]

    ends = [message.positions["n0"] for message in messages]
    counts = [len(message.batch.text) for message in messages]
    assert len(counts) > 1
    assert ends == [10_000 + sum(counts[: row + 1]) for row in range(len(counts))]


@pytest.mark.parametrize(
    ("batch", "complaint"),
    [
        (log_pb2.LogBatch(text=["a"], origin=[0, 0]), "columns of a batch must be of one length"),
        (log_pb2.LogBatch(text=["a"], origin=[0], time_s=[0.0], offset=[1]), "origin must be below 0, got 0"),
    ],
)
def test_batch_that_is_not_whole_is_told_of_and_not_shown(
    scheduler: Serving, batch: log_pb2.LogBatch, complaint: str
) -> None:
    with answering(scheduler, "n0", lambda question: Answer(question=question.question, batch=batch, last=True)):
        lines, notices = read(scheduler, "alice", job="train")

    assert lines == []
    assert complaint in notices[-1]

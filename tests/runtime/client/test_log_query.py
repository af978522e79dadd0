"""Log lines of jobs over several nodes: order, permissions, tail, paging, resuming, and nodes that fail."""

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
Request, Answer = agent_pb2.ServeLogsResponse, agent_pb2.ServeLogsRequest


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A scheduler with job 0 of alice, job 1 of bob, and two nodes."""
    with serving(tmp_path_factory.mktemp("logs"), users=USERS) as served, ExitStack() as stack:
        for user in ("alice", "bob"):
            with served.client(user) as client:
                client.submit([make_description("train")])
        for node in ("n0", "n1"):
            stack.callback(served.join_node(node, name=node))
        yield served


@contextmanager
def node_with(scheduler: Serving, node_id: str, lines: Sequence[Line], *, page: int = 2) -> Iterator[None]:
    """A node with these lines, which sends a few at a time and does not support batches."""

    def answer(request: Request) -> Answer:
        found = lines[request.offset : request.offset + page]
        sent = [agent_pb2.LogLine(job=job, time_s=time_s, text=text) for job, time_s, text in found]
        return Answer(question=request.question, lines=sent, next_offset=request.offset + len(found), last=True)

    with answering(scheduler, node_id, answer):
        yield


def read(scheduler: Serving, user: str, **request: object) -> tuple[list[str], list[str]]:
    """Texts of the lines, and notices."""
    with scheduler.client(user) as client:
        found = list(client.logs(pb.ReadLogsRequest(**{"rank": -1, **request})))  # type: ignore[arg-type]
    return [text for message in found for text in message.batch.text], [one.notice for one in found if one.notice]


FIRST = [(0, 1.0, "a"), (1, 2.0, "bob's"), (0, 4.0, "d"), (0, 6.0, "f")]
SECOND = [(0, 3.0, "c"), (0, 5.0, "e"), (7, 5.5, "of no job")]


def test_lines_of_all_nodes_are_ordered_by_time(scheduler: Serving) -> None:
    with node_with(scheduler, "n0", FIRST), node_with(scheduler, "n1", SECOND):
        lines, notices = read(scheduler, "alice", job="train")

    assert lines == ["a", "c", "d", "e", "f"]
    assert notices == []


def test_lines_of_other_users_are_not_shown_although_a_node_sends_them(scheduler: Serving) -> None:
    with node_with(scheduler, "n0", FIRST), node_with(scheduler, "n1", SECOND):
        everything = [read(scheduler, user)[0] for user in ("alice", "bob", "root")]

    assert everything == [["a", "c", "d", "e", "f"], ["bob's"], ["a", "bob's", "c", "d", "e", "f"]]


def test_tail_is_the_last_lines_over_all_nodes(scheduler: Serving) -> None:
    with node_with(scheduler, "n0", FIRST), node_with(scheduler, "n1", SECOND):
        lines, _ = read(scheduler, "alice", job="0", tail_lines=2)

    assert lines == ["e", "f"]


def test_node_that_is_not_connected_is_named_in_a_notice(scheduler: Serving) -> None:
    with node_with(scheduler, "n0", FIRST):
        lines, notices = read(scheduler, "alice", job="train")

    assert lines == ["a", "d", "f"]
    assert notices == ["not connected: n1; lines written there are missing"]


@pytest.mark.parametrize(
    ("removed", "job", "notice"),
    [
        ({0: 1_234}, "train", "node n0 has removed 1,234 earlier lines of job 0"),
        ({0: 0}, "train", "node n0 has removed earlier lines of job 0"),
        ({0: 5, 1: 7}, "train", "node n0 has removed 5 earlier lines of job 0"),
        ({0: 5, 1: 7}, "", "node n0 has removed 5 earlier lines of job 0"),
    ],
)
def test_lines_that_a_node_has_removed_are_noted_once_and_first(
    scheduler: Serving, removed: dict[int, int], job: str, notice: str
) -> None:
    def answer(request: Request) -> Answer:
        rows = range(request.offset, min(request.offset + 2, 5))
        lines = [agent_pb2.LogLine(job=0, time_s=float(row), text=str(row)) for row in rows]
        gone = [agent_pb2.RemovedLines(job=job, lines=count) for job, count in removed.items() if not request.offset]
        return Answer(question=request.question, lines=lines, next_offset=rows.stop, last=True, removed=gone)

    with answering(scheduler, "n0", answer), node_with(scheduler, "n1", []), scheduler.client("alice") as client:
        found = list(client.logs(pb.ReadLogsRequest(job=job, rank=-1)))

    assert found[0].notice == f"{notice}: it keeps log_files_max full files of log_bytes_max"
    assert [one.notice for one in found[1:]] == [""] * len(found[1:])
    assert [text for one in found for text in one.batch.text] == list("01234")


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"pattern": "("}, "pattern must be a regular expression"),
        ({"pattern": "x" * 1_001}, "pattern must have at most 1000 characters"),
        ({"pattern": r"(a)\1"}, r"RE2 has no back-references"),
        ({"rank": -2}, r"rank must be in \[-1, 1000000\]"),
        ({"tail_lines": 100_001}, "tail_lines must be at most 100000"),
        ({"job": "1"}, "job must be the number or name of one of yours"),
    ],
)
def test_invalid_request_is_refused(scheduler: Serving, request_fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(scheduler, "alice", **request_fields)


def growing(end: int, *, page: int = 100) -> Callable[[Request], Answer]:
    """Answers of a node that has `end` lines at first and adds lines faster than they are read."""

    def answer(request: Request) -> Answer:
        first = request.offset or (end - request.tail_lines if request.tail_lines else 0)
        rows = range(first, first + page)
        batch = log_pb2.LogBatch(
            origins=[log_pb2.LogOrigin(job=0, lease=3, rank=1)],
            origin=[0] * page,
            time_s=[float(row) for row in rows],
            text=[f"line {row}" for row in rows],
            offset=[row + 1 for row in rows],
        )
        return Answer(question=request.question, batch=batch, next_offset=first + page, end_offset=end, last=True)

    return answer


@pytest.mark.parametrize(("tail_lines", "first"), [(0, 0), (2, 248)])
def test_read_without_follow_ends_at_the_lines_that_existed_although_the_log_grows(
    scheduler: Serving, tail_lines: int, first: int
) -> None:
    with answering(scheduler, "n0", growing(250)):
        lines, _ = read(scheduler, "alice", job="train", tail_lines=tail_lines)

    assert lines == [f"line {row}" for row in range(first, 250)]


def test_many_lines_are_sent_in_few_messages_with_their_origins(scheduler: Serving) -> None:
    request = pb.ReadLogsRequest(job="train", rank=-1)
    with answering(scheduler, "n0", growing(20_000, page=1_000)), scheduler.client("alice") as client:
        messages = [message for message in client.logs(request) if not message.notice]

    origins = {(one.job, one.job_name, one.lease, one.rank, one.node_id) for m in messages for one in m.batch.origins}
    assert sum(len(message.batch.text) for message in messages) == 20_000
    assert len(messages) < 10
    assert origins == {(0, "train", 3, 1, "n0")}


def test_client_without_batches_gets_one_line_a_message(scheduler: Serving) -> None:
    request = pb.ReadLogsRequest(job="train", rank=-1)
    with answering(scheduler, "n0", growing(250)), scheduler.client("alice") as client:
        found = list(client._stub.ReadLogs(request, metadata=scheduler.metadata("alice")))

    lines = [one for one in found if not one.notice]
    assert [line.text for line in lines] == [f"line {row}" for row in range(250)]
    assert (lines[7].job_name, lines[7].lease, lines[7].rank, lines[7].time_s) == ("train", 3, 1, 7.0)


def test_request_with_positions_continues_after_them(scheduler: Serving) -> None:
    with node_with(scheduler, "n1", SECOND), answering(scheduler, "n0", growing(250)):
        lines, _ = read(scheduler, "alice", job="train", after={"n0": 248, "n1": 1})

    assert lines == ["e", "line 248", "line 249"]


def test_positions_of_a_message_are_those_after_its_lines(scheduler: Serving) -> None:
    request = pb.ReadLogsRequest(job="train", rank=-1, tail_lines=30_000)
    with answering(scheduler, "n0", growing(40_000, page=1_000)), scheduler.client("alice") as client:
        messages = [message for message in client.logs(request) if message.HasField("batch")]

    ends = [message.positions["n0"] for message in messages]
    counts = [len(message.batch.text) for message in messages]
    assert len(counts) > 1
    assert ends == [10_000 + sum(counts[: row + 1]) for row in range(len(counts))]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (log_pb2.LogBatch(text=["a"], origin=[0, 0]), "columns of a batch must have one length"),
        (log_pb2.LogBatch(text=["a"], origin=[0], time_s=[0.0], offset=[1]), "origin must be below 0, got 0"),
    ],
)
def test_malformed_batch_becomes_a_notice(scheduler: Serving, batch: log_pb2.LogBatch, message: str) -> None:
    with answering(scheduler, "n0", lambda request: Answer(question=request.question, batch=batch, last=True)):
        lines, notices = read(scheduler, "alice", job="train")

    assert lines == []
    assert message in notices[-1]

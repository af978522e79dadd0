"""Requests for log lines to nodes that answer, time out, disconnect, reconnect or break the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.daemon.queries.log_lines import LogRequest, LogsUnavailable, NodeLogPage
from gavelpy.runtime.daemon.rpc.agent_logs import LogNodes
from gavelpy.runtime.wire import agent_pb2

Request, Answer = agent_pb2.ServeLogsResponse, agent_pb2.ServeLogsRequest
Reply = Callable[[Request], list[Answer]]


class Node:
    """A node that answers each request by a function, until it disconnects."""

    def __init__(self, nodes: LogNodes, node_id: str, reply: Reply) -> None:
        self.requests: list[Request] = []
        self._answers: asyncio.Queue[Answer | Exception | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._serve(nodes, node_id, reply))

    async def _serve(self, nodes: LogNodes, node_id: str, reply: Reply) -> None:
        async for request in nodes.serve(node_id, self._sent()):
            self.requests.append(request)
            for answer in reply(request):
                self._answers.put_nowait(answer)

    async def _sent(self) -> AsyncIterator[Answer]:
        while (answer := await self._answers.get()) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def send(self, answer: Answer | Exception | None) -> None:
        """Sends a message that answers no request; None = disconnects."""
        self._answers.put_nowait(answer)

    async def ended(self) -> None:
        """Waits for the end of the stream; raises the error of the server."""
        await asyncio.wait_for(self._task, 30.0)


def line(text: str) -> agent_pb2.LogLine:
    return agent_pb2.LogLine(job=1, text=text)


def reply(*texts: str, last: bool = True) -> Reply:
    return lambda request: [Answer(question=request.question, lines=[line(t) for t in texts], next_offset=7, last=last)]


def run(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario, 60.0)

    asyncio.run(bounded())


async def connected(nodes: LogNodes, node_id: str, how: Reply) -> Node:
    node = Node(nodes, node_id, how)
    while node_id not in nodes.node_ids:
        await asyncio.sleep(0)
    return node


def texts(page: NodeLogPage) -> list[str]:
    return page.lines.text


def test_page_is_gathered_from_all_messages_of_an_answer() -> None:
    async def scenario() -> None:
        nodes = LogNodes()
        await connected(nodes, "n0", lambda request: [*reply("a", "b", last=False)(request), *reply("c")(request)])

        page = await nodes.page("n0", LogRequest(job=1))

        assert (texts(page), page.next_offset) == (["a", "b", "c"], 7)

    run(scenario())


def test_lines_beyond_those_requested_are_cut() -> None:
    async def scenario() -> None:
        nodes = LogNodes()
        await connected(nodes, "n0", reply(*"abcdef"))

        assert texts(await nodes.page("n0", LogRequest(job=1, lines_max=2))) == ["a", "b"]

    run(scenario())


def test_node_that_is_not_connected_or_does_not_answer_is_an_error() -> None:
    async def scenario() -> None:
        nodes = LogNodes(timeout_s=0.05)
        await connected(nodes, "n0", lambda _: [])

        with pytest.raises(LogsUnavailable, match=r"node n0 did not answer within 0\.05 s"):
            await nodes.page("n0", LogRequest(job=1))
        with pytest.raises(LogsUnavailable, match="node n1 is not connected"):
            await nodes.page("n1", LogRequest(job=1))

    run(scenario())


def test_error_of_a_node_is_passed_on() -> None:
    async def scenario() -> None:
        nodes = LogNodes()
        await connected(nodes, "n0", lambda request: [Answer(question=request.question, last=True, error="too slow")])

        with pytest.raises(LogsUnavailable, match="node n0: too slow"):
            await nodes.page("n0", LogRequest(job=1))

    run(scenario())


def test_node_that_disconnects_while_it_answers_is_not_waited_for() -> None:
    async def scenario() -> None:
        nodes = LogNodes()
        node = await connected(nodes, "n0", reply("a", last=False))
        asking = asyncio.create_task(nodes.page("n0", LogRequest(job=1)))
        while not node.requests:
            await asyncio.sleep(0)

        node.send(None)

        with pytest.raises(LogsUnavailable, match="node n0 disconnected"):
            await asking
        await node.ended()
        assert nodes.node_ids == frozenset()

    run(scenario())


def test_newer_stream_of_a_node_replaces_the_older() -> None:
    async def scenario() -> None:
        nodes = LogNodes()
        older = await connected(nodes, "n0", reply("old"))
        Node(nodes, "n0", reply("new"))
        await older.ended()

        assert texts(await nodes.page("n0", LogRequest(job=1))) == ["new"]

    run(scenario())


def test_answers_to_no_request_are_dropped() -> None:
    async def scenario() -> None:
        nodes = LogNodes()
        node = await connected(nodes, "n0", reply("mine"))
        node.send(Answer(question=999, lines=[line("stray")], last=True))

        assert texts(await nodes.page("n0", LogRequest(job=1))) == ["mine"]

    run(scenario())


def test_stream_of_a_node_that_breaks_the_protocol_ends_with_the_error() -> None:
    async def scenario() -> None:
        nodes = LogNodes()
        node = await connected(nodes, "n0", reply())

        node.send(RemoteViolation("not a message"))

        with pytest.raises(RemoteViolation, match="not a message"):
            await node.ended()
        assert nodes.node_ids == frozenset()

    run(scenario())

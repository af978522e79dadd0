"""Questions to nodes about logs: answered, silent, gone, replaced, or answered by somebody out of their mind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.daemon.log_fanout import LogFanout, LogPage, LogQuestion, NodeSilent
from gavelpy.runtime.wire import agent_pb2

Question, Answer = agent_pb2.ServeLogsResponse, agent_pb2.ServeLogsRequest
Reply = Callable[[Question], list[Answer]]


class Node:
    """Answers each question as a test says, until it leaves."""

    def __init__(self, fanout: LogFanout, node_id: str, reply: Reply) -> None:
        self.asked: list[Question] = []
        self._answers: asyncio.Queue[Answer | Exception | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._serve(fanout, node_id, reply))

    async def _serve(self, fanout: LogFanout, node_id: str, reply: Reply) -> None:
        async for question in fanout.serve(node_id, self._said()):
            self.asked.append(question)
            for answer in reply(question):
                self._answers.put_nowait(answer)

    async def _said(self) -> AsyncIterator[Answer]:
        while (answer := await self._answers.get()) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def say(self, answer: Answer | Exception | None) -> None:
        """Unasked; None = it leaves."""
        self._answers.put_nowait(answer)

    async def ended(self) -> None:
        """Returns when the server has let it go; raises what the server complained of."""
        await asyncio.wait_for(self._task, 30.0)


def line(text: str) -> agent_pb2.LogLine:
    return agent_pb2.LogLine(job=1, text=text)


def reply(*texts: str, last: bool = True) -> Reply:
    return lambda asked: [Answer(question=asked.question, lines=[line(t) for t in texts], next_offset=7, last=last)]


def run(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario, 60.0)

    asyncio.run(bounded())


async def connected(fanout: LogFanout, node_id: str, how: Reply) -> Node:
    node = Node(fanout, node_id, how)
    while node_id not in fanout.node_ids:
        await asyncio.sleep(0)
    return node


def texts(page: LogPage) -> list[str]:
    return page.columns.text


def test_page_is_gathered_from_all_messages_of_an_answer() -> None:
    async def scenario() -> None:
        fanout = LogFanout()
        await connected(fanout, "n0", lambda asked: [*reply("a", "b", last=False)(asked), *reply("c")(asked)])

        page = await fanout.ask("n0", LogQuestion(job=1))

        assert (texts(page), page.next_offset) == (["a", "b", "c"], 7)

    run(scenario())


def test_more_lines_than_were_asked_for_are_cut() -> None:
    async def scenario() -> None:
        fanout = LogFanout()
        await connected(fanout, "n0", reply(*"abcdef"))

        assert texts(await fanout.ask("n0", LogQuestion(job=1, lines_max=2))) == ["a", "b"]

    run(scenario())


def test_node_that_is_not_there_or_does_not_answer_is_told_of() -> None:
    async def scenario() -> None:
        fanout = LogFanout(timeout_s=0.05)
        await connected(fanout, "n0", lambda _: [])

        with pytest.raises(NodeSilent, match=r"node n0 did not answer within 0\.05 s"):
            await fanout.ask("n0", LogQuestion(job=1))
        with pytest.raises(NodeSilent, match="node n1 is not connected"):
            await fanout.ask("n1", LogQuestion(job=1))

    run(scenario())


def test_complaint_of_a_node_is_passed_on() -> None:
    async def scenario() -> None:
        fanout = LogFanout()
        await connected(fanout, "n0", lambda asked: [Answer(question=asked.question, last=True, error="too slow")])

        with pytest.raises(NodeSilent, match="node n0: too slow"):
            await fanout.ask("n0", LogQuestion(job=1))

    run(scenario())


def test_node_that_leaves_while_it_answers_is_not_waited_for() -> None:
    async def scenario() -> None:
        fanout = LogFanout()
        node = await connected(fanout, "n0", reply("a", last=False))
        asking = asyncio.create_task(fanout.ask("n0", LogQuestion(job=1)))
        while not node.asked:
            await asyncio.sleep(0)

        node.say(None)

        with pytest.raises(NodeSilent, match="node n0 went away"):
            await asking
        await node.ended()
        assert fanout.node_ids == frozenset()

    run(scenario())


def test_newer_stream_of_a_node_takes_the_place_of_the_older() -> None:
    async def scenario() -> None:
        fanout = LogFanout()
        older = await connected(fanout, "n0", reply("old"))
        Node(fanout, "n0", reply("new"))
        await older.ended()

        assert texts(await fanout.ask("n0", LogQuestion(job=1))) == ["new"]

    run(scenario())


def test_answers_that_nobody_asked_for_are_dropped() -> None:
    async def scenario() -> None:
        fanout = LogFanout()
        node = await connected(fanout, "n0", reply("mine"))
        node.say(Answer(question=999, lines=[line("stray")], last=True))

        assert texts(await fanout.ask("n0", LogQuestion(job=1))) == ["mine"]

    run(scenario())


def test_stream_of_a_node_that_breaks_the_protocol_ends_with_the_complaint() -> None:
    async def scenario() -> None:
        fanout = LogFanout()
        node = await connected(fanout, "n0", reply())

        node.say(RemoteViolation("not a message"))

        with pytest.raises(RemoteViolation, match="not a message"):
            await node.ended()
        assert fanout.node_ids == frozenset()

    run(scenario())

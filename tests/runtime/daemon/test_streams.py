"""Streams of agents: orders are repeated, streams of slow peers are closed, and reports are visible immediately."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon import command_executor
from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.nodes.registry import Hello, Node, Stream
from gavelpy.runtime.daemon.queries.explain import Explainer
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120.0))


def make_node(received_at_s: float = 0.0) -> tuple[Node, Stream]:
    stream = Stream(sent_s=received_at_s)
    hello = Hello(NodeId("n0"), "host", "v100", 1, "here")
    return Node(hello, stream, received_at_s=received_at_s), stream


def test_stream_of_a_peer_that_does_not_talk_ends() -> None:
    node, stream = make_node(received_at_s=100.0)

    node.is_due(120.0, talk_s=20.0, write_s=10.0, refresh_s=60.0)
    before = stream.ended.is_set()
    node.is_due(120.1, talk_s=20.0, write_s=10.0, refresh_s=60.0)

    assert (before, stream.ended.is_set(), stream.is_late) == (False, True, True)


def test_stream_of_a_peer_that_does_not_take_what_it_is_sent_ends() -> None:
    node, stream = make_node(received_at_s=100.0)
    stream.writing_s = 95.0

    node.is_due(105.0, talk_s=20.0, write_s=10.0, refresh_s=60.0)
    before = stream.ended.is_set()
    node.is_due(105.1, talk_s=20.0, write_s=10.0, refresh_s=60.0)

    assert (before, stream.ended.is_set(), stream.is_late) == (False, True, True)


def test_orders_are_due_again_after_a_while() -> None:
    node, stream = make_node(received_at_s=100.0)

    before = node.is_due(100.9, talk_s=20.0, write_s=10.0, refresh_s=1.0)
    after = node.is_due(101.0, talk_s=20.0, write_s=10.0, refresh_s=1.0)

    assert (before, after, stream.ended.is_set()) == (False, True, False)


def test_orders_that_nothing_has_changed_are_sent_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster) as agent:
            (job,) = await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
            agent.orders.clear()

            await cluster.until(lambda: bool(agent.orders), "its orders come again")

    run(scenario())


def test_a_mute_agents_stream_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_executor, "TALK_TIMEOUT_S_MIN", 0.3)

    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster) as agent:
            await cluster.until(lambda: cluster.core.pool.counts.sum() == 1, "it joins")
            node = cluster.scheduler.nodes.get("n0")
            assert node is not None
            agent.is_mute = True

            await cluster.until(lambda: not node.is_connected, "its stream ends")

    run(scenario())


def test_progress_is_shown_as_the_node_last_reported_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster) as agent:
            (job,) = await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
            board = JobQueries(cluster.scheduler)
            (report,) = agent.leases.values()
            report.steps_done = 4_321.0
            agent.tell()

            await cluster.until(lambda: board.statuses([job])[0].steps_done == 4_321.0, "it is shown")

    run(scenario())


def test_what_a_job_is_owed_grows_while_nothing_happens(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"round_s": 600.0, "solve_interval_s": 0.2}
        async with running(make_config(tmp_path, mechanism=settings)) as cluster, Agent("n0").connected(cluster):
            (job,) = await cluster.submit(make_spec(preemptible=True))
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
            forecaster = Forecaster(cpu_s=0.1)
            explainer = Explainer(cluster.scheduler, JobQueries(cluster.scheduler), forecaster)
            settled_s, began_s = cluster.core.settled_s, time.monotonic()

            (first,) = explainer._accounts(job)
            await cluster.until(lambda: time.monotonic() - began_s > 0.3, "time passes")
            (second,) = explainer._accounts(job)

            assert cluster.core.settled_s == settled_s
            assert second.owed_s - first.owed_s >= 0.3 * second.share > 0
            assert second.received_s - first.received_s >= 0.3

    run(scenario())


@pytest.mark.parametrize(("a_second", "interval_s"), [(1_000.0, 0.05), (10.0, 0.1), (1.0, 0.25)])
def test_many_nodes_report_less_often_but_four_times_before_they_count_as_unreachable(
    a_second: float, interval_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_executor, "HEARTBEATS_PER_S", a_second)

    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster) as agent:
            await cluster.until(lambda: agent.heartbeat_interval_s == interval_s, "it is told")

    run(scenario())


@pytest.mark.parametrize(
    ("nodes", "silent_after_s", "busy_s", "idle_s"),
    [
        (1, 10.0, 1.0, 1.0),
        (200, 10.0, 1.0, 1.0),
        (1_000, 10.0, 2.0, 5.0),
        (5_000, 10.0, 2.5, 5.0),  # before half of silent_after_s, when agents with leases would request a quorum
        (5_000, 60.0, 10.0, 10.0),
        (50_000, 600.0, 10.0, 10.0),  # agents close streams after 20 s without a message
    ],
)
def test_orders_of_many_nodes_are_repeated_less_often(
    nodes: int, silent_after_s: float, busy_s: float, idle_s: float
) -> None:
    assert command_executor.refresh_times_s(nodes, silent_after_s) == (busy_s, idle_s)


def test_all_nodes_are_asked_often_while_leases_are_on_a_silent_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_executor, "IDLE_REFRESHED_PER_S", 0.5)

    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster):
            execution = cluster.scheduler.execution
            await cluster.submit(make_spec())
            await cluster.until(lambda: execution.leases.are_on(NodeId("n0")), "it has a lease")

            before = execution._refresh_s()
            execution._watch.silent.add(NodeId("n0"))

            assert (before, execution._refresh_s()) == ((1.0, 2.0), (1.0, 1.0))

    run(scenario())


def test_streams_of_many_nodes_are_woken_in_several_turns_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_executor, "WOKEN_AT_ONCE", 2)

    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            streams = [Stream() for _ in range(5)]
            nodes = [Node(Hello(NodeId(f"n{k}"), "host", "v100", 1, "here"), one) for k, one in enumerate(streams)]
            cluster.scheduler.execution._wake(nodes)

            woken = [sum(stream.wake.is_set() for stream in streams)]
            await asyncio.sleep(0)
            woken.append(sum(stream.wake.is_set() for stream in streams))
            await asyncio.sleep(0)

            assert woken == [2, 4]
            assert all(stream.wake.is_set() for stream in streams)

    run(scenario())

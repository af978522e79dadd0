"""A node that reports trouble gets no new lease until it recovers; its running jobs continue."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.daemon.queries.cluster import ClusterQueries
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.security.identity import SOLE_CALLER
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running

FULL = "less than 64 MiB are free in the state directory ('/var/lib/gavel')"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60.0))


def test_no_job_goes_to_a_node_without_disk_space_and_the_reason_is_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0", gpus=2).connected(cluster) as agent:
            core, board = cluster.core, JobQueries(cluster.scheduler)
            (first,) = await cluster.submit(make_spec())
            await cluster.until(lambda: core.jobs.state[first] == JobState.RUNNING, "it runs")
            agent.trouble = FULL
            await cluster.until(lambda: core.pool.node_unhealthy == [FULL], "the core knows")

            (second,) = await cluster.submit(make_spec())
            round_then = core.round
            await cluster.until(lambda: core.round >= round_then + 2, "rounds go by")

            assert [lease for lease, _ in agent.launches] == [0]
            assert core.jobs.state[first] == JobState.RUNNING
            assert f"n0 ({FULL})" in board.statuses([second])[0].reason
            assert ClusterQueries(cluster.scheduler, board).node("n0", SOLE_CALLER).detail == FULL
            agent.trouble = ""
            await cluster.until(lambda: core.jobs.state[second] == JobState.RUNNING, "there is room again")

    run(scenario())


def test_a_node_without_room_is_avoided_from_its_first_word_on_and_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        config, agent = make_config(tmp_path), Agent("n0")
        agent.trouble = FULL
        async with running(config, in_good_order=False) as cluster, agent.connected(cluster):
            await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.pool.node_unhealthy == [FULL], "it has joined")
        async with running(config) as cluster, Agent("n1").connected(cluster) as other:
            await cluster.until(lambda: bool(other.launches), "the job goes elsewhere")

            assert cluster.core.pool.node_unhealthy == [FULL, ""]
            assert agent.launches == []

    run(scenario())

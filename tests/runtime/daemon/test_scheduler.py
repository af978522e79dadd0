"""The scheduler with a real journal and agents over gRPC: its guarantees in normal operation and after failures."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.lifecycle import JobState, NodeState
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.queries.cluster import ClusterQueries
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.rpc.agent_service import AgentService
from gavelpy.runtime.daemon.scheduler import NodeAction
from gavelpy.runtime.security.identity import SOLE_CALLER
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc
from tests.runtime.daemon.harness import Agent, Running, make_config, make_spec, running


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120.0))


def test_a_wait_for_a_change_ends_though_it_is_cancelled_while_one_comes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            scheduler, version = cluster.scheduler, -1
            while version != scheduler.version:  # a change of its own, as after a start, ends a wait
                version = scheduler.version
                wait = asyncio.create_task(scheduler.wait_changed(version, 60.0))
                for _ in range(3):
                    await asyncio.sleep(0)
                scheduler._changed.set()  # as an event does
                wait.cancel()
                await asyncio.wait([wait])

            assert wait.cancelled()

    run(scenario())


def test_a_job_is_started_on_a_node_and_finishes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster) as agent:
            (job,) = await cluster.submit(make_spec("train", environment={"SEED": "7"}))
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
            ((lease, launch),) = agent.launches

            agent.finish(lease)
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.FINISHED, "it finishes")
            await cluster.until(lambda: not agent.leases, "the node may forget it")

            assert (launch.job_name, launch.owner, launch.command) == ("train", "alice", "true")
            assert dict(launch.environment) == {"SEED": "7"}
            history = cluster.scheduler.history
            assert [line.kind for line in history.entries(job)] == ["submitted", "started", "finished"]
            assert history.started_s(job) <= history.ended_s(job)
            assert cluster.scheduler.job_named("alice", "train") == job

    run(scenario())


def test_a_gang_over_two_nodes_starts_together_with_one_place_to_meet(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running(make_config(tmp_path)) as cluster,
            Agent("n0", gpus=2).connected(cluster) as first,
            Agent("n1", gpus=2).connected(cluster) as second,
        ):
            await cluster.until(lambda: cluster.core.pool.counts.sum() == 4, "both nodes join")
            (job,) = await cluster.submit(make_spec(gpus=4))
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")

            launches = [agent.launches[0][1] for agent in (first, second)]
            assert sorted(launch.first_rank for launch in launches) == [0, 2]
            assert {(launch.rendezvous_port, launch.world_size) for launch in launches} == {(4711, 4)}

    run(scenario())


def test_acknowledged_jobs_outlive_a_crash_and_running_ones_are_adopted(tmp_path: Path) -> None:
    async def scenario() -> None:
        agent = Agent("n0")
        async with running(make_config(tmp_path), in_good_order=False) as before, agent.connected(before):
            await before.submit(make_spec("a"), make_spec("b"))
            await before.until(lambda: (before.core.jobs.state[:2] == JobState.RUNNING).any(), "one runs")
        (lease,) = agent.leases

        async with running(make_config(tmp_path)) as after, agent.connected(after):
            await after.until(lambda: not after.scheduler.execution.unreported, "the node is heard")
            assert list(agent.leases) == [lease]
            assert len(agent.launches) == 1
            assert after.scheduler.incarnation == before.scheduler.incarnation + 1
            assert [spec.id for spec in after.core.jobs.specs] == ["a#0", "b#1"]
            assert await after.submit(make_spec()) == [2]

    run(scenario())


def test_what_ended_while_the_scheduler_was_away_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        agent = Agent("n0")
        async with running(make_config(tmp_path), in_good_order=False) as before, agent.connected(before):
            (job,) = await before.submit(make_spec())
            await before.until(lambda: before.core.jobs.state[job] == JobState.RUNNING, "it runs")
        agent.finish(agent.launches[0][0])

        async with running(make_config(tmp_path)) as after, agent.connected(after):
            await after.until(lambda: after.core.jobs.state[job] == JobState.FINISHED, "its end is heard")

    run(scenario())


def test_the_job_of_an_unreachable_node_runs_elsewhere_once_its_lease_is_surely_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running(make_config(tmp_path)) as cluster,
            Agent("n0").connected(cluster) as first,
            Agent("n1").connected(cluster) as second,
        ):
            (job,) = await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
            here, there = (first, second) if first.launches else (second, first)
            (lease,) = here.leases
            promised_s = cluster.scheduler.leases.leases[lease].promised_s

            here.is_mute = True
            await cluster.until(lambda: bool(there.launches), "it runs elsewhere")

            assert cluster.scheduler.now_s() >= cluster.scheduler.leases.patience.surely_over_s(promised_s)
            here.is_mute = False
            await cluster.until(lambda: not here.leases, "what the old node runs is ended and forgotten")
            assert list(there.leases) == [there.launches[0][0]]

    run(scenario())


def test_with_fencing_the_job_of_an_unreachable_node_runs_elsewhere_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, nodes={"on_node_lost": "fence"}, mechanism={"round_s": 600.0})
        async with (
            running(config) as cluster,
            Agent("n0").connected(cluster) as first,
            Agent("n1").connected(cluster) as second,
        ):
            (job,) = await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
            here, there = (first, second) if first.launches else (second, first)

            here.is_mute = True
            await cluster.until(lambda: bool(there.launches), "it runs elsewhere")
            here.is_mute = False
            await cluster.until(lambda: not here.leases, "the older copy is ended and forgotten")

            assert there.launches[0][0] > here.launches[0][0]

    run(scenario())


def test_an_operator_declares_a_node_lost_that_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, mechanism={"round_s": 600.0})
        async with running(config) as cluster, Agent("n1").connected(cluster) as there:
            async with Agent("n0", gpus=2).connected(cluster) as here:
                await cluster.until(lambda: cluster.core.pool.counts.sum() == 3, "both nodes join")
                (job,) = await cluster.submit(make_spec())
                await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
                with pytest.raises(InvalidInput, match="'n0' must be disconnected to be declared lost"):
                    await cluster.scheduler.set_node("n0", NodeAction.LOST)
                is_here = bool(here.launches)
            await cluster.until(lambda: not cluster.scheduler.nodes.get("n0").is_connected, "it is away")  # type: ignore[union-attr]

            await cluster.scheduler.set_node("n0", NodeAction.LOST)
            await cluster.until(lambda: bool(there.launches), "it runs on the node that is left")

            assert is_here == (len(there.launches) == 1 and there.launches[0][0] > 0)

    run(scenario())


def test_node_with_another_clusters_leases_gets_the_cluster_id_and_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            stranger = Agent("n0", cluster_id="another")
            stranger.leases[0] = agent_pb2.LeaseReport(lease=0, job=0, phase=agent_pb2.LEASE_PHASE_RUNNING)
            await cluster.submit(make_spec())
            async with grpc.aio.insecure_channel(f"127.0.0.1:{cluster.port}") as channel:
                call = agent_pb2_grpc.AgentServiceStub(channel).Connect()  # type: ignore[call-arg]  # written below
                first = stranger.message()
                first.node.CopyFrom(stranger.node)
                await call.write(first)
                told = [message async for message in call]

            assert [(said.cluster_id, len(said.leases)) for said in told] == [(cluster.scheduler.cluster_id, 0)]
            assert cluster.scheduler.nodes.get("n0") is None

            async with Agent("n0", cluster_id=cluster.scheduler.cluster_id).connected(cluster) as agent:
                await cluster.until(lambda: bool(agent.launches), "the node joins once it is ours")

    run(scenario())


def test_a_second_agent_of_a_nodes_name_gets_no_orders_and_costs_no_lease(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0", state_id="first").connected(cluster) as agent:
            await cluster.submit(make_spec())
            await cluster.until(lambda: bool(agent.launches), "the job runs")
            refusal = await refusal_of(Agent("n0", state_id="second"), cluster)

            assert "node_id must not be in use by another agent, got 'n0'" in refusal
            assert [lease for lease, _ in agent.launches] == [0]
            assert [lease.lease for lease in cluster.scheduler.execution.leases.on_node(NodeId("n0"))] == [0]

    run(scenario())


async def refusal_of(agent: Agent, cluster: Running) -> str:
    """The reason why the scheduler refuses an agent."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cluster.port}") as channel:
        call = agent_pb2_grpc.AgentServiceStub(channel).Connect()  # type: ignore[call-arg]  # written below
        first = agent.message()
        first.node.CopyFrom(agent.node)
        await call.write(first)
        code, detail = await call.code(), await call.details()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    return detail or ""


@pytest.mark.parametrize("in_good_order", [True, False], ids=["snapshot", "journal"])
def test_after_a_restart_the_agent_that_was_there_before_wins(tmp_path: Path, in_good_order: bool) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, nodes={"silent_after_s": 60.0})
        first = Agent("n0", state_id="first")
        async with running(config, in_good_order=in_good_order) as cluster, first.connected(cluster):
            await cluster.until(lambda: cluster.core.pool.counts.sum() == 1, "it joins")
        async with running(config) as cluster:
            refusal = await refusal_of(Agent("n0", state_id="second"), cluster)
            await cluster.submit(make_spec())
            async with Agent("n0", state_id="first").connected(cluster) as agent:
                await cluster.until(lambda: bool(agent.launches), "it has its node back")

        assert "got 'n0', which another agent had before the scheduler restarted" in refusal

    run(scenario())


def test_an_operator_frees_the_name_of_a_node_whose_agent_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, nodes={"silent_after_s": 60.0})
        async with running(config, in_good_order=False) as cluster:
            (job,) = await cluster.submit(make_spec())
            async with Agent("n0", state_id="first").connected(cluster) as agent:
                await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
        async with running(config, in_good_order=False) as cluster:
            newcomer = Agent("n0", state_id="second")
            assert "or after `gavel node lost" in await refusal_of(newcomer, cluster)

            await cluster.scheduler.set_node("n0", NodeAction.LOST)
            async with newcomer.connected(cluster):
                await cluster.until(lambda: bool(newcomer.launches), "it gets the job")
        async with running(config) as cluster:
            assert "another agent had" in await refusal_of(Agent("n0", state_id="first"), cluster)

        assert [lease for lease, _ in [*agent.launches, *newcomer.launches]] == [0, 1]

    run(scenario())


def test_a_drained_node_stays_drained_whichever_agent_speaks_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            pool, agents = cluster.core.pool, cluster.scheduler.history.agents
            async with Agent("n0").connected(cluster):
                await cluster.until(lambda: pool.counts.sum() == 1, "it joins, and does not say who it is")
                await cluster.scheduler.set_node("n0", NodeAction.DRAIN)
            async with Agent("n0", state_id="first").connected(cluster):
                await cluster.until(lambda: agents.get("n0") == "first", "now it does")

                await cluster.until(lambda: pool.node_state == [NodeState.DRAINING], "it is draining as before")

    run(scenario())


def test_a_node_that_is_drained_by_force_gives_up_its_jobs_with_the_round_and_is_taken_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster) as agent:
            (job,) = await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")

            await cluster.scheduler.set_node("n0", NodeAction.DRAIN, force=True)
            await cluster.until(lambda: not agent.leases, "the node is empty")
            await cluster.scheduler.set_node("n0", NodeAction.RESUME)
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs again")

            with pytest.raises(InvalidInput, match="node must be one of n0, got 'n7'"):
                await cluster.scheduler.set_node("n7", NodeAction.DRAIN)

    run(scenario())


def test_a_node_that_comes_back_with_more_gpus_is_listed_with_all_of_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n1", gpus=2).connected(cluster):
            board = ClusterQueries(cluster.scheduler, JobQueries(cluster.scheduler))
            async with Agent("n0").connected(cluster):
                await cluster.until(lambda: cluster.core.pool.counts.sum() == 3, "both join")
            async with Agent("n2").connected(cluster), Agent("n0", gpus=4).connected(cluster):
                await cluster.until(lambda: cluster.core.pool.counts.sum() == 7, "it is back, after another has joined")

                counts = {name: board.node(name, SOLE_CALLER).gpu_count for name in ("n0", "n1", "n2")}
                assert counts == {"n0": 4, "n1": 2, "n2": 1}
                assert not cluster.core.pool.in_order


def test_an_engine_that_dies_is_started_again_and_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster):
            engine = cluster.scheduler.engine
            await cluster.until(lambda: engine.process_id > 0, "it is there")
            os.kill(engine.process_id, signal.SIGKILL)

            (job,) = await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.jobs.solved[job] >= 0, "it answers")

            assert engine.restarts == 1

    run(scenario())


def test_messages_that_come_late_or_twice_are_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        agent = Agent("n0")
        async with running(make_config(tmp_path)) as cluster, agent.connected(cluster):
            (job,) = await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
            node = cluster.scheduler.nodes.get("n0")
            assert node is not None
            assert node.stream is not None
            await cluster.until(lambda: node.stream is not None and node.stream.sequence > 5, "it has talked")
            service, old = AgentService(cluster.scheduler), agent.message()
            old.sequence, old.leases[0].phase = 2, agent_pb2.LEASE_PHASE_ENDED

            service._receive(node, node.stream, old, is_first=False)

            assert not cluster.scheduler.leases.has_events

    run(scenario())

"""What agents report of each other, and what the scheduler makes of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import RemoteViolation
from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.nodes.peer_reports import PeerEvidence, PeerReports, ReportedPeer, SightState
from gavelpy.runtime.daemon.queries.cluster import ClusterQueries
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.rpc.agent_messages import reported_peers_of
from gavelpy.runtime.security.identity import SOLE_CALLER
from gavelpy.runtime.wire import agent_pb2
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running

NODES = ["a", "b", "c", "d"]
ALIVE, SUSPECT, DEAD = SightState
AGENT, SHIM = (4711, 100), (4712, 101)
QUICK = {"silent_after_s": 3_000.0, "heartbeat_interval_s": 0.05, "mass_silence_s": 0.0}

reported = st.builds(
    ReportedPeer,
    st.sampled_from(NODES),
    st.sampled_from(["1", "2"]),
    st.sampled_from(SightState),
    st.sampled_from([0.0, 1.0, 7.9, 20.0]),
)
reports = st.tuples(st.sampled_from(NODES), st.lists(reported, max_size=5), st.sampled_from([0.0, 1.0, 6.0]))


def sight(node: str, state: SightState, age_s: float = 0.5) -> ReportedPeer:
    return ReportedPeer(node, "1", state, age_s)


def reports_of(**of: Sequence[ReportedPeer]) -> PeerReports:
    found = PeerReports()
    for node, peers in of.items():
        found.reported(node, peers, 10.0)
    return found


def test_a_node_that_answers_one_agent_is_alive_whatever_others_believe() -> None:
    found = reports_of(b=[sight("a", ALIVE)], c=[sight("a", DEAD)], d=[sight("a", DEAD)])

    assert found.evidence("a", "1", 11.0) == PeerEvidence(alive_to=1)


def test_a_node_is_dead_to_a_majority_of_the_agents_that_report() -> None:
    found = reports_of(a=[], b=[sight("a", DEAD, 9.0)], c=[sight("a", DEAD)], d=[])

    assert found.evidence("a", "1", 11.0) == PeerEvidence(dead_to=2)
    assert found.evidence("a", "2", 11.0) == PeerEvidence()  # another agent of that name


def test_one_agent_that_reaches_no_other_proves_nothing() -> None:
    found = reports_of(b=[sight("a", DEAD), sight("c", DEAD), sight("d", DEAD)], c=[], d=[])

    assert found.evidence("a", "1", 11.0) == PeerEvidence()


def test_a_node_proves_nothing_of_itself() -> None:
    found = reports_of(a=[sight("a", ALIVE)])

    assert found.evidence("a", "1", 11.0) == PeerEvidence()


def test_old_answers_and_old_reports_count_for_nothing() -> None:
    found = reports_of(b=[sight("a", ALIVE, 7.5)])

    assert found.evidence("a", "1", 10.4) == PeerEvidence(alive_to=1)
    assert found.evidence("a", "1", 10.6) == PeerEvidence()


@given(st.lists(reports, max_size=12))
def test_evidence_is_that_of_the_newest_report_of_each_agent(
    history: list[tuple[str, list[ReportedPeer], float]],
) -> None:
    found, now_s, newest = PeerReports(), 0.0, dict[str, tuple[float, dict[tuple[str, str], ReportedPeer]]]()
    for node, peers, later_s in history:
        now_s += later_s
        found.reported(node, peers, now_s)
        newest[node] = now_s, {(peer.node_id, peer.state_id): peer for peer in peers}

    others = {by: peers for by, (at_s, peers) in newest.items() if by != "a" and at_s > now_s - 10.0}
    beliefs = [(newest[by][0], peers["a", "1"]) for by, peers in others.items() if ("a", "1") in peers]
    alive = sum(peer.state is ALIVE and at_s - peer.age_s > now_s - 8.0 for at_s, peer in beliefs)
    dead = sum(peer.state is DEAD for _, peer in beliefs) * (alive == 0)

    assert found.evidence("a", "1", now_s) == PeerEvidence(alive, dead if 2 * dead > len(others) else 0)


# With a scheduler -----------------------------------------------------------------------------------------------------


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30.0))


def agent_of(name: str, number: int = 0, host: str = "h1") -> Agent:
    """An agent with a key of its own that probes, on another host than the scheduler."""
    return Agent(name, host_id=host, state_id=f"of-{name}", probe_port=9, agent_process=number, agent_process_start=100)


def message_of(node: str, state: agent_pb2.PeerSightState.ValueType, age_s: float = 0.1) -> agent_pb2.PeerSight:
    return agent_pb2.PeerSight(node_id=node, state_id=f"of-{node}", state=state, age_s=age_s)


def process(name: tuple[int, int]) -> agent_pb2.HostProcess:
    return agent_pb2.HostProcess(process=name[0], start=name[1])


@pytest.mark.parametrize("node", ["n3", "n3/a100-1g.10gb"])
def test_reports_of_nodes_and_of_parts_of_nodes_are_read(node: str) -> None:
    message = agent_pb2.ConnectRequest(peers=[message_of(node, agent_pb2.PEER_SIGHT_STATE_DEAD, -1.0)])

    assert reported_peers_of(message) == [ReportedPeer(node, f"of-{node}", DEAD, math.inf)]


@pytest.mark.parametrize(
    "peer",
    [
        message_of("n3", agent_pb2.PEER_SIGHT_STATE_UNSPECIFIED),
        message_of("../n3", agent_pb2.PEER_SIGHT_STATE_DEAD),
        message_of("n3", agent_pb2.PEER_SIGHT_STATE_DEAD, math.nan),
    ],
)
def test_a_report_of_a_peer_that_is_not_well_formed_is_refused(peer: agent_pb2.PeerSight) -> None:
    with pytest.raises(RemoteViolation, match="peers must name an agent, a state and an age"):
        reported_peers_of(agent_pb2.ConnectRequest(peers=[peer]))


def test_a_node_whose_processes_another_agent_on_its_host_saw_end_is_lost_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, nodes=QUICK)
        async with running(config) as cluster:
            pool, first = cluster.core.pool, agent_of("n0", AGENT[0])
            async with first.connected(cluster):
                await cluster.submit(make_spec())
                await cluster.until(lambda: bool(first.launches), "it runs on n0")
                first.leases[0].shim_process, first.leases[0].shim_process_start = SHIM
                first.tell()
                second = agent_of("n1", 4713)
                connection = second.connected(cluster)
                await connection.__aenter__()
                await cluster.until(lambda: second.neighbors == [AGENT, SHIM], "n1 knows the processes")
                second.ended = [process(AGENT), process(SHIM)]
                second.tell()
                await cluster.until(lambda: cluster.scheduler.nodes.get("n1").ended_neighbors == {AGENT, SHIM})  # type: ignore[union-attr]  # it is there
                connected_states = list(pool.node_state)
            await cluster.until(lambda: pool.node_state[pool.node_row[NodeId("n0")]] is NodeState.LOST, "it is lost")
            await cluster.until(lambda: bool(second.launches), "the job runs on n1")
            await connection.__aexit__(None, None, None)

            assert connected_states == [NodeState.UP, NodeState.UP]  # while it is connected no report counts

    run(scenario())


def test_a_node_of_which_a_shim_may_live_is_not_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, nodes=QUICK)
        async with running(config) as cluster, agent_of("n1", 4713).connected(cluster) as second:
            first, pool = agent_of("n0", AGENT[0], "h1"), cluster.core.pool
            async with first.connected(cluster):
                await cluster.submit(make_spec(gpus=1), make_spec(gpus=1))
                await cluster.until(lambda: len(first.launches) + len(second.launches) == 2, "both run")
                here = first.launches[0][0]
                first.leases[here].shim_process, first.leases[here].shim_process_start = SHIM
                first.tell()
                await cluster.until(lambda: SHIM in second.neighbors, "n1 knows the shim")
            second.ended = [process(AGENT)]
            second.tell()
            await asyncio.sleep(0.6)  # two looks

            assert pool.node_state == [NodeState.UP, NodeState.UP]

    run(scenario())


def test_with_fence_a_node_that_is_alive_to_a_peer_is_kept_and_lost_when_it_is_dead_to_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = {"silent_after_s": 1.0, "heartbeat_interval_s": 0.05, "on_node_lost": "fence"}
        async with running(make_config(tmp_path, nodes=nodes)) as cluster, agent_of("n1").connected(cluster) as second:
            pool, board = cluster.core.pool, ClusterQueries(cluster.scheduler, JobQueries(cluster.scheduler))
            async with agent_of("n0", host="h2").connected(cluster):
                await cluster.until(lambda: NodeId("n0") in pool.node_row, "it has joined")
                second.peers = [message_of("n0", agent_pb2.PEER_SIGHT_STATE_ALIVE)]
                second.tell()
                await cluster.until(lambda: len(cluster.scheduler.nodes) == 2)
            row = pool.node_row[NodeId("n0")]
            await cluster.until(lambda: pool.node_peers[row] == (1, 0), "unreachable, but alive to n1")
            kept, detail = pool.node_state[row], board.node("n0", SOLE_CALLER).detail
            second.peers = [message_of("n0", agent_pb2.PEER_SIGHT_STATE_DEAD, 5.0)]
            second.tell()
            await cluster.until(lambda: pool.node_state[row] is NodeState.LOST, "n1 does not answer it any more")

            assert kept is NodeState.UP
            assert detail == "unreachable from the scheduler, alive to 1 other agent"

    run(scenario())


def test_a_node_that_is_dead_to_its_peers_counts_as_unreachable_before_it_is_silent_for_long(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path, nodes=QUICK)) as cluster, agent_of("n1").connected(cluster) as second:
            pool = cluster.core.pool
            async with agent_of("n0", host="h2").connected(cluster):
                await cluster.until(lambda: len(pool.node_ids) == 2, "both have joined")
            second.peers = [message_of("n0", agent_pb2.PEER_SIGHT_STATE_DEAD, 3.0)]
            second.tell()
            row = pool.node_row[NodeId("n0")]
            await cluster.until(lambda: pool.node_unreachable[row], "it is unreachable")

            assert (pool.node_peers[row], pool.node_state[row]) == ((0, 1), NodeState.UP)

    run(scenario())

"""The node registry: when a node on the scheduler's machine is certainly dead, and which agent may use its name."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gavelpy.mechanism.reasons import reasons
from gavelpy.model.job import FEATURES, NodeId
from gavelpy.model.software import Software
from gavelpy.runtime.agent.leases.orders import FEATURES as OF_AGENTS
from gavelpy.runtime.daemon.nodes.registry import Hello, Node, NodeRegistry, Stream, is_alive
from gavelpy.runtime.shim.processes import process_facts
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running

ProcessName = tuple[int, int]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def name_of(process: subprocess.Popen[bytes]) -> ProcessName:
    history = process_facts(process.pid)
    assert history is not None
    return history.process, history.start_ticks


def make_node(registry: NodeRegistry, agent: ProcessName, host: str = "here") -> Node:
    """A node that has connected and disconnected."""
    stream = Stream()
    node = registry.connect(Hello(NodeId("n0"), host, "v100", 1, "127.0.0.1", agent=agent), stream)
    registry.disconnect(node, stream)
    return node


def test_a_process_is_identified_by_its_start(process: subprocess.Popen[bytes]) -> None:
    number, start = name_of(process)

    assert is_alive((number, start))
    assert not is_alive((number, start + 1))


def test_a_process_that_waits_to_be_reaped_is_dead(process: subprocess.Popen[bytes]) -> None:
    name = name_of(process)

    process.kill()
    state = Path(f"/proc/{process.pid}/stat")
    while ") Z " not in state.read_text():
        pass

    assert not is_alive(name)


def test_a_node_is_gone_with_its_agent_and_all_its_shims(process: subprocess.Popen[bytes]) -> None:
    registry, name = NodeRegistry("here"), name_of(process)
    node = make_node(registry, name)

    before = registry.is_gone(node, [])
    process.kill()
    process.wait()

    assert (before, registry.is_gone(node, [])) == (False, True)


def test_a_node_may_die_in_pieces(process: subprocess.Popen[bytes]) -> None:
    registry, name = NodeRegistry("here"), name_of(process)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as shim:
        node = make_node(registry, name)
        registry.watch(node, [name_of(shim)])
        process.kill()
        process.wait()

        first = registry.is_gone(node, [name_of(shim)]), registry.is_gone(node, [name_of(shim)])
        shims = [name_of(shim)]
        shim.kill()

    assert first == (False, False)
    assert registry.is_gone(node, shims)


def test_a_node_whose_shim_was_never_seen_may_still_run_it(process: subprocess.Popen[bytes]) -> None:
    registry, name = NodeRegistry("here"), name_of(process)
    node = make_node(registry, name)

    process.kill()
    process.wait()

    assert not registry.is_gone(node, [(4_000_000, 1)])


def test_a_node_of_another_machine_is_never_known_to_be_gone(process: subprocess.Popen[bytes]) -> None:
    registry, name = NodeRegistry("here"), name_of(process)
    node = make_node(registry, name, host="there")

    process.kill()
    process.wait()

    assert not registry.is_gone(node, [])


def test_a_newer_stream_ends_the_older_one() -> None:
    registry, hello = NodeRegistry("here"), Hello(NodeId("n0"), "there", "v100", 1, "127.0.0.1")
    first, second = Stream(), Stream()

    registry.connect(hello, first)
    node = registry.connect(hello, second)
    registry.disconnect(node, first)

    assert first.ended.is_set()
    assert node.stream is second


def test_a_moment_in_the_agents_clock_is_never_later_than_it_is() -> None:
    node = Node(Hello(NodeId("n0"), "there", "v100", 1, "127.0.0.1"))
    node.clock_s, node.received_at_s = 1_000.0, 50.0  # sent at 49.9

    assert node.clock_of(60.0) == 1_010.0  # the agent's clock shows 1010.1 by then


KEY, OTHER_KEY = 64 * "1", 64 * "2"


def make_hello(state_id: str, *, is_new: bool = False, key: str = "") -> Hello:
    """An agent with the node id n0."""
    return Hello(NodeId("n0"), "there", "v100", 1, "10.0.0.7", state_id=state_id, is_new=is_new, identity_key=key)


def test_a_second_agent_of_a_name_is_refused_while_the_first_is_heard() -> None:
    registry = NodeRegistry("here")
    registry.connect(make_hello("first"), Stream()).received_at_s = 100.0

    said = registry.objection(make_hello("second"), 101.0, silent_after_s=10.0, leases=0)

    assert said == "node_id must not be in use by another agent, got 'n0', which is connected from 10.0.0.7"


def test_a_second_agent_of_a_name_does_not_vouch_for_leases_it_cannot_know() -> None:
    registry = NodeRegistry("here")
    registry.connect(make_hello("first"), Stream()).received_at_s = 100.0

    with_leases = registry.objection(make_hello("second"), 200.0, silent_after_s=10.0, leases=2)
    without = registry.objection(make_hello("second"), 200.0, silent_after_s=10.0, leases=0)

    assert "node n0 has leases (2)" in with_leases
    assert "gavel node lost n0" in with_leases
    assert without == ""


def test_an_agent_that_comes_again_is_itself() -> None:
    registry = NodeRegistry("here")
    registry.connect(make_hello("first", is_new=True), Stream()).received_at_s = 100.0

    again = registry.objection(make_hello("first", is_new=True), 101.0, silent_after_s=10.0, leases=2)

    assert again == ""


def test_an_agent_that_does_not_say_which_it_is_does_not_take_over_a_node_that_does() -> None:
    registry = NodeRegistry("here")
    registry.connect(make_hello("first"), Stream()).received_at_s = 100.0

    untold = registry.objection(make_hello(""), 101.0, silent_after_s=10.0, leases=2)

    assert "node_id must not be in use by another agent" in untold
    assert registry.has_other_agent("n0", "", "")


def test_a_node_with_a_key_is_no_other_agents_until_its_name_is_given_up() -> None:
    registry = NodeRegistry("here")
    registry.connect(make_hello("first", key=KEY), Stream()).received_at_s = 100.0
    others = [make_hello("first"), make_hello("first", key=OTHER_KEY), make_hello("", key=OTHER_KEY), make_hello("")]

    refused = [registry.objection(other, 1e6, silent_after_s=10.0, leases=0) for other in others]
    itself = registry.objection(make_hello("first", key=KEY), 101.0, silent_after_s=10.0, leases=2)
    registry.declared_lost(NodeId("n0"), is_forgotten=False)
    still_refused = registry.objection(others[1], 1e6, silent_after_s=10.0, leases=0)
    registry.declared_lost(NodeId("n0"), is_forgotten=True)
    taken_on = registry.objection(others[1], 1e6, silent_after_s=10.0, leases=0)

    assert all("has a key that this agent" in said and "gavel node lost n0" in said for said in refused)
    assert "has a key that this agent" in still_refused
    assert (itself, taken_on) == ("", "")


def test_an_agent_known_by_its_directory_adopts_a_key_that_the_next_scheduler_knows() -> None:
    before = NodeRegistry("here", 100.0, lambda _: "first")
    hello = make_hello("first", key=KEY)

    said = before.objection(hello, 101.0, silent_after_s=10.0, leases=1)
    before.connect(hello, Stream()).received_at_s = 101.0
    after = NodeRegistry("here", 200.0, lambda _: hello.identity)

    assert said == ""
    assert KEY not in hello.identity
    assert before.has_other_agent("n0", "first", "")
    assert after.has_other_agent("n0", "first", OTHER_KEY)
    assert not after.has_other_agent("n0", "first", KEY)


def test_after_a_restart_the_agent_that_was_there_before_has_time_to_come_back() -> None:
    registry = NodeRegistry("here", 100.0, lambda _: "first")

    early = registry.objection(make_hello("second"), 105.0, silent_after_s=10.0, leases=0)
    holding = registry.objection(make_hello("second"), 200.0, silent_after_s=10.0, leases=1)
    late = registry.objection(make_hello("second"), 200.0, silent_after_s=10.0, leases=0)
    itself = registry.objection(make_hello("first", is_new=True), 105.0, silent_after_s=10.0, leases=1)

    assert "got 'n0', which another agent had before the scheduler restarted" in early
    assert "has leases (1)" in holding
    assert (late, itself) == ("", "")


def test_an_agent_that_is_started_again_does_not_lose_its_name_meanwhile() -> None:
    registry, stream = NodeRegistry("here"), Stream()
    node = registry.connect(make_hello("first"), stream)
    node.received_at_s = 100.0
    registry.disconnect(node, stream)

    meanwhile = registry.objection(make_hello("second"), 105.0, silent_after_s=10.0, leases=0)
    later = registry.objection(make_hello("second"), 110.0, silent_after_s=10.0, leases=0)

    assert "which was connected from 10.0.0.7" in meanwhile
    assert later == ""


def test_the_name_of_a_node_that_was_declared_lost_is_free_for_whoever_comes_first() -> None:
    registry, stream = NodeRegistry("here", 100.0, lambda _: "first"), Stream()
    registry.disconnect(registry.connect(make_hello("first"), stream), stream)

    registry.declared_lost(NodeId("n0"), is_forgotten=True)
    free = registry.objection(make_hello("second"), 101.0, silent_after_s=10.0, leases=0)
    registry.connect(make_hello("second"), Stream()).received_at_s = 101.0

    assert free == ""
    assert "is connected" in registry.objection(make_hello("first"), 102.0, silent_after_s=10.0, leases=0)


def test_after_a_restart_a_newcomer_is_not_taken_for_a_node_with_leases() -> None:
    registry = NodeRegistry("here")

    newcomer = registry.objection(make_hello("second", is_new=True), 5.0, silent_after_s=10.0, leases=1)
    old_hand = registry.objection(make_hello("first"), 5.0, silent_after_s=10.0, leases=1)

    assert "has leases (1)" in newcomer
    assert old_hand == ""


def test_an_agent_knows_all_options_that_a_job_can_need() -> None:
    assert set(OF_AGENTS) == set(FEATURES)


NEW = ("co_located", "cpus-per-gpu", "memory-per-gpu", "metrics", "plan")  # features of agents that announce them


def test_an_agent_lacks_what_it_does_not_announce() -> None:
    hello = Hello(NodeId("n0"), "here", "v100", 1, "127.0.0.1")

    assert set(hello.lacks) == set(FEATURES), "it is older than all of them"
    assert replace(hello, images="no: there is none").lacks == NEW, "newer than all others"
    assert replace(hello, images="podman 5", features=frozenset(FEATURES) - {"time"}).lacks == ("time",)


def test_an_agent_that_announces_nothing_lacks_features_that_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gavelpy.runtime.daemon.nodes.registry.FEATURES", {**FEATURES, "later": bool})

    assert Hello(NodeId("n0"), "here", "v100", 1, "127.0.0.1", images="podman 5").lacks == (*NEW, "later")


def test_a_job_that_an_old_agent_would_run_without_its_container_waits_for_a_newer_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = make_spec(software=Software(image="docker.io/library/python:3.12"))
        async with running(make_config(tmp_path, mechanism={"round_s": 1.0})) as cluster:
            async with Agent("n0", features=[]).connected(cluster) as old:
                plain, contained = await cluster.submit(make_spec(), job)
                await cluster.until(lambda: bool(old.launches), "the plain job runs")
                await cluster.scheduler.cancel([plain])
                await cluster.until(lambda: not cluster.core.jobs.leased.size, "its GPU is free")
                await asyncio.sleep(2.0)  # rounds in which it must not start
                why = reasons(cluster.core)[contained].text
                assert why == "needs 1 GPU, with none there: node n0 runs gavelpy 1, which has no --image"
                assert [launch.software.image for _, launch in old.launches] == [""]
            async with Agent("n0").connected(cluster) as new:
                await cluster.until(lambda: bool(new.launches), "the newer agent runs it")
                assert new.launches[0][1].software.image == job.software.image
        async with running(make_config(tmp_path)) as cluster, Agent("n0", features=[]).connected(cluster):
            await cluster.until(lambda: cluster.core.pool.any_lacking, "known after a restart of the scheduler")

    asyncio.run(asyncio.wait_for(scenario(), 120.0))

"""When a node of this machine is surely dead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.model.ids import NodeId
from gavelpy.runtime.daemon.nodes import Hello, Node, NodeRegistry, Stream, is_alive
from gavelpy.runtime.shim.processes import process_facts

ProcessName = tuple[int, int]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def name_of(process: subprocess.Popen[bytes]) -> ProcessName:
    facts = process_facts(process.pid)
    assert facts is not None
    return facts.process, facts.start_ticks


def make_node(registry: NodeRegistry, agent: ProcessName, host: str = "here") -> Node:
    """A node that has connected and gone away."""
    stream = Stream()
    node = registry.connect(Hello(NodeId("n0"), host, "v100", 1, "127.0.0.1", agent=agent), stream)
    registry.disconnect(node, stream)
    return node


def test_a_process_is_told_by_its_start(process: subprocess.Popen[bytes]) -> None:
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
        registry.watch(node, name_of(shim))
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

    assert node.clock_of(60.0) == 1_010.0  # where it is 1010.1 then

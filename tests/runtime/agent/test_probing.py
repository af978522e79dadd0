"""Probes between agents: their messages, and sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gavelpy.runtime.agent.probing import Circle, PeerProbing, datagram_of, message_of
from gavelpy.runtime.agent.quorum_member import QuorumMember
from gavelpy.runtime.peer_detector import PeerState, ProbeKind, ProbeMessage, Rumor
from gavelpy.runtime.quorum import Member, View
from gavelpy.runtime.wire import agent_pb2

CIRCLE = Circle("a/1", "c1", b"k" * 32, {"b/2": ("127.0.0.1", 9)})
ALIVE, DEAD = agent_pb2.PEER_SIGHT_STATE_ALIVE, agent_pb2.PEER_SIGHT_STATE_DEAD
PATIENCE_S = 60.0


def message(incarnation: int = 4, rumor: int = 5) -> ProbeMessage:
    rumors = (Rumor("c/3", PeerState.SUSPECT, rumor, "a/1"), Rumor("b/2", PeerState.ALIVE, 0))
    return ProbeMessage(ProbeKind.RELAY, "a/1", incarnation, 77, "c/3", rumors)


def member_of(directory: Path, name: str, cluster_id: str = "c1") -> QuorumMember:
    (directory / name).mkdir()
    return QuorumMember(directory / name, Member(name, f"of-{name}", "127.0.0.1:1"), cluster_id, 1, "boot", 0.0)


@asynccontextmanager
async def probing(quorums: list[QuorumMember], keys: list[bytes]) -> AsyncIterator[list[PeerProbing]]:
    """Agents on loopback that have each other's ports in their view."""
    found = [PeerProbing(quorum, lambda: None) for quorum in quorums]
    for one in found:
        one.open("127.0.0.1", 0)
    members = tuple(
        Member(quorum.me.node_id, quorum.me.state_id, "127.0.0.1:1", one.port)
        for quorum, one in zip(quorums, found, strict=True)
    )
    for quorum, key in zip(quorums, keys, strict=True):
        quorum.store_view(View(1, members, 60.0, 10.0, 10.0), key)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in found]
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


def seen(by: PeerProbing) -> dict[str, int]:
    return {sight.node_id: sight.state for sight in by.sights()}


def test_a_message_survives_its_datagram() -> None:
    assert message_of(datagram_of(message(), CIRCLE), CIRCLE) == message()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        datagram_of(message(), Circle("a/1", "c1", b"another key")),
        datagram_of(message(), Circle("a/1", "c2", CIRCLE.key)),
        datagram_of(message(incarnation=(1 << 62) + 1), CIRCLE),
        datagram_of(message(rumor=(1 << 62) + 1), CIRCLE),
        datagram_of(message(), CIRCLE)[:-1],
    ],
)
def test_a_datagram_that_is_not_authentic_or_not_well_formed_is_no_message(data: bytes) -> None:
    assert message_of(data, CIRCLE) is None


def test_without_a_key_no_datagram_is_a_message() -> None:
    keyless = Circle("a/1", "c1", b"", CIRCLE.addresses)

    assert message_of(datagram_of(message(), keyless), keyless) is None


def test_agents_on_loopback_see_each_other_and_find_one_that_ends(tmp_path: Path) -> None:
    async def story() -> None:
        quorums = [member_of(tmp_path, name) for name in ("a", "b")]
        async with probing(quorums, [b"k" * 32, b"k" * 32]) as (a, b):
            await until(lambda: seen(a) == {"b": ALIVE} and seen(b) == {"a": ALIVE})
            ages = [sight.age_s for sight in a.sights()]

            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.sendto(b"\xff" * 100, ("127.0.0.1", a.port))
            b._is_closing = True  # its thread ends: it answers no more

            await until(lambda: seen(a) == {"b": DEAD})
            assert 0 <= ages[0] < PATIENCE_S

    asyncio.run(story())


def test_agents_with_different_keys_do_not_see_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        quorums = [member_of(tmp_path, name) for name in ("a", "b")]
        async with probing(quorums, [b"k" * 32, b"j" * 32]) as (a, b):
            await until(lambda: seen(a) == {"b": DEAD} and seen(b) == {"a": DEAD})

            assert [sight.age_s for sight in a.sights()] == [-1.0]

    asyncio.run(story())

"""Probes other agents by UDP: the socket, the thread and the messages of this agent's failure detector.

The detector (`gavelpy.runtime.peer_detector`) runs in a thread of its own, which touches no file and resolves no name:
a hung disk or a long turn of the event loop does not make this agent look dead. Each datagram is a message with a MAC
by the key of the view, as in `peers`. Members of the view that announce no port for probes are not probed. Without a
view nothing is sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from gavelpy.runtime.agent.peers import is_near, opened, sealed
from gavelpy.runtime.agent.quorum_member import QuorumMember
from gavelpy.runtime.peer_detector import (
    Outgoing,
    PeerDetector,
    PeerState,
    ProbeKind,
    ProbeMessage,
    Rumor,
)
from gavelpy.runtime.quorum import Member, View
from gavelpy.runtime.wire import agent_pb2, peer_pb2

logger = logging.getLogger(__name__)

DATAGRAM_BYTES_MAX: Final = 8 << 10
READ_AT_ONCE: Final = 64  # datagrams, before timers are handled
WAIT_S_MAX: Final = 1.0
FOLLOW_VIEW_S: Final = 0.5
ANSWERS_KEPT_S: Final = 10.0
SIGHTS_MAX: Final = 128  # in a report
REPORTED_AT_ONCE: Final = 32  # in views with so many members, deaths do not wait for the next heartbeat
INCARNATION_MAX: Final = 1 << 62
_PURPOSE: Final = b"probe"
_STATES: Final = {
    PeerState.ALIVE: agent_pb2.PEER_SIGHT_STATE_ALIVE,
    PeerState.SUSPECT: agent_pb2.PEER_SIGHT_STATE_SUSPECT,
    PeerState.DEAD: agent_pb2.PEER_SIGHT_STATE_DEAD,
}
Address = tuple[str, int]


@dataclass(frozen=True)
class Circle:
    """The agents that probe each other, by name, with this agent's credentials."""

    me: str = ""
    cluster_id: str = ""
    key: bytes = field(default=b"", repr=False)
    addresses: Mapping[str, Address] = field(default_factory=dict)


def name_of(member: Member) -> str:
    """The name of an agent in probes."""
    return f"{member.node_id}/{member.state_id}"


class PeerProbing:
    """Runs the detector. `changed` is called in the event loop when a state should be reported at once."""

    def __init__(self, quorum: QuorumMember, changed: Callable[[], None]) -> None:
        self.port = 0  # 0 = this agent answers no probes
        self._quorum = quorum
        self._changed = changed
        self._socket: socket.socket | None = None
        self._circle = Circle()
        self._view: View | None = None  # of the circle
        self._is_closing = False
        self._lock = threading.Lock()  # of the next two, which the thread writes
        self._states: dict[str, PeerState] = {}
        self._answers: dict[str, float] = {}  # by name: when it last answered

    def open(self, host: str, port: int) -> None:
        """Binds the socket, to the port with this number if it is free."""
        for wanted in (port, 0):
            with suppress(OSError):
                self._socket = _bound(host, wanted)
                self._socket.setblocking(False)
                self.port = self._socket.getsockname()[1]
                return
        logger.warning("cannot bind a UDP port: this agent answers no probes of others")

    def sights(self) -> list[agent_pb2.PeerSight]:
        """What was found of other agents, for a report: the dead and suspected, and those that answered lately."""
        now_s = time.monotonic()
        with self._lock:
            states, answers = dict(self._states), dict(self._answers)
        bad = [name for name, state in states.items() if state is not PeerState.ALIVE]
        lately = [name for name, when_s in answers.items() if when_s > now_s - ANSWERS_KEPT_S and name in states]
        sights = []
        for name in list(dict.fromkeys((*bad, *lately)))[:SIGHTS_MAX]:
            node_id, _, state_id = name.rpartition("/")
            age_s = now_s - answers.get(name, math.inf)
            sights.append(
                agent_pb2.PeerSight(
                    node_id=node_id,
                    state_id=state_id,
                    state=_STATES[states[name]],
                    age_s=age_s if math.isfinite(age_s) else -1.0,
                )
            )
        return sights

    async def run(self) -> None:
        """Runs until it is cancelled."""
        loop, where = asyncio.get_running_loop(), self._socket
        if where is None:
            await asyncio.Event().wait()
            return
        waker, woken = socket.socketpair()

        def report() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed)

        with where, waker, woken, ThreadPoolExecutor(1, "probes") as pool:
            serving = loop.run_in_executor(pool, self._serve, where, woken, report)
            try:
                while not serving.done():
                    if await self._follow_view(where.family):
                        waker.send(b"\0")
                    await asyncio.wait({serving}, timeout=FOLLOW_VIEW_S)
                serving.result()
            finally:
                self._is_closing = True
                waker.send(b"\0")

    async def _follow_view(self, family: int) -> bool:
        """Probes the members of the agent's newest view; returns whether it is new."""
        quorum = self._quorum
        if quorum.view is self._view:
            return False
        view = self._view = quorum.view
        me = Member(quorum.me.node_id, quorum.me.state_id, "")
        if view is None or not view.has(me.node_id, me.state_id):
            self._circle = Circle()
        else:
            addresses = await _addresses(view, me, family)
            self._circle = Circle(name_of(me), quorum.cluster_id, quorum.key, addresses)
        return True

    # In the thread ------------------------------------------------------------------------------------------------

    def _serve(self, where: socket.socket, woken: socket.socket, report: Callable[[], None]) -> None:
        rng, circle = random.SystemRandom(), self._circle
        detector, version = PeerDetector(circle.me, rng), 0
        with selectors.DefaultSelector() as selector:
            selector.register(where, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while not self._is_closing:
                if circle is not self._circle:
                    circle = self._circle
                    detector = detector if detector.me == circle.me else PeerDetector(circle.me, rng)
                    detector.set_peers(circle.addresses, time.monotonic())
                    version = -1
                ready = selector.select(min(max(detector.due_s - time.monotonic(), 0.0), WAIT_S_MAX))
                if any(key.fileobj is woken for key, _ in ready):
                    woken.recv(64)
                self._read(where, detector, circle)
                if detector.due_s <= (now_s := time.monotonic()):
                    _send(where, circle, detector.advance(now_s))
                if detector.version != version:
                    version = detector.version
                    if self._publish(detector.peers) and len(circle.addresses) < REPORTED_AT_ONCE:
                        report()

    def _read(self, where: socket.socket, detector: PeerDetector, circle: Circle) -> None:
        for _ in range(READ_AT_ONCE):
            try:
                data = where.recv(DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                continue  # an earlier datagram was refused
            message, now_s = message_of(data, circle), time.monotonic()
            if message is None:
                continue
            _send(where, circle, detector.receive(message, now_s))
            if message.kind is ProbeKind.ACK and message.sender in circle.addresses:
                with self._lock:
                    self._answers[message.sender] = detector.last_answer_s(message.sender)

    def _publish(self, states: dict[str, PeerState]) -> bool:
        """Publishes the states; returns whether an agent has died or returned since the last time."""
        with self._lock:
            before, self._states = self._states, states
            self._answers = {name: when_s for name, when_s in self._answers.items() if name in states}
        return _dead(states) != _dead(before)


def datagram_of(message: ProbeMessage, circle: Circle) -> bytes:
    """A message as a datagram."""
    probe = peer_pb2.Probe(
        cluster_id=circle.cluster_id,
        sender=message.sender,
        kind=peer_pb2.ProbeKind.ValueType(message.kind),
        nonce=message.nonce,
        incarnation=message.incarnation,
        target=message.target,
        rumors=[
            peer_pb2.PeerRumor(
                peer=rumor.peer,
                state=peer_pb2.PeerRumorState.ValueType(rumor.state),
                incarnation=rumor.incarnation,
                accuser=rumor.accuser,
            )
            for rumor in message.rumors
        ],
    )
    return sealed(circle.key, _PURPOSE, probe.SerializeToString()).SerializeToString()


def message_of(data: bytes, circle: Circle) -> ProbeMessage | None:
    """The message in a datagram; None if it is not authentic, of another cluster or not well formed."""
    carrier, probe = peer_pb2.SealedMessage(), peer_pb2.Probe()
    try:
        carrier.ParseFromString(data)
    except DecodeError:
        return None
    if not opened(circle.key, _PURPOSE, carrier, probe) or probe.cluster_id != circle.cluster_id:
        return None
    try:
        rumors = tuple(
            Rumor(rumor.peer, PeerState(rumor.state), rumor.incarnation, rumor.accuser) for rumor in probe.rumors
        )
        kind = ProbeKind(probe.kind)
    except ValueError:
        return None
    if max(probe.incarnation, *(rumor.incarnation for rumor in rumors), 0) > INCARNATION_MAX:
        return None
    return ProbeMessage(kind, probe.sender, probe.incarnation, probe.nonce, probe.target, rumors)


def _send(where: socket.socket, circle: Circle, messages: Iterable[Outgoing]) -> None:
    for to, message in messages:
        address = circle.addresses.get(to)
        if address is not None:
            with suppress(OSError):  # as if it were lost
                where.sendto(datagram_of(message, circle), address)


def _dead(states: Mapping[str, PeerState]) -> set[str]:
    return {name for name, state in states.items() if state is PeerState.DEAD}


def _bound(host: str, port: int) -> socket.socket:
    if is_near(host):
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        return _bind(near, "127.0.0.1", port)
    try:
        everywhere = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        everywhere.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _bind(everywhere, "::", port)
    except OSError:
        return _bind(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "", port)


def _bind(what: socket.socket, host: str, port: int) -> socket.socket:
    try:
        what.bind((host, port))
    except OSError:
        what.close()
        raise
    return what


async def _addresses(view: View, me: Member, family: int) -> dict[str, Address]:
    """Where the other members that answer probes are; those whose names cannot be resolved are left out."""
    found = {}
    for member in view.members:
        host = member.address.rpartition(":")[0].strip("[]")
        if not member.probe_port or name_of(member) == name_of(me):
            continue
        with suppress(OSError):
            found[name_of(member)] = await _numeric(host, family), member.probe_port
    return found


async def _numeric(host: str, family: int) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        where = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_DGRAM)
        address = ipaddress.ip_address(where[0][4][0])
    is_mapped = family == socket.AF_INET6 and address.version == 4
    return f"::ffff:{address}" if is_mapped else str(address)

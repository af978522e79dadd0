"""Agents query each other's last contact with the scheduler: gRPC service, client, and the task that extends leases.

Messages are authenticated by a MAC with the key of the view, which the scheduler sends on its own authenticated stream;
they contain no secrets, so they need no TLS. An answer repeats the nonce of its query. `gavelpy.runtime.quorum` has the
rule and its proof, `quorum_member` this agent's state.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import random
import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gavelpy.runtime.agent.quorum_member import QuorumMember
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.quorum import Member, MemberAnswer, agrees
from gavelpy.runtime.security.exposure import is_loopback
from gavelpy.runtime.wire import peer_pb2, peer_pb2_grpc

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX: Final = 4 << 10
CALLS_MAX: Final = 1_000
NONCE_BYTES: Final = 16
ANSWER_S: Final = 2.0
CONCURRENT_QUERIES_MAX: Final = 32
_QUERY, _ANSWER = b"question", b"answer"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
Context = grpc.aio.ServicerContext[Any, Any]  # of any messages


class PeerServicer(peer_pb2_grpc.PeerServiceServicer):
    """Answers the other agents of the view."""

    def __init__(self, quorum: QuorumMember) -> None:
        self._quorum = quorum

    async def LastContact(  # noqa: N802 the protocol's name
        self, request: peer_pb2.SealedMessage, context: Context
    ) -> peer_pb2.SealedMessage:
        """This agent's last contact with a scheduler."""
        quorum = self._quorum
        query = peer_pb2.ContactQuestion()
        if not opened(quorum.key, _QUERY, request, query) or query.cluster_id != quorum.cluster_id:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the query must be sealed with this cluster's key")
        answer = peer_pb2.ContactAnswer(
            cluster_id=quorum.cluster_id,
            node_id=quorum.me.node_id,
            state_id=quorum.me.state_id,
            nonce=query.nonce,
            incarnation=quorum.contact.incarnation,
            heard_ago_s=quorum.heard_ago_s(clock_s()),
        )
        return sealed(quorum.key, _ANSWER, answer.SerializeToString())


async def serve_peers(quorum: QuorumMember, host: str, port: int) -> tuple[grpc.aio.Server, int]:
    """Serves other agents on a port, or on another if it is in use; 0 = any."""
    where = "127.0.0.1" if is_near(host) else "[::]"
    server = _server(quorum)
    try:
        taken = server.add_insecure_port(f"{where}:{port}")
    except RuntimeError:
        logger.warning("port for other agents is in use: using another", extra={"port": port})
        server = _server(quorum)
        taken = server.add_insecure_port(f"{where}:0")
    await server.start()
    return server, taken


async def query_members(
    quorum: QuorumMember, rng: random.Random, *, enough: float = math.inf, members_max: int | None = None
) -> list[MemberAnswer]:
    """Answers of other members of the view, in random order, until `enough` agree or `members_max` were queried."""
    view, contact = quorum.view, quorum.contact
    if view is None:
        return []
    others = [member for member in view.members if member.node_id != quorum.me.node_id]
    rng.shuffle(others)
    others = others[:members_max]
    answers: list[MemberAnswer] = []
    for first in range(0, len(others), CONCURRENT_QUERIES_MAX):
        batch = others[first : first + CONCURRENT_QUERIES_MAX]
        found = await asyncio.gather(*(query_member(quorum, member) for member in batch))
        answers += [answer for answer in found if answer is not None]
        if sum(agrees(answer, contact, view.window_s) for answer in answers) >= enough:
            break
    return answers


async def query_member(quorum: QuorumMember, member: Member) -> MemberAnswer | None:
    """The answer of one member; None if it does not answer in time or is not authentic."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    query = peer_pb2.ContactQuestion(
        cluster_id=quorum.cluster_id, node_id=quorum.me.node_id, state_id=quorum.me.state_id, nonce=nonce
    )
    answer = peer_pb2.ContactAnswer()
    try:
        async with grpc.aio.insecure_channel(member.address, options=_OPTIONS) as channel:
            stub = peer_pb2_grpc.PeerServiceStub(channel)
            carrier = sealed(quorum.key, _QUERY, query.SerializeToString())
            replied = await stub.LastContact(carrier, timeout=ANSWER_S)
    except grpc.aio.AioRpcError as error:
        logger.debug("agent not reached", extra={"node": member.node_id, "detail": error.details()})
        return None
    if not opened(quorum.key, _ANSWER, replied, answer) or answer.nonce != nonce:
        logger.warning("answer of another agent is not authentic", extra={"node": member.node_id})
        return None
    is_member = (answer.cluster_id, answer.node_id, answer.state_id) == (
        quorum.cluster_id, member.node_id, member.state_id
    )  # fmt: skip
    if not is_member or not math.isfinite(answer.heard_ago_s):
        return None
    return MemberAnswer(member.node_id, member.state_id, answer.incarnation, answer.heard_ago_s, clock_s())


def peer_address(host: str, port: int) -> str:
    """HOST:PORT for other agents."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _server(quorum: QuorumMember) -> grpc.aio.Server:
    options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
    peer_pb2_grpc.add_PeerServiceServicer_to_server(PeerServicer(quorum), server)
    return server


def is_near(host: str) -> bool:
    """Whether an agent at this host serves other agents on this machine only."""
    return is_loopback(peer_address(host, 0))


def sealed(key: bytes, purpose: bytes, body: bytes) -> peer_pb2.SealedMessage:
    """A message with its MAC."""
    return peer_pb2.SealedMessage(body=body, mac=_mac(key, purpose, body))


def opened(
    key: bytes,
    purpose: bytes,
    message: peer_pb2.SealedMessage,
    into: peer_pb2.ContactQuestion | peer_pb2.ContactAnswer | peer_pb2.Probe,
) -> bool:
    """Whether a message is authentic; parses it into `into`. Without a key none is."""
    if not key or not hmac.compare_digest(message.mac, _mac(key, purpose, message.body)):
        return False
    try:
        into.ParseFromString(message.body)
    except DecodeError:
        return False
    return True


def _mac(key: bytes, purpose: bytes, body: bytes) -> bytes:
    return hmac.new(key, purpose + b"\0" + body, sha256).digest()


TICK_S: Final = 0.5
PROBE_S: Final = 60.0
PROBED_MAX: Final = 32  # members


class LeaseExtender:
    """Queries other agents while the scheduler is silent, and extends leases by the quorum rule.

    Probes some members from time to time otherwise. `has_leases`: whether there are leases to extend. `extended` is
    called after an extension.
    """

    def __init__(self, quorum: QuorumMember, has_leases: Callable[[], bool], extended: Callable[[], None]) -> None:
        self._quorum = quorum
        self._has_leases = has_leases
        self._extended = extended
        self._rng = random.Random()
        self._logged = ""
        self._probe_clock_s = -math.inf
        self._probed_epoch = 0
        self.unreached = 0  # members that did not answer the last probe

    async def run(self) -> None:
        """Runs until it is cancelled."""
        query_clock_s = -math.inf
        while True:
            await asyncio.sleep(min(TICK_S, self._quorum.query_interval_s))
            now_clock_s = clock_s()
            if not self._quorum.must_query(now_clock_s):
                self._log_once("")
                await self._probe(now_clock_s)
            elif now_clock_s >= query_clock_s and self._has_leases():
                query_clock_s = now_clock_s + self._quorum.query_interval_s
                await self._query()

    async def _query(self) -> None:
        quorum = self._quorum
        view, contact, asked_clock_s = quorum.view, quorum.contact, clock_s()
        assert view is not None, "without a view there are no queries"
        answers = await query_members(quorum, self._rng, enough=view.majority - 1)
        if contact != quorum.contact:
            return  # the scheduler is back
        before_clock_s = quorum.until_clock_s
        count = quorum.count_answers(contact, answers, asked_clock_s)
        if quorum.until_clock_s > before_clock_s:
            self._extended()
        is_majority = count >= view.majority
        self._log_once("leases are extended without the scheduler" if is_majority else "leases are not extended", count)

    async def _probe(self, now_clock_s: float) -> None:
        """Tests that other agents can be reached, before it matters."""
        view = self._quorum.view
        if view is None or view.orphan_max_s <= 0 or not view.has(self._quorum.me.node_id, self._quorum.me.state_id):
            self.unreached = 0
            return
        if now_clock_s < self._probe_clock_s + PROBE_S and view.epoch == self._probed_epoch:
            return
        self._probe_clock_s, self._probed_epoch = now_clock_s, view.epoch
        count = min(PROBED_MAX, len(view.members) - 1)
        answers = await query_members(self._quorum, self._rng, members_max=count)
        unreached = count - len(answers)
        if unreached != self.unreached:
            level = logging.WARNING if unreached else logging.INFO
            logger.log(level, "other agents do not answer", extra={"agents": unreached, "of": count})
        self.unreached = unreached

    def _log_once(self, what: str, count: int = 0) -> None:
        view = self._quorum.view
        if what and what != self._logged and view is not None:
            extra = {"agree": count, "majority": view.majority, "members": len(view.members)}
            logger.warning(what, extra=extra)
        self._logged = what

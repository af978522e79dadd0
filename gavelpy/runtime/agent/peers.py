"""Agents ask each other for their last contact with a scheduler: a small gRPC service, and the side that asks.

Messages are authenticated by a MAC under the key of the view, which the scheduler sends on its own authenticated
stream; nothing in them is secret, so they need no TLS. An answer repeats the nonce of its question. See
`gavelpy.runtime.quorum` for what is done with the answers.
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
ANSWER_S: Final = 2.0  # a member that takes longer is not reached
ASKED_AT_ONCE: Final = 32
_ASKS, _ANSWERS = b"question", b"answer"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
Context = grpc.aio.ServicerContext[Any, Any]  # of any messages


class PeerServicer(peer_pb2_grpc.PeerServiceServicer):
    """Answers other agents of the view."""

    def __init__(self, orphans: QuorumMember) -> None:
        self._orphans = orphans

    async def LastContact(  # noqa: N802 the protocol's name
        self, request: peer_pb2.SealedMessage, context: Context
    ) -> peer_pb2.SealedMessage:
        """When this agent was last in contact with a scheduler."""
        orphans = self._orphans
        question = peer_pb2.ContactQuestion()
        if not _opened(orphans.key, _ASKS, request, question) or question.cluster_id != orphans.cluster_id:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the question must be sealed with this cluster's key")
        answer = peer_pb2.ContactAnswer(
            cluster_id=orphans.cluster_id,
            node_id=orphans.me.node_id,
            state_id=orphans.me.state_id,
            nonce=question.nonce,
            incarnation=orphans.contact.incarnation,
            heard_ago_s=orphans.heard_ago_s(clock_s()),
        )
        return _sealed(orphans.key, _ANSWERS, answer.SerializeToString())


async def serve_peers(orphans: QuorumMember, host: str, port: int) -> tuple[grpc.aio.Server, int]:
    """Serves on a port of the address that other agents use, or on another port where that is taken; 0 = any."""
    where = "127.0.0.1" if _is_near(host) else "[::]"
    server = _server(orphans)
    try:
        taken = server.add_insecure_port(f"{where}:{port}")
    except RuntimeError:
        logger.warning("port for other agents is taken: another one is used", extra={"port": port})
        server = _server(orphans)
        taken = server.add_insecure_port(f"{where}:0")
    await server.start()
    return server, taken


async def ask_members(
    orphans: QuorumMember, rng: random.Random, *, enough: float = math.inf, asked_max: int | None = None
) -> list[MemberAnswer]:
    """What other members of the view answer; in random order, until `enough` agree or all (`asked_max`) were asked."""
    view, contact = orphans.view, orphans.contact
    if view is None:
        return []
    others = [member for member in view.members if member.node_id != orphans.me.node_id]
    rng.shuffle(others)
    others = others[:asked_max]
    answers: list[MemberAnswer] = []
    for first in range(0, len(others), ASKED_AT_ONCE):
        asked = others[first : first + ASKED_AT_ONCE]
        found = await asyncio.gather(*(ask_member(orphans, member) for member in asked))
        answers += [answer for answer in found if answer is not None]
        if sum(agrees(answer, contact, view.window_s) for answer in answers) >= enough:
            break
    return answers


async def ask_member(orphans: QuorumMember, member: Member) -> MemberAnswer | None:
    """The answer of one member; None where it does not answer in time, or is not the member."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    question = peer_pb2.ContactQuestion(
        cluster_id=orphans.cluster_id, node_id=orphans.me.node_id, state_id=orphans.me.state_id, nonce=nonce
    )
    answer = peer_pb2.ContactAnswer()
    try:
        async with grpc.aio.insecure_channel(member.address, options=_OPTIONS) as channel:
            stub = peer_pb2_grpc.PeerServiceStub(channel)
            sealed = await stub.LastContact(_sealed(orphans.key, _ASKS, question.SerializeToString()), timeout=ANSWER_S)
    except grpc.aio.AioRpcError as error:
        logger.debug("agent not reached", extra={"node": member.node_id, "detail": error.details()})
        return None
    if not _opened(orphans.key, _ANSWERS, sealed, answer) or answer.nonce != nonce:
        logger.warning("answer of another agent is not authentic", extra={"node": member.node_id})
        return None
    is_member = (answer.cluster_id, answer.node_id, answer.state_id) == (
        orphans.cluster_id, member.node_id, member.state_id
    )  # fmt: skip
    if not is_member or not math.isfinite(answer.heard_ago_s):
        return None
    return MemberAnswer(member.node_id, member.state_id, answer.incarnation, answer.heard_ago_s, clock_s())


def peer_address(host: str, port: int) -> str:
    """HOST:PORT as other agents call it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _server(orphans: QuorumMember) -> grpc.aio.Server:
    options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
    peer_pb2_grpc.add_PeerServiceServicer_to_server(PeerServicer(orphans), server)
    return server


def _is_near(host: str) -> bool:
    return is_loopback(peer_address(host, 0))


def _sealed(key: bytes, purpose: bytes, body: bytes) -> peer_pb2.SealedMessage:
    return peer_pb2.SealedMessage(body=body, mac=_mac(key, purpose, body))


def _opened(
    key: bytes,
    purpose: bytes,
    sealed: peer_pb2.SealedMessage,
    into: peer_pb2.ContactQuestion | peer_pb2.ContactAnswer,
) -> bool:
    """Whether a message is authentic; then it is in `into`. Without a key nothing is."""
    if not key or not hmac.compare_digest(sealed.mac, _mac(key, purpose, sealed.body)):
        return False
    try:
        into.ParseFromString(sealed.body)
    except DecodeError:
        return False
    return True


def _mac(key: bytes, purpose: bytes, body: bytes) -> bytes:
    return hmac.new(key, purpose + b"\0" + body, sha256).digest()


TICK_S: Final = 0.5
PROBE_S: Final = 60.0
PROBED_MAX: Final = 32  # members, at each probe


class LeaseExtender:
    """`has_leases`: whether anything runs that could be extended. `extended` is called after an extension."""

    def __init__(self, orphans: QuorumMember, has_leases: Callable[[], bool], extended: Callable[[], None]) -> None:
        self._orphans = orphans
        self._has_leases = has_leases
        self._extended = extended
        self._rng = random.Random()
        self._said = ""
        self._probe_clock_s = -math.inf
        self._probed_epoch = 0
        self.unreached = 0  # members that did not answer the last probe

    async def run(self) -> None:
        """Until it is cancelled."""
        ask_clock_s = -math.inf
        while True:
            await asyncio.sleep(min(TICK_S, self._orphans.ask_every_s))
            now_clock_s = clock_s()
            if not self._orphans.is_asking(now_clock_s):
                self._say("")
                await self._probe(now_clock_s)
            elif now_clock_s >= ask_clock_s and self._has_leases():
                ask_clock_s = now_clock_s + self._orphans.ask_every_s
                await self._ask()

    async def _ask(self) -> None:
        orphans = self._orphans
        view, contact, asked_clock_s = orphans.view, orphans.contact, clock_s()
        assert view is not None, "without a view nothing is asked"
        answers = await ask_members(orphans, self._rng, enough=view.majority - 1)
        if contact != orphans.contact:
            return  # the scheduler is back
        before_clock_s = orphans.until_clock_s
        count = orphans.answered(contact, answers, asked_clock_s)
        if orphans.until_clock_s > before_clock_s:
            self._extended()
        is_majority = count >= view.majority
        self._say("leases run on without the scheduler" if is_majority else "leases are not extended", count)

    async def _probe(self, now_clock_s: float) -> None:
        """Whether other agents can be reached shows before it matters."""
        view = self._orphans.view
        if view is None or view.orphan_max_s <= 0 or not view.has(self._orphans.me.node_id, self._orphans.me.state_id):
            self.unreached = 0
            return
        if now_clock_s < self._probe_clock_s + PROBE_S and view.epoch == self._probed_epoch:
            return
        self._probe_clock_s, self._probed_epoch = now_clock_s, view.epoch
        asked = min(PROBED_MAX, len(view.members) - 1)
        answers = await ask_members(self._orphans, self._rng, asked_max=asked)
        unreached = asked - len(answers)
        if unreached != self.unreached:
            level = logging.WARNING if unreached else logging.INFO
            logger.log(level, "other agents that do not answer this one", extra={"agents": unreached, "of": asked})
        self.unreached = unreached

    def _say(self, what: str, count: int = 0) -> None:
        """Once when it changes."""
        view = self._orphans.view
        if what and what != self._said and view is not None:
            extra = {"agree": count, "majority": view.majority, "members": len(view.members)}
            logger.warning(what, extra=extra)
        self._said = what

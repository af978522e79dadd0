"""The failure detector of an agent: which other agents are alive, by probes among the agents (SWIM, with Lifeguard).

The problem. A scheduler that receives nothing from a node cannot distinguish a dead node from a cut link. The other
agents can: they have other paths to the node. What they find is evidence for people and for the choice between
waiting and fencing. It is no proof of death: only lease ends and confirmed ends of processes are (`quorum`, `daemon`).

The protocol. In each period an agent sends a *ping* to one other, in random order, all before any again. Without an
answer within `direct_s` it requests some agents to *relay* a ping; without any answer within `probe_s` it *suspects*
the other. Suspicion is a rumor: rumors travel on all messages, the newest first, and on a few messages of their own, so
that they reach n agents in O(log n) periods. An agent that receives the rumor of its own suspicion refutes it with a
higher *incarnation*. A suspicion that is not refuted in time becomes *dead*. Later rumors win: by incarnation, then
dead over suspect over alive. A dead agent that answers again refutes its death in the same way. A rumor that is
contradicted by newer ones is answered with them, as rumors miss some agents by chance.

Slow agents, and pauses. The time for a refutation begins at its longest and shrinks as other agents confirm the
suspicion by their own probes. An agent that was suspended must not blame the others: timers that are handled late are
postponed by as much. An agent whose own probes fail, or that is suspected itself, waits longer (`health`).

Traffic. An agent starts at most one probe a period and `1 + relays` messages for each failed one, and at most
`rumor_targets` more while there are rumors; each message is answered once. Nothing depends on the number of agents
except the time in which a rumor stays alive, and suspicions, which last longer by its logarithm.

Sources: Das, Gupta, Motivala, "SWIM" (DSN 2002), sections 3 and 4; Dadgar, Phillips, Currey, "Lifeguard" (DSN 2018).
Differences: members are given (the scheduler's view), not found; a dead member stays one, and is probed like others;
probes overlap, so that the period can be shorter than a time-out; a suspect is probed again at once by its accuser and
by a few others; and only an answer to an own ping is direct evidence (`last_answer_s`), as it cannot be replayed.

No clock, no I/O and no randomness of its own: `now_s` never decreases, and `rng` is given.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random
from typing import Final

HEALTH_MAX: Final = 8
NONCES: Final = 1 << 63
LATE_S: Final = 0.05  # a timer that is handled so much later shows that this process did not run
VERIFIERS: Final = 4.0  # agents that probe a suspect at once, on average


class PeerState(IntEnum):
    """What an agent believes of another. Of two rumors of one incarnation the larger state wins."""

    ALIVE = 1
    SUSPECT = 2
    DEAD = 3


class ProbeKind(IntEnum):
    """Kinds of messages."""

    PING = 1  # to be answered by an ACK with the same nonce
    ACK = 2
    RELAY = 3  # a request to ping `target`, to be answered by an ACK or a NACK with the same nonce
    NACK = 4  # the target has not answered the relayed ping yet
    RUMORS = 5  # no answer


@dataclass(frozen=True)
class Rumor:
    """A state of a peer. `accuser`: who found it suspect; empty for other states."""

    peer: str
    state: PeerState
    incarnation: int
    accuser: str = ""


@dataclass(frozen=True)
class ProbeMessage:
    """A message between two agents. `target`: of a ping its receiver, of a relay the agent to ping."""

    kind: ProbeKind
    sender: str
    incarnation: int  # of the sender
    nonce: int = 0
    target: str = ""
    rumors: tuple[Rumor, ...] = ()


Outgoing = tuple[str, ProbeMessage]  # the receiver, and what it receives


@dataclass(frozen=True)
class ProbeTiming:
    """Durations and counts of the protocol."""

    period_s: float = 0.3
    direct_s: float = 0.2  # for the answer to a ping, before relays are requested
    probe_s: float = 0.6  # for any answer, before the peer is suspected
    suspicion_s: float = 1.5  # the shortest, in a small cluster
    suspicion_periods: float = 3.0  # the shortest, times log10 of the number of agents, if that is longer
    stretch: float = 3.0  # the longest suspicion, as a multiple of the shortest
    confirmations: int = 3  # by other agents, that shorten a suspicion to the shortest
    relays: int = 3
    rumors_max: int = 8  # on one message
    rumor_targets: int = 2  # in each period, while there are rumors
    rumor_repeats: float = 6.0  # times log10 of the number of agents: on so many messages of each agent it travels

    def suspicion_s_min(self, agents: int) -> float:
        """The shortest suspicion among so many agents: a refutation must have time to reach all."""
        return max(self.suspicion_s, self.suspicion_periods * self.period_s * math.log10(agents))


@dataclass
class _Peer:
    state: PeerState = PeerState.ALIVE
    incarnation: int = 0
    answered_s: float = -math.inf  # its last answer to a ping of this agent
    accusers: dict[str, None] = field(default_factory=dict)  # of the suspicion, in the order of their rumors
    suspected_s: float = math.inf
    stretch: float = 1.0  # of the time for a refutation


@dataclass
class _Probe:
    target: str
    began_s: float
    relays: int = -1  # agents that were requested to relay; -1 = not yet
    nacks: int = 0


@dataclass(frozen=True)
class _RelayedPing:
    requester: str
    nonce: int  # of the request
    due_s: float


@dataclass
class _Spread:
    rumor: Rumor
    messages: int = 0  # that have carried it


class PeerDetector:
    """The state machine of the agent `me`. Messages must be authentic."""

    def __init__(self, me: str, rng: Random, timing: ProbeTiming | None = None) -> None:
        self.me = me
        self.incarnation = 0
        self.health = 0  # 0 = well; more = this agent's own time-outs are longer
        self.version = 0  # grows when the state of a peer changes
        self._rng = rng
        self._timing = timing or ProbeTiming()
        self._peers: dict[str, _Peer] = {}
        self._names: list[str] = []  # of the peers
        self._suspects: dict[str, _Peer] = {}
        self._order: list[str] = []  # peers that are still to be probed in this turn, the next one last
        self._probes: dict[int, _Probe] = {}  # by nonce
        self._relayed: dict[int, _RelayedPing] = {}  # by nonce of this agent's ping
        self._spreads: dict[tuple[str, str], _Spread] = {}  # by peer and accuser
        self._next_probe_s = math.inf

    # What is known ------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> dict[str, PeerState]:
        """The state of each peer."""
        return {name: peer.state for name, peer in self._peers.items()}

    def last_answer_s(self, peer: str) -> float:
        """When a peer last answered a ping of this agent; -inf = never."""
        return self._peers[peer].answered_s

    @property
    def due_s(self) -> float:
        """When `advance` must be called next; infinite without peers."""
        probes = (probe.began_s + self._patience_s(probe) for probe in self._probes.values())
        relayed = (ping.due_s for ping in self._relayed.values())
        return min((self._next_probe_s, *probes, *relayed, *map(self._dead_s, self._suspects.values())))

    def _patience_s(self, probe: _Probe) -> float:
        timing = self._timing
        return (timing.direct_s if probe.relays < 0 else timing.probe_s) * (1 + self.health)

    def _dead_s(self, suspect: _Peer) -> float:
        """When a suspicion becomes death. Source: Lifeguard, "LHA-Suspicion"."""
        timing, agents = self._timing, len(self._peers) + 1
        least_s = timing.suspicion_s_min(agents) * suspect.stretch
        wanted = timing.confirmations
        if agents - 2 < wanted:  # so many others than the accuser and the suspect
            return suspect.suspected_s + least_s
        shortened = math.log(len(suspect.accusers)) / math.log(wanted + 1)
        return suspect.suspected_s + least_s * max(1.0, timing.stretch - (timing.stretch - 1.0) * shortened)

    # Input --------------------------------------------------------------------------------------------------------

    def set_peers(self, peers: Iterable[str], now_s: float) -> None:
        """The other agents are these; what is known of those that stay is kept."""
        self._names = [name for name in dict.fromkeys(peers) if name != self.me]
        if not self._names:
            self._next_probe_s = math.inf
        elif not self._peers:
            self._next_probe_s = now_s + self._rng.uniform(0, self._timing.period_s)
        self._peers = {name: self._peers.get(name) or _Peer() for name in self._names}
        known = self._peers.keys()
        self._suspects = {name: peer for name, peer in self._suspects.items() if name in known}
        self._order = [name for name in self._order if name in known]
        self._probes = {nonce: probe for nonce, probe in self._probes.items() if probe.target in known}
        self._spreads = {key: spread for key, spread in self._spreads.items() if key[0] in known or key[0] == self.me}

    def receive(self, message: ProbeMessage, now_s: float) -> list[Outgoing]:
        """Processes a message; returns the answers. Messages of agents that are no peers are ignored."""
        sender, nonce = message.sender, message.nonce
        if sender not in self._peers:
            return []
        self._take(Rumor(sender, PeerState.ALIVE, message.incarnation), now_s)
        for rumor in message.rumors:
            self._take(rumor, now_s)
        news = [newer for rumor in message.rumors if (newer := self._newer_than(rumor)) is not None]
        match message.kind:
            case ProbeKind.PING if message.target == self.me:
                return [self._to(sender, ProbeKind.ACK, nonce, news=news)]
            case ProbeKind.RUMORS if news:
                return [self._to(sender, ProbeKind.RUMORS, news=news)]
            case ProbeKind.ACK:
                return self._acknowledged(sender, nonce, now_s)
            case ProbeKind.NACK if nonce in self._probes:
                self._probes[nonce].nacks += 1
            case ProbeKind.RELAY if message.target in self._peers:
                mine = self._nonce()
                self._relayed[mine] = _RelayedPing(sender, nonce, now_s + self._timing.direct_s)
                return [self._to(message.target, ProbeKind.PING, mine, message.target)]
            case _:
                pass
        return []

    def advance(self, now_s: float) -> list[Outgoing]:
        """Handles the timers that are due; returns the messages to send."""
        late_s = now_s - self.due_s
        if late_s > LATE_S:
            self._postpone(late_s)
        sent: list[Outgoing] = []
        for nonce, probe in list(self._probes.items()):
            if probe.began_s + self._patience_s(probe) <= now_s:
                sent += self._unanswered(nonce, probe, now_s)
        for nonce, relayed in list(self._relayed.items()):
            if relayed.due_s <= now_s:
                del self._relayed[nonce]
                if relayed.requester in self._peers:
                    sent.append(self._to(relayed.requester, ProbeKind.NACK, relayed.nonce))
        for name, peer in list(self._suspects.items()):
            if self._dead_s(peer) <= now_s:
                self._take(Rumor(name, PeerState.DEAD, peer.incarnation), now_s)
        if self._next_probe_s <= now_s:
            self._next_probe_s = now_s + self._timing.period_s
            sent += self._probe(now_s)
        return sent

    def _postpone(self, late_s: float) -> None:
        """This process did not run for a while, and answers may be unread: this counts against no peer."""
        self._suffer(1)
        more_s = late_s + min(late_s, self._timing.direct_s)
        for probe in self._probes.values():
            probe.began_s += more_s
        for peer in self._suspects.values():
            peer.suspected_s += more_s

    # Probes -------------------------------------------------------------------------------------------------------

    def _probe(self, now_s: float) -> list[Outgoing]:
        if not self._order:
            self._order = list(self._names)
            self._rng.shuffle(self._order)
        target, nonce = self._order.pop(), self._nonce()
        self._probes[nonce] = _Probe(target, now_s)
        sent = [self._to(target, ProbeKind.PING, nonce, target)]
        if self._spreads:
            chosen = self._some(self._timing.rumor_targets, target)
            sent += [self._to(name, ProbeKind.RUMORS) for name in chosen]
        return sent

    def _some(self, count: int, without: str) -> list[str]:
        """Random peers that are alive, at most so many."""
        drawn = self._rng.sample(self._names, min(4 * count, len(self._names)))
        alive = (name for name in drawn if self._peers[name].state is PeerState.ALIVE)
        return [name for name in alive if name != without][:count]

    def _unanswered(self, nonce: int, probe: _Probe, now_s: float) -> list[Outgoing]:
        """A ping has no answer: requests relays, or suspects the peer if it has requested them."""
        target, peer = probe.target, self._peers[probe.target]
        if probe.relays < 0:
            chosen = self._some(self._timing.relays, target) if peer.state is not PeerState.DEAD else []
            probe.relays = len(chosen)
            return [self._to(name, ProbeKind.RELAY, nonce, target) for name in chosen]
        del self._probes[nonce]
        if peer.state is not PeerState.DEAD:
            self._suffer(int(probe.nacks < probe.relays))  # relays are silent, too: the cause may be this agent
            self._take(Rumor(target, PeerState.SUSPECT, peer.incarnation, self.me), now_s)
            self._probe_soon(target)
        return []

    def _acknowledged(self, sender: str, nonce: int, now_s: float) -> list[Outgoing]:
        """An answer: to an own ping, or to one that was relayed for another agent, or by another agent."""
        relayed = self._relayed.pop(nonce, None)
        if relayed is not None:
            self._peers[sender].answered_s = now_s
            known = relayed.requester in self._peers
            return [self._to(relayed.requester, ProbeKind.ACK, relayed.nonce)] if known else []
        probe = self._probes.pop(nonce, None)
        if probe is not None:
            self._suffer(-1)
            if probe.target == sender:
                self._peers[sender].answered_s = now_s
            elif self._peers[probe.target].state is PeerState.SUSPECT:
                self._probe_soon(probe.target)  # its own answer would carry the refutation
        return []

    def _probe_soon(self, name: str) -> None:
        if name in self._order:
            self._order.remove(name)
        self._order.append(name)

    def _suffer(self, change: int) -> None:
        self.health = min(max(self.health + change, 0), HEALTH_MAX)

    # Rumors -------------------------------------------------------------------------------------------------------

    def _take(self, rumor: Rumor, now_s: float) -> None:
        """Takes a rumor if it is news, and passes it on."""
        if rumor.peer == self.me:
            self._refute(rumor)
            return
        peer = self._peers.get(rumor.peer)
        if peer is None or (rumor.incarnation, rumor.state) < (peer.incarnation, peer.state):
            return
        if (rumor.incarnation, rumor.state) == (peer.incarnation, peer.state):
            if rumor.state is PeerState.SUSPECT:
                self._confirm(peer, rumor)
            return
        was_alive = peer.state is PeerState.ALIVE
        self.version += rumor.state is not peer.state
        peer.state, peer.incarnation = rumor.state, rumor.incarnation
        for accuser in ("", *peer.accusers):
            self._spreads.pop((rumor.peer, accuser), None)
        peer.accusers = {rumor.accuser: None} if rumor.state is PeerState.SUSPECT else {}
        self._suspects.pop(rumor.peer, None)
        if not (was_alive and rumor.state is PeerState.ALIVE):
            self._pass_on(rumor)
        if rumor.state is PeerState.SUSPECT:
            self._suspects[rumor.peer] = peer
            peer.suspected_s, peer.stretch = now_s, 1.0 + self.health / HEALTH_MAX
            if self._rng.random() < VERIFIERS / len(self._peers):
                self._probe_soon(rumor.peer)

    def _newer_than(self, rumor: Rumor) -> Rumor | None:
        """What contradicts a rumor; None if it is the newest. Rumors alone do not reach every agent for certain."""
        peer = self._peers.get(rumor.peer)
        if peer is None or (peer.incarnation, peer.state) <= (rumor.incarnation, rumor.state):
            return None
        return Rumor(rumor.peer, peer.state, peer.incarnation, next(iter(peer.accusers), ""))

    def _confirm(self, peer: _Peer, rumor: Rumor) -> None:
        """Another agent has found a suspect without an answer."""
        if rumor.accuser not in peer.accusers and len(peer.accusers) <= self._timing.confirmations:
            peer.accusers[rumor.accuser] = None
            self._pass_on(rumor)

    def _refute(self, rumor: Rumor) -> None:
        if rumor.state is not PeerState.ALIVE and rumor.incarnation >= self.incarnation:
            self.incarnation = rumor.incarnation + 1
            self._suffer(1)
            self._pass_on(Rumor(self.me, PeerState.ALIVE, self.incarnation))

    def _pass_on(self, rumor: Rumor) -> None:
        self._spreads[rumor.peer, rumor.accuser] = _Spread(rumor)

    def _to(
        self, receiver: str, kind: ProbeKind, nonce: int = 0, target: str = "", news: Sequence[Rumor] = ()
    ) -> Outgoing:
        """A message with these news, the rumor about its receiver, and those that have travelled least."""
        rumors = list(dict.fromkeys(news))[: self._timing.rumors_max - 1]
        peer = self._peers[receiver]
        if peer.state is not PeerState.ALIVE:
            rumors.append(Rumor(receiver, peer.state, peer.incarnation, next(iter(peer.accusers), "")))
        repeats = math.ceil(self._timing.rumor_repeats * math.log10(len(self._peers) + 2))
        by_age = heapq.nsmallest(
            self._timing.rumors_max - len(rumors), self._spreads.items(), key=lambda entry: entry[1].messages
        )
        for key, spread in by_age:
            spread.messages += 1
            if spread.messages >= repeats:
                del self._spreads[key]
            if spread.rumor not in rumors:
                rumors.append(spread.rumor)
        return receiver, ProbeMessage(kind, self.me, self.incarnation, nonce, target, tuple(rumors))

    def _nonce(self) -> int:
        return self._rng.randrange(1, NONCES)

"""What agents report of each other: to how many of them a node is alive, or dead.

Agents probe each other (`gavelpy.runtime.peer_detector`) and send with each heartbeat whom they believe dead or
suspected, and who has answered them lately. A node that this scheduler cannot reach may be alive to its peers: then the
link is cut, not the node. The evidence decides what is shown, when a node counts as unreachable, and whether `fence`
applies. It is no proof of death: while leases may run, their ends decide (`quorum`), or ends of processes (`watch`).

An answer counts for a node, unless the agent that received it suspects the node by now. A death counts if a majority of
the agents that probe have the same belief and no agent has an answer: one agent with a broken link decides nothing.

No clock and no I/O: time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

RECENT_S = 10.0  # reports that are older are no evidence
ANSWERED_WITHIN_S = 8.0


class SightState(IntEnum):
    """What an agent believes of another."""

    ALIVE = 1
    SUSPECT = 2
    DEAD = 3


@dataclass(frozen=True)
class ReportedPeer:
    """An agent's belief of another one."""

    node_id: str
    state_id: str
    state: SightState
    age_s: float  # since its last answer to the agent; infinite = never


class PeerEvidence(NamedTuple):
    """Numbers of agents to which a node is alive, or dead; one of them is 0."""

    alive_to: int = 0
    dead_to: int = 0

    def is_like(self, other: PeerEvidence) -> bool:
        """Whether both lead to the same conclusion."""
        return bool(self.alive_to) == bool(other.alive_to) and bool(self.dead_to) == bool(other.dead_to)


NO_EVIDENCE = PeerEvidence()
_Peer = tuple[str, str]  # ids of the node and of its agent's state directory


class PeerReports:
    """The newest report of each agent that probes."""

    def __init__(self) -> None:
        self._received_s: dict[str, float] = {}  # by the agent that reported
        self._listed: dict[str, set[_Peer]] = {}  # by that agent
        self._beliefs: dict[_Peer, dict[str, tuple[SightState, float]]] = {}  # of a peer, by that agent

    def reported(self, node_id: str, peers: Sequence[ReportedPeer], now_s: float) -> None:
        """An agent reports what it found of others; this replaces its last report."""
        self._received_s[node_id] = now_s
        listed = {(peer.node_id, peer.state_id) for peer in peers}
        for gone in self._listed.get(node_id, set()) - listed:
            self._beliefs[gone].pop(node_id, None)
            if not self._beliefs[gone]:
                del self._beliefs[gone]
        self._listed[node_id] = listed
        for peer in peers:
            beliefs = self._beliefs.setdefault((peer.node_id, peer.state_id), {})
            beliefs[node_id] = peer.state, now_s - peer.age_s

    def evidence(self, node_id: str, state_id: str, now_s: float) -> PeerEvidence:
        """What the other agents found of a node."""
        beliefs = self._beliefs.get((node_id, state_id), {})
        recent = {by for by in beliefs if by != node_id and self._received_s[by] > now_s - RECENT_S}
        alive_to = sum(
            beliefs[by][0] is SightState.ALIVE and beliefs[by][1] > now_s - ANSWERED_WITHIN_S for by in recent
        )
        dead_to = sum(beliefs[by][0] is SightState.DEAD for by in recent)
        if alive_to or not dead_to:
            return PeerEvidence(alive_to=alive_to)
        agents = sum(received_s > now_s - RECENT_S for by, received_s in self._received_s.items() if by != node_id)
        return PeerEvidence(dead_to=dead_to) if 2 * dead_to > agents else NO_EVIDENCE

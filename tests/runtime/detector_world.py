"""Agents with failure detectors in virtual time, on a network with delays, losses and cuts; agents may pause or die."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from gavelpy.runtime.peer_detector import Outgoing, PeerDetector, PeerState, ProbeMessage, ProbeTiming

Payload = ProbeMessage | Callable[[], None] | float  # a number: the timer that was set for that time


@dataclass
class Agent:
    """An agent. While it is paused, timers and messages wait."""

    detector: PeerDetector
    is_alive: bool = True
    runs_from_s: float = -math.inf  # end of the last pause
    timer_s: float = math.inf
    version: int = 0
    states: dict[str, PeerState] = field(default_factory=dict)
    sent: int = 0


@dataclass(frozen=True)
class Network:
    """Delays are log-normal; a share of the messages is lost, another comes late."""

    delay_s: float = 0.0003
    spread: float = 1.0  # of the logarithm
    loss: float = 0.01
    late: float = 0.001
    late_s_max: float = 0.4


class DetectorWorld:
    """`changes`: (time, observer, peer, state) of every change of a belief."""

    def __init__(
        self, count: int, seed: int, network: Network | None = None, timing: ProbeTiming | None = None
    ) -> None:
        self.rng, self.network = Random(seed), network or Network()
        self.now_s, self.changes = 0.0, list[tuple[float, str, str, PeerState]]()
        self.cut: set[tuple[str, str]] = set()  # (from, to)
        self._events: list[tuple[float, int, str, Payload]] = []
        self._serial = 0
        names = [f"n{i}" for i in range(count)]
        self.agents = {name: Agent(PeerDetector(name, Random(f"{seed} {name}"), timing)) for name in names}
        for name, agent in self.agents.items():
            agent.detector.set_peers(names, 0.0)
            self._set_timer(name, agent)

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        """Calls a function at that time."""
        self._push(when_s, "", what)

    def kill(self, name: str) -> None:
        """The agent does nothing any more."""
        self.agents[name].is_alive = False

    def pause(self, name: str, for_s: float) -> None:
        """The agent does nothing for a while."""
        self.agents[name].runs_from_s = self.now_s + for_s

    def run(self, until_s: float) -> None:
        """Runs until that time."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, name, payload = heapq.heappop(self._events)
            if callable(payload):
                payload()
            else:
                self._handle(name, self.agents[name], payload)
        self.now_s = until_s

    def _handle(self, name: str, agent: Agent, payload: ProbeMessage | float) -> None:
        if not agent.is_alive or (isinstance(payload, float) and payload != agent.timer_s):
            return
        if self.now_s < agent.runs_from_s:
            self._push(agent.runs_from_s, name, payload)
            return
        if isinstance(payload, float):
            agent.timer_s = math.inf
            sent = agent.detector.advance(self.now_s)
        else:
            sent = agent.detector.receive(payload, self.now_s)
        self._send(name, agent, sent)
        self._note(name, agent)
        self._set_timer(name, agent)

    def _send(self, name: str, agent: Agent, messages: list[Outgoing]) -> None:
        network, rng = self.network, self.rng
        for to, message in messages:
            agent.sent += 1
            if (name, to) in self.cut or rng.random() < network.loss:
                continue
            delay_s = network.delay_s * math.exp(rng.gauss(0.0, network.spread))
            if rng.random() < network.late:
                delay_s += rng.uniform(0.0, network.late_s_max)
            self._push(self.now_s + delay_s, to, message)

    def _note(self, name: str, agent: Agent) -> None:
        if agent.version != agent.detector.version:
            agent.version, states = agent.detector.version, agent.detector.peers
            self.changes += [(self.now_s, name, peer, state) for peer, state in states.items()
                             if agent.states.get(peer, PeerState.ALIVE) is not state]  # fmt: skip
            agent.states = states

    def _set_timer(self, name: str, agent: Agent) -> None:
        due_s = agent.detector.due_s
        if due_s < agent.timer_s:
            agent.timer_s = max(due_s, self.now_s) + self.rng.uniform(0.0, 0.002)
            self._push(agent.timer_s, name, agent.timer_s)

    def _push(self, when_s: float, name: str, payload: Payload) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when_s, self._serial, name, payload))

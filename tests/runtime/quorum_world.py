"""Agents and a scheduler in virtual time, with a separate link between each pair, around the real decision code.

Real are `QuorumMember` (with its files), `QuorumViews`, and the functions of `quorum`. Every node has one lease. The
invariant: the scheduler never treats the lease of a silent node as over while it runs, and no agent extends it later.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from gavelpy.runtime.agent.quorum_member import QuorumMember
from gavelpy.runtime.daemon.config_sections import NodeSettings
from gavelpy.runtime.daemon.nodes.quorum_views import QuorumViews
from gavelpy.runtime.quorum import Member, MemberAnswer, View

TICK_S = 1.0
SETTINGS = NodeSettings(
    heartbeat_interval_s=1.0,
    silent_after_s=4.0,
    lease_overlap_s=6.0,
    lease_margin_s=1.0,
    grace_s=2.0,
    orphan_max_s=60.0,
)
LEASE_S = 15.0
DELAY_S_MAX = 2.5
SCHEDULER = -1


@dataclass
class Node:
    """A machine with an agent and one lease."""

    number: int
    state: Path
    ahead_s: float
    drift: float
    boots: int = 0
    is_alive: bool = True
    until_clock_s: float = -math.inf  # end of its lease
    obeyed: int = 0
    stream: tuple[int, int] = (0, 0)  # incarnation and number
    asks_again_clock_s: float = -math.inf
    orphans: QuorumMember = field(init=False)
    incarnation: int = 0

    @property
    def name(self) -> str:
        """The id of the node."""
        return f"n{self.number}"

    def clock_s(self, now_s: float) -> float:
        """The node's own clock."""
        return self.ahead_s + now_s * (1 + self.drift)

    def begin(self, now_s: float) -> None:
        """Starts a new agent with the state on its disk."""
        me = Member(self.name, f"of {self.name}", f"{self.name}:1")
        boot = f"boot {self.boots}"
        self.orphans = QuorumMember(self.state, me, "c1", self.incarnation, boot, self.clock_s(now_s))
        self.is_alive, self.obeyed = True, 0


class Cluster:
    """A cluster in virtual time. `links` that are cut: pairs (from, to); the scheduler is -1."""

    def __init__(self, count: int, directory: Path, rng: Random, delay_s_max: float = DELAY_S_MAX) -> None:
        self.rng = rng
        self.delay_s_max = delay_s_max
        self.now_s = 0.0
        self.nodes = [Node(i, directory / f"n{i}", rng.uniform(0, 1e5), rng.uniform(-2e-4, 2e-4)) for i in range(count)]
        self.cut: set[tuple[int, int]] = set()
        self.incarnation = 0
        self.is_up = False
        self.stored = ""
        self.promised_s = dict.fromkeys(range(count), -math.inf)  # as stored in the journal
        self.is_over = dict.fromkeys(range(count), True)  # the scheduler may start the job elsewhere
        self.extensions = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._arrives_s: dict[tuple[int, int], float] = {}
        for node in self.nodes:
            node.state.mkdir(parents=True, exist_ok=True)
            node.begin(0.0)
        self.start_scheduler()

    # Events -------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Advances virtual time."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += TICK_S
            while self._queue and self._queue[0][0] <= self.now_s:
                heapq.heappop(self._queue)[2]()
            for node in self.nodes:
                if node.is_alive:
                    self._speak(node)
                    self._ask(node)
            if self.is_up:
                self._look()

    def partition(self, groups: list[set[int]]) -> None:
        """Cuts all links except those within a group."""
        everyone = [SCHEDULER, *range(len(self.nodes))]
        self.cut = {
            (a, b) for a in everyone for b in everyone if a != b and not any({a, b} <= group for group in groups)
        }

    def stop_scheduler(self) -> None:
        """Kills the scheduler."""
        self.is_up = False

    def start_scheduler(self) -> None:
        """Starts another scheduler with the stored state of the last one."""
        self.incarnation += 1
        self.is_up = True
        self.began_s = self.now_s
        self.quorum_views = QuorumViews(SETTINGS, self.stored, self.now_s)
        self.quorum_views.keep = self._keep
        self.received_s: dict[int, float] = {}
        self.clocks: dict[int, float] = {}
        self.sequence = dict.fromkeys(range(len(self.nodes)), 0)
        self.streams: dict[int, int] = {}

    def restart_agent(self, number: int) -> None:
        """Kills and restarts the agent; its lease keeps running."""
        node = self.nodes[number]
        node.stream = (node.stream[0], node.stream[1] + 1)
        node.begin(self.now_s)

    def reboot(self, number: int) -> None:
        """Reboots the machine: nothing runs, and its clock has another offset."""
        node = self.nodes[number]
        node.boots += 1
        node.ahead_s = self.rng.uniform(0, 1e5) - self.now_s
        node.until_clock_s = -math.inf
        self.restart_agent(number)

    def is_running(self, number: int) -> bool:
        """Whether processes of its lease may be alive."""
        node = self.nodes[number]
        return node.clock_s(self.now_s) <= node.until_clock_s + SETTINGS.grace_s

    # Links --------------------------------------------------------------------------------------------------------

    def _carry(self, sender: int, receiver: int, deliver: Callable[[], None], *, in_order: bool = True) -> None:
        if (sender, receiver) in self.cut:
            return
        at_s = self.now_s + self.rng.choice([0.0, 0.0, 0.1, self.rng.uniform(0.0, self.delay_s_max)])
        if in_order:
            at_s = max(at_s, self._arrives_s.get((sender, receiver), 0.0))
            self._arrives_s[sender, receiver] = at_s
        self._serial += 1
        heapq.heappush(self._queue, (at_s, self._serial, deliver))

    # Agents -------------------------------------------------------------------------------------------------------

    def _speak(self, node: Node) -> None:
        if not self.is_up:
            return
        if node.stream[0] != self.incarnation:
            node.stream, node.obeyed = (self.incarnation, node.stream[1] + 1), 0
        view = node.orphans.view
        said = (node.stream, node.clock_s(self.now_s), node.obeyed, view.epoch if view else 0, node.until_clock_s)
        self._carry(node.number, SCHEDULER, lambda: self._heard(node.number, *said))

    def _ask(self, node: Node) -> None:
        """Sends queries to all other members; the answers arrive after a while."""
        clock_s, orphans = node.clock_s(self.now_s), node.orphans
        is_living = clock_s < node.until_clock_s
        if not is_living or clock_s < node.asks_again_clock_s or not orphans.must_query(clock_s):
            return
        node.asks_again_clock_s = clock_s + orphans.query_interval_s
        contact, answers = orphans.contact, list[MemberAnswer]()
        for other in self.nodes:
            reaches = {(node.number, other.number), (other.number, node.number)}.isdisjoint(self.cut)
            if other is node or not other.is_alive or not reaches:
                continue
            ago_s = other.orphans.heard_ago_s(other.clock_s(self.now_s))
            me = other.orphans.me
            answers.append(MemberAnswer(me.node_id, me.state_id, other.orphans.contact.incarnation, ago_s, clock_s))
        delay_s = self.rng.choice([0.0, self.rng.uniform(0.0, self.delay_s_max)])

        def answered() -> None:
            if node.orphans is not orphans:
                return  # the agent that sent the query is gone
            now_clock_s = node.clock_s(self.now_s)
            arrived = [MemberAnswer(a.node_id, a.state_id, a.incarnation, a.heard_ago_s, now_clock_s) for a in answers]
            orphans.count_answers(contact, arrived, clock_s)
            self._extend(node, orphans.until_clock_s)

        self._serial += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._serial, answered))

    def _extend(self, node: Node, until_clock_s: float) -> None:
        clock_s = node.clock_s(self.now_s)
        if clock_s < node.until_clock_s < until_clock_s:
            assert not self.is_over[node.number], f"{node.name} extends a lease that counts as over"
            node.until_clock_s = until_clock_s
            self.extensions += 1

    def _ordered(
        self, node: Node, stream: tuple[int, int], sequence: int, echo_s: float, until_s: float, view: View | None
    ) -> None:
        if not node.is_alive or stream != node.stream or stream[0] < node.incarnation:
            return
        node.incarnation = stream[0]
        clock_s = node.clock_s(self.now_s)
        if node.orphans.record_contact(stream[0], echo_s, clock_s):
            node.obeyed = sequence
        if view is not None:
            node.orphans.store_view(view, b"key")
        if clock_s < node.until_clock_s or not self.is_running(node.number):  # a new lease once the old one is over
            node.until_clock_s = max(node.until_clock_s, until_s)

    # The scheduler ------------------------------------------------------------------------------------------------

    def _keep(self, text: str, done: Callable[[], None]) -> None:
        self.stored = text
        done()

    def _heard(
        self, number: int, stream: tuple[int, int], clock_s: float, obeyed: int, epoch: int, until: float
    ) -> None:
        if not self.is_up or stream[0] != self.incarnation or stream[1] < self.streams.get(number, 0):
            return
        name = self.nodes[number].name
        if self.streams.get(number) != stream[1]:
            self.streams[number], self.sequence[number] = stream[1], 0
            self.quorum_views.connected(name, f"of {name}")
        self.received_s[number], self.clocks[number] = self.now_s, clock_s
        self.quorum_views.acknowledged(name, obeyed, epoch)
        if self.is_over[number] and clock_s > until + SETTINGS.grace_s:
            self.is_over[number] = False  # another lease starts here

    def _look(self) -> None:
        names = [node.name for node in self.nodes]
        self.quorum_views.update([Member(name, f"of {name}", f"{name}:1") for name in names], self.now_s)
        for node in self.nodes:
            number, received_s = node.number, self.received_s.get(node.number, -math.inf)
            is_silent = self.now_s - max(received_s, self.began_s) >= SETTINGS.silent_after_s
            if not is_silent and number in self.received_s:
                self._order(node)
            elif is_silent and not self.is_over[number]:
                promised_s = self.promised_s[number]
                runs_s = self.quorum_views.runs_until_s(node.name, promised_s, received_s, self.now_s)
                if self.now_s >= runs_s + SETTINGS.grace_s + SETTINGS.lease_margin_s:
                    assert not self.is_running(number), f"{node.name} counts as over and runs on"
                    self.is_over[number] = True

    def _order(self, node: Node) -> None:
        number = node.number
        if not self.is_over[number]:
            self.promised_s[number] = self.now_s + LEASE_S
        self.sequence[number] += 1
        sequence, echo_s = self.sequence[number], self.clocks[number]
        until_s = echo_s + (self.promised_s[number] - self.received_s[number])
        view = self.quorum_views.sending(node.name, sequence, self.now_s)
        stream = (self.incarnation, self.streams[number])
        until_s = -math.inf if self.is_over[number] else until_s
        self._carry(SCHEDULER, number, lambda: self._ordered(node, stream, sequence, echo_s, until_s, view))

"""Nodes as the scheduler hears them: who they are, what their clocks say, and whether they are still there.

A node that is not heard may be dead or cut off. It is surely dead only if an operator says so, if its machine has
booted since (a new agent tells), or if this scheduler runs on the same machine and has seen its processes come and go.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gavelpy.mechanism.events import NodeJoined
from gavelpy.model.ids import NodeId

_PROC = Path("/proc")
_KEYED = "key:"
_START_FIELD = 19  # of /proc/PID/stat after the command's closing bracket: start time in ticks since boot

ProcessName = tuple[int, int]  # id and start time in clock ticks


def is_alive(process: ProcessName) -> bool:
    """Whether this very process lives on this machine; one that has ended and waits to be reaped does not."""
    try:
        stat = (_PROC / str(process[0]) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()
    return len(fields) > _START_FIELD and int(fields[_START_FIELD]) == process[1] and fields[0] not in ("Z", "X")


class SightState(StrEnum):
    """Whether a node sees its checkpoint directory, as its agent reports."""

    UNTOLD = ""  # by an agent of an older version
    UNKNOWN = "unknown"  # the directory does not answer: what was seen last stays in force
    SEEN = "seen"
    UNSEEN = "not seen"


@dataclass(frozen=True)
class Sight:
    """What a node sees of its checkpoint directory."""

    state: SightState = SightState.UNTOLD
    directory: str = ""  # id of the directory that was seen last
    cluster_id: str = ""  # of the cluster that the directory is marked for
    age_s: float = 0.0  # since when the state is so, when it was reported


@dataclass(frozen=True)
class Hello:
    """How a node introduces itself."""

    node_id: NodeId
    host_id: str
    gpu_type: str
    gpu_count: int
    address: str
    agent_version: str = ""
    checkpoint_marker: str = ""
    agent: ProcessName = (0, 0)
    is_confirmed_dead: bool = False  # all that ran under older leases is surely gone, but for what it reports
    state_id: str = ""  # of its state directory; empty = not told
    is_new: bool = False  # it has not belonged to this cluster before
    identity_key: str = ""  # secret of its state directory; empty = not told
    containment: str = ""  # what keeps the processes of a lease together there; empty = not told
    state_directory: str = ""  # of an agent on the scheduler's machine; empty = not sent
    peer_address: str = ""  # where it answers other agents; empty = it does not

    @property
    def identity(self) -> str:
        """Tells agents of one name apart, and is kept in the journal: no key can be found from it. Empty = not told."""
        return identity_of(self.state_id, self.identity_key)


def identity_of(state_id: str, identity_key: str) -> str:
    """The hash of an agent's key; of an agent that has none its state directory's id."""
    return f"{_KEYED}{hashlib.sha256(identity_key.encode()).hexdigest()}" if identity_key else state_id


def is_keyed(identity: str) -> bool:
    """Whether only the holder of a key has this identity."""
    return identity.startswith(_KEYED)


@dataclass(eq=False)
class Stream:
    """One connection of an agent."""

    sequence: int = -1  # of the newest message
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # there are other orders to send
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # a newer stream has taken its place, or it is late
    is_late: bool = False  # its peer did not talk, or did not take what it was sent, in time
    sent_s: float = -math.inf  # when orders last went out
    writing_s: float = math.inf  # since when what was sent waits to be taken; infinite = nothing does


@dataclass(eq=False)
class Node:
    """A node that was heard in this incarnation."""

    hello: Hello
    stream: Stream | None = None
    clock_s: float = 0.0  # the agent's, in its newest message
    received_at_s: float = 0.0  # the scheduler's, when that came
    is_draining: bool = False  # so says its agent
    trouble: str = ""  # why it cannot do what it is told, as its agent says
    unreached: int = 0  # other agents that it cannot reach, as it says
    sight: Sight = Sight()
    is_ready: bool = False  # the core knows what it runs, so it may be given orders
    processes: set[ProcessName] = field(default_factory=set)  # of the agent and its shims, seen alive on this machine

    @property
    def node_id(self) -> NodeId:
        """Its name."""
        return self.hello.node_id

    @property
    def is_connected(self) -> bool:
        """Whether it has a stream open; it may be silent all the same."""
        return self.stream is not None

    def look_at_stream(self, now_s: float, talk_s: float, write_s: float, refresh_s: float) -> None:
        """Ends a stream whose peer neither talks nor takes what it is sent; wakes one that is due for orders.

        One look at all streams every while, in place of timers that each message would have to set and call off.
        """
        stream = self.stream
        if stream is None:
            return
        if now_s - self.received_at_s > talk_s or now_s - stream.writing_s > write_s:
            stream.is_late = True
            stream.ended.set()
        elif now_s - stream.sent_s >= refresh_s:
            stream.wake.set()

    def age_s(self, now_s: float) -> float:
        """Time since it was last heard."""
        return max(0.0, now_s - self.received_at_s)

    def clock_of(self, moment_s: float) -> float:
        """A moment of the scheduler's in the agent's clock, or a little before: the message took time to come."""
        return self.clock_s + (moment_s - self.received_at_s)

    def is_past(self, hello: Hello, clock_s: float) -> bool:
        """Whether a first message was sent before what was heard since: its stream was given up, and it comes late."""
        return hello.host_id == self.hello.host_id and clock_s < self.clock_s

    def uses_clusters_directory(self, cluster_id: str, *, is_known: bool) -> bool:
        """Whether it writes to the cluster's checkpoint directory; `is_known`: whether it did so before."""
        if self.sight.state is SightState.SEEN:
            return self.sight.cluster_id == cluster_id
        if self.sight.state is SightState.UNTOLD and self.hello.checkpoint_marker:
            return self.hello.checkpoint_marker == cluster_id
        return is_known  # an older agent that sees no marker cannot tell a directory that hangs from another one

    def joined(self, cluster_id: str, *, is_known: bool) -> NodeJoined:
        """That it offers its GPUs."""
        hello = self.hello
        uses = self.uses_clusters_directory(cluster_id, is_known=is_known)
        return NodeJoined(hello.node_id, hello.gpu_type, hello.gpu_count, uses, hello.identity)


class NodeRegistry:
    """All nodes heard in this incarnation, which began at `began_s`.

    `host_id`: of this machine. `remembered`: the identity of a node's agent before; empty = not known.
    """

    def __init__(self, host_id: str, began_s: float = 0.0, remembered: Callable[[NodeId], str] = lambda _: "") -> None:
        self.host_id = host_id
        self._began_s = began_s
        self._remembered = remembered
        self._nodes: dict[str, Node] = {}
        self._vacant: set[str] = set()  # nodes that were declared lost: the name is free for whoever comes first

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node_id: str) -> Node | None:
        """The node, if it was ever heard."""
        return self._nodes.get(node_id)

    def connect(self, hello: Hello, stream: Stream) -> Node:
        """A node opens a stream; an older one of the same node ends."""
        node = self._nodes.get(hello.node_id)
        if node is None:
            node = self._nodes[hello.node_id] = Node(hello)
        if node.stream is not None:
            node.stream.ended.set()
        self._vacant.discard(hello.node_id)
        node.hello, node.stream = hello, stream
        node.processes = {process for process in node.processes if is_alive(process)}
        self.watch(node, hello.agent)
        return node

    def objection(self, hello: Hello, now_s: float, silent_after_s: float, leases: int) -> str:
        """Why an agent may not be the node that it says it is, empty = it may; `leases`: how many that node holds.

        Two agents of one name would each run the other's jobs, and each vouch that the other's are gone. Who comes
        with another state directory is therefore heard once the node is silent and holds no lease any more. After a
        restart of the scheduler the one that was there before has as long to come back. Where the node has shown a key,
        no other agent is taken on until an operator gives its name up.
        """
        known, before = self._nodes.get(hello.node_id), self._spoke_for(hello.node_id)
        is_known = known is not None or bool(before)
        is_anothers = self.is_anothers(hello.node_id, hello.state_id, hello.identity_key)
        if is_anothers and is_keyed(before):
            return (
                f"node {hello.node_id} is known by a key that this agent's state directory does not hold: another "
                f"agent has the name, or the directory was lost. `gavel node lost {hello.node_id}`, once that node is "
                "not connected, gives the name to the next agent"
            )
        if not is_anothers and (is_known or not hello.state_id or not hello.is_new):
            return ""
        age_s = now_s - self._began_s if known is None else known.age_s(now_s)
        if before and age_s < silent_after_s:
            return f"node_id must be one that no other agent has, got {hello.node_id!r}, which {_whose(known)}"
        if leases:
            return (
                f"node {hello.node_id} holds leases ({leases}) that this agent's state directory does not know; it is "
                f"taken on when they are over, or after `gavel node lost {hello.node_id}`"
            )
        return ""

    def is_anothers(self, node_id: str, state_id: str, identity_key: str) -> bool:
        """Whether the node was heard from another state directory: by its key, or before it has shown one by its id."""
        before = self._spoke_for(node_id)
        shown = identity_of(state_id, identity_key) if is_keyed(before) else state_id
        return bool(before) and shown != before

    def declared_lost(self, node_id: NodeId, *, is_forgotten: bool) -> None:
        """Nothing of the node is left. Any agent may be it, but for one with a key that nobody has given up."""
        if is_forgotten or not is_keyed(self._spoke_for(node_id)):
            self._vacant.add(node_id)

    def _spoke_for(self, node_id: str) -> str:
        """The identity of a node's agent, in this incarnation or before; empty = not known."""
        if node_id in self._vacant:
            return ""
        known = self._nodes.get(node_id)
        return known.hello.identity if known is not None else self._remembered(NodeId(node_id))

    def disconnect(self, node: Node, stream: Stream) -> None:
        """A stream is over."""
        if node.stream is stream:
            node.stream = None

    def watch(self, node: Node, process: ProcessName) -> None:
        """Remembers a process of a node, if it is one of this machine and alive."""
        if node.hello.host_id == self.host_id and process not in node.processes and is_alive(process):
            node.processes.add(process)

    def is_gone(self, node: Node, shims: list[ProcessName]) -> bool:
        """Whether a node of this machine has died: its agent, and all shims of its leases, were seen and are no more.

        An agent alone is no node: what it started runs on without it.
        """
        if node.is_connected or node.hello.agent not in node.processes:
            return False
        if not node.processes.issuperset(shims):
            return False
        return not any(is_alive(process) for process in node.processes)


def _whose(known: Node | None) -> str:
    """Who has a node's name, for whoever must not have it, and until when."""
    place = (known.hello.address if known is not None else "") or "an unknown address"
    if known is not None and known.is_connected:
        return f"is connected from {place}"
    was = f"was connected from {place}" if known is not None else "another one had when the scheduler last ran"
    return f"{was}; it is taken on if that one is not heard for a while, or after `gavel node lost`"

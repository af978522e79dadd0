"""Nodes as the scheduler hears them: who they are, what their clocks say, and whether they are still there.

A node that is not heard may be dead or cut off. It is surely dead only if an operator says so, if its machine has
booted since (a new agent tells), or if this scheduler runs on the same machine and has seen its processes come and go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gavelpy.mechanism.events import NodeJoined
from gavelpy.model.ids import NodeId

_PROC = Path("/proc")
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


@dataclass(eq=False)
class Stream:
    """One connection of an agent."""

    sequence: int = -1  # of the newest message
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # there are other orders to send
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # a newer stream has taken its place


@dataclass(eq=False)
class Node:
    """A node that was heard in this incarnation."""

    hello: Hello
    stream: Stream | None = None
    clock_s: float = 0.0  # the agent's, in its newest message
    received_at_s: float = 0.0  # the scheduler's, when that came
    is_draining: bool = False  # so says its agent
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

    def age_s(self, now_s: float) -> float:
        """Time since it was last heard."""
        return max(0.0, now_s - self.received_at_s)

    def clock_of(self, moment_s: float) -> float:
        """A moment of the scheduler's in the agent's clock, or a little before: the message took time to come."""
        return self.clock_s + (moment_s - self.received_at_s)

    def is_past(self, hello: Hello, clock_s: float) -> bool:
        """Whether a first message was sent before what was heard since: its stream was given up, and it comes late."""
        return hello.host_id == self.hello.host_id and clock_s < self.clock_s

    def sees_checkpoints(self, cluster_id: str) -> bool:
        """Whether it sees the cluster's directory of checkpoints."""
        return self.hello.checkpoint_marker == cluster_id

    def joined(self, cluster_id: str) -> NodeJoined:
        """That it offers its GPUs."""
        hello = self.hello
        return NodeJoined(hello.node_id, hello.gpu_type, hello.gpu_count, self.sees_checkpoints(cluster_id))


class NodeRegistry:
    """All nodes heard in this incarnation. `host_id`: of this machine."""

    def __init__(self, host_id: str) -> None:
        self.host_id = host_id
        self._nodes: dict[str, Node] = {}

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
        node.hello, node.stream = hello, stream
        node.processes = {process for process in node.processes if is_alive(process)}
        self.watch(node, hello.agent)
        return node

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

"""The registry of nodes: identity, clock, stream and last message of each agent; also events for changed nodes.

An unreachable node may be dead or cut off. Its death is certain only if an operator declares it, if its host has
rebooted (a new agent reports this), or if all its known processes have ended, as the scheduler or another agent sees on
the same host.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gavelpy.mechanism.events import DirectorySeen, NodeJoined
from gavelpy.mechanism.gpus import CLUSTERS, NO_PLACE, GpuPool
from gavelpy.mechanism.node_resources import amounts_of
from gavelpy.model.job import FEATURES, NodeId
from gavelpy.runtime.daemon.nodes.host_neighbors import HostNeighbors
from gavelpy.runtime.daemon.nodes.peer_reports import PeerReports

_PROC = Path("/proc")
_KEYED = "key:"
_START_FIELD = 19  # of /proc/PID/stat after the command's closing bracket: start time in ticks since boot
# Features of agents that reported what runs containers before there were announcements. None is ever added.
_NEVER_ANNOUNCED = frozenset({"conda", "image", "pty", "secret", "snapshot", "stall", "time", "venv"})

ProcessName = tuple[int, int]  # id and start time in clock ticks


def is_alive(process: ProcessName) -> bool:
    """Whether this process runs on this host; a zombie does not."""
    try:
        stat = (_PROC / str(process[0]) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()
    return len(fields) > _START_FIELD and int(fields[_START_FIELD]) == process[1] and fields[0] not in ("Z", "X")


class ReportedState(StrEnum):
    """State of a node's checkpoint directory, as its agent reports it."""

    UNREPORTED = ""  # not reported, by an older agent
    UNKNOWN = "unknown"  # the directory does not answer: the last known state stays in force
    SEEN = "seen"
    UNSEEN = "not seen"


@dataclass(frozen=True)
class ReportedDirectory:
    """A node's report on its checkpoint directory."""

    state: ReportedState = ReportedState.UNREPORTED
    directory_id: str = ""  # of the last available directory
    cluster_id: str = ""  # of the cluster that the directory is marked for
    age_s: float = 0.0  # age of the state when it was reported


@dataclass(frozen=True)
class Hello:
    """Properties of a node in its first message."""

    node_id: NodeId
    host_id: str
    gpu_type: str
    gpu_count: int
    address: str
    agent_version: str = ""
    checkpoint_marker: str = ""
    agent: ProcessName = (0, 0)
    is_confirmed_dead: bool = False  # all processes of older leases have ended, except for reported ones
    state_id: str = ""  # of its state directory; empty = not sent
    is_new: bool = False  # it has not belonged to this cluster before
    identity_key: str = ""  # secret of its state directory; empty = not sent
    containment: str = ""  # method that groups the processes of a lease; empty = not sent
    images: str = ""  # what runs containers, or why nothing does; empty = not sent
    state_directory: str = ""  # of an agent on the scheduler's host; empty = not sent
    peer_address: str = ""  # for other agents; empty = it does not answer them
    probe_port: int = 0  # UDP, at the host of peer_address; 0 = it does not answer probes
    features: frozenset[str] = frozenset()  # options of jobs that the agent announces; empty = it announces none
    cpus: float = 0.0  # that jobs may use; 0 = not known; the same of the memory
    memory_gib: float = 0.0
    place: tuple[str, str, str] = NO_PLACE  # rack, zone and region

    @property
    def lacks(self) -> tuple[str, ...]:
        """Features that the agent does not have.

        Agents that report what runs containers, but announce no features, have all those of their time.
        """
        has = self.features or (_NEVER_ANNOUNCED if self.images else ())
        return tuple(name for name in FEATURES if name not in has)

    @property
    def identity(self) -> str:
        """Distinguishes agents of one node name. It is stored in the journal and does not reveal the key."""
        return identity_of(self.state_id, self.identity_key)

    @property
    def runs_images(self) -> bool:
        """Whether the node runs containers."""
        return bool(self.images) and not self.images.startswith("no: ")


def identity_of(state_id: str, identity_key: str) -> str:
    """The hash of an agent's key; without a key, the id of its state directory."""
    return f"{_KEYED}{hashlib.sha256(identity_key.encode()).hexdigest()}" if identity_key else state_id


def is_keyed(identity: str) -> bool:
    """Whether an identity belongs to a key."""
    return identity.startswith(_KEYED)


@dataclass(eq=False)
class Stream:
    """One connection of an agent."""

    sequence: int = -1  # of the newest message
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # there are new orders to send
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # a newer stream has replaced it, or it is late
    is_late: bool = False  # its peer did not send or receive in time
    sent_s: float = -math.inf  # when orders were last sent
    writing_s: float = math.inf  # start of the pending write; infinite = none


@dataclass(eq=False)
class Node:
    """A node that has connected to this incarnation of the scheduler."""

    hello: Hello
    stream: Stream | None = None
    clock_s: float = 0.0  # the agent's, in its newest message
    received_at_s: float = 0.0  # the scheduler's clock at its arrival
    is_draining: bool = False  # as its agent reports
    trouble: str = ""  # why it cannot execute orders, as its agent reports
    gpu_sharing: str = ""  # how jobs share GPUs, as its agent reports
    unreached: int = 0  # number of agents that it cannot reach, as it reports
    reported_directory: ReportedDirectory = ReportedDirectory()
    is_ready: bool = False  # the core has its leases, so it may receive orders
    processes: set[ProcessName] = field(default_factory=set)  # of the agent and its shims, seen alive on this host
    announced: frozenset[ProcessName] = frozenset()  # shims that it reported last, or its agent
    ended_neighbors: frozenset[ProcessName] = frozenset()  # of other agents on its host, which it saw alive before

    @property
    def node_id(self) -> NodeId:
        """Its name."""
        return self.hello.node_id

    @property
    def is_connected(self) -> bool:
        """Whether it has an open stream; it may still be unreachable."""
        return self.stream is not None

    def is_due(self, now_s: float, talk_s: float, write_s: float, refresh_s: float) -> bool:
        """Whether orders are due on its stream. Ends a stream that does not send or receive.

        A periodic check of all streams replaces a timer per message.
        """
        stream = self.stream
        if stream is None:
            return False
        if now_s - self.received_at_s > talk_s or now_s - stream.writing_s > write_s:
            stream.is_late = True
            stream.ended.set()
            return False
        return now_s - stream.sent_s >= refresh_s

    def age_s(self, now_s: float) -> float:
        """Time since its last message."""
        return max(0.0, now_s - self.received_at_s)

    def clock_of(self, moment_s: float) -> float:
        """A time of the scheduler in the agent's clock, early by the delay of the message."""
        return self.clock_s + (moment_s - self.received_at_s)

    def is_past(self, hello: Hello, clock_s: float) -> bool:
        """Whether a first message is older than the last one received: it is from an abandoned stream."""
        return hello.host_id == self.hello.host_id and clock_s < self.clock_s

    def uses_clusters_directory(self, cluster_id: str, *, is_known: bool) -> bool:
        """Whether it writes to the cluster's checkpoint directory; `is_known`: whether it did before."""
        if self.reported_directory.state is ReportedState.SEEN:
            return self.reported_directory.cluster_id == cluster_id
        if self.reported_directory.state is ReportedState.UNREPORTED and self.hello.checkpoint_marker:
            return self.hello.checkpoint_marker == cluster_id
        return is_known  # an older agent without a marker cannot distinguish a hung directory from another one

    def joined(self, cluster_id: str, *, is_known: bool) -> NodeJoined:
        """The event that it offers its GPUs."""
        hello = self.hello
        uses = self.uses_clusters_directory(cluster_id, is_known=is_known)
        lacks, agent = hello.lacks, f"gavelpy {hello.agent_version}" if hello.agent_version else ""
        return NodeJoined(
            hello.node_id, hello.gpu_type, hello.gpu_count, uses, hello.identity, lacks, agent if lacks else "",
            hello.cpus, hello.memory_gib, *hello.place,
        )  # fmt: skip


class NodeRegistry:
    """All nodes of this incarnation of the scheduler, which began at `began_s`.

    `host_id`: of this host. `remembered`: the identity of a node's agent in the journal; empty = unknown.
    """

    def __init__(self, host_id: str, began_s: float = 0.0, remembered: Callable[[NodeId], str] = lambda _: "") -> None:
        self.host_id = host_id
        self._began_s = began_s
        self._remembered = remembered
        self._nodes: dict[str, Node] = {}
        self.hosts = HostNeighbors(self._nodes)
        self.peer_reports = PeerReports()
        self._vacant: set[str] = set()  # nodes that were declared lost: the next agent may take the name

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node_id: str) -> Node | None:
        """The node, if it has connected."""
        return self._nodes.get(node_id)

    def connect(self, hello: Hello, stream: Stream) -> Node:
        """A node opens a stream; an older one of the same node ends."""
        node = self._nodes.get(hello.node_id)
        if node is None:
            node = self._nodes[hello.node_id] = Node(hello)
        if node.stream is not None:
            node.stream.ended.set()
        self._vacant.discard(hello.node_id)
        self.hosts.moved(node, hello.host_id)
        node.hello, node.stream = hello, stream
        node.processes = {process for process in node.processes if is_alive(process)}
        self.watch(node, [hello.agent])
        return node

    def objection(self, hello: Hello, now_s: float, silent_after_s: float, leases: int) -> str:
        """Why an agent is refused as this node, empty = accepted; `leases`: number of the node's leases.

        Two agents of one name would run each other's jobs, and each would report the other's as ended. An agent with
        another state directory is therefore accepted when the node is unreachable and has no leases; after a restart of
        the scheduler, the earlier agent has `silent_after_s` to reconnect. If the node has a key, no other agent is
        accepted until an operator frees the name.
        """
        known, before = self._nodes.get(hello.node_id), self._known_identity(hello.node_id)
        is_known = known is not None or bool(before)
        has_other_agent = self.has_other_agent(hello.node_id, hello.state_id, hello.identity_key)
        if has_other_agent and is_keyed(before):
            return (
                f"node {hello.node_id} has a key that this agent's state directory does not contain: another agent "
                f"has the name, or the directory was lost. `gavel node lost {hello.node_id}` frees the name for the "
                "next agent, if the node is not connected"
            )
        if not has_other_agent and (is_known or not hello.state_id or not hello.is_new):
            return ""
        age_s = now_s - self._began_s if known is None else known.age_s(now_s)
        if before and age_s < silent_after_s:
            return f"node_id must not be in use by another agent, got {hello.node_id!r}, which {_holder(known)}"
        if leases:
            return (
                f"node {hello.node_id} has leases ({leases}) that are not in this agent's state directory; the agent "
                f"is accepted when they have ended, or after `gavel node lost {hello.node_id}`"
            )
        return ""

    def has_other_agent(self, node_id: str, state_id: str, identity_key: str) -> bool:
        """Whether the node has another agent: by its key, or by the id of its state directory if it has no key."""
        before = self._known_identity(node_id)
        shown = identity_of(state_id, identity_key) if is_keyed(before) else state_id
        return bool(before) and shown != before

    def declared_lost(self, node_id: NodeId, *, is_forgotten: bool) -> None:
        """The node was declared lost: another agent may take its name, unless the name is bound to a key."""
        if is_forgotten or not is_keyed(self._known_identity(node_id)):
            self._vacant.add(node_id)

    def _known_identity(self, node_id: str) -> str:
        """The identity of a node's agent, in this incarnation or before; empty = unknown."""
        if node_id in self._vacant:
            return ""
        known = self._nodes.get(node_id)
        return known.hello.identity if known is not None else self._remembered(NodeId(node_id))

    def disconnect(self, node: Node, stream: Stream) -> None:
        """A stream has ended."""
        if node.stream is stream:
            node.stream = None

    def watch(self, node: Node, processes: list[ProcessName]) -> None:
        """Records processes of a node that are alive on this host. Other agents on its host watch new ones for it."""
        if node.hello.host_id == self.host_id:
            node.processes |= {process for process in processes if process not in node.processes and is_alive(process)}
        if node.hello.agent not in node.processes:
            self.hosts.announced(node, processes)

    def is_gone(self, node: Node, shims: list[ProcessName]) -> bool:
        """Whether a node on this host has died: its agent and all shims of its leases were alive and have ended.

        The agent's end alone is not enough: shims and jobs outlive it.
        """
        if node.is_connected or node.hello.agent not in node.processes:
            return False
        if not node.processes.issuperset(shims):
            return False
        return not any(is_alive(process) for process in node.processes)


def _holder(known: Node | None) -> str:
    """The holder of a node's name, for an agent that is refused, and until when."""
    place = (known.hello.address if known is not None else "") or "an unknown address"
    if known is not None and known.is_connected:
        return f"is connected from {place}"
    was = f"was connected from {place}" if known is not None else "another agent had before the scheduler restarted"
    return f"{was}; this agent is accepted when that one stays unreachable, or after `gavel node lost`"


def joined(pool: GpuPool, node: Node, cluster_id: str) -> NodeJoined:
    """The event that a node offers its GPUs."""
    return node.joined(cluster_id, is_known=_uses_clusters_directory(pool, node.node_id))


def differs(pool: GpuPool, node: Node, cluster_id: str) -> bool:
    """Whether a node's GPUs differ from the core's; for an older agent, also its directory."""
    row = pool.node_row[node.node_id]
    count = int((pool.present & pool.on(node.node_id)).sum())
    had = pool.gpu_types[pool.node_type[row]], count, _uses_clusters_directory(pool, node.node_id)
    is_unreported = node.reported_directory.state is ReportedState.UNREPORTED
    uses = node.uses_clusters_directory(cluster_id, is_known=had[2]) if is_unreported else had[2]
    return had != (node.hello.gpu_type, node.hello.gpu_count, uses)


def has_other_features(pool: GpuPool, node: Node) -> bool:
    """Whether the agent of a node lacks other features, or has other amounts or another place than on record."""
    row = pool.node_row[node.node_id]
    amounts = amounts_of(node.hello.cpus, node.hello.memory_gib)
    known = pool.node_lacks[row], pool.node_amounts[row], pool.node_place[row]
    return known != (node.hello.lacks, amounts, node.hello.place)


def directory_seen(pool: GpuPool, node: Node, cluster_id: str) -> DirectorySeen | None:
    """An event if a node uses another checkpoint directory than the core's state; none if it is unavailable."""
    directory, row = node.reported_directory, pool.node_row.get(node.node_id)
    if directory.state is not ReportedState.SEEN:
        return None
    is_clusters = directory.cluster_id == cluster_id
    is_named = bool(pool.directories[CLUSTERS]) or not is_clusters
    if row is not None and is_named and pool.directories[pool.node_directory[row]] == directory.directory_id:
        return None
    return DirectorySeen(node.node_id, directory.directory_id, is_clusters)


def _uses_clusters_directory(pool: GpuPool, node_id: NodeId) -> bool:
    row = pool.node_row.get(node_id)
    return row is not None and pool.node_directory[row] == CLUSTERS

"""Agents on one host that watch each other's processes for the scheduler, and what they saw.

The scheduler cannot see the processes of nodes on other hosts. Where several agents run on a host, each is watched by
some of the others: they receive the processes of its agent and its shims, and report those that they saw alive and then
saw end. If all of them have ended, nothing of the node runs any more. A report counts while its agent is connected.

Hosts are distinguished by `host_id`, the id of a boot of a machine. Containers of one machine have the same; an agent
that cannot see the others' processes reports nothing of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.nodes.registry import Node, ProcessName

WATCHERS = 3  # agents on a host that watch the processes of each other one there
WATCHED_MAX = 32  # agents that are watched by one


class HostNeighbors:
    """Nodes by host. `nodes`: all that have connected, by name."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._names: dict[str, list[str]] = {}  # of the nodes of a host, sorted
        self._witnesses: dict[str, set[str]] = {}  # of these, nodes that saw processes of others end

    def moved(self, node: Node, host_id: str) -> None:
        """A node connects from this host; what it saw before does not count any more."""
        self.saw_ends(node, frozenset())
        if node.node_id in (names := self._names.get(node.hello.host_id, [])):
            names.remove(node.node_id)
        insort(self._names.setdefault(host_id, []), node.node_id)

    def of(self, node: Node) -> list[Node]:
        """Nodes that this one watches, as the scheduler does not see their processes itself.

        Each is watched by the next WATCHERS connected ones by name.
        """
        names = self._names.get(node.hello.host_id, [])
        found: list[Node] = []
        first, connected = bisect_left(names, node.node_id), 0
        for back in range(1, min(len(names), WATCHED_MAX) if node.hello.host_id else 0):
            other = self._nodes[names[first - back]]
            if other.hello.agent[0] and other.hello.agent not in other.processes:
                found.append(other)
            connected += other.is_connected
            if connected == WATCHERS:
                break
        return found

    def announced(self, node: Node, processes: list[ProcessName]) -> None:
        """A node has reported these processes: its neighbors should know new ones soon."""
        if node.announced.issuperset(processes):
            return
        node.announced = frozenset(processes)
        names = self._names[node.hello.host_id]
        for name in names if len(names) <= WATCHED_MAX else ():  # others have them with their next orders
            if (stream := self._nodes[name].stream) is not None and name != node.node_id:
                stream.wake.set()

    def saw_ends(self, node: Node, ended: frozenset[ProcessName]) -> None:
        """An agent saw these processes of other agents on its host alive, and then their ends."""
        node.ended_neighbors = ended
        witnesses = self._witnesses.setdefault(node.hello.host_id, set())
        witnesses.discard(node.node_id)
        if ended:
            witnesses.add(node.node_id)

    def is_gone(self, node: Node, shims: list[ProcessName]) -> bool:
        """Whether connected agents on its host saw the ends of its agent and of all shims of its leases."""
        if node.is_connected:
            return False
        witnesses = (self._nodes[name] for name in self._witnesses.get(node.hello.host_id, ()))
        ended = {
            end for other in witnesses if other.is_connected and other is not node for end in other.ended_neighbors
        }
        return ended.issuperset([node.hello.agent, *shims])

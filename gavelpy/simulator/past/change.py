"""A change to a recorded world: another policy, more or fewer GPUs, nodes that are absent, other teams or settings."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import Event, NodeDraining, NodeJoined, PolicyChanged
from gavelpy.mechanism.settings import (
    MOVE_LAG_ROUNDS,
    MOVE_LAG_ROUNDS_ON_TIME,
    SOLVE_AT_LEAST_ROUNDS,
    MechanismSettings,
)
from gavelpy.mechanism.teams import Team
from gavelpy.model.job import NodeId
from gavelpy.policies.base import Policy, policy_from, policy_named, uses_deadlines, varies_with_time
from gavelpy.simulator.past.observed import ObservedJournal

GPUS_A_NODE = 8  # of a GPU type of which the journal has no node
GPUS_MAX = 100_000
_PART = re.compile(r"([+-])\s*(?:(\d+)\s+([\w.-]+)|([\w.-]+):(\d+))")


@dataclass(frozen=True)
class Change:
    """What is different in a replay; by default nothing."""

    policy: str = ""  # with parameters, as for `gavel simulate`; empty = those of the journal
    gpus: Mapping[str, int] = field(default_factory=dict)  # added (> 0) or removed (< 0), by GPU type
    without_nodes: tuple[str, ...] = ()
    teams: tuple[Team, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of MechanismSettings
    gpus_per_node: int = 0  # of added nodes; 0 = as the largest node of this type in the journal, else GPUS_A_NODE

    @property
    def is_nothing(self) -> bool:
        """Whether the replay is unchanged."""
        return self == Change(gpus_per_node=self.gpus_per_node)

    @property
    def label(self) -> str:
        """A short description."""
        parts = [self.policy] if self.policy else []
        parts += [f"{'+' if count > 0 else '-'}{abs(count)} {name}" for name, count in self.gpus.items() if count]
        parts += [f"without {node}" for node in self.without_nodes]
        parts += ["other teams"] if self.teams is not None else []
        parts += [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.settings.items()
        ]
        return ", ".join(parts) or "unchanged"


def gpu_changes(text: str) -> dict[str, int]:
    """`+8 h100, -2 k80` (or `+h100:8`): GPUs that are added or removed, by type."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise InvalidInput(f'cluster must look like "+8 h100" or "+8 h100,-2 k80", got {text[:60]!r}')
        sign, count, name = match[1], int((match[2] or match[5])[:9]), match[3] or match[4]
        if not 1 <= count <= GPUS_MAX:
            raise InvalidInput(f"cluster must change 1 to {GPUS_MAX:,} GPUs of a type, got {count:,} {name}")
        if name in found:
            raise InvalidInput(f"cluster must name each GPU type once, got {name} twice")
        found[name] = count if sign == "+" else -count
    return found


@dataclass(frozen=True, eq=False)
class ChangedNodes:
    """Events of the nodes of a changed cluster."""

    first: tuple[Event, ...]  # when the replay begins
    limits: Mapping[str, int]  # by node: GPUs of it that there are; those without an entry are unchanged

    def event(self, event: Event) -> Event | None:
        """The event in the changed cluster; None = it does not happen."""
        node = getattr(event, "node_id", None)
        if node is None or node not in self.limits:
            return event
        count = self.limits[node]
        if not count:
            return None
        return replace(event, gpu_count=min(count, event.gpu_count)) if isinstance(event, NodeJoined) else event


def changed_nodes(observed: ObservedJournal, change: Change) -> ChangedNodes:
    """Nodes that are added, shrunk or absent. Raises InvalidInput for nodes and GPUs that the journal does not have."""
    joined = _joined(observed)
    unknown = [node for node in change.without_nodes if node not in joined]
    if unknown:
        raise InvalidInput(
            f"without-node must be one of {', '.join(sorted(joined)) or 'no node'}, got {', '.join(unknown)}"
        )
    limits = dict.fromkeys(change.without_nodes, 0)
    added: list[Event] = []
    for gpu_type, count in change.gpus.items():
        here = {node: event for node, event in joined.items() if event.gpu_type == gpu_type and node not in limits}
        if count > 0:
            largest = max((event.gpu_count for event in here.values()), default=GPUS_A_NODE)
            added += _added(gpu_type, count, change.gpus_per_node or largest, next(iter(here.values()), None))
        else:
            limits |= _removed(gpu_type, -count, here)
    pool = observed.core.pool
    gone: list[Event] = []
    for node, count in limits.items():
        if NodeId(node) not in pool.node_row:
            continue
        gone.append(replace(joined[node], gpu_count=count) if count else NodeDraining(NodeId(node), force=True))
    return ChangedNodes((*gone, *added), limits)


def _joined(observed: ObservedJournal) -> dict[str, NodeJoined]:
    """The last joining of each node, of those at the start and of those later."""
    pool, found = observed.core.pool, dict[str, NodeJoined]()
    for node, row in pool.node_row.items():
        here = (pool.node_of == row) & pool.present
        if here.any():
            amounts = pool.node_amounts[row]
            gpu_type = pool.gpu_types[int(pool.type_of[here.argmax()])]
            found[node] = NodeJoined(node, gpu_type, int(here.sum()), cpus=amounts[0], memory_gib=amounts[1])
    return found | {event.node_id: event for _, event in observed.inputs if isinstance(event, NodeJoined)}


def _added(gpu_type: str, count: int, size: int, like: NodeJoined | None) -> list[Event]:
    counts = [size] * (count // size) + ([count % size] if count % size else [])
    cpus, memory_gib = (like.cpus, like.memory_gib) if like is not None else (0.0, 0.0)
    names = [NodeId(f"whatif-{gpu_type}-{k}") for k in range(len(counts))]
    return [
        NodeJoined(name, gpu_type, gpus, cpus=cpus, memory_gib=memory_gib)
        for name, gpus in zip(names, counts, strict=True)
    ]


def _removed(gpu_type: str, count: int, here: Mapping[str, NodeJoined]) -> dict[str, int]:
    """GPUs that stay of the nodes that lose some: the last nodes lose theirs first."""
    total = sum(event.gpu_count for event in here.values())
    if count > total:
        raise InvalidInput(f"cluster must remove at most the {total} {gpu_type} of the journal, got {count}")
    limits: dict[str, int] = {}
    for node, event in reversed(list(here.items())):
        if count <= 0:
            break
        limits[node] = max(event.gpu_count - count, 0)
        count -= event.gpu_count
    return limits


# Policies and settings ----------------------------------------------------------------------------------------------


def policy_of(event: PolicyChanged | None, change: Change) -> Policy:
    """The policy of a change, else the one in force."""
    if change.policy:
        return policy_from(change.policy)
    if event is None:
        raise InvalidInput("recorded-policy must be given: the journal does not record which policy was in force")
    if not event.parameters:
        return policy_from(event.policy)
    return policy_named(event.policy, **json.loads(event.parameters))


def settings_under(settings: MechanismSettings, policy: Policy, change: Change) -> MechanismSettings:
    """Recorded settings with the change, and with what a policy declares if it is another one."""
    if change.settings.keys() & {"round_s"}:
        settings = settings.with_round(change.settings["round_s"])
    if change.policy:
        every_s = settings.round_s * SOLVE_AT_LEAST_ROUNDS if varies_with_time(policy) else 0.0
        rounds = MOVE_LAG_ROUNDS_ON_TIME if uses_deadlines(policy) else MOVE_LAG_ROUNDS
        lag_s = settings.round_s * rounds if settings.move_lag_s else 0.0
        settings = replace(
            settings, fill_leftover=policy.fills_leftover, solve_at_least_every_s=every_s, move_lag_s=lag_s
        )
    if change.teams is not None:
        settings = replace(settings, teams=change.teams)
    return replace(settings, packing=False, packing_measured=False, in_order=False, **change.settings)


def gpu_types_of(
    observed: ObservedJournal, first: Iterable[Event], later: Sequence[tuple[float, Event]]
) -> tuple[str, ...]:
    """All GPU types of a replay, in the order in which its core learns of them."""
    joining = [*first, *(event for _, event in later)]
    names = [*observed.core.pool.gpu_types, *(event.gpu_type for event in joining if isinstance(event, NodeJoined))]
    return tuple(Counter(names))

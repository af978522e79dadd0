"""The parts of a node with several GPU types: for the scheduler, each is a node of its own.

A node `n3` with whole GPUs and MIG slices is two nodes, `n3/a100` and `n3/a100-1g.10gb`, with one agent process, one
configuration and one token. Each part has its own leases, in a directory below the node's state, and its share of the
machine's CPU cores and memory, so that together they never give away more than there is. A node with one type is not
divided, and keeps its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.config import NodeConfig, TypeConfig
from gavelpy.runtime.agent.gpus import Gpus, find_gpus
from gavelpy.runtime.agent.machine import NodeAmounts, machine_of

DIRECTORY: Final = "types"  # below the state directory of the node: the state of each part
_WHOLE: Final = TypeConfig()


class NodePart(NamedTuple):
    """The configuration of one part, and its GPUs."""

    config: NodeConfig
    gpus: Gpus


def parts_of(config: NodeConfig, environment: Mapping[str, str]) -> tuple[NodePart, ...]:
    """The parts of a node; the node itself if it has one GPU type. Raises InvalidInput."""
    devices = {name: part.devices for name, part in config.types.items() if part.devices}
    found = find_gpus(config.gpus, environment, config.vendor, devices)
    if unknown := config.types.keys() - {gpus.gpu_type for gpus in found}:
        known = ", ".join(gpus.gpu_type for gpus in found)
        raise InvalidInput(f"types must be GPU types of this node ({known}), got {', '.join(sorted(unknown))}")
    if len(found) == 1:
        own = config.types.get(found[0].gpu_type, _WHOLE)
        changes = {name: value for name in ("cpus", "memory_gib") if (value := getattr(own, name))}
        gpus = msgspec.structs.replace(config, **changes), _of_vendor(found[0], own)
        return (NodePart(*gpus),)
    amounts = _amounts(config, found, machine_of(config))
    return tuple(_part(config, k, gpus, amounts[k]) for k, gpus in enumerate(found))


def _part(config: NodeConfig, number: int, gpus: Gpus, amounts: NodeAmounts) -> NodePart:
    own = _of_vendor(gpus, config.types.get(gpus.gpu_type, _WHOLE))
    part = msgspec.structs.replace(
        config,
        node_id=f"{config.node_id}/{own.gpu_type}",
        state_directory=str(config.state / DIRECTORY / own.gpu_type),
        gpus=f"{own.gpu_type}:{len(own.devices)}",
        types={},
        vendor=own.vendor,
        peer_port=config.peer_port + number if config.peer_port else 0,
        cpus=amounts.cpus,
        memory_gib=amounts.memory_gib,
        cpus_reserved=0.0,
        memory_gib_reserved=0.0,
    )
    return NodePart(part, own)


def _of_vendor(gpus: Gpus, own: TypeConfig) -> Gpus:
    return Gpus(gpus.gpu_type, gpus.devices, own.vendor or gpus.vendor)


def _amounts(config: NodeConfig, found: Sequence[Gpus], whole: NodeAmounts) -> list[NodeAmounts]:
    """CPU cores and memory of each part: as configured; the others divide the rest in proportion to their GPUs."""
    columns = [_divided(config, found, name, getattr(whole, name)) for name in ("cpus", "memory_gib")]
    return [NodeAmounts(cpus, memory_gib) for cpus, memory_gib in zip(*columns, strict=True)]


def _divided(config: NodeConfig, found: Sequence[Gpus], name: str, whole: float) -> list[float]:
    given = [getattr(config.types.get(gpus.gpu_type, _WHOLE), name) for gpus in found]
    counts = [0 if amount else len(gpus.devices) for amount, gpus in zip(given, found, strict=True)]
    rest = whole - math.fsum(given)
    if rest < -1e-6 or (any(counts) and rest <= 0):
        raise InvalidInput(f"types must leave {name} of the node for each part: it has {whole:g}, got {given}")
    shares = (rest * count / max(sum(counts), 1) for count in counts)
    return [amount or math.floor(share * 100) / 100 for amount, share in zip(given, shares, strict=True)]

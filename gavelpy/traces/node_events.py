"""Nodes that join and are lost: our CSV of node events, and SkyPilot's availability of spot nodes.

CSV, in order of time: at_s, event (joined, lost, draining), node, gpu_type, gpus, then optionally cpus, memory_gib,
rack, zone, region. The columns after `node` are needed where a node joins.

SkyPilot (skypilot-org/spot-traces; "Can't Be Late", NSDI '24): JSON with `metadata.gap_seconds`, the time between two
points, and `data`, how many instances could be had at each point. The name of the file ends in ZONE_TYPE_GPUS, such as
`...us-west-2a_v100_1.json`: GPUs of each instance. Instance i is there while the number is above i; after the last
point it stays as it is. The zone is the node's zone, the zone without its last letter its region.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import ClusterNode
from gavelpy.model.cluster_changes import ChangeKind, ClusterChange
from gavelpy.model.job import AMOUNT_MAX, GPUS_MAX, NodeId
from gavelpy.traces.durations import Row, cells_of, gpu_type_named
from gavelpy.traces.fields import Place, csv_table, csv_text, parse_json, write_text
from gavelpy.traces.source import TraceFile, head_of

COLUMNS = ("at_s", "event", "node")
OPTIONAL = ("gpu_type", "gpus", "cpus", "memory_gib", "rack", "zone", "region")
_SPOT_NAME = re.compile(r".*?(?P<zone>[a-z]{2,}-[a-z]+-[0-9]+[a-z])_(?P<type>[A-Za-z0-9-]+)_(?P<gpus>[0-9]{1,4})\.json")
_INSTANCES_MAX = 100_000
_TEXT_MAX = 1 << 26  # characters of a JSON file
_GAP_MAX_S = 1e9


def read_node_events(paths: Iterable[str | Path]) -> tuple[ClusterChange, ...]:
    """The changes in all files, in order of time; at one time in the order of the files."""
    found: list[ClusterChange] = []
    for path in paths:
        text = head_of(path).text.lstrip()
        found += _spot(Path(path)) if text.startswith("{") else _csv(Path(path))
    return tuple(sorted(found, key=lambda change: change.at_s))


def write_node_events(nodes: Sequence[ClusterNode], path: str | Path) -> None:
    """Writes our CSV, in which these nodes join at 0."""
    rows = [
        [
            *("0", ChangeKind.JOINED.value, str(node.node_id), node.gpu_type, str(node.gpu_count)),
            *(repr(node.cpus), repr(node.memory_gib), node.rack, node.zone, node.region),
        ]
        for node in nodes
    ]
    write_text(path, csv_text((*COLUMNS, *OPTIONAL), rows))


def hashes_of(paths: Iterable[str | Path]) -> dict[str, str]:
    """SHA-256 of each file, by name."""
    found: dict[str, str] = {}
    for path in paths:
        source = TraceFile(path)
        for _ in source.chunks():
            pass
        found[Path(path).name] = source.sha256()
    return found


def _csv(path: Path) -> list[ClusterChange]:
    source = TraceFile(path)
    found: list[ClusterChange] = []
    nodes: dict[str, ClusterNode] = {}
    for place, cell in cells_of(csv_table(source.lines(), source.file), COLUMNS, OPTIONAL):
        at_s = place.number("at_s", cell["at_s"])
        if found and at_s < found[-1].at_s:
            raise place.error("at_s", f">= the row before ({found[-1].at_s:g})", cell["at_s"])
        kind = ChangeKind(place.choice("event", cell["event"], [kind.value for kind in ChangeKind]))
        name = cell["node"]
        if not name or not name.isprintable():
            raise place.error("node", "the name of a node", name)
        if kind is ChangeKind.JOINED:
            nodes[name] = _node(cell, place)
        elif name not in nodes:
            nodes[name] = ClusterNode(NodeId(name), cell.get("gpu_type", "") or "any", 1)  # of the cluster: its own
        found.append(ClusterChange(at_s, kind, nodes[name]))
    if not found:
        raise Place(source.file).error("file", "a header and at least one event", "no event")
    return found


def _node(cell: Row, place: Place) -> ClusterNode:
    gpu_type = gpu_type_named(cell.get("gpu_type", ""))
    if not gpu_type:
        raise place.error("gpu_type", "the GPU type of a node that joins", cell.get("gpu_type", ""))
    cpus, memory_gib = (place.number(name, cell.get(name, "") or "0") for name in ("cpus", "memory_gib"))
    if max(cpus, memory_gib) > AMOUNT_MAX:
        raise place.error("cpus, memory_gib", f"at most {AMOUNT_MAX:g}", max(cpus, memory_gib))
    return ClusterNode(
        NodeId(cell["node"]),
        cell["gpu_type"].strip(),
        place.whole("gpus", cell.get("gpus", ""), 1, GPUS_MAX),
        cpus,
        memory_gib,
        *(cell.get(name, "") for name in ("rack", "zone", "region")),
    )


def _spot(path: Path) -> list[ClusterChange]:
    match = _SPOT_NAME.fullmatch(path.name)
    if match is None:
        allowed = "ZONE_TYPE_GPUS.json, such as us-west-2a_v100_1.json, at its end"
        raise InvalidInput(f"name of the file must have {allowed}, got {path.name!r}", file=str(path))
    gap_s, counts = _availability(path)
    zone, gpu_type, gpus = match["zone"], match["type"].lower(), int(match["gpus"])
    if gpus < 1:
        raise InvalidInput(f"name of the file must have GPUs of an instance >= 1, got {gpus}", file=str(path))
    nodes = [
        ClusterNode(NodeId(f"{zone}-{gpu_type}-{i}"), gpu_type, gpus, zone=zone, region=zone[:-1])
        for i in range(max(counts))
    ]
    found: list[ClusterChange] = []
    for point, (before, now) in enumerate(zip([0, *counts], counts, strict=False)):
        kind = ChangeKind.JOINED if now > before else ChangeKind.LOST
        found += [ClusterChange(point * gap_s, kind, node) for node in nodes[min(before, now) : max(before, now)]]
    return found


def _availability(path: Path) -> tuple[float, Sequence[int]]:
    document = parse_json(TraceFile(path).text(_TEXT_MAX), str(path))
    value = document.value
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict) or not isinstance(value.get("data"), list) or not value["data"]:
        raise document.error((), "an object with `metadata` and a list `data`", value)
    gap_s = metadata.get("gap_seconds")
    if isinstance(gap_s, bool) or not isinstance(gap_s, int | float) or not 0 < gap_s <= _GAP_MAX_S:
        raise document.error(("metadata", "gap_seconds"), "a number of seconds > 0", gap_s)
    for i, count in enumerate(value["data"]):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _INSTANCES_MAX:
            raise document.error(("data", i), f"a whole number of instances in [0, {_INSTANCES_MAX}]", count)
    return float(gap_s), value["data"]

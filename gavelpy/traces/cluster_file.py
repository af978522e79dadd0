"""Cluster files: nodes with their GPUs, CPU cores, memory, racks, zones and regions, and prices of GPU types.

CSV: node, gpu_type, gpus, then optionally cpus (0), memory_gib (0), rack, zone, region and price_usd_per_gpu_h, one row
per node; all nodes of a type have one price.

TOML: a table `[[nodes]]` for each group of equal nodes, with `name`, `gpu_type`, `gpus` and the same options, and a
table `[prices_usd_per_gpu_h]`. `count` nodes of a group are called NAME-0, NAME-1 and so on. With `nodes_per_rack`, the
racks are RACK-0, RACK-1 and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import GPU_COUNT_MAX, Cluster, ClusterNode
from gavelpy.model.job import AMOUNT_MAX, NodeId
from gavelpy.model.places import PLACE_NAMES
from gavelpy.model.toml_text import parsed_toml
from gavelpy.traces.fields import Place, csv_table, read_text, shown

SUFFIXES = (".csv", ".toml")
NODES_MAX = 1_000_000
_REQUIRED = ("node", "gpu_type", "gpus")
_OPTIONAL = ("cpus", "memory_gib", "rack", "zone", "region", "price_usd_per_gpu_h")
_PRICES = "prices_usd_per_gpu_h"
_TEXTS = ("name", "gpu_type", "rack", "zone", "region")
_WHOLES = {"gpus": GPU_COUNT_MAX, "count": NODES_MAX, "nodes_per_rack": NODES_MAX}
_AMOUNTS = ("cpus", "memory_gib")


def read_cluster(path: str | Path) -> Cluster:
    """The cluster in a file, by its suffix."""
    file, text = str(path), read_text(path)
    try:
        nodes, prices = _from_csv(text, file) if file.endswith(".csv") else _from_toml(text, file)
        types = tuple(dict.fromkeys(node.gpu_type for node in nodes))
        return Cluster(nodes, types, prices)
    except InvalidInput as error:
        raise (error if error.file else error.located(file)) from error


def _from_csv(text: str, file: str) -> tuple[tuple[ClusterNode, ...], dict[str, float]]:
    table = csv_table(text, file)
    table.require(_REQUIRED, _OPTIONAL)
    at = {name: column for column, name in enumerate(table.header)}
    nodes: list[ClusterNode] = []
    prices: dict[str, float] = {}
    for place, cells in table.rows:
        row = {name: cells[column].strip() for name, column in at.items()}
        for name in ("node", "gpu_type"):
            if not row[name]:
                raise place.error(name, "a name", row[name])
        cpus, memory_gib = (place.number(name, row[name]) if row.get(name) else 0.0 for name in _AMOUNTS)
        rack, zone, region = (row.get(name, "") for name in PLACE_NAMES)
        gpus = place.whole("gpus", row["gpus"], 1, GPU_COUNT_MAX)
        nodes.append(ClusterNode(NodeId(row["node"]), row["gpu_type"], gpus, cpus, memory_gib, rack, zone, region))
        if given := row.get("price_usd_per_gpu_h"):
            price = place.number("price_usd_per_gpu_h", given)
            if prices.setdefault(row["gpu_type"], price) != price:
                known = f"the price of other {row['gpu_type']} nodes, {prices[row['gpu_type']]:g}"
                raise place.error("price_usd_per_gpu_h", known, given)
    if not nodes:
        raise Place(file).error("file", "a list of nodes", "only a header")
    return tuple(nodes), prices


def _from_toml(text: str, file: str) -> tuple[tuple[ClusterNode, ...], dict[str, float]]:
    tables = parsed_toml(text, file)
    if unknown := sorted(tables.keys() - {"nodes", _PRICES}):
        raise InvalidInput(f"table must be nodes or {_PRICES}, got {shown(unknown[0])}")
    groups, prices = tables.get("nodes"), tables.get(_PRICES, {})
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        raise InvalidInput(f"nodes must be one table [[nodes]] or several, got {shown(groups)}")
    if not isinstance(prices, dict):
        raise InvalidInput(f"{_PRICES} must be a table of prices by GPU type, got {shown(prices)}")
    nodes = tuple(node for number, group in enumerate(groups) for node in _group(f"nodes[{number}]", group))
    types = {node.gpu_type for node in nodes}
    for gpu_type, price in prices.items():
        if gpu_type not in types:
            raise InvalidInput(f"{_PRICES} must name types of the cluster, got {shown(gpu_type)}")
        _number(f"{_PRICES}.{gpu_type}", price, math.inf)
    return nodes, {gpu_type: float(price) for gpu_type, price in prices.items()}


def _group(where: str, group: Mapping[str, Any]) -> Iterator[ClusterNode]:  # Any: TOML values
    for name in ("name", "gpu_type", "gpus"):
        if name not in group:
            raise InvalidInput(f"{where} must have name, gpu_type and gpus, got none of {name!r}")
    for name, value in group.items():
        if name in _TEXTS:
            if not isinstance(value, str):
                raise InvalidInput(f"{where}.{name} must be text, got {shown(value)}")
        elif name in _WHOLES:
            if type(value) is not int or not 1 <= value <= _WHOLES[name]:
                raise InvalidInput(f"{where}.{name} must be a whole number in [1, {_WHOLES[name]}], got {shown(value)}")
        elif name in _AMOUNTS:
            _number(f"{where}.{name}", value, AMOUNT_MAX)
        else:
            known = ", ".join((*_TEXTS, *_WHOLES, *_AMOUNTS))
            raise InvalidInput(f"{where} must have the options {known}, got {shown(name)}")
    each = group.get("nodes_per_rack", 0)
    for number in range(group.get("count", 1)):
        rack = f"{group.get('rack') or 'rack'}-{number // each}" if each else group.get("rack", "")
        node_id = NodeId(f"{group['name']}-{number}" if "count" in group else group["name"])
        cpus, memory_gib = (float(group.get(name, 0.0)) for name in _AMOUNTS)
        zone, region = group.get("zone", ""), group.get("region", "")
        yield ClusterNode(node_id, group["gpu_type"], group["gpus"], cpus, memory_gib, rack, zone, region)


def _number(name: str, value: object, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 <= value <= most) or not math.isfinite(value):  # type: ignore[operator,arg-type]  # a number
        raise InvalidInput(f"{name} must be a number in [0, {most:g}], got {shown(value)}")

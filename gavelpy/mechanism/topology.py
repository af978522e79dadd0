"""Levels of closeness: GPUs of one node, of one rack, of one zone, or anywhere.

Racks are distinguished by region, zone and rack, zones by region and zone. A node without a name counts as a rack, or a
zone, of its own. A level that no node names does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.model.arrays import Ints


class PlaceLevel(IntEnum):
    """How far apart the GPUs of a job are; a larger one is worse."""

    NODE = 0
    RACK = 1
    ZONE = 2
    ANYWHERE = 3


WORDS = {
    PlaceLevel.NODE: "one node",
    PlaceLevel.RACK: "one rack",
    PlaceLevel.ZONE: "one zone",
    PlaceLevel.ANYWHERE: "any nodes",
}


def groups(pool: GpuPool) -> dict[PlaceLevel, Ints]:
    """For each level that exists, the number of each node's group, (nodes,). NODE and ANYWHERE always exist."""
    if pool.groups is None:
        count = len(pool.node_ids)
        pool.groups = {int(PlaceLevel.NODE): np.arange(count)}
        for level in (PlaceLevel.RACK, PlaceLevel.ZONE):
            names = [place[::-1][: 4 - level] if place[level - 1] else () for place in pool.node_place]
            if any(names):
                known: dict[object, int] = {}
                keys: list[object] = [name or row for row, name in enumerate(names)]
                pool.groups[int(level)] = np.array([known.setdefault(key, len(known)) for key in keys])
        pool.groups[int(PlaceLevel.ANYWHERE)] = np.zeros(count, dtype=np.int64)
    return {PlaceLevel(level): found for level, found in pool.groups.items()}


def level_of(pool: GpuPool, gpus: Ints) -> PlaceLevel:
    """The best level of these GPUs, one or more."""
    nodes = pool.node_of[gpus]
    return next(level for level, group in groups(pool).items() if (group[nodes] == group[nodes[0]]).all())


def best_levels(pool: GpuPool, domain: int, sizes: Sequence[int]) -> list[PlaceLevel]:
    """The best level at which a job of each size would fit if all usable GPUs of a domain were free."""
    here = pool.usable & (pool.domain_of == domain)
    nodes = pool.node_of[here]
    largest = {level: int(np.bincount(group[nodes]).max(initial=0)) for level, group in groups(pool).items()}
    return [next((level for level, most in largest.items() if size <= most), PlaceLevel.ANYWHERE) for size in sizes]

"""Nodes that join, drain or are lost at given times: spot availability, failures, maintenance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import ClusterNode


class ChangeKind(StrEnum):
    """What happens to a node."""

    JOINED = "joined"
    LOST = "lost"
    DRAINING = "draining"


@dataclass(frozen=True)
class ClusterChange:
    """A node joins, drains or is lost."""

    at_s: float  # from the start of the trace
    kind: ChangeKind
    node: ClusterNode

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise InvalidInput(f"at_s of node {self.node.node_id!r} must be finite and >= 0, got {self.at_s!r}")

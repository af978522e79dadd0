"""Clusters: nodes with GPUs of one type each, the price of a GPU-hour of each type, and specs of GPU types.

`GpuSpecs` and `StepCost` are the inputs of the roofline model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX, Floats, Ints, index_of
from gavelpy.model.job import AMOUNT_MAX, NodeId
from gavelpy.model.places import PLACE_NAMES, check_place_name

GPU_COUNT_MAX = 1_000_000
_DIGITS_MAX = 20  # int() refuses thousands of digits
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class ClusterNode:
    """One node with `gpu_count` GPUs of one type."""

    node_id: NodeId
    gpu_type: str
    gpu_count: int
    cpus: float = 0.0  # CPU cores; 0 = not stated, and they limit no job; the same of the memory
    memory_gib: float = 0.0
    rack: str = ""  # names of where it is; empty = not known. A rack is one of its zone, a zone one of its region
    zone: str = ""
    region: str = ""


@dataclass(frozen=True)
class Cluster:
    """Nodes in a fixed order; GPU types in the order of their first node (or as given to `of`)."""

    nodes: tuple[ClusterNode, ...]
    gpu_types: tuple[str, ...]
    price_usd_per_gpu_h: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        index_of((node.node_id for node in self.nodes), "node ids")
        index_of(self.gpu_types, "gpu_types")
        for node in self.nodes:
            if node.gpu_type not in self.gpu_types:
                known = ", ".join(self.gpu_types)
                raise InvalidInput(f"gpu_type of {node.node_id!r} must be one of {known}, got {node.gpu_type!r}")
            for name in PLACE_NAMES:
                check_place_name(f"{name} of {node.node_id!r}", getattr(node, name))
            for name, amount in (("cpus", node.cpus), ("memory_gib", node.memory_gib)):
                if not 0 <= amount <= AMOUNT_MAX:
                    raise InvalidInput(f"{name} of {node.node_id!r} must be in [0, {AMOUNT_MAX:g}], got {amount!r}")
        for gpu_type, price in self.price_usd_per_gpu_h.items():
            if not (price >= 0 and math.isfinite(price)):
                raise InvalidInput(f"prices_usd_per_gpu_h[{gpu_type!r}] must be a finite number >= 0, got {price!r}")

    @classmethod
    def of(
        cls,
        gpus: Mapping[str, int],
        *,
        gpus_per_node: int = 4,
        price_usd_per_gpu_h: Mapping[str, float] | None = None,
    ) -> Cluster:
        """A cluster of `gpus[type]` GPUs of each type on nodes of `gpus_per_node` (the last one may hold fewer).

        >>> Cluster.of({"v100": 6, "k80": 2}).gpu_counts.tolist()
        [6, 2]
        """
        if not 1 <= gpus_per_node <= GPU_COUNT_MAX:
            raise InvalidInput(f"gpus_per_node must be in [1, {GPU_COUNT_MAX}], got {gpus_per_node!r}")
        _check_counts(gpus)
        nodes = [
            ClusterNode(NodeId(f"{gpu_type}-{i}"), gpu_type, min(gpus_per_node, count - i * gpus_per_node))
            for gpu_type, count in gpus.items()
            for i in range(math.ceil(count / gpus_per_node))
        ]
        return cls(tuple(nodes), tuple(gpus), dict(price_usd_per_gpu_h or {}))

    @classmethod
    def parse(
        cls, text: str, *, gpus_per_node: int = 4, price_usd_per_gpu_h: Mapping[str, float] | None = None
    ) -> Cluster:
        """The cluster that `v100:36,p100:36,k80:36` describes."""
        gpus: dict[str, int] = {}
        for part in text.split(","):
            gpu_type, colon, count = part.strip().partition(":")
            if not colon or not count.strip().isdecimal() or len(count) > _DIGITS_MAX:
                raise InvalidInput(f"cluster must look like v100:36,k80:12, got {part.strip()!r} in {text!r}")
            if gpu_type in gpus:
                raise InvalidInput(f"cluster must name each GPU type once, got {gpu_type!r} twice in {text!r}")
            gpus[gpu_type] = int(count)
        return cls.of(gpus, gpus_per_node=gpus_per_node, price_usd_per_gpu_h=price_usd_per_gpu_h)

    def with_amounts(self, cpus: Mapping[str, float], memory_gib: Mapping[str, float]) -> Cluster:
        """The same nodes with these CPU cores and this memory each, by GPU type; types not named keep theirs.

        >>> Cluster.of({"v100": 6}).with_amounts({"v100": 32}, {}).nodes[1].cpus
        32
        """
        for field_name, amounts in (("cpus", cpus), ("memory_gib", memory_gib)):
            for gpu_type in amounts:
                if gpu_type not in self.gpu_types:
                    known = ", ".join(self.gpu_types)
                    raise InvalidInput(f"{field_name} must be of types of the cluster ({known}), got {gpu_type!r}")
        nodes = [
            replace(
                node,
                cpus=cpus.get(node.gpu_type, node.cpus),
                memory_gib=memory_gib.get(node.gpu_type, node.memory_gib),
            )
            for node in self.nodes
        ]
        return replace(self, nodes=tuple(nodes))

    @property
    def gpu_counts(self) -> Ints:
        """GPUs of each type, (T,); rows follow gpu_types."""
        row = {gpu_type: i for i, gpu_type in enumerate(self.gpu_types)}
        counts = np.zeros(len(row), dtype=np.int64)
        for node in self.nodes:
            counts[row[node.gpu_type]] += node.gpu_count
        return counts

    @property
    def prices(self) -> Floats:
        """USD per GPU-hour of each type, (T,); 0 where none is known."""
        return np.array([self.price_usd_per_gpu_h.get(t, 0.0) for t in self.gpu_types], dtype=np.float64)


def _check_counts(gpus: Mapping[str, int]) -> None:
    if not gpus:
        raise InvalidInput("cluster must name at least one GPU type, got none")
    for gpu_type, count in gpus.items():
        if not _GPU_TYPE.fullmatch(gpu_type):
            raise InvalidInput(f"cluster: a GPU type is letters, digits, '.', '_' and '-', got {gpu_type!r}")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidInput(f"cluster[{gpu_type!r}] must be a whole number of GPUs >= 0, got {count!r}")
    total = sum(gpus.values())
    if not 1 <= total <= GPU_COUNT_MAX:
        raise InvalidInput(f"cluster must hold 1 to {GPU_COUNT_MAX:,} GPUs in all, got {total:,}")


class Precision(StrEnum):
    """Floating-point precision of a job."""

    SINGLE = "single"
    HALF = "half"


@dataclass(frozen=True)
class GpuSpecs:
    """Peak rates and memory of one GPU."""

    memory_gb: float
    bandwidth_gb_per_s: float
    single_tflops: float
    half_tflops: float  # of the fastest units

    def __post_init__(self) -> None:
        _positive(self)

    def tflops(self, precision: Precision) -> float:
        """Peak rate in this precision."""
        return self.half_tflops if precision is Precision.HALF else self.single_tflops


@dataclass(frozen=True)
class StepCost:
    """Cost of one step: a part per sample of the batch, and a constant part (weights, optimizer)."""

    gflop_per_sample: float  # forward and backward
    gb_per_sample: float  # moved between memory and chip
    gb_per_step: float
    memory_gb: float  # independent of the batch
    memory_gb_per_sample: float
    precision: Precision

    def __post_init__(self) -> None:
        _positive(self)

    def memory_needed_gb(self, batch: float) -> float:
        """Memory needed on one GPU with `batch` samples."""
        return self.memory_gb + batch * self.memory_gb_per_sample


def _positive(specs: GpuSpecs | StepCost) -> None:
    for each in fields(specs):
        value = getattr(specs, each.name)
        if not isinstance(value, Precision) and not (math.isfinite(value) and 0 < value <= VALUE_MAX):
            raise InvalidInput(f"{each.name} must be > 0 and at most {VALUE_MAX:g}, got {value!r}")

"""Nodes and tasks in thousandths of a GPU, for studies of placement where several tasks share a GPU.

Live clusters allocate whole GPUs; two jobs share a GPU as a pair (see `configurations`), not by fractions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Ints, index_of, ints, require

GPU_MILLI = 1000  # one GPU
NODE_GPUS_MAX = 64


@dataclass(frozen=True, eq=False)
class FractionalNodes:
    """Nodes with their GPUs, CPU cores and memory; columns are (N,)."""

    node_ids: tuple[str, ...]
    models: tuple[str, ...]  # of GPUs
    model: Ints  # row of `models`; nodes without GPUs have any
    gpus: Ints
    cpu_milli: Ints  # thousandths of a CPU core
    memory_mib: Ints

    def __post_init__(self) -> None:
        count = len(self.node_ids)
        index_of(self.node_ids, "node_ids")
        index_of(self.models, "models")
        if not count or not self.models:
            raise InvalidInput(f"nodes and models must not be empty, got {count} nodes, {len(self.models)} models")
        for name in ("model", "gpus", "cpu_milli", "memory_mib"):
            object.__setattr__(self, name, ints(name, getattr(self, name), (count,)))
            require(name, getattr(self, name), getattr(self, name) >= 0, ">= 0")
        require("model", self.model, self.model < len(self.models), f"below {len(self.models)}")
        require("gpus", self.gpus, self.gpus <= NODE_GPUS_MAX, f"at most {NODE_GPUS_MAX}")

    def among(self, rows: Ints) -> FractionalNodes:
        """These nodes in this order."""
        names = tuple(self.node_ids[row] for row in rows.tolist())
        columns = (self.model, self.gpus, self.cpu_milli, self.memory_mib)
        return FractionalNodes(names, self.models, *(column[rows] for column in columns))

    @property
    def capacity_milli(self) -> int:
        """Thousandths of all GPUs."""
        return int(self.gpus.sum()) * GPU_MILLI


@dataclass(frozen=True, eq=False)
class FractionalTasks:
    """What tasks need, each on one node; columns are (K,)."""

    gpus: Ints
    gpu_milli: Ints  # of each of its GPUs, 0 without GPUs; below 1000 only for a task on one GPU
    cpu_milli: Ints
    memory_mib: Ints
    may_use: Bools  # (K, models) the models of GPUs that it may use

    def __post_init__(self) -> None:
        count = len(self.gpus)
        for name in ("gpus", "gpu_milli", "cpu_milli", "memory_mib"):
            object.__setattr__(self, name, ints(name, getattr(self, name), (count,)))
            require(name, getattr(self, name), getattr(self, name) >= 0, ">= 0")
        require("gpu_milli", self.gpu_milli, self.gpu_milli <= GPU_MILLI, f"at most {GPU_MILLI}")
        ok = np.where(self.gpus > 1, self.gpu_milli == GPU_MILLI, (self.gpu_milli > 0) == (self.gpus > 0))
        require("gpu_milli", self.gpu_milli, ok, "1000 on several GPUs, above 0 on one GPU, and 0 without GPUs")
        may_use = np.array(self.may_use, dtype=np.bool_)
        if may_use.ndim != 2 or len(may_use) != count:
            raise InvalidInput(f"may_use must have a row for each of {count} tasks, got shape {may_use.shape}")
        may_use.setflags(write=False)
        object.__setattr__(self, "may_use", may_use)

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def total_milli(self) -> Ints:
        """Thousandths of GPUs that each task needs in all, (K,)."""
        return self.gpus * self.gpu_milli

    def among(self, rows: Ints) -> FractionalTasks:
        """These tasks in this order; a row may be repeated."""
        amounts = self.cpu_milli[rows], self.memory_mib[rows]
        return FractionalTasks(self.gpus[rows], self.gpu_milli[rows], *amounts, self.may_use[rows])

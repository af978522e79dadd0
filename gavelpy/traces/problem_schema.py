"""Schema of a problem file. The module is imported lazily, as it loads msgspec."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class JobEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One job; `None` stands for JSON's null."""

    id: str
    rates_steps_per_s: dict[str, Any]  # numbers; the reader checks them, so that errors name the GPU type
    gpus: int = 1
    weight: float = 1.0
    steps_remaining: float = 1.0
    steps_total: float | None = None  # None = steps_remaining
    age_s: float = 0.0
    deadline_s: float | None = None  # from now
    entity: str | None = None
    isolated_s: float = 0.0
    attained_gpu_s: float = 0.0


class PairEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Two jobs that may share their GPUs."""

    jobs: tuple[str, str]
    rates_steps_per_s: dict[str, Any]  # [first, second]; the reader checks them


class EntityEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A team."""

    id: str
    weight: float = 1.0
    policy: Literal["fairness", "fifo"] = "fairness"
    parent: str | None = None


class ProblemFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    cluster: dict[str, Any]  # whole numbers; Cluster.of checks them, so that errors name the GPU type
    jobs: list[JobEntry]
    prices_usd_per_gpu_h: dict[str, Any] = {}
    pairs: list[PairEntry] = []
    entities: list[EntityEntry] = []


# The type of the entries of each list of the file; "" = the file itself.
ENTRIES: dict[str | int, type[msgspec.Struct]] = {
    "": ProblemFile,
    "jobs": JobEntry,
    "pairs": PairEntry,
    "entities": EntityEntry,
}

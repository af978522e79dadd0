"""The fields of allocation problems, and the validation of their values; `AllocationProblem` adds views and transforms.

Axes: J jobs, C configurations, M memberships (a job in a configuration), T GPU types, R resources.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX, Floats, Ints, floats, index_of, ints, require
from gavelpy.model.completion_value import COLUMNS
from gavelpy.model.job import JobId
from gavelpy.model.loss_reports import checked_losses

GPUS = "gpu"  # name of the first resource
NONE_GIVEN: Ints = np.zeros(0, dtype=np.int64)
SMALLEST = np.nextafter(0.0, 1.0)  # the least number above zero


class EntityPolicy(StrEnum):
    """How an entity divides its share among its members (jobs and entities)."""

    FAIRNESS = "fairness"
    FIFO = "fifo"


@dataclass(frozen=True)
class Entity:
    """A team that shares the cluster with others; with a parent it shares the parent's part with the other members."""

    id: str
    weight: float = 1.0
    policy: EntityPolicy = EntityPolicy.FAIRNESS
    parent: str = ""  # id of another entity; "" = none

    def __post_init__(self) -> None:
        if not (np.isfinite(self.weight) and self.weight > 0):
            raise InvalidInput(f"weight of entity {self.id!r} must be finite and > 0, got {self.weight!r}")


@dataclass(frozen=True, eq=False)
class ProblemArrays:
    """The arrays of a problem; rows of jobs are in order of arrival."""

    job_ids: tuple[JobId, ...]  # J labels
    gpu_types: tuple[str, ...]  # T labels
    capacity: Ints  # (T, R) of the nodes with these GPUs, in thousandths; the first resource is the GPUs
    demand: Ints  # (C, R) occupied while it runs, in thousandths
    member_configuration: Ints  # (M,) non-decreasing
    member_job: Ints  # (M,)
    member_rate_steps_per_s: Floats  # (M, T) 0 = cannot run there
    gpus_asked: Floats  # (J,)
    weight: Floats  # (J,) > 0
    steps_remaining: Floats  # (J,) > 0
    steps_total: Floats  # (J,) > 0
    age_s: Floats  # (J,) since submission
    isolated_s: Floats  # (J,) time that the steps done so far would have taken on an isolated share
    deadline_s: Floats  # (J,) from now; infinite = none; <= 0 = missed
    attained_gpu_s: Floats  # (J,) GPU time received
    price_usd_per_gpu_h: Floats  # (T,)
    entity: Ints  # (J,) row in entities, -1 = none
    gpu_type_held: Ints  # (J,) column of gpu_types the job runs on now, -1 = none
    entities: tuple[Entity, ...] = ()
    memory: bytes = b""  # `Allocation.memory` of the policy's last answer; empty at first, and with parts or classes
    resources: tuple[str, ...] = (GPUS,)  # R labels
    job_type: Ints = field(default_factory=lambda: NONE_GIVEN)  # (J,) place in job_types, -1 = none
    owner: Ints = field(default_factory=lambda: NONE_GIVEN)  # (J,) place in owners, -1 = none
    app: Ints = field(default_factory=lambda: NONE_GIVEN)  # (J,) place in apps, -1 = none
    gpus_held: Floats = field(default_factory=lambda: np.zeros(0))  # (J,) GPUs of its lease now, 0 = none
    restart_s: Floats = field(default_factory=lambda: np.zeros(0))  # (J,) from its last start to progress; 0 = unknown
    job_types: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    team_rows: int = 0  # how many of the last resources are limits of teams (`team_limits`)
    completion_value: Floats = field(default_factory=lambda: np.zeros(0))  # (J, 4) rows of `model.completion_value`
    losses: Floats = field(default_factory=lambda: np.zeros(0))  # (J, K, 2) reported: see `model.loss_reports`
    plan: tuple[str, ...] = ()  # C texts that a configuration's job receives (`Size.plan`); empty = none

    def __post_init__(self) -> None:
        J, T, C, M = len(self.job_ids), len(self.gpu_types), len(self.demand), len(self.member_job)
        if self.resources[:1] != (GPUS,):
            raise InvalidInput(f"resources must begin with {GPUS!r}, got {self.resources!r}")
        if len(self.plan) not in (0, C):
            raise InvalidInput(f"plan must be empty or have one entry for each of {C} configurations, got {self.plan}")
        R = len(self.resources)
        for name, nothing in (("job_type", -1), ("owner", -1), ("app", -1), ("restart_s", 0.0), ("gpus_held", 0.0)):
            if not np.size(getattr(self, name)):
                object.__setattr__(self, name, np.full(J, nothing))
        if not np.size(self.completion_value):
            object.__setattr__(self, "completion_value", np.zeros((J, COLUMNS)))
        object.__setattr__(self, "losses", checked_losses(self.losses, J))
        shapes: dict[str, tuple[int, ...]] = {
            "capacity": (T, R),
            "demand": (C, R),
            "member_configuration": (M,),
            "member_job": (M,),
            "entity": (J,),
            "gpu_type_held": (J,),
            "job_type": (J,),
            "owner": (J,),
            "app": (J,),
        }
        for name, shape in shapes.items():
            object.__setattr__(self, name, ints(name, getattr(self, name), shape))
        per_job = (
            "gpus_asked",
            "weight",
            "steps_remaining",
            "steps_total",
            "age_s",
            "isolated_s",
            "deadline_s",
            "attained_gpu_s",
            "restart_s",
            "gpus_held",
        )
        shapes = {"member_rate_steps_per_s": (M, T), "price_usd_per_gpu_h": (T,)} | dict.fromkeys(per_job, (J,))
        shapes["completion_value"] = (J, COLUMNS)
        for name, shape in shapes.items():
            object.__setattr__(self, name, floats(name, getattr(self, name), shape))
        self._check_values()

    def _check_values(self) -> None:
        for name in ("job_ids", "gpu_types", "resources"):
            labels = getattr(self, name)
            if len(set(labels)) < len(labels):
                index_of(labels, name)  # raises and names the duplicate
        assert len(self.entity_parent) == len(self.entities)  # raises for an unknown parent
        J, T = len(self.job_ids), len(self.gpu_types)
        self._require_all(("capacity", "demand"), 0, np.inf, ">= 0")
        positive = ("gpus_asked", "weight", "steps_remaining", "steps_total")
        self._require_all(positive, SMALLEST, VALUE_MAX, f"> 0 and at most {VALUE_MAX:g}")
        self._require_all(("member_rate_steps_per_s",), 0, VALUE_MAX, f"in [0, {VALUE_MAX:g}]")
        self._require_all(("completion_value",), 0, VALUE_MAX, f"in [0, {VALUE_MAX:g}]")
        times = ("price_usd_per_gpu_h", "age_s", "isolated_s", "attained_gpu_s", "restart_s", "gpus_held")
        self._require_all(times, 0, np.finfo(np.float64).max, "finite and >= 0")
        self._require_all(("deadline_s",), -np.inf, np.inf, "a number, or infinite for none")
        self._require_all(("member_job",), 0, J - 1, f"in [0, {J})")
        self._require_all(("entity",), -1, len(self.entities) - 1, f"in [-1, {len(self.entities)})")
        self._require_all(("job_type",), -1, len(self.job_types) - 1, f"in [-1, {len(self.job_types)})")
        self._require_all(("app",), -1, len(self.apps) - 1, f"in [-1, {len(self.apps)})")
        self._require_all(("owner",), -1, len(self.owners) - 1, f"in [-1, {len(self.owners)})")
        self._require_all(("gpu_type_held",), -1, T - 1, f"in [-1, {T})")
        rows = np.concatenate([[-1], self.member_configuration, [len(self.demand)]])
        steps = np.diff(rows)  # 0 within a configuration, 1 to the next
        if steps.min() < 0 or steps.max() > 1 or steps[-1] != 1:
            raise InvalidInput("member_configuration must be sorted and name each configuration, got gaps or disorder")

    def _require_all(self, names: tuple[str, ...], low: float, high: float, allowed: str) -> None:
        """Raises InvalidInput unless all values of these fields are in [low, high]; NaN is not."""
        for name in names:
            values = getattr(self, name)
            if values.size and not (values.min() >= low and values.max() <= high):  # a NaN makes both false
                require(name, values, (values >= low) & (values <= high), allowed)

    @cached_property
    def entity_parent(self) -> Ints:
        """Row of each entity's parent in entities, -1 = none."""
        row = index_of((entity.id for entity in self.entities), "ids of entities")
        for entity in self.entities:
            if entity.parent and entity.parent not in row:
                raise InvalidInput(
                    f"parent of entity {entity.id!r} must be one of {', '.join(row)}, got {entity.parent!r}"
                )
        parent = np.array([row.get(entity.parent, -1) for entity in self.entities], dtype=np.int64)
        above = parent
        for _ in self.entities:
            above = np.where(above >= 0, parent[above], -1)
        if (above >= 0).any():
            around = self.entities[int(np.argmax(above >= 0))]
            raise InvalidInput(f"parent of entity {around.id!r} must not lead back to itself, got {around.parent!r}")
        return parent

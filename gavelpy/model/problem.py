"""Allocation problems, the input of policies: jobs, GPU types, and the configurations that can run.

Axes: J jobs, C configurations, M memberships (a job in a configuration), T GPU types, R resources. GPUs are the only
resource: constraints, shadow prices and certificates cover nothing else, so other resources are refused.
A configuration is a set of jobs that run together on GPUs of one type: one job alone, or two co-located jobs. Since
configurations are data, policies have no packed or elastic variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX, Bools, Floats, Ints, floats, index_of, ints, require, spread
from gavelpy.model.job import JobId

THOUSANDTHS = 1000
RESOURCES = 1  # GPUs; constraints on CPUs or memory do not exist yet
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


class BlindView(StrEnum):
    """The rates that a scheduler which ignores GPU types assumes."""

    MEAN = "mean"  # its capacity-weighted mean rate
    ONES = "ones"  # 1 step/s on every type, also where it cannot run (the original Gavel's agnostic policies)
    FIRST = "first"  # its rate on the cluster's first type, everywhere (the original's makespan and FTF: V100)


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """The jobs that compete for GPUs now, in order of arrival. Build one with `of`."""

    job_ids: tuple[JobId, ...]  # J labels
    gpu_types: tuple[str, ...]  # T labels
    capacity: Ints  # (T, R) in thousandths; R = 1, the GPUs
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

    def __post_init__(self) -> None:
        J, T, C, M = len(self.job_ids), len(self.gpu_types), len(self.demand), len(self.member_job)
        resources = np.shape(self.capacity)[1:]
        if resources != (RESOURCES,):
            raise InvalidInput(
                f"capacity must have shape ({T}, {RESOURCES}), as GPUs are the only resource that is enforced, "
                f"got shape {np.shape(self.capacity)}"
            )
        shapes: dict[str, tuple[int, ...]] = {
            "capacity": (T, *resources),
            "demand": (C, *resources),
            "member_configuration": (M,),
            "member_job": (M,),
            "entity": (J,),
            "gpu_type_held": (J,),
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
        )
        shapes = {"member_rate_steps_per_s": (M, T), "price_usd_per_gpu_h": (T,)} | dict.fromkeys(per_job, (J,))
        for name, shape in shapes.items():
            object.__setattr__(self, name, floats(name, getattr(self, name), shape))
        self._check_values()

    def _check_values(self) -> None:
        for name in ("job_ids", "gpu_types"):
            labels = getattr(self, name)
            if len(set(labels)) < len(labels):
                index_of(labels, name)  # raises and names the duplicate
        assert len(self.entity_parent) == len(self.entities)  # raises for an unknown parent
        J, T = len(self.job_ids), len(self.gpu_types)
        self._require_all(("capacity", "demand"), 0, np.inf, ">= 0")
        positive = ("gpus_asked", "weight", "steps_remaining", "steps_total")
        self._require_all(positive, SMALLEST, VALUE_MAX, f"> 0 and at most {VALUE_MAX:g}")
        self._require_all(("member_rate_steps_per_s",), 0, VALUE_MAX, f"in [0, {VALUE_MAX:g}]")
        times = ("price_usd_per_gpu_h", "age_s", "isolated_s", "attained_gpu_s")
        self._require_all(times, 0, np.finfo(np.float64).max, "finite and >= 0")
        self._require_all(("deadline_s",), -np.inf, np.inf, "a number, or infinite for none")
        self._require_all(("member_job",), 0, J - 1, f"in [0, {J})")
        self._require_all(("entity",), -1, len(self.entities) - 1, f"in [-1, {len(self.entities)})")
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

    @classmethod
    def of(
        cls,
        job_ids: Sequence[str],
        gpu_types: Sequence[str],
        gpu_counts: npt.ArrayLike,  # (T,)
        rates_steps_per_s: npt.ArrayLike,  # (J, T)
        *,
        gpus: npt.ArrayLike = 1,  # (J,) or one number for all; the same below
        weight: npt.ArrayLike = 1.0,
        steps_remaining: npt.ArrayLike = 1.0,
        steps_total: npt.ArrayLike | None = None,
        age_s: npt.ArrayLike = 0.0,
        isolated_s: npt.ArrayLike = 0.0,
        deadline_s: npt.ArrayLike = np.inf,
        attained_gpu_s: npt.ArrayLike = 0.0,
        price_usd_per_gpu_h: npt.ArrayLike = 0.0,
        entity: npt.ArrayLike = -1,
        entities: Sequence[Entity] = (),
        gpu_type_held: npt.ArrayLike = -1,
        memory: bytes = b"",
    ) -> AllocationProblem:
        """A problem without co-location: each job runs alone.

        >>> p = AllocationProblem.of(["a", "b"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0]])
        >>> p.configuration_count
        2
        """
        J, T = len(job_ids), len(gpu_types)

        counts, gpus_asked = floats("gpu_counts", gpu_counts, (T,)), floats("gpus", spread("gpus", gpus, (J,)), (J,))
        require("gpu_counts", counts, np.isfinite(counts) & (counts >= 0), "finite and >= 0")
        require("gpus", gpus_asked, np.isfinite(gpus_asked) & (gpus_asked > 0), "finite and > 0")
        per_job = {
            "weight": weight,
            "steps_remaining": steps_remaining,
            "steps_total": steps_remaining if steps_total is None else steps_total,
            "age_s": age_s,
            "isolated_s": isolated_s,
            "deadline_s": deadline_s,
            "attained_gpu_s": attained_gpu_s,
            "entity": entity,
            "gpu_type_held": gpu_type_held,
        }
        return cls(
            job_ids=tuple(JobId(i) for i in job_ids),
            gpu_types=tuple(gpu_types),
            capacity=np.rint(counts.reshape(T, 1) * THOUSANDTHS),
            demand=np.rint(gpus_asked.reshape(J, 1) * THOUSANDTHS),
            member_configuration=np.arange(J),
            member_job=np.arange(J),
            member_rate_steps_per_s=floats("rates_steps_per_s", rates_steps_per_s, (J, T)),
            gpus_asked=gpus_asked,
            price_usd_per_gpu_h=spread("price_usd_per_gpu_h", price_usd_per_gpu_h, (T,)),
            entities=tuple(entities),
            memory=memory,
            **{name: spread(name, values, (J,)) for name, values in per_job.items()},
        )

    @classmethod
    def of_known(cls, **columns: Any) -> AllocationProblem:  # Any: the fields
        """A problem of fields for which all that `__init__` checks is known to hold; the checks take time.

        The arrays have the types and shapes of the fields, and become read-only.
        """
        problem = object.__new__(cls)
        for value in columns.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        vars(problem).update(columns)
        return problem

    # Views ------------------------------------------------------------------------------------------------------

    @property
    def job_count(self) -> int:
        """J."""
        return len(self.job_ids)

    @property
    def configuration_count(self) -> int:
        """C."""
        return len(self.demand)

    @cached_property
    def gpu_counts(self) -> Floats:
        """GPUs of each type, (T,)."""
        return self.capacity[:, 0] / THOUSANDTHS

    @cached_property
    def gpus_occupied(self) -> Floats:
        """GPUs a configuration holds while it runs, (C,)."""
        return self.demand[:, 0] / THOUSANDTHS

    @cached_property
    def runs_alone(self) -> bool:
        """Whether configuration c is exactly job c alone, for every c (no packing, no elasticity)."""
        jobs = np.arange(self.job_count)
        return self.configuration_count == self.job_count == len(self.member_job) and bool(
            (self.member_job == jobs).all()
        )

    @cached_property
    def member_count(self) -> Ints:
        """Jobs in each configuration, (C,)."""
        return np.bincount(self.member_configuration, minlength=self.configuration_count)

    @cached_property
    def rate_alone_steps_per_s(self) -> Floats:
        """Rate of each job alone on each type, (J, T), in its best configuration there; 0 = cannot run."""
        if self.runs_alone:
            return self.member_rate_steps_per_s
        rates = np.zeros((self.job_count, len(self.gpu_types)))
        alone = self.member_count[self.member_configuration] == 1
        np.maximum.at(rates, self.member_job[alone], self.member_rate_steps_per_s[alone])
        return rates

    @cached_property
    def fits(self) -> Bools:
        """Whether each configuration may have a share of each type, (C, T): the type has GPUs, and some member runs.

        As in the papers, this includes gangs larger than the type: only g x <= W must hold (see with_whole_gangs).
        """
        runs = self.member_rate_steps_per_s > 0
        if not self.runs_alone:
            runs_of_members = runs
            runs = np.zeros((self.configuration_count, len(self.gpu_types)), dtype=np.bool_)
            np.logical_or.at(runs, self.member_configuration, runs_of_members)
        return runs & (self.capacity > 0).all(axis=1)

    @cached_property
    def can_run(self) -> Bools:
        """Whether each job can run alone on some type that has GPUs, (J,)."""
        if self.runs_alone:
            return np.asarray(self.fits.any(axis=1))
        alone = self.member_count[self.member_configuration] == 1
        possible = np.zeros(self.job_count, dtype=np.bool_)
        here = self.fits[self.member_configuration] & (self.member_rate_steps_per_s > 0)
        np.logical_or.at(possible, self.member_job[alone], here[alone].any(axis=1))
        return possible

    @cached_property
    def is_whole(self) -> Bools:
        """Whether each type has enough GPUs for each configuration, (C, T)."""
        return np.asarray((self.demand[:, None, :] <= self.capacity[None, :, :]).all(axis=2))

    @cached_property
    def is_oversized(self) -> Bools:
        """Whether each job can run on some type but needs more GPUs than any such type has, (J,)."""
        alone = self.member_count[self.member_configuration] == 1
        deliverable = np.zeros(self.job_count, dtype=np.bool_)
        runs = (self.fits & self.is_whole)[self.member_configuration] & (self.member_rate_steps_per_s > 0)
        np.logical_or.at(deliverable, self.member_job[alone], runs[alone].any(axis=1))
        return self.can_run & ~deliverable

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

    def configuration_members(self) -> list[tuple[int, ...]]:
        """Job rows of each configuration, C tuples."""
        ends = np.cumsum(self.member_count)
        return [tuple(self.member_job[end - n : end].tolist()) for end, n in zip(ends, self.member_count, strict=True)]

    # Transforms -------------------------------------------------------------------------------------------------

    def blind_to_type(self, view: BlindView = BlindView.MEAN) -> AllocationProblem:
        """The problem as seen by a scheduler that treats all GPU types alike.

        By default a member has, on each type it can run on, its capacity-weighted mean rate over these types.
        """
        rates = self.member_rate_steps_per_s
        match BlindView(view):
            case BlindView.ONES:
                blind = np.ones_like(rates)
            case BlindView.FIRST:
                blind = np.repeat(rates[:, :1], rates.shape[1], axis=1)
            case BlindView.MEAN:
                gpus_usable = np.where(rates > 0, np.maximum(self.gpu_counts, 0.0), 0.0)
                total = gpus_usable.sum(axis=1, keepdims=True)
                mean = (rates * gpus_usable).sum(axis=1, keepdims=True) / np.where(total > 0, total, 1.0)
                blind = np.where(rates > 0, mean, 0.0)
        return replace(self, member_rate_steps_per_s=blind)

    def with_pairs(self, pairs: Sequence[tuple[int, int]], rates_steps_per_s: npt.ArrayLike) -> AllocationProblem:
        """This problem plus one configuration for each pair of jobs that may be co-located.

        `pairs` are rows (first, second) of jobs with the same number of GPUs; `rates_steps_per_s` is (P, 2, T): steps/s
        of the first and the second on each type while they share GPUs.
        """
        rates = floats("rates_steps_per_s of pairs", rates_steps_per_s, (len(pairs), 2, len(self.gpu_types)))
        for first, second in pairs:
            if not (0 <= first < self.job_count and 0 <= second < self.job_count):
                raise InvalidInput(f"pairs must name rows in [0, {self.job_count}), got {(first, second)}")
            if first == second or self.gpus_asked[first] != self.gpus_asked[second]:
                raise InvalidInput(
                    "pairs must be of two jobs with the same number of GPUs, got "
                    f"{self.job_ids[first]!r} ({self.gpus_asked[first]:g}) and "
                    f"{self.job_ids[second]!r} ({self.gpus_asked[second]:g})"
                )
        rows = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
        C = self.configuration_count
        gpus = np.rint(self.gpus_asked[rows[:, 0]] * THOUSANDTHS).astype(np.int64)
        demand = np.repeat(gpus[:, None], self.demand.shape[1], axis=1)
        return replace(
            self,
            demand=np.concatenate([self.demand, demand]),
            member_configuration=np.concatenate(
                [self.member_configuration, np.repeat(np.arange(C, C + len(pairs)), 2)]
            ),
            member_job=np.concatenate([self.member_job, rows.ravel()]),
            member_rate_steps_per_s=np.concatenate([self.member_rate_steps_per_s, rates.reshape(-1, rates.shape[2])]),
        )

    def with_whole_gangs(self) -> AllocationProblem:
        """The problem in which a gang has rate zero on types with fewer GPUs than it needs.

        The papers' constraint g x <= W gives such a gang a share of time that no scheduler can deliver. Schedulers use
        this problem; the original one is for comparison with published allocations.
        """
        rates = np.where(self.is_whole[self.member_configuration], self.member_rate_steps_per_s, 0.0)
        return replace(self, member_rate_steps_per_s=rates)

    def with_gpus(self, gpu_counts: Mapping[str, int]) -> AllocationProblem:
        """The same jobs with other numbers of GPUs; types not named keep theirs."""
        for gpu_type, count in gpu_counts.items():
            if gpu_type not in self.gpu_types or not count >= 0:
                known = ", ".join(self.gpu_types)
                raise InvalidInput(f"gpu_counts must give {known} a number >= 0, got {gpu_type!r}: {count!r}")
        counts = [gpu_counts.get(t, n) for t, n in zip(self.gpu_types, self.gpu_counts.tolist(), strict=True)]
        return replace(self, capacity=np.rint(np.array(counts).reshape(-1, 1) * THOUSANDTHS))

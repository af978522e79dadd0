"""Allocation problems, the input of policies: jobs, GPU types, and the configurations that can run.

Axes: J jobs, C configurations, M memberships (a job in a configuration), T GPU types, R resources: GPUs, and others of
the nodes with these GPUs, as CPU cores and memory.
A configuration is a set of jobs that run together on GPUs of one type: one job alone on some number of GPUs, or two
co-located jobs. Since configurations are data, policies have no packed or elastic variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, reduce
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model import configurations
from gavelpy.model.arrays import Bools, Floats, Ints, aligned, floats, require, spread
from gavelpy.model.completion_value import rows_of
from gavelpy.model.configurations import THOUSANDTHS, Size, require_amounts
from gavelpy.model.job import JobId
from gavelpy.model.loss_reports import Reports, losses_of
from gavelpy.model.problem_arrays import GPUS, Entity, EntityPolicy, ProblemArrays

__all__ = ["GPUS", "THOUSANDTHS", "AllocationProblem", "BlindView", "Entity", "EntityPolicy", "Size"]


class BlindView(StrEnum):
    """The rates that a scheduler which ignores GPU types assumes."""

    MEAN = "mean"  # its capacity-weighted mean rate
    ONES = "ones"  # 1 step/s on every type, also where it cannot run (the original Gavel's agnostic policies)
    FIRST = "first"  # its rate on the cluster's first type, everywhere (the original's makespan and FTF: V100)


@dataclass(frozen=True, eq=False)
class AllocationProblem(ProblemArrays):
    """The jobs that compete for GPUs now, in order of arrival. Build one with `of`."""

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
        gpus_held: npt.ArrayLike = 0.0,
        job_type: Sequence[str] = (),  # J names, "" = none; empty = none of all jobs; the same of owners, apps
        owner: Sequence[str] = (),
        app: Sequence[str] = (),
        restart_s: npt.ArrayLike = 0.0,
        completion_value: Sequence[str] = (),  # J texts, "" = none; empty = none of all jobs
        losses: Sequence[Reports] = (),  # of J jobs: steps and values that it reported; empty = none of all jobs
        memory: bytes = b"",
        resources: Mapping[str, npt.ArrayLike] = MappingProxyType({}),  # (T,) by name, of the nodes of each type
        demand: Mapping[str, npt.ArrayLike] = MappingProxyType({}),  # (J,) or one number, by name
    ) -> AllocationProblem:
        """A problem without co-location: each job runs alone.

        Pandas objects are aligned by their labels with `job_ids` and `gpu_types`; labels that differ are refused.

        >>> AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0]]).configuration_count
        2

        `resources` limit jobs next to GPUs, in all nodes of a type; `demand` is what a running job occupies of them:

        >>> p = AllocationProblem.of("ab", ["v100"], [2], [[4.0], [4.0]], resources={"cpu": 24}, demand={"cpu": 16})
        >>> p.resources, p.capacity.tolist()
        (('gpu', 'cpu'), [[2000, 24000]])
        """
        counts = _labelled("gpu_counts", gpu_counts, gpu_types)
        gpus_asked = floats("gpus", _row("gpus", gpus, job_ids), (len(job_ids),))
        require("gpu_counts", counts, np.isfinite(counts) & (counts >= 0), "finite and >= 0")
        require("gpus", gpus_asked, np.isfinite(gpus_asked) & (gpus_asked > 0), "finite and > 0")
        per_job = {
            "weight": weight, "steps_remaining": steps_remaining,
            "steps_total": steps_remaining if steps_total is None else steps_total, "age_s": age_s,
            "isolated_s": isolated_s, "deadline_s": deadline_s, "attained_gpu_s": attained_gpu_s, "entity": entity,
            "gpu_type_held": gpu_type_held, "gpus_held": gpus_held, "restart_s": restart_s,
        }  # fmt: skip
        columns: dict[str, Any] = {name: _row(name, values, job_ids) for name, values in per_job.items()}
        for name, texts in (("job_type", job_type), ("owner", owner), ("app", app)):
            columns |= _numbered(name, aligned(name, texts, job_ids))
        columns |= {"completion_value": rows_of(completion_value), "losses": losses_of(losses), "memory": memory}
        return cls(
            job_ids=tuple(JobId(i) for i in job_ids),
            gpu_types=tuple(gpu_types),
            capacity=_thousandths(counts, {f"resources[{r!r}]": a for r, a in resources.items()}, gpu_types),
            demand=_thousandths(gpus_asked, _demanded(resources, demand), job_ids),
            resources=(GPUS, *resources),
            member_configuration=np.arange(len(job_ids)),
            member_job=np.arange(len(job_ids)),
            member_rate_steps_per_s=_labelled("rates_steps_per_s", rates_steps_per_s, job_ids, gpu_types),
            gpus_asked=gpus_asked,
            price_usd_per_gpu_h=_row("price_usd_per_gpu_h", price_usd_per_gpu_h, gpu_types),
            entities=tuple(entities),
            **columns,
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
    def row_capacity(self) -> Floats:
        """Amount of each resource at each type, (R T,): the GPUs of all types first. Rows of prices are in this order.

        With GPUs only, these are `gpu_counts`.
        """
        return self.gpu_counts if len(self.resources) == 1 else self.capacity.T.ravel() / THOUSANDTHS

    @cached_property
    def occupied(self) -> Floats:
        """Amount of each resource that a configuration holds while it runs, (C, R)."""
        return self.demand / THOUSANDTHS

    def used(self, share: Floats) -> Floats:
        """Amount of each resource that shares (C, T) use at each type on average, (R T,), as `row_capacity`."""
        if len(self.resources) == 1:
            return np.asarray(self.gpus_occupied @ share)
        return np.asarray(self.occupied.T @ share).ravel()

    def cost(self, price: Floats) -> Floats:
        """Cost of each configuration on each type at prices (R T,), (C, T)."""
        if len(self.resources) == 1:
            return self.gpus_occupied[:, None] * price
        return np.asarray(self.occupied @ price.reshape(len(self.resources), -1))

    @cached_property
    def is_plain(self) -> bool:
        """Whether each job has one configuration, alone, and GPUs are the only resource."""
        return len(self.resources) == 1 and self.runs_alone

    @cached_property
    def runs_alone(self) -> bool:
        """Whether configuration c is exactly job c alone, for every c (no packing, no elasticity)."""
        jobs = np.arange(self.job_count)
        return self.configuration_count == self.job_count == len(self.member_job) and bool(
            (self.member_job == jobs).all()
        )

    @property
    def runs_apart(self) -> bool:
        """Whether every configuration is of one job (no packing); then membership i is that of configuration i."""
        return len(self.member_job) == self.configuration_count

    @cached_property
    def member_count(self) -> Ints:
        """Jobs in each configuration, (C,)."""
        return np.bincount(self.member_configuration, minlength=self.configuration_count)

    @cached_property
    def rate_alone_steps_per_s(self) -> Floats:
        """Rate of each job alone on each type, (J, T), in its best configuration there; 0 = cannot run."""
        if self.runs_alone:
            return self.member_rate_steps_per_s
        return self._best_alone(np.flatnonzero(self.member_count[self.member_configuration] == 1))

    @cached_property
    def rate_as_requested_steps_per_s(self) -> Floats:
        """Rate of each job alone on each type, (J, T), on the GPUs it requested; without that size, in its best one.

        So a job with several sizes is compared with what it would get without the others.
        """
        if self.runs_alone:
            return self.member_rate_steps_per_s
        asked = np.rint(self.gpus_asked * THOUSANDTHS).astype(np.int64)[self.member_job]
        if self.runs_apart:
            rates = self._best_alone(np.flatnonzero(self.demand[:, 0] == asked))
        else:
            as_asked = self.demand[self.member_configuration, 0] == asked
            rates = self._best_alone(np.flatnonzero((self.member_count[self.member_configuration] == 1) & as_asked))
        has_it = reduce(np.logical_or, (rates > 0).T, np.zeros(len(rates), dtype=np.bool_))
        return rates if has_it.all() else np.where(has_it[:, None], rates, self.rate_alone_steps_per_s)

    def _best_alone(self, members: Ints) -> Floats:
        """The highest rates of each job in these memberships, (J, T)."""
        jobs, of_members = self.member_job[members], self.member_rate_steps_per_s.take(members, axis=0)
        if np.array_equal(jobs, np.arange(self.job_count)):
            return of_members
        rates = np.zeros((self.job_count, len(self.gpu_types)))
        np.maximum.at(rates, jobs, of_members)
        return rates

    @cached_property
    def has_sizes(self) -> bool:
        """Whether some job can run alone in several configurations, or not on the GPUs it requested."""
        if self.runs_alone and np.array_equal(self.gpus_occupied, self.gpus_asked):
            return False
        alone = self.member_count[self.member_configuration] == 1
        jobs, of = self.member_job[alone], self.member_configuration[alone]
        several = np.bincount(jobs, minlength=1).max() > 1
        return bool(several or (np.abs(self.gpus_occupied[of] - self.gpus_asked[jobs]) > 0.5 / THOUSANDTHS).any())

    @cached_property
    def fits(self) -> Bools:
        """Whether each configuration may have a share of each type, (C, T).

        Then some member runs there, and the type has some of each resource that it needs. As in the papers, this
        includes gangs larger than the type: only g x <= W must hold (see with_whole_gangs).
        """
        runs = self.member_rate_steps_per_s > 0
        if len(runs) > self.configuration_count:  # a configuration of several jobs
            runs_of_members = runs
            runs = np.zeros((self.configuration_count, len(self.gpu_types)), dtype=np.bool_)
            for column, of_type in enumerate(runs_of_members.T):
                runs[self.member_configuration[of_type], column] = True
        if not self.capacity.all():
            runs = self._with_some(runs)
        return runs

    def _with_some(self, runs: Bools) -> Bools:
        """Where a configuration runs, (C, T), and the type has some of each resource that it needs."""
        runs = runs & (self.capacity[:, 0] > 0)
        for r in range(1, len(self.resources)):
            runs &= (self.capacity[:, r] > 0) | (self.demand[:, r] == 0)[:, None]
        return runs

    @cached_property
    def can_run(self) -> Bools:
        """Whether each job can run alone on some type that has GPUs, (J,)."""
        if self.runs_alone:
            return reduce(np.logical_or, self.fits.T, np.zeros(self.job_count, dtype=np.bool_))  # faster than `any`
        if self.runs_apart:
            runs = reduce(np.logical_or, self.fits.T, np.zeros(self.configuration_count, dtype=np.bool_))
        else:
            here = self.fits[self.member_configuration] & (self.member_rate_steps_per_s > 0)
            runs = reduce(np.logical_or, here.T) & (self.member_count[self.member_configuration] == 1)
        possible: Bools = np.zeros(self.job_count, dtype=np.bool_)
        possible[self.member_job if runs.all() else self.member_job[runs]] = True
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
        of the first and the second on each type while they share GPUs. Other resources are not shared: a pair needs
        those of both.
        """
        return configurations.with_pairs(self, pairs, rates_steps_per_s)

    def with_sizes(self, sizes: Mapping[str, Sequence[Size]]) -> AllocationProblem:
        """This problem plus one configuration for each other number of GPUs on which a job can run, by job id.

        The requested number is `gpus_asked`: fairness compares its rate with that on so many. Other resources are in
        proportion to the GPUs, unless the size has its own.

        >>> p = AllocationProblem.of(["a", "b"], ["v100"], [4], [[4.0], [4.0]])
        >>> p = p.with_sizes({"a": [Size(2, efficiency=0.9), Size(4, {"v100": 13.0}, plan="tp4")]})
        >>> p.demand[:, 0].tolist(), p.rate_alone_steps_per_s.tolist()
        ([1000, 1000, 2000, 4000], [[13.0], [4.0]])
        """
        return configurations.with_sizes(self, sizes)

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
        others = self.capacity[:, 1:]
        return replace(
            self, capacity=np.column_stack([np.rint(np.array(counts) * THOUSANDTHS).astype(np.int64), others])
        )


def _labelled(name: str, values: npt.ArrayLike, *labels: Sequence[str]) -> Floats:
    if not len(labels[-1]):
        raise InvalidInput("gpu_types must name at least one GPU type, which may have 0 GPUs, got none")
    return floats(name, aligned(name, values, *labels), tuple(len(axis) for axis in labels))


def _row(name: str, values: npt.ArrayLike, labels: Sequence[str]) -> npt.NDArray[Any]:
    return spread(name, aligned(name, values, labels), (len(labels),))


def _thousandths(first: Floats, others: Mapping[str, npt.ArrayLike], labels: Sequence[str]) -> Ints:
    """Amounts of all resources in thousandths, (N, R), from those of the first, (N,), and of the others by name."""
    columns = [first]
    for name, amounts in others.items():
        columns.append(floats(name, _row(name, amounts, labels), first.shape))
        require_amounts(name, columns[-1])
    return np.rint(np.column_stack(columns) * THOUSANDTHS).astype(np.int64)


def _demanded(resources: Mapping[str, npt.ArrayLike], demand: Mapping[str, npt.ArrayLike]) -> dict[str, npt.ArrayLike]:
    """Demand of every resource by its name in messages; 0 where none is given."""
    unknown = next((name for name in demand if name not in resources), None)
    if unknown is not None:
        known = ", ".join(resources) or "no resource is given"
        raise InvalidInput(f"demand must be of resources ({known}), got {unknown!r}")
    return {f"demand[{name!r}]": demand.get(name, 0.0) for name in resources}


def _numbered(field: str, names: Sequence[str]) -> dict[str, Any]:  # Any: Ints and names
    """A field with the place of each name among the distinct ones, -1 for "", and the field with those."""
    place = {name: k for k, name in enumerate(dict.fromkeys(name for name in names if name))}
    return {field: np.array([place.get(name, -1) for name in names], dtype=np.int64), f"{field}s": tuple(place)}

"""Resources next to GPUs, sizes of jobs, and limits of teams in a problem file (see docs/traces.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.configurations import AMOUNT_MAX, require_amounts
from gavelpy.model.problem import GPUS, THOUSANDTHS, AllocationProblem, Size
from gavelpy.model.team_limits import RESOURCE, TeamLimits
from gavelpy.traces.fields import JsonText


class SizeEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Another number of GPUs on which a job can run: with rates, or with an efficiency."""

    gpus: int
    rates_steps_per_s: dict[str, Any] = {}  # numbers; checked here, as in a job
    efficiency: float = 0.0
    plan: str = ""
    demand: dict[str, Any] = {}


class SizedEntry(Protocol):
    """The fields of a job entry that are read here."""

    demand: dict[str, Any]
    demand_per_gpu: dict[str, Any]
    sizes: list[SizeEntry]


Path = tuple[str | int, ...]


def with_resources(
    document: JsonText, resources: dict[str, Any], jobs: Sequence[SizedEntry], problem: AllocationProblem
) -> AllocationProblem:
    """The problem with these resources, by name and GPU type, and the jobs' demand of them."""
    types = {name: t for t, name in enumerate(problem.gpu_types)}
    capacity: Floats = np.zeros((len(types), len(resources)))
    for r, (name, by_type) in enumerate(resources.items()):
        if name == GPUS or not name:
            raise document.error(("resources", name), f"a resource other than {GPUS}", name)
        if not isinstance(by_type, dict):
            raise document.error(("resources", name), "an object with an amount for each GPU type", by_type)
        for gpu_type, amount in by_type.items():
            at = ("resources", name, gpu_type)
            if gpu_type not in types:
                raise document.error(at, f"of a GPU type of the cluster ({', '.join(types)})", gpu_type)
            capacity[types[gpu_type], r] = _amount(document, at, amount)
    column = {name: r for r, name in enumerate(resources)}
    demand: Floats = np.zeros((problem.job_count, len(resources)))
    for i, job in enumerate(jobs):
        for field, factor in (("demand", 1.0), ("demand_per_gpu", float(problem.gpus_asked[i]))):
            for name, amount in _known(document, ("jobs", i, field), getattr(job, field), column).items():
                demand[i, column[name]] += factor * amount
                if demand[i, column[name]] > AMOUNT_MAX:
                    allowed = f"at most {AMOUNT_MAX:g} for the whole job"
                    raise document.error(("jobs", i, field, name), allowed, amount)
    return added(problem, tuple(resources), capacity, demand)


def added(
    problem: AllocationProblem, resources: tuple[str, ...], capacity: Floats, demand: Floats
) -> AllocationProblem:
    """The problem with more resources; `capacity` (T, N) and `demand` (J, N) are in their units."""
    if not resources:
        return problem
    for r, name in enumerate(resources):
        require_amounts(f"resources[{name!r}]", capacity[:, r])
        require_amounts(f"demand[{name!r}]", demand[:, r])
    return replace(
        problem,
        resources=(*problem.resources, *resources),
        capacity=np.column_stack([problem.capacity, np.rint(capacity * THOUSANDTHS).astype(np.int64)]),
        demand=np.column_stack([problem.demand, np.rint(demand * THOUSANDTHS).astype(np.int64)]),
    )


def with_sizes(document: JsonText, jobs: Sequence[SizedEntry], problem: AllocationProblem) -> AllocationProblem:
    """The problem with the sizes of its jobs."""
    column = {name: r for r, name in enumerate(problem.resources[1:])}
    sizes: dict[str, list[Size]] = {}
    for i, job in enumerate(jobs):
        for k, entry in enumerate(job.sizes):
            at: Path = ("jobs", i, "sizes", k)
            for gpu_type, rate in entry.rates_steps_per_s.items():
                if gpu_type not in problem.gpu_types:
                    known = ", ".join(problem.gpu_types)
                    raise document.error((*at, "rates_steps_per_s", gpu_type), f"of a type of {known}", gpu_type)
                _amount(document, (*at, "rates_steps_per_s", gpu_type), rate)
            demand = _known(document, (*at, "demand"), entry.demand, column)
            if bool(entry.rates_steps_per_s) == bool(entry.efficiency):
                allowed = "of at least one GPU type without an efficiency, or else left out with one"
                raise document.error((*at, "rates_steps_per_s"), allowed, entry.rates_steps_per_s)
            try:
                size = Size(entry.gpus, entry.rates_steps_per_s, entry.efficiency, entry.plan, demand)
                sizes.setdefault(problem.job_ids[i], []).append(size)
            except InvalidInput as error:
                raise error.located(document.file, document.place(at).line) from error
    try:
        return problem.with_sizes(sizes) if sizes else problem
    except InvalidInput as error:
        raise error.located(document.file, document.place(("jobs",)).line) from error


class LimitedEntry(Protocol):
    """The fields of an entry of a team that are read here."""

    id: str
    quota: dict[str, Any]
    guaranteed: dict[str, Any]


def limits_of_entities(
    document: JsonText, entities: Sequence[LimitedEntry], problem: AllocationProblem
) -> TeamLimits | None:
    """Quotas of these entities, and what is guaranteed to them as far as the problem's jobs can use it."""
    if not any(one.quota or one.guaranteed for one in entities):
        return None
    column = {name: t for t, name in enumerate(problem.gpu_types)}
    of_nodes = {f"{t}{RESOURCE}{name}" for t in problem.gpu_types for name in problem.resources[1:]}
    named = sorted({name for one in entities for name in (*one.quota, *one.guaranteed)} & of_nodes)
    column |= {name: len(problem.gpu_types) + k for k, name in enumerate(named)}
    quota, guaranteed = np.full((len(entities), len(column)), np.inf), np.zeros((len(entities), len(column)))
    for i, one in enumerate(entities):
        for field, values in (("quota", quota), ("guaranteed", guaranteed)):
            for name, amount in getattr(one, field).items():
                if name not in column:
                    known = ", ".join([*problem.gpu_types, *sorted(of_nodes)])
                    raise document.error(("entities", i, field, name), f"of a GPU type of the cluster ({known})", name)
                values[i, column[name]] = _amount(document, ("entities", i, field, name), amount)
    names = tuple(one.id for one in entities)
    parts = [name.rpartition(RESOURCE) for name in named]
    resources = tuple((problem.gpu_types.index(kind), resource) for kind, _, resource in parts)
    limits = TeamLimits(names, problem.entity_parent, quota, guaranteed, problem.entity, resources).needing(problem)
    need, part = limits.reserves(np.zeros_like(guaranteed))
    for i, t in np.argwhere(part > quota).tolist():
        raise document.error(("entities", i, "quota"), f"at least the {part[i, t]:g} guaranteed", float(quota[i, t]))
    for i, t in np.argwhere((need > guaranteed) & (guaranteed > 0)).tolist():
        below = f"at least the {need[i, t]:g} of the entities below it"
        raise document.error(("entities", i, "guaranteed"), below, float(guaranteed[i, t]))
    return limits.usable_by(problem)


def _known(document: JsonText, at: Path, given: dict[str, Any], column: dict[str, int]) -> dict[str, float]:
    """The amounts, if all are of resources of the problem."""
    for name in given:
        if name not in column:
            raise document.error((*at, name), f"of a resource ({', '.join(column) or 'the file has none'})", name)
    return {name: _amount(document, (*at, name), amount) for name, amount in given.items()}


def _amount(document: JsonText, at: Path, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= AMOUNT_MAX:
        raise document.error(at, f"a number in [0, {AMOUNT_MAX:g}]", value)
    return float(value)

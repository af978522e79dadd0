"""Writes a problem as a problem file (JSON, see docs/traces.md), with the limits of its teams."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from gavelpy.model.arrays import VALUE_MAX
from gavelpy.model.completion_value import text_of
from gavelpy.model.loss_reports import report_counts
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem
from gavelpy.model.team_limits import RESOURCE, TeamLimits
from gavelpy.traces.problem_json import DEFAULTS, NUMBERS


def problem_text(problem: AllocationProblem, limits: TeamLimits | None = None) -> str:
    """The file of a problem without rows of teams. `gavel allocate` has the answer of the same policy for it.

    `limits`: quotas and guaranteed GPUs of the problem's entities. A policy's memory is not in the file.
    """
    types, counts = problem.gpu_types, problem.gpu_counts.tolist()
    document: dict[str, Any] = {"cluster": {name: int(n) for name, n in zip(types, counts, strict=True)}}
    if problem.price_usd_per_gpu_h.any():
        document["prices_usd_per_gpu_h"] = _by_type(problem, problem.price_usd_per_gpu_h.tolist())
    if len(problem.resources) > 1:
        amounts = (problem.capacity / THOUSANDTHS).T.tolist()
        document["resources"] = {
            name: _by_type(problem, row) for name, row in zip(problem.resources[1:], amounts[1:], strict=True)
        }
    jobs = [_job(problem, row) for row in range(problem.job_count)]
    document["jobs"], document["pairs"] = jobs, []
    first = np.searchsorted(problem.member_configuration, np.arange(problem.configuration_count)).tolist()
    for row, members in enumerate(problem.configuration_members()):
        rates = problem.member_rate_steps_per_s[first[row] : first[row] + len(members)].T.tolist()
        if len(members) > 1:
            ids = [problem.job_ids[job] for job in members]
            document["pairs"].append({"jobs": ids, "rates_steps_per_s": dict(zip(types, rates, strict=True))})
        elif row == members[0]:  # on the GPUs that the job requests
            jobs[row] |= {"rates_steps_per_s": _by_type(problem, [rate for (rate,) in rates])}
            jobs[row] |= {"demand": _demand(problem, row)} if len(problem.resources) > 1 else {}
        else:
            plan = {"plan": problem.plan[row]} if problem.plan and problem.plan[row] else {}
            size = {"gpus": int(problem.gpus_occupied[row]), "demand": _demand(problem, row), **plan}
            own = _by_type(problem, [rate for (rate,) in rates])
            jobs[members[0]].setdefault("sizes", []).append(size | {"rates_steps_per_s": own})
    document["entities"] = [_entity(problem, row, limits) for row in range(len(problem.entities))]
    return json.dumps({name: value for name, value in document.items() if value != []}, indent=1)


def _job(problem: AllocationProblem, row: int) -> dict[str, Any]:
    """A job without its rates; values that are defaults are left out."""
    found: dict[str, Any] = {"id": problem.job_ids[row], "gpus": int(problem.gpus_asked[row])}
    for name in NUMBERS:
        value = float(getattr(problem, name)[row])
        default = found.get("steps_remaining", 1.0) if name == "steps_total" else DEFAULTS.get(name, 0.0)
        if value != default:
            found[name] = max(value, -VALUE_MAX)
    if problem.entity[row] >= 0:
        found["entity"] = problem.entities[problem.entity[row]].id
    if problem.completion_value[row].any():
        found["completion_value"] = text_of(problem.completion_value[row])
    if count := int(report_counts(problem.losses[[row]])[0]):
        found["losses"] = problem.losses[row, :count].tolist()
    named = {
        "gpu_type_held": problem.gpu_types,
        "job_type": problem.job_types,
        "owner": problem.owners,
        "app": problem.apps,
    }
    for name, labels in named.items():
        place = int(getattr(problem, name)[row])
        if place >= 0 and labels[place]:
            found[name] = labels[place]
    return found


def _by_type(problem: AllocationProblem, values: list[float]) -> dict[str, float]:
    return {name: value for name, value in zip(problem.gpu_types, values, strict=True) if value}


def _demand(problem: AllocationProblem, row: int) -> dict[str, float]:
    """What a configuration needs of each resource next to GPUs."""
    return dict(zip(problem.resources[1:], problem.occupied[row, 1:].tolist(), strict=True))


def _entity(problem: AllocationProblem, row: int, limits: TeamLimits | None) -> dict[str, Any]:
    one = problem.entities[row]
    found: dict[str, Any] = {"id": one.id, "weight": one.weight, "policy": str(one.policy)}
    found |= {"parent": one.parent} if one.parent else {}
    if limits is not None:
        others = (f"{problem.gpu_types[kind]}{RESOURCE}{name}" for kind, name in limits.resources)
        columns = (*problem.gpu_types, *others)
        quota = dict(zip(columns, limits.quota[row].tolist(), strict=True))
        found["quota"] = {name: amount for name, amount in quota.items() if math.isfinite(amount)}
        guaranteed = zip(columns, limits.guaranteed[row].tolist(), strict=True)
        found["guaranteed"] = {name: amount for name, amount in guaranteed if amount}
    return found

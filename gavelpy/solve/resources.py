"""Resources that limit no job, so that a problem can be solved without them.

If every configuration needs at most as much of a resource per GPU as the nodes of a type have, the type's GPUs are full
first. In most clusters that holds for CPU cores and memory, so that the algorithms for GPUs alone apply. So it does if
a type has enough for all configurations at once.

The price of such a resource is zero. If jobs need exactly what the nodes have per GPU, either resource could have the
price, and the GPUs get it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.problem import AllocationProblem


def ample_resources(problem: AllocationProblem) -> list[int]:
    """The resources that limit no job at any type; never the GPUs."""
    runs = _runs(problem)
    return [r for r in range(1, len(problem.resources)) if _is_ample(problem, runs, r)]


def _is_ample(problem: AllocationProblem, runs: Bools, resource: int) -> bool:
    need, gpus = problem.occupied[:, resource], problem.gpus_occupied
    amount, counts = problem.row_capacity.reshape(len(problem.resources), -1)[[resource, 0]]
    for t in range(len(counts)):
        here = np.flatnonzero(runs[:, t])
        behind_gpus = bool((need[here] * counts[t] <= gpus[here] * amount[t]).all())
        if not behind_gpus and need[here].sum() > amount[t]:
            return False
    return True


def _runs(problem: AllocationProblem) -> Bools:
    """Whether some member runs on a type that has GPUs, (C, T), whatever other resources there are."""
    runs: Bools = np.zeros((problem.configuration_count, len(problem.gpu_types)), dtype=np.bool_)
    np.logical_or.at(runs, problem.member_configuration, problem.member_rate_steps_per_s > 0)
    return runs & (problem.gpu_counts > 0)


def without_resources(problem: AllocationProblem, resources: list[int]) -> AllocationProblem:
    """The problem without these resources."""
    kept: Ints = np.array([r for r in range(len(problem.resources)) if r not in resources], dtype=np.int64)
    return replace(
        problem,
        resources=tuple(problem.resources[r] for r in kept.tolist()),
        capacity=problem.capacity[:, kept],
        demand=problem.demand[:, kept],
    )


def in_all_resources(problem: AllocationProblem, allocation: Allocation) -> Allocation:
    """An answer without some resources as one of `problem`: they have no price, and its violation counts all rows."""
    column = {name: r for r, name in enumerate(allocation.problem.resources)}
    found = allocation.resource_prices
    others = [found[:, column[r]] if r in column else 0.0 * found[:, 0] for r in problem.resources[1:]]
    used, amount = problem.used(allocation.share), problem.row_capacity
    over = float(((used - amount) / np.where(amount > 0, amount, 1.0)).max(initial=0.0))
    c = allocation.certificate
    certificate = replace(c, violation=max(c.violation, over))
    return replace(allocation, problem=problem, certificate=certificate, other_prices=np.column_stack(others))

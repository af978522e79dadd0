"""Aggregation of GPU types that no job can tell apart, as a blind scheduler sees them.

Types with equal rates for every job are exchangeable GPU by GPU: average any optimum over all permutations of their
GPUs, and every job's time on them is divided as their GPUs are. So they are one type while solving, and no job gets the
better hardware by the luck of a vertex: without knowledge everybody rotates, as under the original's agnostic policies.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.objective import MaxSum, Objective


def groups_of_types(problem: AllocationProblem, worth: Floats) -> Ints:
    """Group of each GPU type, (T,), numbered by first appearance; a type without GPUs stands alone.

    `worth` is a figure of each type, (T,), that must be equal, too; empty = 1 for all.
    """
    rates, gpus = problem.member_rate_steps_per_s, problem.gpu_counts
    if len(worth):
        rates = np.vstack((rates, worth))
    if len(rates) and len(set(rates[-1].tolist())) == len(gpus):  # as a rule one job tells them all apart
        return np.arange(len(gpus))
    group: list[int] = []
    leaders: list[int] = []
    for column in range(len(gpus)):
        equal = (
            k for k, leader in enumerate(leaders) if gpus[leader] and np.array_equal(rates[:, leader], rates[:, column])
        )
        found = next(equal, len(leaders)) if gpus[column] else len(leaders)
        if found == len(leaders):
            leaders.append(column)
        group.append(found)
    return np.array(group, dtype=np.int64)


def merged(problem: AllocationProblem, group: Ints) -> AllocationProblem:
    """The problem with one type a group; its name and rates are those of the group's first type."""
    first = np.unique(group, return_index=True)[1]
    capacity = np.zeros((len(first), problem.capacity.shape[1]), dtype=np.int64)
    np.add.at(capacity, group, problem.capacity)
    return replace(
        problem,
        gpu_types=tuple(problem.gpu_types[t] for t in first),
        capacity=capacity,
        member_rate_steps_per_s=problem.member_rate_steps_per_s[:, first],
        price_usd_per_gpu_h=problem.price_usd_per_gpu_h[first],
        gpu_type_held=np.full(problem.job_count, -1),
    )


def objective_of_merged(objective: Objective, group: Ints) -> Objective:
    """The objective of the merged problem: figures of types are those of each group's first type."""
    if isinstance(objective, MaxSum) and len(objective.gpu_type_worth):
        return replace(objective, gpu_type_worth=objective.gpu_type_worth[np.unique(group, return_index=True)[1]])
    return objective


def divided(allocation: Allocation, problem: AllocationProblem, group: Ints) -> Allocation:
    """The answer of the merged problem for the whole one: a group's time goes to its types as their GPUs do."""
    gpus = problem.gpu_counts
    total = np.bincount(group, weights=gpus)[group]
    part = np.divide(gpus, total, out=np.ones_like(gpus), where=total > 0)
    share = allocation.share[:, group] * part
    return replace(allocation, problem=problem, share=share, shadow_prices=allocation.shadow_prices[group])

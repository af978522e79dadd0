"""Oracles by exhaustive search: which deadlines are feasible together, and the plan of least total completion time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product

import numpy as np
from scipy.optimize import linear_sum_assignment, linprog

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem


def kept_level(problem: AllocationProblem, floor_steps_per_s: Floats, jobs: Iterable[int]) -> float:
    """The largest fraction (up to 1) of their floors that all `jobs` can have at once."""
    C, T = problem.fits.shape
    rows, limits = [], []
    for job in range(problem.job_count):
        time = np.zeros((C, T))
        time[problem.member_configuration[problem.member_job == job]] = 1.0
        rows.append(np.append(time, 0.0))
        limits.append(1.0)
    for gpu_type in range(T):
        used = np.zeros((C, T))
        used[:, gpu_type] = problem.gpus_occupied
        rows.append(np.append(used, 0.0))
        limits.append(problem.gpu_counts[gpu_type])
    for job in jobs:
        rate = np.zeros((C, T))
        for member in np.flatnonzero(problem.member_job == job):
            rate[problem.member_configuration[member]] += problem.member_rate_steps_per_s[member]
        rows.append(np.append(-rate / floor_steps_per_s[job], 1.0))
        limits.append(0.0)
    answer = linprog(np.append(np.zeros(C * T), -1.0), A_ub=np.array(rows), b_ub=limits, bounds=[(0, 1)] * (C * T + 1))
    assert answer.success, answer.message
    return float(-answer.fun)


def largest_sets(problem: AllocationProblem, floor_steps_per_s: Floats) -> list[tuple[int, ...]]:
    """All largest sets of jointly feasible floors; jobs with a floor of 0 are in none."""
    wanted = np.flatnonzero(floor_steps_per_s > 0).tolist()
    for size in range(len(wanted), 0, -1):
        sets = [s for s in combinations(wanted, size) if kept_level(problem, floor_steps_per_s, s) >= 1 - 1e-9]
        if sets:
            return sets
    return [()]


def least_total_s(time_s: Floats, machines: list[int]) -> float:
    """The least sum of completion times of jobs run one after another on this many equal machines of each type."""
    jobs, types = time_s.shape
    return min(total_s(time_s, machines, on) for on in product(range(types), repeat=jobs))


def total_s(time_s: Floats, machines: list[int], gpu_type: Iterable[int]) -> float:
    """The sum of completion times with each job on this type: shortest first, on the machine that is free first."""
    on, total = np.array(list(gpu_type)), 0.0
    for t, count in enumerate(machines):
        ends_s = np.zeros(count)
        for seconds in np.sort(time_s[on == t, t]):
            first = int(ends_s.argmin())
            ends_s[first] += seconds
            total += float(ends_s[first])
    return total


def least_total_by_hungarian_s(time_s: Floats, machines: Iterable[int]) -> float:
    """The same by the original's matrix: a column for each machine and position."""
    base = np.repeat(time_s, list(machines), axis=1)
    cost = np.concatenate([base * k for k in range(1, len(time_s) + 1)], axis=1)
    return float(cost[linear_sum_assignment(cost)].sum())

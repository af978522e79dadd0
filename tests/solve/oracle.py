"""A second, dumber computation of the same optima: dense matrices row by row, and scipy's or cvxpy's solvers."""

from __future__ import annotations

import cvxpy
import numpy as np
from scipy.optimize import linprog

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem


def best_level(problem: AllocationProblem, scale: Floats, floor: Floats | None = None) -> float:
    """max min_j scale_j r_j over the jobs that can run."""
    rates, rows, limits = _dense(problem)
    floors = np.zeros(problem.job_count) if floor is None else floor
    runnable = np.flatnonzero(problem.can_run)
    best = rates[runnable].max(axis=1)
    values = scale[runnable] * best
    unit = float(values.min())  # an upper bound on the level: so the level is at most 1
    levels = np.hstack([-rates[runnable] / best[:, None], unit / values[:, None]])
    floored = np.hstack([-rates, np.zeros((problem.job_count, 1))])
    answer = linprog(
        np.append(np.zeros(rates.shape[1]), -1.0),
        A_ub=np.vstack([levels, np.hstack([rows, np.zeros((len(rows), 1))]), floored]),
        b_ub=np.concatenate([np.zeros(len(runnable)), limits, -floors]),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.success, answer.message
    return float(-answer.fun) * unit


def best_sum(problem: AllocationProblem, gain: Floats, least: Floats | None = None) -> float:
    """max Σ gain_j r_j, every rate at least `least`."""
    rates, rows, limits = _dense(problem)
    floors = np.zeros(problem.job_count) if least is None else least
    unit = float((gain @ rates).max(initial=0.0)) or 1.0
    floored = np.flatnonzero(floors > 0)
    best = rates[floored].max(axis=1, initial=0.0)
    answer = linprog(
        -(gain @ rates) / unit,
        A_ub=np.vstack([rows, -rates[floored] / best[:, None]]),
        b_ub=np.concatenate([limits, -floors[floored] / best]),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.success, answer.message
    return float(-answer.fun) * unit


def best_level_by_cvxpy(problem: AllocationProblem, scale: Floats, solver: str) -> float:
    """The same as `best_level`, through another modeller and an interior point."""
    rates, rows, limits = _dense(problem)
    share = cvxpy.Variable(rates.shape[1], nonneg=True)
    levels = cvxpy.multiply(scale, rates @ share)[np.flatnonzero(problem.can_run)]
    program = cvxpy.Problem(cvxpy.Maximize(cvxpy.min(levels)), [rows @ share <= limits])
    return float(program.solve(solver=solver))


def best_sum_log_by_cvxpy(problem: AllocationProblem, weight: Floats) -> float:
    """max Σ weight_j log r_j, all jobs able to run."""
    rates, rows, limits = _dense(problem)
    share = cvxpy.Variable(rates.shape[1], nonneg=True)
    program = cvxpy.Problem(cvxpy.Maximize(weight @ cvxpy.log(rates @ share)), [rows @ share <= limits])
    return float(program.solve(solver="CLARABEL"))


def _dense(problem: AllocationProblem) -> tuple[Floats, Floats, Floats]:
    """Rates (J, E) per unit of share of each entry, constraint rows (J + T, E), and their limits (J + T,)."""
    J, T = problem.job_count, len(problem.gpu_types)
    members = problem.configuration_members()
    entries = [
        (c, t)
        for c, jobs in enumerate(members)
        for t in range(T)
        if problem.fits[c, t] and all(problem.can_run[j] for j in jobs)
    ]
    rates, rows = np.zeros((J, len(entries))), np.zeros((J + T, len(entries)))
    for e, (c, t) in enumerate(entries):
        for member in np.flatnonzero(problem.member_configuration == c):
            job = problem.member_job[member]
            rates[job, e] = problem.member_rate_steps_per_s[member, t]
            rows[job, e] = 1.0
        rows[J + t, e] = problem.gpus_occupied[c] / problem.gpu_counts[t]
    return rates, rows, np.ones(J + T)

"""Oracles for the optima: dense matrices built row by row, with scipy's or cvxpy's solvers."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem


def best_level(
    problem: AllocationProblem, scale: Floats, floor: Floats | None = None, base: Floats | None = None
) -> float:
    """max min_j scale_j (r_j - base_j) over the jobs that can run and have a scale above zero.

    Bases may be far out of reach. Then the first answer, in a unit too large to be exact, is the unit of the second.
    """
    rates, rows, limits = dense(problem)
    floors = np.zeros(problem.job_count) if floor is None else floor
    bases = np.zeros(problem.job_count) if base is None else base
    leveled = np.flatnonzero(problem.can_run & (scale > 0))
    best = rates[leveled].max(axis=1)
    values = scale[leveled] * best
    least = float(values.min())  # an upper bound on the level: so the level is at most 1
    if base is None:
        return _level_in(least, rates, rows, limits, leveled, values, floors, bases)
    rough = _level_in(float(values.max()), rates, rows, limits, leveled, values, floors, bases)
    return _level_in(max(least, abs(rough)), rates, rows, limits, leveled, values, floors, bases)


def _level_in(
    unit: float,
    rates: Floats,
    rows: Floats,
    limits: Floats,
    leveled: Ints,
    values: Floats,
    floors: Floats,
    bases: Floats,
) -> float:
    best = rates[leveled].max(axis=1)
    levels = np.hstack([-rates[leveled] / best[:, None], unit / values[:, None]])
    floored = np.hstack([-rates, np.zeros((len(rates), 1))])
    answer = linprog(
        np.append(np.zeros(rates.shape[1]), -1.0),
        A_ub=np.vstack([levels, np.hstack([rows, np.zeros((len(rows), 1))]), floored]),
        b_ub=np.concatenate([-bases[leveled] / best, limits, -floors]),
        bounds=[(0, None)] * rates.shape[1] + [(None, None)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.success, answer.message
    return float(-answer.fun) * unit


def best_sum(
    problem: AllocationProblem, gain: Floats, least: Floats | None = None, worth: Floats | None = None
) -> float:
    """max Σ gain_j worth_t r_jt, every rate at least `least`."""
    rates, rows, limits = dense(problem)
    floors = np.zeros(problem.job_count) if least is None else least
    gains = gain @ rates if worth is None else gain @ (rates * worth[_types_of_entries(problem)])
    unit = float(gains.max(initial=0.0)) or 1.0
    floored = np.flatnonzero(floors > 0)
    best = rates[floored].max(axis=1, initial=0.0)
    answer = linprog(
        -gains / unit,
        A_ub=np.vstack([rows, -rates[floored] / best[:, None]]),
        b_ub=np.concatenate([limits, -floors[floored] / best]),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.success, answer.message
    return float(-answer.fun) * unit


def best_level_by_cvxpy(problem: AllocationProblem, scale: Floats, solver: str) -> float:
    """The same as `best_level`, through cvxpy and an interior point."""
    import cvxpy  # takes a second

    rates, rows, limits = dense(problem)
    share = cvxpy.Variable(rates.shape[1], nonneg=True)
    levels = cvxpy.multiply(scale, rates @ share)[np.flatnonzero(problem.can_run)]
    program = cvxpy.Problem(cvxpy.Maximize(cvxpy.min(levels)), [rows @ share <= limits])
    return float(program.solve(solver=solver))


def best_sum_log_by_cvxpy(problem: AllocationProblem, weight: Floats) -> float:
    """max Σ weight_j log r_j, if all jobs can run."""
    import cvxpy

    rates, rows, limits = dense(problem)
    share = cvxpy.Variable(rates.shape[1], nonneg=True)
    program = cvxpy.Problem(cvxpy.Maximize(weight @ cvxpy.log(rates @ share)), [rows @ share <= limits])
    return float(program.solve(solver="CLARABEL"))


def dense(problem: AllocationProblem) -> tuple[Floats, Floats, Floats]:
    """Rates (J, E) per unit of share of each entry, constraint rows (J + R T, E), and their limits (J + R T,)."""
    J, T, R = problem.job_count, len(problem.gpu_types), len(problem.resources)
    entries = _entries(problem)
    rates, rows = np.zeros((J, len(entries))), np.zeros((J + R * T, len(entries)))
    for e, (c, t) in enumerate(entries):
        for member in np.flatnonzero(problem.member_configuration == c):
            job = problem.member_job[member]
            rates[job, e] = problem.member_rate_steps_per_s[member, t]
            rows[job, e] = 1.0
        rows[J + t, e] = problem.gpus_occupied[c] / problem.gpu_counts[t]
        for r in range(1, R):
            if problem.demand[c, r]:
                rows[J + r * T + t, e] = problem.demand[c, r] / problem.capacity[t, r]
    return rates, rows, np.ones(J + R * T)


def _entries(problem: AllocationProblem) -> list[tuple[int, int]]:
    """(configuration, type) of every entry that may have a share."""
    return [
        (c, t)
        for c, jobs in enumerate(problem.configuration_members())
        for t in range(len(problem.gpu_types))
        if problem.fits[c, t] and all(problem.can_run[j] for j in jobs)
    ]


def _types_of_entries(problem: AllocationProblem) -> list[int]:
    return [t for _, t in _entries(problem)]

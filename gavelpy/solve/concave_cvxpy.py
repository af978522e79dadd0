"""Concave objectives by cvxpy. A module of its own, so that cvxpy is loaded only if it is used."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy
import numpy as np
from scipy.sparse import csr_array

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.solve.certificate import failed
from gavelpy.solve.objective import ConcaveObjective, MaxConcave, MaxSumLog
from gavelpy.solve.program import Program

_PRECISION = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10, "max_threads": 1}


def optimum(program: Program, objective: ConcaveObjective) -> tuple[Floats, Floats]:
    """Shares (C, T) and the objective's slope (J,) there, to the solver's tolerance.

    The solver receives each share as a part of the largest that the job's time and each resource alone allow, and each
    rate as a part of the largest of these: where jobs need far more of a resource than there is, it fails otherwise.
    Raises SolverFailed if cvxpy finds no optimum.
    """
    K, E, T = len(program.value), len(program.entry_type), len(program.problem.row_capacity)
    load_row, load_entry, loads = program.loads()
    at = (program.member_class, program.member_entry)
    most = np.zeros(E)  # of a budget or of a type that a share of 1 takes
    np.maximum.at(most, program.member_entry, program.member_time)
    np.maximum.at(most, load_entry, loads)
    reached = np.zeros(K)
    np.maximum.at(reached, program.member_class, program.member_rate / most[program.member_entry])
    parts, rate = cvxpy.Variable(E, nonneg=True), cvxpy.Variable(K)
    budget = csr_array((program.member_time / most[program.member_entry], at), shape=(K, E)) @ parts
    load = csr_array((loads / most[load_entry], (load_row, load_entry)), shape=(T, E)) @ parts
    scale = most[program.member_entry] * reached[program.member_class]
    had = csr_array((program.member_rate / scale, at), shape=(K, E)) @ parts
    earned = rate == had  # its dual is the slope
    floored = np.flatnonzero(program.floor > 0)
    floors = [had[floored] >= program.floor[floored] / reached[floored]] if len(floored) else []
    best = program.best_rate_steps_per_s[program.jobs]
    match objective:
        case MaxSumLog():
            weight = program.value * program.classes.count
            unit = float(weight.max())
            value = (weight / unit) @ cvxpy.log(rate)
        case MaxConcave(value=of_rates):
            J, unit = program.problem.job_count, 1.0
            value = of_rates(csr_array((best * reached, (program.jobs, np.arange(K))), shape=(J, K)) @ rate)
    _solve(program, cvxpy.Problem(cvxpy.Maximize(value), [earned, budget <= 1, load <= 1, *floors]))
    slope = program.per_job(np.abs(earned.dual_value) * unit / (reached * program.classes.count))
    slope[program.jobs] /= best
    return program.shares(np.asarray(parts.value, dtype=np.float64) / most), slope


def value_and_gradient(program: Program, objective: MaxConcave, rates: Floats) -> tuple[float, Floats]:
    """The objective at `rates` (J,) in steps/s, and its gradient there, (J,); zero for jobs that can run nowhere."""
    variable = cvxpy.Variable(len(rates))
    variable.value = rates
    expression = objective.value(variable)
    gradient = expression.grad[variable]
    if gradient is None:
        raise InvalidInput(f"value must have a gradient at its optimum, got none at rates {rates!r}")
    upward = np.zeros(len(rates))
    upward[program.jobs] = _row(gradient)[program.jobs]
    return float(objective.value(cvxpy.Constant(rates)).value), upward


def _row(gradient: Any) -> Floats:  # Any: cvxpy gives a sparse column, or a number for one job
    return np.ravel(gradient.toarray() if hasattr(gradient, "toarray") else gradient).astype(np.float64)


def _solve(program: Program, problem: Any) -> None:  # Any: cvxpy has no types
    try:
        with warnings.catch_warnings():  # "may be inaccurate": the certificate checks that
            warnings.simplefilter("ignore", UserWarning)
            problem.solve(solver=cvxpy.CLARABEL, **_PRECISION)
    except cvxpy.SolverError as failure:
        raise failed(program.problem, "cvxpy", str(failure)) from failure
    if problem.status not in (cvxpy.OPTIMAL, cvxpy.OPTIMAL_INACCURATE):
        raise failed(program.problem, problem.status, "cvxpy")

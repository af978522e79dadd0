"""An oracle: the whole LP in HiGHS, in equilibrated numbers, and its duals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
import scipy.sparse as sp

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.objective import MaxMin, MaxSum
from tests.solve.exact import Duals, admissible, bases, floors, has_part

RESCALINGS_MAX = 8
OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
    "small_matrix_value": 1e-12,
}


@dataclass(frozen=True, eq=False)
class Optimum:
    """The result of HiGHS; `status` is "Optimal" if it is certain."""

    status: str
    value: float
    duals: Duals
    share: Floats  # (C, T) shares at which HiGHS has that value, up to its tolerances


def optimum(problem: AllocationProblem, objective: MaxMin | MaxSum) -> Optimum:
    """The optimum over the jobs that can run, at least one."""
    return _level(problem, objective) if isinstance(objective, MaxMin) else _sum(problem, objective)


def _level(problem: AllocationProblem, objective: MaxMin) -> Optimum:
    """Solves again with the level as its unit if that is far from 1: HiGHS's tolerances are absolute."""
    rate, time, load, best = _rows(problem)
    part = np.flatnonzero(has_part(problem, objective))
    floored = np.flatnonzero(floors(problem, objective) > 0)
    least = floors(problem, objective)[floored] / best[floored]
    base = bases(problem, objective)[part] / best[part]
    values = objective.scale[part] * best[part]
    J, T, E = problem.job_count, load.shape[0], rate.shape[1]
    unit = float(values.min())
    for _ in range(RESCALINGS_MAX):
        matrix = sp.block_array(
            [[rate[part], -sp.csr_array((unit / values)[:, None])], [sp.vstack([rate[floored], time, load]), None]]
        )
        lower = np.concatenate([base, least, np.full(J + T, -np.inf)])
        upper = np.concatenate([np.full(len(part) + len(floored), np.inf), np.ones(J + T)])
        status, x, dual = _highs(matrix, np.append(np.zeros(E), -1.0), lower, upper)
        if status != "Optimal" or 0.1 <= x[E] <= 10.0 or x[E] <= 0:
            break
        unit *= float(x[E])
    duals = _duals(problem, best, dual, part, floored, 1.0)
    return Optimum(status, float(x[E]) * unit, duals, _shares(problem, x[:E]))


def _sum(problem: AllocationProblem, objective: MaxSum) -> Optimum:
    rate, time, load, best = _rows(problem)
    floored = np.flatnonzero(floors(problem, objective) > 0)
    least = floors(problem, objective)[floored] / best[floored]
    worth = objective.gpu_type_worth if len(objective.gpu_type_worth) else np.ones(len(problem.gpu_types))
    gain = (rate.T @ (objective.gain * best)) * worth[np.nonzero(admissible(problem))[1]]
    unit = float(gain.max(initial=0.0)) or 1.0
    J, T = problem.job_count, load.shape[0]
    lower = np.concatenate([least, np.full(J + T, -np.inf)])
    upper = np.concatenate([np.full(len(floored), np.inf), np.ones(J + T)])
    status, x, dual = _highs(sp.vstack([rate[floored], time, load]), -gain / unit, lower, upper)
    duals = _duals(problem, best, dual, np.zeros(0, dtype=np.int64), floored, unit)
    return Optimum(status, float(gain @ x), duals, _shares(problem, x))


def _shares(problem: AllocationProblem, entries: Floats) -> Floats:
    """Shares (C, T) from those of admissible entries, scaled into every constraint."""
    share: Floats = np.zeros(problem.fits.shape)
    share[np.nonzero(admissible(problem))] = np.maximum(entries, 0.0)
    time = np.bincount(problem.member_job, share.sum(axis=1)[problem.member_configuration], problem.job_count)
    used = np.einsum("cr,ct->tr", problem.demand, share) / np.maximum(problem.capacity, 1)
    return np.asarray(share / max(1.0, time.max(initial=0.0), used.max(initial=0.0)))


def _rows(problem: AllocationProblem) -> tuple[Any, Any, Any, Floats]:
    """Rates in units of the best (J, E), time (J, E) and loads (R T, E) of admissible entries, and best rates (J,)."""
    here = admissible(problem)
    best = np.where(problem.can_run, np.where(here.any(axis=0), problem.rate_alone_steps_per_s, 0.0).max(axis=1), 1.0)
    best = np.where(best > 0, best, 1.0)
    configuration, gpu_type = np.nonzero(here)
    index = np.full(here.shape, -1)
    index[configuration, gpu_type] = np.arange(len(configuration))
    member, t = np.nonzero(here[problem.member_configuration])
    entry, job = index[problem.member_configuration[member], t], problem.member_job[member]
    J, T, E = problem.job_count, len(problem.gpu_types), len(configuration)
    R = problem.capacity.shape[1]
    amount = np.maximum(problem.capacity, 1)[gpu_type]  # (E, R) thousandths; nothing uses what there is not
    load = (problem.demand[configuration] / amount).T.ravel()
    row = (np.arange(R)[:, None] * T + gpu_type).ravel()
    rates = problem.member_rate_steps_per_s[member, t] / best[job]
    return (
        sp.csr_array((rates, (job, entry)), shape=(J, E)),
        sp.csr_array((np.ones(len(entry)), (job, entry)), shape=(J, E)),
        sp.csr_array((load, (row, np.tile(np.arange(E), R))), shape=(R * T, E)),
        best,
    )


def _highs(matrix: Any, cost: Floats, lower: Floats, upper: Floats) -> tuple[str, Floats, Floats]:
    columns = sp.csc_array(matrix)
    columns.eliminate_zeros()
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = columns.shape
    model.col_cost_, model.col_lower_ = cost, np.zeros(len(cost))
    model.col_upper_ = np.full(len(cost), highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = lower, upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = columns.indptr.astype(np.int32)
    model.a_matrix_.index_ = columns.indices.astype(np.int32)
    model.a_matrix_.value_ = columns.data
    highs = highspy.Highs()
    for name, value in OPTIONS.items():
        highs.setOptionValue(name, value)
    highs.passModel(model)
    highs.run()
    solution = highs.getSolution()
    return highs.modelStatusToString(highs.getModelStatus()), np.array(solution.col_value), np.array(solution.row_dual)


def _duals(problem: AllocationProblem, best: Floats, dual: Floats, part: Any, floored: Any, unit: float) -> Duals:
    """Converts the duals of rows in the order: levels, floors, time, loads."""
    J, T = problem.job_count, problem.capacity.size
    weight, floor = np.zeros(J), np.zeros(J)
    weight[part] = dual[: len(part)] * unit / best[part]
    floor[floored] = dual[len(part) : len(part) + len(floored)] * unit / best[floored]
    amount = problem.capacity.T.ravel() / 1000
    return Duals(weight, floor, -dual[-J - T : -T] * unit, -dual[-T:] * unit / np.where(amount > 0, amount, 1.0))

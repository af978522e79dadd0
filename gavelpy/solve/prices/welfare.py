"""The highest weighted sum of logarithms of rates for many jobs that run alone, by prices: the exact step.

Near prices are those that the `Solver` kept, or those of a few iterations of the interior point. Newton's method finds
the structure of the optimum from there (welfare_kernels.py): the modes of every job, and the jobs with three of them.
The structure and prices rounded to 22 bits determine the answer, so its bytes do not depend on where the search began.
If the structure is not unique, or is not found, there is no answer, and the interior point continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import NOISE, Answer
from gavelpy.solve.interior import Form, SumLog, optimum
from gavelpy.solve.objective import MaxSumLog
from gavelpy.solve.prices.certified import certificate_of
from gavelpy.solve.prices.newton import Point
from gavelpy.solve.prices.table import Jobs, Table, jobs_of
from gavelpy.solve.program import best_rate_steps_per_s
from gavelpy.solve.solver import NUMPY_ROWS_MAX, Solver

KIND = "welfare"  # of the prices that are kept
_NEAR = (1e-2, 1e-6)  # gaps and residuals of the interior points from which exact steps start
_FREE = 1e-7  # of the highest price: a type with a lower one is free
_PRICE_UNITS = 2.0**22
_BETWEEN = 1e-5  # of a unit: prices of two searches differ by less
_KINK = 1e-9


def most_welfare(problem: AllocationProblem, objective: MaxSumLog, solver: Solver) -> Answer | None:
    """The best certified shares; None if there are few jobs, if some cannot run, or if the optimum is not found."""
    if problem.job_count <= NUMPY_ROWS_MAX or not problem.is_plain or objective.rate_floor_steps_per_s.any():
        return None
    best = best_rate_steps_per_s(problem)
    if not best.min() > 0:
        return None
    jobs = jobs_of(problem, objective.weight / best, np.zeros(len(best)))
    if jobs.types is not None or len(jobs.value) <= NUMPY_ROWS_MAX:
        return None
    weight = objective.weight if jobs.classes is None else objective.weight[jobs.classes.representative]
    key = (KIND, len(problem.gpu_types))
    for price in _starts(jobs.table, weight, solver.points.get(key)):
        found = _exact(jobs.table, weight, price)
        if found is None:
            continue
        if not found.is_unique:
            return None
        solver.points[key] = Point(found.price, 0.0)
        return _proved(jobs, objective, found)
    return None


@dataclass(frozen=True, eq=False)
class _Optimum:
    """The optimum of a structure."""

    time: Floats  # (K, T)
    slope: Floats  # (K,) weight over rate
    price: Floats  # (T,)
    is_unique: bool


def _starts(table: Table, weight: Floats, kept: Point | None) -> Iterator[Floats]:
    """Prices that are kept, and prices by the interior point, with zeros."""
    if kept is not None:
        yield kept.price
    form = Form(table.rate, table.gpus, table.count, table.gpu_counts, SumLog(weight))
    for near in _NEAR:
        price = optimum(form, near, residual_max=near).prices
        yield np.where(price > _FREE * price.max(), price, 0.0)


def _exact(table: Table, weight: Floats, near: Floats) -> _Optimum | None:
    """The optimum near these prices; None if it is not found."""
    from gavelpy.solve.prices import welfare_kernels, welfare_search

    (K, T), price = table.rate.shape, near.copy()
    low, high = np.empty((2, K), np.int64)
    ties = np.zeros((2 * T, 2), np.int64)
    given = (table.rate, table.gpus.copy(), table.count.copy(), weight.copy(), table.gpu_counts.copy())
    end, ties_count = welfare_search.most_welfare(*given, price, low, high, ties)
    if end != welfare_search.FOUND:
        return None
    mantissa, exponent = np.frexp(price)
    if (np.abs(mantissa * _PRICE_UNITS % 1.0 - 0.5) < _BETWEEN).any():
        return None
    price = np.ldexp(np.rint(mantissa * _PRICE_UNITS) / _PRICE_UNITS, exponent)
    order = np.argsort(ties[:ties_count, 0], kind="stable")  # the order of the search is in no answer
    ties = ties[order]
    time, slope = np.empty((K, T)), np.empty(K)
    is_unique = welfare_kernels.settled(*given, price, low, high, ties, ties_count, _KINK, time, slope)
    return _Optimum(time, slope, price, bool(is_unique))


def _proved(jobs: Jobs, objective: MaxSumLog, found: _Optimum) -> Answer:
    """The answer with its certificate, by the tangent at its rates: see concave.py."""
    from gavelpy.solve.prices.numba_kernels import proof

    problem, best, none = jobs.problem, jobs.best_steps_per_s, np.zeros(0)
    time, slope, price = jobs.per_job(found.time), jobs.per_job(found.slope), found.price
    gain, weight = slope / best, objective.weight
    t = proof(
        problem.member_rate_steps_per_s, problem.gpus_occupied, time, np.zeros(len(best)), gain, np.ones(len(price)),
        price, none, none, best, NOISE,
    )  # fmt: skip
    most, _ = certificate_of(t, price, problem.gpu_counts, is_level=False, path="prices")
    value = float(weight @ np.log(weight / gain))
    bound = value - float(weight.sum()) + most.bound
    gap = abs(bound - value) / max(1.0, abs(value))
    path = "prices" if jobs.classes is None else "classes+prices"
    return Answer(time, price, Certificate(value, bound, gap, most.violation, path, solve_s=0.0))

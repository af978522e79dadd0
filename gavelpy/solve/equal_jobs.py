"""Problems of many jobs in few classes of equal ones, solved with one row for each class.

A row stands for its n jobs: it needs their GPUs, and its rate and scale are those of one of them, in units of its best
rate. Feasible shares of the rows are feasible shares of all jobs that are equal within classes, with the same level,
and the other way round; so are the duals. Hence the bound of the smaller problem holds for the whole one, up to the
digits in which jobs of a class may differ. Some optimum is equal within classes: average any over their permutations.

The other algorithms also solve one row for each class, but repair and certify the shares of all jobs. With 10,000 jobs
in 60 classes that takes longer than everything here.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import reduce

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import GAP_MAX, Answer
from gavelpy.solve.linear import best_linear
from gavelpy.solve.objective import MaxMin, Objective
from gavelpy.solve.prices.table import any_classes_of
from gavelpy.solve.program import MANTISSA_BITS, Classes
from gavelpy.solve.solver import Solver

JOBS_MIN = 1024  # below, there is little to save
CLASSES_MAX = 512
JOBS_PER_CLASS_MIN = 8  # on average
_SAMPLE, _DISTINCT = 256, 0.5  # jobs that are compared first, and the part of different ones that ends the attempt
_UNEQUAL = 2.0 ** (3 - MANTISSA_BITS)  # relative: values and rates of a class differ by half a unit each, at both ends


def best_of_equal_jobs(problem: AllocationProblem, objective: Objective, solver: Solver) -> Answer | None:
    """The best shares, certified; None if there are not enough equal jobs, or for another kind of problem."""
    if not isinstance(objective, MaxMin) or problem.job_count < JOBS_MIN or not problem.is_plain:
        return None
    if len(objective.rate_floor_steps_per_s) or len(objective.base_steps_per_s) or len(objective.count):
        return None
    if not (objective.scale.all() and problem.capacity.all()):
        return None
    sample = _figures(problem, objective.scale, slice(None, None, problem.job_count // _SAMPLE))[:_SAMPLE]
    if len(any_classes_of(sample).count) > _DISTINCT * _SAMPLE:
        return None
    classes = any_classes_of(_figures(problem, objective.scale, slice(None)))
    if len(classes.count) > min(CLASSES_MAX, problem.job_count // JOBS_PER_CLASS_MIN):
        return None
    figures = _figures(problem, objective.scale, classes.representative)
    rate, value = figures[:, :-2], figures[:, -1]
    runs = value > 0
    if not runs.any():
        return None
    scale, count = np.where(runs, value, 1.0), classes.count.astype(np.float64)
    found = best_linear(one_row_each(problem, classes, rate), MaxMin(scale, count=count), solver)
    share, c = found.share[classes.of_job], found.certificate
    reached: Floats = objective.scale * np.einsum("jt,jt->j", problem.member_rate_steps_per_s, share)
    level = float(reached[runs[classes.of_job]].min())
    bound = c.bound * (1.0 + _UNEQUAL)
    gap = 0.0 if bound == level else abs(bound - level) / level if level else np.inf
    if c.warning or gap > GAP_MAX:
        return None
    certificate = replace(c, objective=level, bound=bound, gap=gap, path="classes+" + c.path)
    return replace(found, share=share, certificate=certificate)


def one_row_each(problem: AllocationProblem, classes: Classes, rate: Floats) -> AllocationProblem:
    """The plain problem with one row for each class, which needs the GPUs of all its jobs; `rate` (K, T) of each."""
    rows, count = classes.representative, classes.count
    K, J = len(rows), problem.job_count
    columns = {field.name: getattr(problem, field.name) for field in fields(problem)}
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and len(values) == J and name not in ("capacity", "price_usd_per_gpu_h"):
            columns[name] = values[rows]
    columns |= {
        "job_ids": tuple([problem.job_ids[row] for row in rows.tolist()]),
        "demand": problem.demand[rows] * count[:, None],
        "gpus_asked": problem.gpus_asked[rows] * count,
        "member_configuration": np.arange(K),
        "member_job": np.arange(K),
        "member_rate_steps_per_s": rate,
    }
    return AllocationProblem.of_known(**columns)


def _figures(problem: AllocationProblem, scale: Floats, rows: slice | Ints) -> Floats:
    """Rates in units of the job's best rate, GPUs, and the value of the best rate, of these jobs, (N, T + 2)."""
    rates = problem.member_rate_steps_per_s[rows]
    best: Floats = reduce(np.maximum, rates.T)
    in_own_units = rates / np.where(best > 0, best, 1.0)[:, None]
    return np.column_stack([in_own_units, problem.demand[rows, 0].astype(np.float64), scale[rows] * best])

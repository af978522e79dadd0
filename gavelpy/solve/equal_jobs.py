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

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import GAP_MAX, Answer
from gavelpy.solve.linear import best_linear
from gavelpy.solve.objective import MaxMin, Objective
from gavelpy.solve.prices.table import any_classes_of
from gavelpy.solve.program import MANTISSA_BITS, Classes, best_rate_steps_per_s, classes_of
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
    best = best_rate_steps_per_s(problem)
    rate, value = problem.member_rate_steps_per_s / np.where(best > 0, best, 1.0)[:, None], objective.scale * best
    classes = _classes(rate, problem.demand[:, 0].astype(np.float64), value)
    if classes is None or not best.any():
        return None
    rows, count = classes.representative, classes.count
    scale = np.where(best[rows] > 0, value[rows], 1.0)
    smaller = one_row_each(problem, classes, rate)
    found = best_linear(smaller, MaxMin(scale, count=count.astype(np.float64)), solver)
    share, c = found.share[classes.of_job], found.certificate
    reached: Floats = objective.scale * np.einsum("jt,jt->j", problem.member_rate_steps_per_s, share)
    level = float(reached[best > 0].min())
    bound = c.bound * (1.0 + _UNEQUAL)
    gap = 0.0 if bound == level else abs(bound - level) / level if level else np.inf
    if c.warning or gap > GAP_MAX:
        return None
    certificate = replace(c, objective=level, bound=bound, gap=gap, path="classes+" + c.path)
    return replace(found, share=share, certificate=certificate)


def one_row_each(problem: AllocationProblem, classes: Classes, rate: Floats) -> AllocationProblem:
    """The plain problem with one row for each class, which needs the GPUs of all its jobs; `rate` (J, T) of each."""
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
        "member_rate_steps_per_s": rate[rows],
    }
    return AllocationProblem.of_known(**columns)


def _classes(*figures: Floats) -> Classes | None:
    """The classes of jobs with equal figures, (J,) or (J, T) each; None if they are too many."""
    jobs = len(figures[0])
    sample = np.column_stack([figure[:: jobs // _SAMPLE] for figure in figures])
    if len(classes_of(sample[:_SAMPLE]).count) > _DISTINCT * _SAMPLE:
        return None
    classes = any_classes_of(np.column_stack(figures))
    return classes if len(classes.count) <= min(CLASSES_MAX, jobs // JOBS_PER_CLASS_MIN) else None

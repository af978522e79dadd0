"""Linear objectives as models of HiGHS, from numpy arrays straight to its own.

HiGHS's tolerances are absolute, so the model is equilibrated here (program.py, and a level of about 1 here) and its own
scaling is off: on these models that alone is 10 to 50 times faster. A second run, from the basis of the first and among
its optima, spends what is left on the sum of scaled rates (the rule for ties).

Where the optimum has a kink in the number of GPUs (one GPU a job, say), prices are many: what the last GPU earned to
what the next one would. The first run has a trace more GPUs than there are, so that only the latter are left; the
second run has those there are. Floors may need the very last GPU: there the first run has no more than there are, and
a run between the two has the trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.certificate import Candidate, Duals
from gavelpy.solve.farkas import FloorsRefused
from gavelpy.solve.highs import Effort, Model, Optimum, Run
from gavelpy.solve.program import Program

if TYPE_CHECKING:
    from gavelpy.solve.solver import Solver

TRACE = 2e-9  # of a type's GPUs; above HiGHS's tolerance
LEVEL_SLACK = 1e-10  # part of the level that is given up where ties are not resolved on the face of optima
_UNSEEN, _SEEN = 1e-9, 1e-6  # relative gains: HiGHS's tolerance with a margin, and well above it
RESCALE_ABOVE = 1e4  # a level so far from the guess is solved again with itself as the guess


def max_min(program: Program, solver: Solver, effort: Effort) -> Candidate:
    """Maximise the least value over the jobs, then the sum of values. Raises SolverFailed when HiGHS does."""
    level = program.even_level
    answer = _max_min_near(program, solver, effort, level)
    if abs(answer.level) > RESCALE_ABOVE * level:  # the guess can be had, but bases may be out of reach by far
        answer = _max_min_near(program, solver, effort, abs(answer.level))
    return answer


def max_sum(program: Program, solver: Solver, effort: Effort) -> Candidate:
    """Maximise the sum of values. Raises SolverFailed when HiGHS does."""
    floored = program.floor > 0
    model = model_of(program, np.flatnonzero(floored), program.floor[floored], np.zeros(0))
    gains = entry_values(program) * program.type_worth[program.entry_type]
    unit = gains.max(initial=0.0) or 1.0
    run = Run(program.problem, solver, effort, model)
    first, row_dual = _first(program, run, effort, model, -gains / unit, np.zeros(0, dtype=np.int64))
    final = run.on_face(first, -_seen(gains / unit)) if effort.on_face else first
    duals = duals_of(program, row_dual, np.zeros(0, dtype=np.int64), floored, unit=unit)
    return Candidate(program.shares(final.column), duals, level=0.0)


def _seen(gain: Floats) -> Floats:
    """Gains relative to the highest, with those that HiGHS cannot tell from none lifted to where it can.

    Among optima that costs nothing, and without it a job of few steps/s would idle next to free GPUs.
    """
    unseen = (gain > 0) & (gain < _UNSEEN)
    return np.where((gain > 0) & (gain < _SEEN), _SEEN, gain) if unseen.any() else gain


def _max_min_near(program: Program, solver: Solver, effort: Effort, level: float) -> Candidate:
    E, leveled, floored = len(program.entry_type), np.flatnonzero(program.value > 0), program.floor > 0
    rated = np.concatenate([leveled, np.flatnonzero(floored)])
    lower = np.concatenate([program.base[leveled], program.floor[floored]])
    model = model_of(program, rated, lower, level / program.value[leveled])
    model.column_lower[E] = -(program.value * program.base).max() / level  # where nobody runs
    run = Run(program.problem, solver, effort, model)
    cost = np.zeros(E + 1)
    cost[E] = -float(len(leveled))  # so that their duals are about 1
    first, row_dual = _first(program, run, effort, model, cost, leveled)
    gains = entry_values(program)
    ties = np.append(-gains / gains.max(), 0.0)
    reached = first.column[E] - LEVEL_SLACK * abs(first.column[E])
    final = run.on_face(first, ties) if effort.on_face else run.above(ties, E, reached)
    duals = duals_of(program, row_dual, leveled, floored, unit=1.0)
    return Candidate(program.shares(final.column[:E]), duals, float(final.column[E]) * level)


def _first(
    program: Program, run: Run, effort: Effort, model: Model, cost: Floats, leveled: Ints
) -> tuple[Optimum, Floats]:
    """An optimum, and the rows' duals with a trace more GPUs. Raises FloorsRefused where HiGHS has a ray."""
    more = model.row_upper.copy()
    more[-len(program.problem.gpu_types) :] += TRACE if effort.on_face else 0.0
    try:
        first = run.solve(cost, model.row_upper if program.floor.any() else more)
    except SolverFailed as failure:
        if run.row_ray is None:
            raise
        ray = duals_of(program, run.row_ray, leveled, program.floor > 0, unit=1.0)
        raise FloorsRefused(program.problem, failure.status, ray) from failure
    priced = run.again(more) if effort.on_face and program.floor.any() else first
    return first, priced.row_dual


def model_of(program: Program, rated: Ints, rated_lower: Floats, level_weight: Floats) -> Model:
    """Rows: the rates of the classes `rated` (R,), the first of which hold the level; time budgets; capacities.

    Columns: entries, and the level if there is one.
    """
    K, T = len(program.value), len(program.problem.gpu_types)
    L, R = len(level_weight), len(rated)
    start, row, value = matrix_of(program, rated[:L], rated[L:])
    if L:
        start, row = np.append(start, start[-1] + L), np.concatenate([row, np.arange(L)])
        value = np.concatenate([value, -level_weight])
    return Model(
        start=start.astype(np.int32),
        row=row.astype(np.int32),
        value=value,
        column_lower=np.zeros(len(start) - 1),
        row_lower=np.concatenate([rated_lower, np.full(K + T, -np.inf)]),
        row_upper=np.concatenate([np.full(R, np.inf), np.ones(K + T)]),
    )


def matrix_of(program: Program, leveled: Ints, floored: Ints) -> tuple[Ints, Ints, Floats]:
    """Entries by column (starts, rows, values); rows: rates of `leveled`, of `floored`, time budgets, capacities."""
    K, E = len(program.value), len(program.entry_type)
    R = len(leveled) + len(floored)
    row, column, value = [program.member_class + R], [program.member_entry], [program.member_time]
    for first, classes in ((0, leveled), (len(leveled), floored)):
        row_of_class = np.full(K, -1)
        row_of_class[classes] = first + np.arange(len(classes))
        rows = row_of_class[program.member_class]
        here = (rows >= 0) & (program.member_rate > 0)
        row.append(rows[here])
        column.append(program.member_entry[here])
        value.append(program.member_rate[here])
    row.append(R + K + program.entry_type)
    column.append(np.arange(E))
    value.append(program.entry_load)
    columns = np.concatenate(column)
    order = np.argsort(columns, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=E))])
    return start, np.concatenate(row)[order], np.concatenate(value)[order]


def entry_values(program: Program) -> Floats:
    """Objective units of each entry at share 1, over all members of its class, (E,)."""
    per_member = program.member_rate * (program.value * program.classes.count)[program.member_class]
    return np.bincount(program.member_entry, weights=per_member, minlength=len(program.entry_type)).astype(np.float64)


def duals_of(program: Program, row_dual: Floats, leveled: Ints, floored: Bools, *, unit: float) -> Duals:
    """Duals by job and type in objective units (up to one common factor where the objective is a level)."""
    K, T, levels = len(program.value), len(program.problem.gpu_types), len(leveled)
    rated = np.maximum(row_dual, 0.0) * unit
    count, best = program.classes.count, program.best_rate_steps_per_s
    per_step_per_s = 1.0 / np.where(best > 0, best, 1.0)
    floor = np.zeros(K)
    floor[floored] = rated[levels : levels + int(floored.sum())]
    level = np.zeros(K)
    level[leveled] = rated[:levels]
    budget, capacity = -row_dual[-K - T : -T] * unit, -row_dual[-T:] * unit
    gpus = program.problem.gpu_counts
    return Duals(
        level=program.per_job(level / count) * per_step_per_s,
        floor=program.per_job(floor / count) * per_step_per_s,
        budget=program.per_job(np.maximum(budget, 0.0) / count),
        price=np.maximum(capacity, 0.0) / np.where(gpus > 0, gpus, 1.0),
    )

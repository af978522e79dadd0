"""Max-min and max-sum for more than 512 different jobs with several sizes, or several resources, by prices.

Prices of the rows (a resource of a type) give every mode of a job a cost, so each job's best answer is a walk along the
lower hull of its modes. The best mix of such answers is the optimum (search.py). GPUs that a level leaves unused go to
the jobs that use nothing else, for the highest sum of values: the rule for ties. The certificate is computed from the
problem's own arrays by certificate.py's rules.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import LEAST_PROMISE, NOISE, Answer, failed, floors_of, prices_of
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.sizes.problem_kernels import proof_of
from gavelpy.solve.sizes.search import best_of_goal
from gavelpy.solve.sizes.table import Best, ModeGoal, Modes, ModeTable, ModeTimes, is_free, mode_table, used_by
from gavelpy.solve.solver import NUMPY_ROWS_MAX, Solver

_LIMIT = 1e-12  # relative: a level this close to its limit has reached it
_LEFT = 1e-9  # part of a row that is worth giving to a job
_FIRST_LEVEL = 0.5  # of that of an even split


def answers(problem: AllocationProblem, objective: LinearObjective) -> bool:
    """Whether this rung applies to the problem."""
    if problem.is_plain or problem.job_count <= NUMPY_ROWS_MAX or not problem.runs_apart:
        return False
    match objective:
        case MaxMin(scale=scale):
            plain = not (objective.rate_floor_steps_per_s.any() or objective.base_steps_per_s.any())
            return plain and bool((scale > 0).all())
        case MaxSum(gpu_type_worth=worth):
            return not len(worth) and bool(objective.gain.any())


def best_by_modes(problem: AllocationProblem, objective: LinearObjective, solver: Solver) -> Answer | None:  # noqa: ARG001 a rung's
    """The best certified shares, or None if there are few classes. Raises SolverFailed if no prices are found."""
    values = objective.scale if isinstance(objective, MaxMin) else objective.gain
    table = mode_table(problem, values, floors_of(objective, problem.job_count))
    if len(table.value) <= NUMPY_ROWS_MAX:
        return None
    if isinstance(objective, MaxMin):
        best = _highest_level(table.modes, table.value)
    else:
        best = _highest_sum(table.modes, table.value / table.value.max(), table.floor)
        best = best and replace(
            best, price=best.price * table.value.max(), steepness=best.steepness * table.value.max()
        )
    if best is None:
        raise failed(problem, "not found", "prices of rows")
    return _proved(table, objective, best)


def _highest_level(modes: Modes, value: Floats) -> Best | None:
    limit, P = float(value.min()), modes.row_count
    zero = np.zeros(len(value))
    level = _FIRST_LEVEL * P / float((modes.count * modes.least_load / value).sum() or 1.0)
    level = min(level, limit)
    best = best_of_goal(modes, ModeGoal(zero, 1.0 / value, zero, limit), np.full(P, level / P), level)
    if best is None:
        return None
    if best.level >= limit * (1 - _LIMIT):
        rest = _highest_sum(modes, value / value.max(), np.minimum(limit / value, 1.0))
        slowest = np.zeros(len(value))
        slowest[int(np.argmin(value))] = 1.0
        return rest and Best(rest.times, np.zeros(P), limit, slowest)
    return _with_the_rest_spent(modes, value, best)


def _highest_sum(modes: Modes, money: Floats, need: Floats) -> Best | None:
    P, zero = modes.row_count, np.zeros(len(money))
    goal = ModeGoal(need, zero, money)
    total = float((modes.count * money).sum()) / max(1.0, float((modes.count[:, None] * modes.load[:, 0]).sum()))
    return best_of_goal(modes, goal, np.full(P, total / P), 0.0)


def _with_the_rest_spent(modes: Modes, value: Floats, best: Best) -> Best:
    """Gives what is left of rows without a price to jobs that use no other rows; their needs stay met."""
    if (best.price > 0).all():
        return best
    free, time = is_free(modes, best.price), best.times.whole
    rows = np.flatnonzero((np.where(free, 0.0, time).sum(axis=1) <= 0) & free.any(axis=1))
    if not len(rows):
        return best
    some = modes.some(rows)
    left = np.maximum(1.0 - used_by(modes, time) + used_by(some, time[rows]), 0.0)
    possible = free[rows] & ~((some.load > 0) & (left < _LEFT)[modes.rows]).any(axis=2)
    possible |= time[rows] > 0
    part = np.where(left > 0, left, 1.0)[modes.rows]
    load = np.ascontiguousarray(some.load / part)
    some = replace(some, rate=np.where(possible, some.rate, 0.0), load=load)
    had = np.minimum(best.level / value[rows], (some.rate * time[rows]).sum(axis=1))
    rest = _highest_sum(some, value[rows] / value[rows].max(), had)
    if rest is None:
        return best
    time[rows] = rest.times.whole
    return replace(best, times=ModeTimes.of(time))


def _proved(table: ModeTable, objective: LinearObjective, best: Best) -> Answer:
    """Shares with their certificate, as in certificate.py: every job has the budget that its modes need."""
    problem, J = table.problem, table.problem.job_count
    share, floors, amount = table.shares(best.times, NOISE), floors_of(objective, J), problem.row_capacity
    price = best.price / np.where(amount > 0, amount, 1.0)
    fastest = table.best_steps_per_s
    weight = np.divide(table.per_job(best.steepness), fastest, out=np.zeros(J), where=fastest > 0)
    worth = weight if isinstance(objective, MaxMin) else objective.gain + weight
    rates, budget = np.empty(J), np.empty(J)
    used, longest = proof_of(
        table.member, problem.member_configuration, problem.member_rate_steps_per_s, problem.fits, problem.occupied,
        amount, share, price, worth, rates, budget,
    )  # fmt: skip
    if isinstance(objective, MaxMin):
        promised, unit = 0.0, float((weight / objective.scale).sum())
        value = float((objective.scale * rates)[table.jobs].min())
    else:
        promised, unit, value = float(weight @ floors), 1.0, float(objective.gain @ rates)
    bound = float(budget.sum() + price @ amount - promised) / unit if unit > 0 else np.inf
    gap = 0.0 if bound == value else abs(bound - value) / abs(value) if value else np.inf
    promise = np.maximum(floors, LEAST_PROMISE * fastest)
    violation = max(
        0.0,
        float(longest - 1.0),
        float(((used - amount) / np.where(amount > 0, amount, 1.0)).max(initial=0.0)),
        float(((floors - rates) / np.where(promise > 0, promise, 1.0)).max(initial=0.0)),
    )
    path = "classes+prices" if len(table.value) < len(table.jobs) else "prices"
    certificate = Certificate(value, bound, gap, violation, path, solve_s=0.0)
    of_types = np.broadcast_to(worth[:, None], (J, len(problem.gpu_types)))
    price = prices_of(problem, of_types, price, budget)
    return Answer(share, price / (unit if unit > 0 else np.inf), certificate)

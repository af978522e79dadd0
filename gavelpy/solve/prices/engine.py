"""Linear objectives by prices: the rung for many distinct jobs that run alone.

Newton's method brings prices near the best ones (newton.py), restricted programs make them exact (crossover.py), and
what a free type has left is spent on the sum of scaled rates (the rule for ties). Nothing here is believed: proof.py
computes objective and bound again from the problem's own figures.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import Answer
from gavelpy.solve.certificate import failed, floors_of
from gavelpy.solve.lp import TRACE
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.prices.crossover import exact
from gavelpy.solve.prices.dual import PRICE_FLOOR, Dual, Point, kernels
from gavelpy.solve.prices.jobs import jobs_of
from gavelpy.solve.prices.needs import Fixed, Proportional
from gavelpy.solve.prices.newton import near
from gavelpy.solve.prices.proof import proved
from gavelpy.solve.prices.table import Table
from gavelpy.solve.prices.vertex import Mix, as_left, read_off
from gavelpy.solve.solver import Solver

CLASSES_MIN = 64  # below, HiGHS on the whole program is as quick
AT_THE_LIMIT = 1e-12
_SPENT = 1e-12  # part of a type's GPUs that is nothing
_FIRST_LEVEL = 0.7  # of what an even split would give a job of median value at its best rate
_NEXT_TO_NOTHING = 1e-300  # a price that only breaks ties
_RECALLED_ATTEMPTS = 3


def answers(problem: AllocationProblem, objective: LinearObjective) -> bool:
    """Whether this rung is for such a problem."""
    if not problem.runs_alone or problem.job_count < CLASSES_MIN:
        return False
    match objective:
        case MaxMin():
            plain = not (objective.rate_floor_steps_per_s.any() or objective.base_steps_per_s.any())
            return plain and bool((objective.scale > 0).all())
        case MaxSum():
            return True


def best_by_prices(problem: AllocationProblem, objective: LinearObjective, solver: Solver) -> Answer | None:
    """The best shares with their proof, or None where classes are few. See `answers`.

    Raises SolverFailed where the prices are not found.
    """
    floors = floors_of(objective, problem.job_count)
    values = objective.scale if isinstance(objective, MaxMin) else objective.gain
    jobs = jobs_of(problem, values, floors)
    if len(jobs.value) < CLASSES_MIN:
        return None
    table, floor = jobs.table, jobs.floor
    if isinstance(objective, MaxSum):
        gains = table.rate * jobs.value[:, None]
        if len(objective.gpu_type_worth):
            gains *= objective.gpu_type_worth if jobs.types is None else objective.gpu_type_worth[jobs.types]
        table = replace(table, gain=gains)
    mix = max_sum(table, floor, solver) if len(table.gain) else max_min(table, jobs.value, solver)
    if mix is not None and mix.price.any() and not mix.is_unique:  # prices may be many: what the next GPU is worth
        more = _with_a_trace_more(
            replace(table, gpu_counts=table.gpu_counts * (1 + TRACE)), jobs.value, floor, mix, solver
        )
        mix = more and replace(mix, price=more.price, steepness=more.steepness)
    if mix is None:
        raise failed(problem, "not found", "prices")
    return proved(jobs, objective, mix.time, mix.steepness, mix.price)


def _with_a_trace_more(table: Table, value: Floats, floor: Floats, mix: Mix, solver: Solver) -> Mix | None:
    """The duals with so few more GPUs that nothing else changes, from those without."""
    price = np.maximum(mix.price, PRICE_FLOOR * mix.price.max())
    if len(table.gain):
        dual = Dual(table, Fixed(floor))
    else:
        dual = Dual(table, Proportional(1.0 / value), level_max=float(value.min()))
    vertex = exact(dual, Point(price, mix.level), solver)
    return None if vertex is None else as_left(table, vertex, vertex.level)


def max_min(table: Table, value: Floats, solver: Solver) -> Mix | None:
    """Times with the highest least value_k rate_k, and among those the highest sum."""
    limit = float(value.min())
    dual = Dual(table, Proportional(1.0 / value), level_max=limit)
    W = table.gpu_counts
    mix = _recalled(dual, "level", solver)
    if mix is None:
        median = float(np.median(value))
        start = Point(np.ones(len(W)), min(limit, _FIRST_LEVEL * median * W.sum() / table.load.sum()))
        found = near(dual, start)
        if found.bound >= limit * (1 - AT_THE_LIMIT):
            mix = _at_the_limit(table, value, limit, solver)
            if mix is not None:
                return mix
        mix = _found(dual, found, "level", solver)
        if mix is None:
            return None
        if mix.level > limit * (1 - AT_THE_LIMIT):
            return _at_the_limit(table, value, limit, solver)
    return with_the_rest_spent(table, value, mix.level / value, mix, solver)


def max_sum(table: Table, floor: Floats, solver: Solver, kind: str = "sum") -> Mix | None:
    """Times with the highest sum of gains that give every job its floor, (K,) in units of its best rate."""
    W = table.gpu_counts
    dual = Dual(table, Fixed(floor))
    mix = _recalled(dual, kind, solver)
    if mix is not None:
        return mix
    s = dual.swept(np.full(len(W), _NEXT_TO_NOTHING), 0.0)
    if (s.used <= W).all():
        time, steepness = kernels(len(floor)).settle(table, s.low, s.high, floor, np.zeros(len(W)))
        return Mix(time, steepness, np.zeros(len(W)), level=0.0, is_unique=False)
    per_gpu = table.gain.max(axis=1) / table.gpus
    return _found(dual, near(dual, Point(np.full(len(W), float(per_gpu.mean())), 0.0)), kind, solver)


def _recalled(dual: Dual, kind: str, solver: Solver) -> Mix | None:
    """The answer from the last prices of this kind, where it is the only one: so it says nothing of them."""
    point = solver.points.get((kind, dual.table.rate.shape[1]))
    if point is None:
        return None
    vertex = exact(dual, point, solver, attempts=_RECALLED_ATTEMPTS)
    if vertex is None or (dual.level_max is not None and vertex.level > dual.level_max * (1 - AT_THE_LIMIT)):
        return None
    mix = read_off(dual.table, vertex)
    if not mix.is_unique:
        return None
    solver.points[kind, len(mix.price)] = Point(vertex.price, mix.level, 0.0)
    return mix


def _found(dual: Dual, start: Point, kind: str, solver: Solver) -> Mix | None:
    vertex = exact(dual, start, solver)
    if vertex is None:
        return None
    solver.points[kind, len(vertex.price)] = Point(vertex.price, vertex.level, 0.0)
    return read_off(dual.table, vertex)


def _at_the_limit(table: Table, value: Floats, limit: float, solver: Solver) -> Mix | None:
    """The slowest job decides: it runs all the time, and its own time is all that has a price."""
    rest = _spent(table, value, np.minimum(limit / value, 1.0), table.gpu_counts, solver)
    if rest is None:
        return None
    slowest = np.zeros(len(value))
    slowest[int(np.argmin(value))] = 1.0
    return Mix(rest.time, slowest, np.zeros(len(table.gpu_counts)), limit, is_unique=False)


def with_the_rest_spent(table: Table, value: Floats, need: Floats, mix: Mix, solver: Solver) -> Mix | None:
    """What free types have left goes to the jobs that pay for nothing, for the highest sum of values: no need is lost.

    `value` (K,) is that of a job's best rate.
    """
    free = (mix.price <= 0) & (table.load @ mix.time < table.gpu_counts * (1 - _SPENT))
    rows = np.flatnonzero((mix.time[:, ~free] <= 0).all(axis=1) & (table.rate[:, free] > 0).any(axis=1))
    if not len(rows):
        return mix
    some = Table(
        np.ascontiguousarray(table.rate[rows][:, free]), table.gpus[rows], table.count[rows], table.gpu_counts[free],
        table.gain,
    )  # fmt: skip
    taken = table.load @ mix.time - some.load @ mix.time[rows]
    least = np.minimum(need[rows], (some.rate * mix.time[rows][:, free]).sum(axis=1))
    rest = _spent(some, value[rows], least, np.maximum(table.gpu_counts - taken, 0.0)[free], solver)
    if rest is None:
        return None
    time = mix.time.copy()
    time[np.ix_(rows, np.flatnonzero(free))] = rest.time
    return replace(mix, time=time)


def _spent(table: Table, value: Floats, need: Floats, gpu_counts: Floats, solver: Solver) -> Mix | None:
    gains = table.rate * (value / value.max())[:, None]
    return max_sum(replace(table, gain=gains, gpu_counts=gpu_counts), need, solver, kind="rest")
